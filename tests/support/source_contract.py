"""Cases of the contract of all sources (asyncreader/testing), and what packed files do besides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import damage

from asyncreader import ChecksumError, testing
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector
from asyncreader.testing.contract import MODES, assert_same, expected, fill_rows, sized


@dataclass
class Built(testing.KnownSet):
    """A set that a test may damage."""

    #: The packed file, which holds each sample's bytes as they are: a test may damage them.
    file: str = field(default="", kw_only=True)
    #: What a user names to open a foreign set.
    path: str = field(default="", kw_only=True)


#: How a set of some kind is made in a folder.
Build = Callable[[Path], Built]


def each_of(cases: Mapping[str, Build]) -> Any:
    """The fixture ``case`` of a class: its tests run for each of these."""

    @pytest.fixture(scope="class", params=cases.values(), ids=[c.replace(" ", "-") for c in cases])
    @classmethod
    def case(cls: type, request: pytest.FixtureRequest) -> Build:
        found: Build = request.param
        return found

    return case


class PackedContract(testing.CheckedSourceContract):
    """Needs fixtures ``built`` (shared by a case's tests) and ``fresh`` (of this test alone)."""

    def test_damage_is_named(self, fresh: Built) -> None:
        """A flipped byte is a ChecksumError that says where; all other rows are filled."""
        damage(fresh.file, fresh.stored[5])
        source = fresh.opened()
        records = np.arange(10)
        modes = (MODES[name] for name in ("affine NCHW", "size", "views", "views as stored"))
        for mode in (OutputSpec(layout="NHWC"), *modes):
            wanted = sized(mode, fresh.images)
            found, keys, errors = fill_rows(
                source, wanted, records, check=np.ones(10, np.bool_), batch=10
            )
            assert [error.row for error in errors] == [5]
            error = errors[0].error
            assert isinstance(error, ChecksumError)
            assert error.path == source.facts.path
            assert error.index == 5
            assert error.key == ("0000000005" if source.facts.container == "LMDB" else None)
            assert fresh.paths is not None
            assert error.source_path == fresh.paths[5].decode()
            assert error.source_path in str(error)
            assert "record 5" in str(error)
            good = np.delete(records, 5)
            scale = fresh.tolerance * wanted.scale / min(wanted.std)
            assert_same(found[good], expected(fresh.images[good], wanted, keys[good]), scale)
        with pytest.raises(ChecksumError) as caught:
            Inspector(source.first).bytes(5)
        assert caught.value.index == 5
        source.close()
