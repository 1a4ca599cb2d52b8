"""Several files as one set."""
