"""Every kind of dataset as samples by number: ``open_source`` tells by content what it is."""

from __future__ import annotations

from ..pixels.rows import RowError, RowJob
from .base import SetFacts, Source, read_rows, read_stored
from .fields import OpenSet, SetIndex
from .inspector import Inspector
from .open import expand_paths, fields_of, open_reader_source, open_source, open_there, open_whole
from .request import Request
from .sets.combined import MixedSet, earlier_fingerprints, fingerprint
from .sniff import absolute, absolute_pattern, container_of, sniff

__all__ = [
    "Inspector",
    "MixedSet",
    "OpenSet",
    "Request",
    "RowError",
    "RowJob",
    "SetFacts",
    "SetIndex",
    "Source",
    "absolute",
    "absolute_pattern",
    "container_of",
    "earlier_fingerprints",
    "expand_paths",
    "fields_of",
    "fingerprint",
    "open_reader_source",
    "open_source",
    "open_there",
    "open_whole",
    "read_rows",
    "read_stored",
    "sniff",
]
