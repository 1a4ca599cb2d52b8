"""Sets in object stores: byte ranges of them, or whole shards through a folder on this machine."""
