"""Fixtures that the tests of several folders use."""

from __future__ import annotations

import signal

import pytest

from asyncreader.sources.remote import client

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by a command that a script
    # started with &: tests of Ctrl-C, and their child processes, need it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer is given up at once."""
    monkeypatch.setattr(client, "_PATIENCE", 0.0)
    monkeypatch.setattr(client, "_RETRY", {"max_retries": 0})
