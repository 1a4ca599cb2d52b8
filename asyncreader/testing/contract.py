"""What every source must do, as one class of tests, and a set in memory that can be bad.

A case says what its set holds. The class reads the set in each way that a reader can ask for, and
compares with the same samples in memory.
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from ..errors import DecodeError
from ..formats.packed import DATA
from ..pixels.rows import RowError, Writer
from ..pixels.specs import OutputSpec, SampleSpec
from ..pixels.transform import plan_rows
from ..sources import Inspector, OpenSet, RowJob, read_rows
from ..sources.base import BaseSource, FieldIndex, OpenField, SetFacts
from ..sources.fields import SetIndex
from ..stats import Meter
from ..system.array_types import Array, Int64, UInt64
from ..system.keyed_random import mix_rows
from ..system.signals import result_of, submit

#: Images or other samples, (N, ...).
Samples: TypeAlias = npt.NDArray[np.generic]


@dataclass
class KnownSet:
    """A dataset on disk or in memory, and what must come out of it."""

    open: Callable[[], OpenSet]
    #: (N, H, W, C) of image sets, else (N, ...); native byte order.
    images: Samples
    #: Each sample's stored bytes.
    stored: list[bytes]
    labels: Samples | None = None
    paths: list[bytes] | None = None
    #: Largest difference of a pixel value (JPEG).
    tolerance: float = field(default=0, kw_only=True)
    #: What the one warning of opening says; None: it does not warn.
    warns: str | None = field(default=None, kw_only=True)
    #: Whether every sample has a checksum.
    checked: bool = field(default=False, kw_only=True)
    #: What must stay open as long as the set.
    keep: list[object] = field(default_factory=list, kw_only=True)

    def opened(self) -> OpenSet:
        with warnings.catch_warnings(record=True, action="always") as said:
            source = self.open()
        assert len(said) == (self.warns is not None)
        assert all(str(self.warns) in str(one.message) for one in said)
        return source

    def modes(self) -> dict[str, OutputSpec]:
        """The ways of filling that fit its samples."""
        images, every = self.images, MODES.items()
        return {n: sized(one, images) for n, one in every if images.ndim == 4 or one.size is None}

    def expected(self, records: Int64, wanted: OutputSpec, keys: UInt64) -> Samples:
        """What a fill must make of ``records``: what it makes of the same samples in memory."""
        memory = MemorySource(self.images, checksums=False).as_set()
        return fill_rows(memory, wanted, records)[0]

    def _check_rows(
        self, source: OpenSet, records: Int64, mode: str = "copy", **options: Any
    ) -> Samples:
        """Read ``records`` as fill_rows() does with ``options``, in a mode of :meth:`modes`, and
        compare them with what is expected; what is handed out."""
        wanted = self.modes()[mode]
        found, keys, errors = fill_rows(source, wanted, records, **options)
        assert errors == (), mode
        tolerance = self.tolerance * wanted.scale / min(wanted.std)
        rows = options.get("rows", slice(None))
        assert_same(found[rows], self.expected(records, wanted, keys), tolerance, mode)
        return found


def sized(wanted: OutputSpec, images: Array) -> OutputSpec:
    """``wanted`` with a size that fits ``images``: above half of it a JPEG is decoded in full."""
    if wanted.size is None:
        return wanted
    height, width = images.shape[1:3]
    return replace(wanted, size=(math.ceil(height * 0.7), math.ceil(width * 0.55)))


#: Ways to fill that ask a source in different ways: rows are the stored bytes, are made of them in
#: one pass, one by one, cropped and resized, or several of one sample.
MODES = {
    "copy": OutputSpec(layout="NHWC"),
    "view": OutputSpec(),
    "affine": OutputSpec(contiguous=True, dtype=np.dtype("float32"), scale=0.25, std=(2.0,)),
    "each": OutputSpec(dtype=np.dtype("float64"), scale=0.5, mean=(1.0,), std=(3.0,)),
    "random-resized": OutputSpec(size=(1, 1), crop="random-resized", flip=True),
    "views": OutputSpec(size=(1, 1), crop="random-resized", flip=True, views=2),
}


def fill_rows(
    source: OpenSet,
    wanted: OutputSpec,
    records: Array,
    rows: Array | None = None,
    batch: int | None = None,
    check: Array | None = None,
) -> tuple[Array, Array, tuple[RowError, ...]]:
    """(what is handed out, keys, errors) of reading ``records`` into ``rows``."""
    fill = plan_rows(source.spec, wanted, source.facts.path)
    keys = mix_rows(99, records.astype(np.int64))
    if rows is None:
        rows = np.arange(records.size, dtype=np.int64)
    out = np.full(fill.allocate_shape(batch or records.size), 77).astype(fill.dtype)
    plan = RowJob(records.astype(np.int64), rows, keys, check)
    errors = read_rows(source.first, plan, fill, out, Meter())
    return fill.handed_out(out), keys, errors


def assert_same(found: Array, wanted: Array, tolerance: float = 0, mode: str = "") -> None:
    """``found`` is ``wanted``: to the last bit, or floats to their precision."""
    assert found.shape == wanted.shape, mode
    assert found.dtype == wanted.dtype, mode
    if tolerance == 0 and found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted, mode)
        return
    relative = {2: 2e-3, 4: 1e-5, 8: 1e-12}.get(found.dtype.itemsize, 0)
    np.testing.assert_allclose(
        found.astype(np.float64),
        wanted.astype(np.float64),
        rtol=relative,
        atol=max(tolerance, 20 * relative),
        err_msg=mode,
    )


class SourceContract:
    """Tests of any source. A subclass, or its module, has a fixture ``built``: a :class:`KnownSet`
    of at least 16 samples."""

    def test_count_and_shape(self, built: KnownSet) -> None:
        """A source knows its count, the shape of a sample, and whether samples have checksums,
        without reading one."""
        with closing(built.opened()) as source:
            assert source.facts.count == len(built.images)
            assert bool(source.checked) == built.checked
            shape, spec = built.images.shape[1:], source.spec
            found = spec.image_shape() if len(shape) == 3 else spec.shape
            assert found in (shape, (None, None, *shape[2:]))

    def test_any_record_in_any_order(self, built: KnownSet) -> None:
        """Records come in the order asked for, repeats included."""
        count = len(built.images)
        with closing(built.opened()) as source:
            for records in (
                np.arange(count),
                np.arange(count)[::-1],
                np.array([count - 1, 0, 0, count // 2, count - 1]),
                np.random.default_rng(3).integers(0, count, 40),
                np.array([count - 1]),
            ):
                built._check_rows(source, records)

    def test_fill_modes(self, built: KnownSet) -> None:
        """Each way of filling gives what the same samples in memory give, in rows that follow each
        other and in others; only the rows named are written, each with its own record."""
        records = np.random.default_rng(5).permutation(len(built.images))[:16]
        few, rows = np.array([3, 1, 2]), np.array([6, 0, 3])
        with closing(built.opened()) as source:
            for mode in built.modes():
                built._check_rows(source, records, mode)
                found = built._check_rows(source, few, mode, rows=rows, batch=8)
                untouched = np.delete(found, rows, axis=0)
                assert (untouched == np.array(77).astype(found.dtype)).all()

    def test_sample_bytes(self, built: KnownSet) -> None:
        """sample_bytes gives exactly the stored bytes of a sample."""
        with closing(built.opened()) as source:
            for index in (0, 1, len(built.stored) // 2, len(built.stored) - 1):
                assert Inspector(source.first).bytes(index) == built.stored[index]

    def test_labels(self, built: KnownSet) -> None:
        """Labels come with their stored shape, in native byte order; None where there are none."""
        with closing(built.opened()) as source:
            assert (source.labels is None) == (built.labels is None)
            if source.labels is not None and built.labels is not None:
                assert source.labels.dtype == built.labels.dtype.newbyteorder("=")
                np.testing.assert_array_equal(source.labels, built.labels)

    def test_close(self, built: KnownSet) -> None:
        """close() may be called twice, and labels handed out before stay readable."""
        source = built.opened()
        built._check_rows(source, np.arange(4))
        labels = source.labels
        source.close()
        source.close()
        np.testing.assert_array_equal(np.asarray(labels), np.asarray(built.labels))

    def test_source_paths(self, built: KnownSet) -> None:
        """The path that a sample was converted from is known if the dataset records it."""
        with closing(built.opened()) as source:
            inspector = Inspector(source.first)
            assert inspector.path(1) == (None if built.paths is None else built.paths[1])
            if built.paths is not None:
                assert list(inspector.paths()) == built.paths

    def test_index(self, built: KnownSet) -> None:
        """What another process gets, the pickled index, opens the same set: its samples, labels,
        splits, keys and paths, without a look at how the file is built."""
        records = np.arange(len(built.images))[::-3]
        with warnings.catch_warnings(action="error"), closing(built.opened()) as source:
            index = pickle.loads(pickle.dumps(source.index, protocol=5))
            with closing(index.open()) as other:
                assert (other.facts, other.spec) == (source.facts, source.spec)
                assert other.splits.keys() == source.splits.keys()
                rows = [fill_rows(one, MODES["copy"], records)[0] for one in (source, other)]
                np.testing.assert_array_equal(rows[1], rows[0])
                labels = [np.asarray(one.labels) for one in (source, other)]
                np.testing.assert_array_equal(labels[1], labels[0])
                original, reopened = Inspector(source.first), Inspector(other.first)
                for record in records.tolist():
                    for ask in (Inspector.bytes, Inspector.key, Inspector.path):
                        assert ask(reopened, record) == ask(original, record)
                    if source.checked:
                        sums = (one.checksums(record, record + 1) for one in (original, reopened))
                        assert next(sums) == next(sums)

    def test_threads(self, built: KnownSet) -> None:
        """Four threads read one source at once, and each gets its own rows whole."""
        source = built.opened()

        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(5):
                records = rng.integers(0, len(built.images), 12)
                check = rng.random(12) < 0.5 if source.checked else None
                built._check_rows(source, records, check=check)

        with closing(source), ThreadPoolExecutor(4) as pool:
            for done in [submit(pool, partial(read, seed)) for seed in range(4)]:
                result_of(done)


class CheckedSourceContract(SourceContract):
    """Tests of any source whose samples have checksums: ``built`` is a :class:`KnownSet` of images
    with ``checked=True``."""

    def test_checking_changes_nothing(self, built: KnownSet) -> None:
        """Rows whose checksum is checked, all or some, are the same rows, in every mode."""
        records = np.arange(12)[::-1]
        with closing(built.opened()) as source:
            for wanted in built.modes().values():
                plain, _, _ = fill_rows(source, wanted, records)
                for check in (np.ones(12, np.bool_), np.arange(12) % 3 == 1):
                    found, _, errors = fill_rows(source, wanted, records, check=check)
                    assert errors == ()
                    np.testing.assert_array_equal(found, plain)


# -- a set in memory -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Samples:
    """What a :class:`MemorySource` reads, in another process too."""

    images: Samples
    undecodable: frozenset[int]

    def serve(self, field: OpenField) -> _Reading:
        """A source that reads them."""
        return _Reading(field)


class _Reading(BaseSource):
    """Reads the samples of an index whose storage is :class:`_Samples`."""

    def read_into(self, writer: Writer) -> None:
        """Give the samples of ``writer.job`` to the writer."""
        samples = self.index.storage
        assert isinstance(samples, _Samples)
        for i, record in enumerate(writer.job.records.tolist()):
            if record in samples.undecodable:
                writer.fail(i, DecodeError("planned damage"))
            else:
                writer.raw(i, samples.images[record])


class MemorySource(_Reading):
    """Samples in memory, some of them bad.

    ``images``: (N, ...), images if (N, H, W, C); ``labels``: (N, ...); ``classes``: names of labels
    0 to K - 1; ``checksums``: whether samples have them; ``damaged``: records whose bytes do not
    have the recorded checksum; ``undecodable``: records that raise DecodeError when they are read;
    ``block``: samples stored together, for ``shuffle="block"``.
    """

    def __init__(
        self,
        images: Samples,
        labels: Samples | None = None,
        *,
        classes: tuple[str, ...] | None = None,
        checksums: bool = True,
        damaged: Collection[int] = (),
        undecodable: Collection[int] = (),
        block: int = 4,
    ) -> None:
        sums = None
        if checksums:
            found = [xxh3_64_intdigest(image.tobytes()) for image in images]
            sums = np.array(found, np.uint64)
            sums[list(damaged)] ^= np.uint64(1)
        row = images.shape[1:]
        facts = SetFacts(
            path="memory",
            container="arrays",
            layout="samples in memory",
            count=len(images),
            io="mmap",
            size_on_disk=images.nbytes,
            classes=classes,
        )
        index = FieldIndex(
            SampleSpec(row, images.dtype, "HWC" if len(row) == 3 else None),
            _Samples(images, frozenset(undecodable)),
            checksums=sums,
            block=block,
            checked="all" if checksums else "none",
        )
        super().__init__(OpenField(facts, index, None))
        self._labels = labels

    def as_set(self) -> OpenSet:
        """The samples and their labels as a set that is open."""
        return OpenSet(SetIndex(self.facts, {DATA: self.index}, self._labels), [self])
