"""The ``asyncreader`` command, one file a command: open, call the library, print."""
