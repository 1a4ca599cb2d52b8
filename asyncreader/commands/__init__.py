"""The commands of ``asyncreader``, one room each: open, call the library, print."""
