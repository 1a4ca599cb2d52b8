"""How samples lie in one HDF5 or LMDB set: ours, and layouts of others."""
