"""Where the parts of a packed file are, so that damage can aim at headers, tables or pixels."""

import struct
from dataclasses import dataclass

import h5py
import numpy as np

from faults.damage.reseal import sealed_blocks
from faults.sets import KnownSet

#: An LMDB page on x86-64 and arm64.
PAGE = 4096

_TABLES = ("labels", "offsets", "checksums", "classes", "paths")


@dataclass(frozen=True)
class Regions:
    """Byte ranges (start, stop) by kind: "structure", "tables", "pixels"; and whole pages."""

    size: int
    by_kind: dict[str, tuple[tuple[int, int], ...]]
    pages: dict[str, tuple[int, ...]]
    """LMDB: page numbers of "meta", "branch", "leaf" and "overflow" pages."""
    sealed: tuple[tuple[int, int], ...] = ()
    """HDF5: (start, length) of the blocks that are followed by their checksum."""

    def offset(self, rng: np.random.Generator, kind: str) -> int:
        """The offset of a random byte of that kind; short ranges are drawn as often as long."""
        ranges = self.by_kind.get(kind) or ((0, self.size),)
        start, stop = ranges[int(rng.integers(len(ranges)))]
        return int(rng.integers(start, stop))


def regions(known: KnownSet) -> Regions:
    """The parts of a sound set."""
    data = known.file.read_bytes()
    return _lmdb(data) if known.container == "LMDB" else _hdf5(known, len(data))


def _hdf5(known: KnownSet, size: int) -> Regions:
    found: dict[str, list[tuple[int, int]]] = {"tables": [], "pixels": []}
    with h5py.File(known.path, "r", locking=False) as file:
        for name in ("data", *_TABLES):
            if name not in file:
                continue
            dataset = file[name]
            kind = "pixels" if name == "data" else "tables"
            if dataset.chunks is None:
                start = dataset.id.get_offset()
                found[kind].append((start, start + dataset.id.get_storage_size()))
            else:
                for number in range(dataset.id.get_num_chunks()):
                    info = dataset.id.get_chunk_info(number)
                    found[kind].append((info.byte_offset, info.byte_offset + info.size))
    taken = sorted(found["tables"] + found["pixels"])
    edges = [0, *(edge for part in taken for edge in part), size]
    between = zip(edges[::2], edges[1::2], strict=True)
    structure = tuple((start, stop) for start, stop in between if stop > start)
    # the superblock and the root's header are a small part of the first gap
    structure += ((0, 48), (0, 96), (48, 512))
    return Regions(
        size,
        {"structure": structure, **{kind: tuple(parts) for kind, parts in found.items()}},
        {},
        sealed_blocks(known.file.read_bytes()),
    )


def _lmdb(data: bytes) -> Regions:
    pages: dict[str, list[int]] = {"meta": [], "branch": [], "leaf": [], "overflow": []}
    structure: list[tuple[int, int]] = []
    pixels: list[tuple[int, int]] = []
    tables: list[tuple[int, int]] = []
    number = 0
    while (number + 1) * PAGE <= len(data):
        at = number * PAGE
        flags, lower, upper = struct.unpack_from("<HHH", data, at + 10)
        stated = struct.unpack_from("<Q", data, at)[0]
        step = 1
        if number < 2:
            pages["meta"].append(number)
            structure += [(at, at + 168)] * 4
        elif stated == number and flags & 4:
            pages["overflow"].append(number)
            step = max(1, struct.unpack_from("<I", data, at + 12)[0])
            structure.append((at, at + 16))
            pixels.append((at + 16, at + step * PAGE))
        elif stated == number and flags & 3:
            pages["leaf" if flags & 2 else "branch"].append(number)
            nodes = (at + min(upper, PAGE - 1), at + PAGE)
            structure += [(at, at + max(16, min(lower, PAGE))), nodes]
            # the values on leaf pages may be: tables of a small set, JSON, paths
            tables.append(nodes)
        number += step
    kinds = {"structure": structure, "pixels": pixels or tables, "tables": tables}
    return Regions(
        len(data),
        {kind: tuple(parts) for kind, parts in kinds.items()},
        {kind: tuple(numbers) for kind, numbers in pages.items()},
    )
