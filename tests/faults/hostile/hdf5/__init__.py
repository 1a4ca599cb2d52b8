"""Hostile HDF5 files."""
