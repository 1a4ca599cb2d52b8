"""The layouts of one HDF5 or LMDB dataset: that of asyncreader, and those of others."""
