"""A page about a set: how it is looked at (looking), what is found (facts), its HTML (page)."""

from __future__ import annotations

from .facts import Facts
from .looking import gather
from .page import page

__all__ = ["Facts", "gather", "page"]
