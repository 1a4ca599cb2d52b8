"""A page about a set: what is found out (facts), and how it is shown (page)."""

from __future__ import annotations

from .facts import Facts, gather
from .page import page

__all__ = ["Facts", "gather", "page"]
