"""Several files as one dataset."""
