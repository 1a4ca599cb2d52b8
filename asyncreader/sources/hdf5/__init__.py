"""HDF5 files: checked, then read by byte ranges without the HDF5 library."""
