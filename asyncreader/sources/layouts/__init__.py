"""The layouts of one HDF5 or LMDB set: that of asyncreader, and those of others."""
