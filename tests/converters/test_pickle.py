"""LMDB sets of pickles: the page's lines pack them."""

from __future__ import annotations

import pickle
from pathlib import Path

import foreign_sets as foreign
import numpy as np
import pytest
from fakes import pictures
from project import ROOT

import asyncreader

COUNT = 12
IMAGES = pictures(COUNT, (9, 11, 3))


def test_the_lines_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines in docs/layouts.md convert a set of pickles, as tensorpack writes it."""
    points = [(data, i) for i, data in enumerate(foreign.files(IMAGES))]
    entries = foreign.tensorpack(points, dumps=pickle.dumps)
    foreign.write_lmdb(tmp_path / "old.lmdb", entries, subdir=False)
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    (lines,) = [
        block.partition("```")[0] for block in page.split("```python\n") if "pickle.loads" in block
    ][-1:]
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, "docs/layouts.md", "exec"), {})
    with asyncreader.open(tmp_path / "new.h5", layout="NHWC") as ds:
        assert len(ds) == COUNT
        np.testing.assert_array_equal(ds[:][0], IMAGES)
        assert ds[:][1].ravel().tolist() == list(range(COUNT))
