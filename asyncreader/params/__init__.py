"""The parameters of a reader: each declared once, and checked once."""

from __future__ import annotations

from .parse import apart_from, given_params, parse_params, reading_params, snake_case
from .reader import PARAMETERS, PATHS, READ_BY, Given, Paths, ReaderKeywords, ReaderParams

__all__ = [
    "PARAMETERS",
    "PATHS",
    "READ_BY",
    "Given",
    "Paths",
    "ReaderKeywords",
    "ReaderParams",
    "apart_from",
    "given_params",
    "parse_params",
    "reading_params",
    "snake_case",
]
