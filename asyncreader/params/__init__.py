"""The parameters of a reader: each declared once, and checked once."""

from __future__ import annotations

from .families import Block, Crop, Lengths, Mix, Patch, Window
from .keywords import ReaderKeywords
from .parse import apart_from, given_params, parse_params, reading_params, snake_case
from .reader import (
    PARAMETERS,
    PATHS,
    READ_BY,
    SHOWN,
    Given,
    Order,
    Paths,
    ReaderParams,
    Run,
)

__all__ = [
    "PARAMETERS",
    "PATHS",
    "READ_BY",
    "SHOWN",
    "Block",
    "Crop",
    "Given",
    "Lengths",
    "Mix",
    "Order",
    "Patch",
    "Paths",
    "ReaderKeywords",
    "ReaderParams",
    "Run",
    "Window",
    "apart_from",
    "given_params",
    "parse_params",
    "reading_params",
    "snake_case",
]
