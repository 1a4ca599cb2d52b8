"""Hostile stores: a server on this machine, and what it answers."""
