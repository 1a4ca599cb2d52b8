"""A set in memory whose samples can be bad as a test plans it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from ..errors import DecodeError
from ..formats.packed import DATA
from ..pixels.rows import Writer
from ..pixels.specs import SampleSpec
from ..sources.base import BaseSource, FieldIndex, SetFacts
from ..sources.bytestore import ByteFile
from ..sources.fields import OpenSet, SetIndex


@dataclass(frozen=True, eq=False)
class _Samples:
    """What a :class:`MemorySource` reads, in another process too."""

    images: npt.NDArray[np.generic]
    undecodable: frozenset[int]

    def serve(self, facts: SetFacts, index: FieldIndex, file: ByteFile | None) -> _Reading:
        """A source that reads them."""
        return _Reading(facts, index, None)


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

    ``images``: (N, ...), pictures if (N, H, W, C); ``labels``: (N, ...); ``classes``: names of
    labels 0 to K - 1; ``checksums``: whether samples have them; ``damaged``: records whose bytes do
    not have the recorded checksum; ``undecodable``: records that are a DecodeError whenever they
    are read; ``block``: samples stored together, for ``shuffle="block"``.
    """

    def __init__(
        self,
        images: npt.NDArray[np.generic],
        labels: npt.NDArray[np.generic] | None = None,
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
        super().__init__(facts, index, None)
        self._labels = labels

    def as_set(self) -> OpenSet:
        """The samples and their labels as a set that is open."""
        return OpenSet(SetIndex(self.facts, {DATA: self.index}, self._labels), [self])
