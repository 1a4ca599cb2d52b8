"""LMDB files: their tree and records, read without the LMDB library."""
