"""Datasets in object stores: byte ranges, or whole shards through a folder on this machine."""
