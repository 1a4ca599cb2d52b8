"""Sets in object stores: byte ranges of them, or whole shards through a folder on this machine."""

from .urls import absolute, absolute_pattern, is_url, local_path

__all__ = ["absolute", "absolute_pattern", "is_url", "local_path"]
