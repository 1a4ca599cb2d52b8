"""Sets in object stores: byte ranges of them, or whole shards through a folder on this machine."""

from .sets import fetched_shards, open_remote
from .urls import is_url, local_path

__all__ = ["fetched_shards", "is_url", "local_path", "open_remote"]
