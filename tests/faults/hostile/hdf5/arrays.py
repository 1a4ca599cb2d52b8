"""Hostile HDF5: patches of volumes, sparse rows and episodes in groups that are forged."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import Scratch, Target, attack, edited, family
from .tools import N, closed, creates, done, filtered, on, plain

#: The ways that take the parameters.
ASKED = ("read", "info")
READ = ("read",)
#: Groups or links of a file, for the millions that there may be.
MANY = 20_000

# -- patches ---------------------------------------------------------------------------------------

SHAPE, CHUNK = (N, 8, 8, 8), (1, 4, 4, 4)


GRID = {"patch": [4, 4, 4], "patch_at": "grid", "labels_field": None}
HUGE = (1 << 10, 1 << 12, 1 << 12, 1 << 12)


def _stored(body: bytes) -> Callable[[Any, Scratch], None]:
    return lambda file, s: filtered(file, "data", SHAPE, "u1", (1,), CHUNK, body, values=(9,))


family("Patches", "patches_", on(GRID, data=False, labels=False), {
    "of_a_damaged_chunk": ("decompress", _stored(b"\x78\x9c" + b"\xff" * 60)),
    "of_a_chunk_inflated_short": ("size", _stored(zlib.compress(bytes(10)))),
    "of_a_chunk_of_50_mb": (
        "decompress|size|declares", _stored(zlib.compress(bytes(50 << 20), 9))
    ),
    "of_volumes_that_lack": (
        "too many places", creates("data", (1 << 20, 1 << 14, 1 << 14, 1 << 14), chunks=CHUNK)
    ),
    "of_chunks_that_lack": ("lacks|too small|declares", creates("data", HUGE, chunks=CHUNK)),
    "of_volumes_never_written": ("stores none", creates("data", HUGE)),
    "as_they_should_be": (None, lambda f, s: f.create_dataset(
        "data", data=np.ones(SHAPE, "u1"), chunks=CHUNK, compression="gzip")),
}, READ, READ)  # fmt: skip


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
    return Target(path, GRID)


# -- sparse rows -----------------------------------------------------------------------------------

ENDS = np.arange(0, 4 * N + 1, 4)
COLUMNS = np.tile(np.arange(4), N)


def sparse(
    scratch: Scratch,
    ends: Any = ENDS,
    columns: Any = COLUMNS,
    shape: Any = (N, 5),
    stored: bytes | None = None,
) -> Target:
    """A file of sparse rows; ``stored``: the bytes of a chunk of its values, if they are odd."""
    file = plain(scratch, data=False, labels=False)
    rows = file.create_group("X")
    rows.attrs["encoding-type"], rows.attrs["shape"] = "csr_matrix", shape
    rows["indptr"] = ends
    rows.create_dataset("indices", data=columns, compression="gzip")
    if stored is not None:
        filtered(rows, "data", (4 * N,), "f4", (1,), (4,), values=(9,), stored=stored)
    else:
        rows.create_dataset("data", data=np.ones(4 * N, "f4"), compression="gzip")
    return done(file, data_field="X", labels_field=None)


def with_columns(scratch: Scratch, last: int) -> Target:
    """Rows whose last value is of that column."""
    return sparse(scratch, columns=np.append(COLUMNS[:-1], last))


family("Sparse rows", "sparse_", sparse, {
    "as_they_should_be": (None,),
    "indptr_decreases": ("in order", np.where(ENDS == 8, 20, ENDS)),
    "indptr_far_outside": ("in order", np.append(ENDS[:-1], 1 << 60)),
    "indptr_negative": ("in order", np.where(ENDS == 0, -4, ENDS)),
    "indptr_short": ("one number more", ENDS[:-1]),
    "more_indices_than_values": ("whole number", ENDS, np.arange(5 * N) % 4),
    "of_2_50_columns": ("declares", ENDS, COLUMNS, (N, 1 << 50)),
    "of_2_50_rows": ("one number more", ENDS, COLUMNS, (1 << 50, 5)),
    "indptr_of_floats": ("whole numbers", ENDS.astype("f8")),
    "indices_of_floats": ("whole number", ENDS, COLUMNS.astype("f4")),
    "indices_of_two_axes": ("one axis", ENDS, COLUMNS[:, None]),
    "of_no_columns": ("no samples", ENDS, COLUMNS, (N, 0)),
    "of_minus_3_columns": ("no samples", ENDS, COLUMNS, (N, -3)),
    "of_one_side": ("shape", ENDS, COLUMNS, (N,)),
    "of_words": ("shape", ENDS, COLUMNS, "wide"),
}, ASKED, ASKED)  # fmt: skip
family("Sparse rows", "sparse_", with_columns, {
    "column_outside": ("column", 5),
    "column_negative": ("column", -1),
    "column_of_2_62": ("column", 1 << 62),
}, READ, READ)  # fmt: skip
family("Sparse rows", "sparse_", sparse, {
    "of_a_damaged_chunk": (
        "decompress", ENDS, COLUMNS, (N, 5), b"\x78\x9c" + b"\xff" * 20
    ),
    "of_a_chunk_inflated_short": ("size", ENDS, COLUMNS, (N, 5), zlib.compress(bytes(3))),
}, READ, READ)  # fmt: skip


# -- groups ----------------------------------------------------------------------------------------


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


NO_LABELS = {"labels_field": None}
ACTIONS = {**NO_LABELS, "data_field": "actions"}
NEW: dict[str, Any] = {"data": False, "labels": False, "libver": "latest"}
family("Groups", "episodes_", on(NO_LABELS, **NEW), {
    "many_beside_the_data": (None, _many("other", b"g%d")),
    "many_in_the_root": (None, _many("/", b"g%d")),
}, ASKED, ASKED)  # fmt: skip
family("Groups", "episodes_", on(ACTIONS, **NEW), {
    "one_under_many_names": (None, _linked(lambda f, i, s: f["data/demo_0"])),
}, READ, READ)  # fmt: skip
family("Groups", "episodes_", on(ACTIONS, **NEW), {
    "many_empty_episodes": ("20,000 episodes", _many("data", b"demo_%d")),
    "a_chain_of_soft_links": (
        "soft link", _linked(lambda f, i, s: h5py.SoftLink(f"/data/demo_{i - 1}"))
    ),
    "external_links": (
        "link into another file", _linked(lambda f, i, s: h5py.ExternalLink(s.secret_h5, "/"))
    ),
}, ASKED, ASKED)  # fmt: skip
_CIRCLE = {**ACTIONS, "episodes": "groups:demo_*/demo_*/demo_*"}
family("Groups", "episodes_", on(_CIRCLE, **NEW), {
    "in_circles": ("in circles", _circles),
}, ASKED, ASKED)  # fmt: skip
_BOTH = {**NO_LABELS, "data_field": ["actions", "states"]}
family("Groups", "episodes_", on(_BOTH, **NEW), {
    "of_unequal_length": ("demo_2", _unequal),
}, ASKED, ASKED)  # fmt: skip


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
    return Target(path, ACTIONS)


@attack(ASKED, "splits", ASKED)
def episodes_of_many_masks(scratch: Scratch) -> Target:
    """Groups: thousands of splits."""
    file = plain(scratch, data=False, labels=False)
    file["data/demo_0/actions"] = np.zeros((4, 3), "f4")
    file["mask/train"] = np.array([b"demo_0"])
    for number in range(MANY):
        file[f"mask/{number}"] = file["mask/train"]
    return done(file, **ACTIONS)
