"""Fixtures that the tests of several folders use."""

from __future__ import annotations

import pytest
from observed import take_ctrl_c

from asyncreader.sources.remote import client

take_ctrl_c()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer is given up at once."""
    monkeypatch.setattr(client, "_PATIENCE", 0.0)
    monkeypatch.setattr(client, "_RETRY", {"max_retries": 0})
