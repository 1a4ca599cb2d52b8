"""The ``asyncreader`` command, a function for each command: open, call the library, print."""
