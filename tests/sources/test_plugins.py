"""Layouts that installed packages add by the entry point group ``asyncreader.layouts``."""

import importlib
import pickle
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes import hdf5, paint
from foreign_sets import write_lmdb
from source_contract import Built

from asyncreader import (
    AsyncReader,
    ChecksumError,
    DecodeError,
    FormatError,
    ParamsError,
    SourceError,
)
from asyncreader.pixels.rows import Writer
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, open_source
from asyncreader.testing import CheckedSourceContract, MemorySource
from asyncreader.testing.contract import assert_same, fill_rows

IMAGES = paint(20, (8, 7, 3))
LABELS = np.arange(20) % 7

#: A package with a layout of LMDB sets (values are b"TINY", a label and raw pixels) and one of
#: HDF5 sets (``frames``, N x C x H x W, and ``what``).
PACKAGE = """
from dataclasses import replace

import numpy as np

from asyncreader.sources.layouts.plugins import (
    Extents, ForeignSet, Hdf5Layout, Hdf5Set, LmdbLayout, SampleSpec, index_data
)


def index_tiny(found: ForeignSet):
    found.check_fields(("data",), ("labels",))
    entries = found.records
    labels = np.array([int(entries.value(i)[4]) for i in range(len(entries))])
    stored = SampleSpec((8, 7, 3), np.dtype("uint8"), "HWC")
    labels = None if found.fields.labels is None else labels[:SHOWN]
    extents = Extents(entries.starts + 5 + SHIFT, SIZE)
    return found.index("tiny", stored, extents, labels, entries)


def index_frames(found: Hdf5Set):
    fields = replace(found.fields, data="frames", labels="what")
    return index_data(replace(found.named("frames", fields), axes=lambda shape: (1, 3, 4, 2)))


SHOWN, SHIFT, SIZE = None, 0, 168
TINY = LmdbLayout("tiny", lambda found: found.first[:4] == b"TINY", index_tiny)
FRAMES = Hdf5Layout("frames", lambda found: "frames" in found.h5.names, index_frames)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, points: str, name: str = "tiny") -> Path:
    """A package as pip would put it into a folder of sys.path, with the entry points given."""
    (folder / f"{name}_layouts.py").write_text(PACKAGE)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[asyncreader.layouts]\n{points}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, f"{name}_layouts", raising=False)
    importlib.invalidate_caches()
    return folder / f"{name}_layouts.py"


def tiny(path: Path) -> str:
    values = [
        b"TINY" + bytes([label]) + image.tobytes()
        for image, label in zip(IMAGES, LABELS.tolist(), strict=True)
    ]
    return write_lmdb(path, {b"%04d" % i: value for i, value in enumerate(values)})


def frames(path: Path) -> str:
    hdf5(path, frames=IMAGES.transpose(0, 3, 1, 2), what=LABELS)
    return str(path)


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("write", [tiny, frames])
def test_a_package_adds_a_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object, workers: str
) -> None:
    """A set of a layout that a package adds is read like any other, in threads and processes."""
    assert callable(write)
    path = write(tmp_path / "set.x")
    with pytest.raises((FormatError, ParamsError)):
        AsyncReader(path=path)
    install(tmp_path, monkeypatch, "tiny = tiny_layouts:TINY\nframes = tiny_layouts:FRAMES")
    with AsyncReader(
        path=path, batch_size=5, layout="NHWC", shuffle=True, workers=workers, nthread=2
    ) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.data, IMAGES[batch.indices])
            np.testing.assert_array_equal(batch.labels, LABELS[batch.indices])
    with closing(open_source(path)) as source:
        assert source.facts.layout.startswith(("tiny", "HDF5 frames", "frames"))


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ("tiny = no_such_module:TINY", "ModuleNotFoundError"),
        ("tiny = tiny_layouts:NOTHING", "AttributeError"),
        ("tiny = tiny_layouts:PACKAGE_NAME", "type str"),
    ],
)
def test_a_broken_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str, says: str
) -> None:
    """An entry point that cannot be loaded is a SourceError that names it and its package; another
    layout that recognises the set is used all the same."""
    path = tiny(tmp_path / "set")
    module = install(tmp_path, monkeypatch, points)
    module.write_text(PACKAGE + "PACKAGE_NAME = 'tiny'\n")
    with pytest.raises(SourceError, match=says) as caught:
        AsyncReader(path=path)
    assert "'tiny'" in str(caught.value)
    assert points.partition(" = ")[2] in str(caught.value)
    assert "update or uninstall tiny" in str(caught.value)
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", monkeypatch, "well = well_layouts:TINY", "well")
    AsyncReader(path=path).close()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ("raise KeyError('x')", SourceError, "KeyError"),
        ("return 5", SourceError, "returned int"),
        ("SHOWN = 3", SourceError, "3 labels for 20 samples"),
        ("SHIFT = 1 << 40", FormatError, "lies outside the file"),
        ("SIZE = 167", FormatError, r"does not match its shape.*record 0\b"),
    ],
)
def test_a_layout_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    error: type[SourceError],
    says: str,
) -> None:
    """A layout that raises, or whose index does not fit the file, is a typed error; nothing is read
    outside the file."""
    path = tiny(tmp_path / "set")
    module = install(tmp_path, monkeypatch, "tiny = tiny_layouts:TINY")
    if " = " in change:
        module.write_text(PACKAGE + change)
    else:
        module.write_text(
            PACKAGE.replace("    found.check_fields", f"    {change}\n    found.check_fields")
        )
    with pytest.raises(error, match=says):
        AsyncReader(path=path)


class TestMemorySource(CheckedSourceContract):
    """The set in memory that asyncreader.testing ships keeps the contract of all sources."""

    @pytest.fixture
    def built(self) -> Built:
        stored = [image.tobytes() for image in IMAGES]
        return Built(
            lambda: MemorySource(IMAGES, LABELS).as_set(), IMAGES, stored, LABELS, checked=True
        )


def test_a_bad_sample_in_memory() -> None:
    """Planned faults are the typed errors of real sets, when rows are read and when one sample is
    looked at, in the process of the source and where its index is opened."""
    first = MemorySource(IMAGES, damaged=[3], undecodable=[5]).as_set()
    for source in (first, pickle.loads(pickle.dumps(first.index)).open()):
        records = np.arange(8)
        found, _, errors = fill_rows(
            source, OutputSpec(layout="NHWC"), records, check=np.ones(8, np.bool_)
        )
        assert [(bad.row, type(bad.error)) for bad in errors] == [
            (3, ChecksumError),
            (5, DecodeError),
        ]
        np.testing.assert_array_equal(found[[0, 7]], IMAGES[[0, 7]])
        for record, error in ((3, ChecksumError), (5, DecodeError)):
            with pytest.raises(error) as caught:
                Inspector(source.first).bytes(record)
            assert caught.value.index == record


class _Turned(MemorySource):
    """Serves its samples from left to right, and checks them as they are stored."""

    def read_into(self, writer: Writer) -> None:
        for i, record in enumerate(writer.job.records.tolist()):
            image = IMAGES[record]
            writer.raw(i, image[:, ::-1], image.reshape(-1))


def test_pixels_that_are_not_the_stored_bytes() -> None:
    """A source that turns what is stored says so: the stored bytes are checked and shown, the
    turned pixels are served."""
    source = _Turned(IMAGES).as_set()
    found, _, errors = fill_rows(
        source, OutputSpec(layout="NHWC"), np.arange(6), check=np.ones(6, np.bool_)
    )
    assert errors == ()
    np.testing.assert_array_equal(found, IMAGES[:6, :, ::-1])
    inspector = Inspector(source.first)
    assert inspector.bytes(4) == IMAGES[4].tobytes()
    np.testing.assert_array_equal(inspector.pixels(4), IMAGES[4][:, ::-1])


def test_the_contract_notices_a_byte_beyond_its_tolerance() -> None:
    """Lossy images may differ by the tolerance of their set, and by no more."""
    assert_same(np.uint8([200]), np.uint8([197]), 3)
    with pytest.raises(AssertionError):
        assert_same(np.uint8([200]), np.uint8([196]), 3)
