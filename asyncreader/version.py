"""The version of asyncreader and its converters."""

__version__ = "0.1.0"
