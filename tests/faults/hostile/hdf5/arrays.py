"""Hostile HDF5: patches of volumes, sparse rows and episodes in groups that are forged."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import NONE, Scratch, Target, attack, edited
from .tools import N, closed, filtered, plain

#: The ways that take the parameters.
ASKED = ("read", "info")
READ = ("read",)
#: Groups or links of a file, for the millions that there may be.
MANY = 20_000

# -- patches ---------------------------------------------------------------------------------------

SHAPE, CHUNK = (N, 8, 8, 8), (1, 4, 4, 4)


def _patches(
    name: str, make: Callable[[Any], None], says: str, ways: tuple[str, ...] = READ
) -> None:
    """Register a file of volumes, all patches of which are read."""

    def made(scratch: Scratch) -> Target:
        file = plain(scratch, data=False, labels=False)
        make(file)
        return Target(closed(file), {"patch": [4, 4, 4], "patch_at": "grid", "labels_field": None})

    made.__doc__ = f"Patches: {name.replace('_', ' ')}."
    attack(ways if says else NONE, says, ways, name=f"patches_{name}")(made)


def _stored(body: bytes) -> Callable[[Any], None]:
    return lambda file: filtered(file, "data", SHAPE, "u1", (1,), CHUNK, body, values=(9,))


_patches("of_a_damaged_chunk", _stored(b"\x78\x9c" + b"\xff" * 60), "decompress")
_patches("of_a_chunk_inflated_short", _stored(zlib.compress(bytes(10))), "size")
_patches(
    "of_a_chunk_of_50_mb", _stored(zlib.compress(bytes(50 << 20), 9)), "decompress|size|declares"
)
_patches(
    "of_volumes_that_lack",
    lambda f: f.create_dataset("data", (1 << 20, 1 << 14, 1 << 14, 1 << 14), "u1", chunks=CHUNK),
    "too many places",
)
_patches(
    "of_chunks_that_lack",
    lambda f: f.create_dataset("data", (1 << 10, 1 << 12, 1 << 12, 1 << 12), "u1", chunks=CHUNK),
    "lacks|too small|declares",
)
_patches(
    "of_volumes_never_written",
    lambda f: f.create_dataset("data", (1 << 10, 1 << 12, 1 << 12, 1 << 12), "u1"),
    "stores none",
)
_patches(
    "as_they_should_be",
    lambda f: f.create_dataset("data", data=np.ones(SHAPE, "u1"), chunks=CHUNK, compression="gzip"),
    "",
)


@attack(READ, "outside|truncated", READ)
def patches_of_a_chunk_outside(scratch: Scratch) -> Target:
    """Patches: the index of chunks says that one lies behind the end of the file."""
    file = plain(scratch, data=False, labels=False)
    data = file.create_dataset("data", data=np.ones(SHAPE, "u1"), chunks=CHUNK, compression="gzip")
    at = struct.pack("<Q", data.id.get_chunk_info(3).byte_offset)
    path = Path(closed(file))
    with edited(path) as raw:
        assert raw.count(at) == 1
        where = raw.index(at)
        raw[where : where + 8] = struct.pack("<Q", 1 << 50)
    return Target(path, {"patch": [4, 4, 4], "patch_at": "grid", "labels_field": None})


# -- sparse rows -----------------------------------------------------------------------------------

ENDS = np.arange(0, 4 * N + 1, 4)
COLUMNS = np.tile(np.arange(4), N)


def _sparse(
    name: str,
    says: str,
    ways: tuple[str, ...] = READ,
    ends: Any = ENDS,
    columns: Any = COLUMNS,
    shape: tuple[int, int] = (N, 5),
    **stored: Any,
) -> None:
    """Register a file of sparse rows; ``stored``: how its values are, else in gzip."""

    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=False, labels=False)
        rows = file.create_group("X")
        rows.attrs["encoding-type"], rows.attrs["shape"] = "csr_matrix", shape
        rows["indptr"] = ends
        rows.create_dataset("indices", data=columns, compression="gzip")
        if stored:
            filtered(rows, "data", (4 * N,), "f4", (1,), (4,), values=(9,), **stored)
        else:
            rows.create_dataset("data", data=np.ones(4 * N, "f4"), compression="gzip")
        return Target(closed(file), {"data_field": "X", "labels_field": None})

    make.__doc__ = f"Sparse rows: {name.replace('_', ' ')}."
    attack(ways if says else NONE, says, ways, name=f"sparse_{name}")(make)


_sparse("as_they_should_be", "", ASKED)
_sparse("indptr_decreases", "in order", ASKED, ends=np.where(ENDS == 8, 20, ENDS))
_sparse("indptr_far_outside", "in order", ASKED, ends=np.append(ENDS[:-1], 1 << 60))
_sparse("indptr_negative", "in order", ASKED, ends=np.where(ENDS == 0, -4, ENDS))
_sparse("indptr_short", "one number more", ASKED, ends=ENDS[:-1])
_sparse("more_indices_than_values", "whole number", ASKED, columns=np.arange(5 * N) % 4)
_sparse("column_outside", "column", columns=np.append(COLUMNS[:-1], 5))
_sparse("column_negative", "column", columns=np.append(COLUMNS[:-1], -1))
_sparse("column_of_2_62", "column", columns=np.append(COLUMNS[:-1], 1 << 62))
_sparse("of_2_50_columns", "declares", ASKED, shape=(N, 1 << 50))
_sparse("of_2_50_rows", "one number more", ASKED, shape=(1 << 50, 5))
_sparse("of_a_damaged_chunk", "decompress", stored=b"\x78\x9c" + b"\xff" * 20)
_sparse("of_a_chunk_inflated_short", "size", stored=zlib.compress(bytes(3)))


# -- groups ----------------------------------------------------------------------------------------


def _groups(
    name: str,
    make: Callable[[Any, Scratch], Any],
    says: str,
    ways: tuple[str, ...] = ASKED,
    **params: Any,
) -> None:
    """Register a file with many groups."""

    def made(scratch: Scratch) -> Target:
        file = plain(scratch, data=False, labels=False, libver="latest")
        make(file, scratch)
        return Target(closed(file), {"labels_field": None, **params})

    made.__doc__ = f"Groups: {name.replace('_', ' ')}."
    attack(ways if says else NONE, says, ways, name=f"episodes_{name}")(made)


def _many(inside: str, name: bytes) -> Callable[[Any, Scratch], None]:
    def make(file: Any, scratch: Scratch) -> None:
        if inside != "data":
            file["data"] = np.arange(12.0).reshape(N, 2)
        group = file.require_group(inside).id
        for number in range(MANY):
            h5py.h5g.create(group, name % number)

    return make


def _linked(link: Callable[[Any, int, Scratch], Any]) -> Callable[[Any, Scratch], None]:
    def make(file: Any, scratch: Scratch) -> None:
        file["data/demo_0/actions"] = np.zeros((2, 3), "f4")
        for number in range(1, MANY):
            file[f"data/demo_{number}"] = link(file, number, scratch)

    return make


def _circles(file: Any, scratch: Scratch) -> None:
    file["demo_0/actions"] = np.zeros((2, 3), "f4")
    for number in range(300):
        file[f"demo_{number + 1}"] = file["/"]


def _unequal(file: Any, scratch: Scratch) -> None:
    for number in range(3):
        file[f"data/demo_{number}/actions"] = np.zeros((4, 3), "f4")
        file[f"data/demo_{number}/states"] = np.zeros((4 + 2 * (number == 2), 3), "f4")


ACTIONS = {"data_field": "actions"}
_groups("many_beside_the_data", _many("other", b"g%d"), "")
_groups("many_in_the_root", _many("/", b"g%d"), "")
_groups("many_empty_episodes", _many("data", b"demo_%d"), "20,000 episodes", **ACTIONS)
_groups("one_under_many_names", _linked(lambda f, i, s: f["data/demo_0"]), "", READ, **ACTIONS)
_groups(
    "a_chain_of_soft_links",
    _linked(lambda f, i, s: h5py.SoftLink(f"/data/demo_{i - 1}")),
    "soft link",
    **ACTIONS,
)
_groups(
    "external_links",
    _linked(lambda f, i, s: h5py.ExternalLink(s.secret_h5, "/")),
    "link into another file",
    **ACTIONS,
)
_groups("in_circles", _circles, "in circles", episodes="groups:demo_*/demo_*/demo_*", **ACTIONS)
_groups("of_unequal_length", _unequal, "demo_2", data_field=["actions", "states"])


@attack(ASKED, "of variable length|cannot be found", ASKED)
def episodes_of_a_damaged_mask(scratch: Scratch) -> Target:
    """Groups: a split lists them in text of variable length, whose heap is damaged."""
    file = plain(scratch, data=False, labels=False)
    for number in range(3):
        file[f"data/demo_{number}/actions"] = np.zeros((4, 3), "f4")
    file.create_dataset("mask/train", data=["demo_0", "demo_2"])
    at, path = file["mask/train"].id.get_offset(), Path(closed(file))
    with edited(path) as raw:
        (heap,) = struct.unpack_from("<Q", raw, at + 4)
        struct.pack_into("<Q", raw, heap + 16 + 8, 0)  # the size of its first object
    return Target(path, {"labels_field": None, **ACTIONS})


@attack(ASKED, "splits", ASKED)
def episodes_of_many_masks(scratch: Scratch) -> Target:
    """Groups: thousands of splits."""
    file = plain(scratch, data=False, labels=False)
    file["data/demo_0/actions"] = np.zeros((4, 3), "f4")
    file["mask/train"] = np.array([b"demo_0"])
    for number in range(MANY):
        file[f"mask/{number}"] = file["mask/train"]
    return Target(closed(file), {"labels_field": None, **ACTIONS})
