"""Every foreign layout passes the contract of all sources, and damage ends in typed errors."""

import json
import re
import warnings
from contextlib import closing
from pathlib import Path

import fuzz_layouts
import numpy as np
import pytest
from command_sets import run
from fakes import data_file
from foreign_cases import CASES, COUNT
from fuzz_layouts import LAYOUTS, Damaged
from project import ROOT
from source_contract import Built

from asyncreader import FormatError, SourceError
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, Request, open_source
from asyncreader.testing.contract import SourceContract, fill_rows
from converters import convert

#: What info says of each layout, by the first word of its cases.
WORDS = {
    "Caffe": "Caffe Datum",
    "pyxis": "ml-pyxis",
    "tensorpack": "tensorpack, msgpack",
    "OCR": "OCR",
    "BasicSR": "BasicSR",
    "StyleGAN2": "StyleGAN2",
    "LSUN": "bare images (as LSUN)",
    "vlen": "encoded images of variable length",
    "Fuel": "Fuel",
    "BigGAN-PyTorch": "BigGAN-PyTorch",
    "PCam": "PCam",
    "data/label": "Caffe HDF5Data",
    "AnnData": "AnnData",
    "10x": "10x Genomics",
    "sparse": "sparse rows",
    "loom": "loom",
    "pandas": "pandas",
    "npy": "numpy array (.npy)",
}


def test_the_table_of_layouts() -> None:
    """The table of layouts has a row for each that is tested here, called as info calls it."""
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert sorted(named) == sorted(WORDS.values())
    assert {name.split()[0] for name in CASES} == set(WORDS)


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a case, whose first word is the layout."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def built(name: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The set, built once for all tests that only read it."""
    return CASES[name](tmp_path_factory.mktemp("set"))


#: Kinds of sets whose rows are sparse.
SPARSE = ("AnnData", "10x", "sparse")


def packable(images: np.ndarray) -> bool:
    """Whether convert can pack such samples: 8-bit grey or RGB pictures, or 16-bit grey ones."""
    if images.dtype.kind == "u" and images.dtype.itemsize == 2:
        return images.ndim == 3 or images.shape[3:] == (1,)
    return images.dtype == np.uint8 and (images.ndim == 3 or images.shape[3:] in ((1,), (3,)))


@pytest.mark.some(2)
class TestForeignSources(SourceContract):
    """Every case above."""

    def test_a_field_by_its_name(self, name: str, built: Built) -> None:
        """A layout is recognised by what the set holds: a field that the layout knows is served in
        the same way, with the same labels, where the caller names it."""
        source = built.opened()
        named = re.search(r"(\w+), labels from", source.facts.layout)
        if named is None:  # a layout without names of fields
            unnamed = {"Caffe", "OCR", "BasicSR", "StyleGAN2", "LSUN", "npy", "sparse"}
            assert name.split()[0] in unnamed | {"AnnData", "10x", "loom", "pandas"}
        else:
            other = open_source(built.path, Request(named[1]))
            assert other.spec == source.spec
            found, _, errors = fill_rows(other, OutputSpec(layout="NHWC"), np.arange(COUNT))
            assert errors == ()
            np.testing.assert_array_equal(found, built.images)
            np.testing.assert_array_equal(other.labels, built.labels)
            other.close()
        source.close()

    @pytest.mark.some(3)
    @pytest.mark.parametrize("suffix", ["h5", "lmdb"])
    def test_convert(self, name: str, built: Built, tmp_path: Path, suffix: str) -> None:
        """convert packs it: the same pixels and labels, now with checksums; or says why not."""
        source, path, out = built.opened(), built.path, tmp_path / f"out.{suffix}"
        params = {"channel_order": "stored"} if "stored" in name else None
        spec, plain = source.spec, packable(built.images)
        # rows of numbers are packed as they are, where nothing has to be turned or filled up
        turned = spec.axes not in (None, "HWC") or spec.shape is None
        if not plain and (turned or name.split()[0].split("-")[0] in SPARSE):
            with pytest.raises(FormatError, match="8-bit grey or RGB"):
                convert(path, out, params=params)
            source.close()
            return
        report = convert(path, out, params=params)
        assert report.count == COUNT
        assert report.encoding == ("original" if source.spec.encoded else "raw")
        packed = open_source(out)
        assert packed.checked
        assert packed.facts.classes == source.facts.classes
        images = built.images if built.images.ndim == 4 else built.images[..., None]
        assert packed.spec.shape == (images if plain else built.images).shape[1:]
        found, _, errors = fill_rows(packed, OutputSpec(layout="NHWC"), np.arange(COUNT))
        assert errors == ()
        np.testing.assert_array_equal(found, images if plain else built.images)
        if built.labels is None:
            assert packed.labels is None
        else:
            np.testing.assert_array_equal(packed.labels, built.labels.reshape(COUNT, -1))
        if built.paths is not None:
            assert list(Inspector(packed.first).paths()) == built.paths
        packed.close()
        source.close()

    def test_info(self, name: str, built: Built) -> None:
        """``asyncreader info`` says in words which layout it is."""
        with closing(built.opened()) as source:
            layout = source.facts.layout
        assert WORDS[name.split()[0]] in layout
        result = run("info", built.path, "--json")
        assert result.exit_code == 0, result.stderr
        facts = json.loads(result.stdout)
        assert facts["count"] == COUNT
        if "stored" not in name:
            assert facts["layout"] == layout


# -- damage ---------------------------------------------------------------------------------------


#: Rounds of each layout, and those of the long form.
ROUNDS, MANY = 24, 300


@pytest.mark.some(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_damaged_at_random(tmp_path: Path, layout: str) -> None:
    """Damaged files are refused or read, and nothing else happens."""
    damaged = Damaged(layout, tmp_path)
    assert bool(damaged.values) == any(file.name == "data.mdb" for file in damaged.whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = [damaged.round(number) for number in range(ROUNDS)]
    assert any(said)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_damaged_many_times(layout: str) -> None:
    """The same of many more, in a process that a bad one may end."""
    refused, failures = fuzz_layouts.fuzz(layout, MANY)
    assert failures == []
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("import os\nos.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("import pickle\npickle.loads(pickle.dumps(print))", "a pickle was read"),
        ("bytearray(5 << 30)", "MemoryError"),
    ],
)
def test_failures_are_noticed(said: str, code: str) -> None:
    """Failures name the round of a signal, another exception, a pickle and too much memory."""
    program = (
        "import sys\nimport fuzz_layouts as fuzz\n"
        "def read(path, asked=[]):\n"
        "    asked.append(1)\n"
        "    if len(asked) != 3: return ''\n"
        + "".join(f"    {line}\n" for line in said.splitlines())
        + "fuzz.read_everything = read\nfuzz.child(sys.argv[1])\n"
    )
    refused, failures = fuzz_layouts.fuzz("LSUN", 4, ("-c", program))
    # the first read is of the whole set: rounds 0 and 1, and again after the new start
    assert refused == 0
    assert failures[0].startswith("LSUN, round 1:")
    assert code in failures[0]


@pytest.mark.parametrize(
    "layout", ["Caffe", "pyxis", "LSUN", "vlen", "our-HDF5", "our-LMDB", "our-gzip"]
)
def test_truncations(tmp_path: Path, layout: str) -> None:
    """A file cut anywhere is refused when it is opened: no signal, no short set."""
    path = LAYOUTS[layout](tmp_path)
    file = data_file(path)
    whole = file.read_bytes()
    for part in (0, 0.01, 0.1, 0.5, 0.9, 0.999):
        file.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(SourceError):
            open_source(path)
