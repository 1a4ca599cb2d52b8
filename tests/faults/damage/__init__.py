"""Damaged files: what is done to their bytes and their metadata, and what a reader makes of it."""
