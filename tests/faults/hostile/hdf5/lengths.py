"""Hostile HDF5: samples of different length that do not lie among their values."""

import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.sources.hdf5.blocks import ELEMENT

from ..corpus import NONE, Scratch, Target, attack, edited, family
from .tools import N, closed, done, filtered, plain

#: The ways that take max_length.
ASKED = ("read", "info")
#: Values of all samples.
VALUES = 4 * N


EVEN = np.arange(0, VALUES + 1, 4)
OTHERS = [4] * (N - 1)
NOT_SAID = "does not say"


def table(scratch: Scratch, name: str, values: Any) -> Target:
    """A foreign file whose samples begin, or are as long, as a table says."""
    file = plain(scratch, data=False)
    file["data"] = np.arange(VALUES * 3, dtype="f4").reshape(-1, 3)
    file[f"data_{name}"] = values
    return done(file, max_length=4)


family("Samples of different length", "lengths_", table, {
    "as_they_should_be": (None, "offsets", EVEN),
    "decreasing": ("decrease", "offsets", np.where(EVEN == 8, 20, EVEN)),
    "far_outside": (NOT_SAID, "offsets", np.append(EVEN[:-1], 1 << 60)),
    "beyond_int64": (
        NOT_SAID, "offsets", np.append(EVEN[:-1].astype("u8"), np.uint64((1 << 64) - 1))
    ),
    "negative": ("decrease", "offsets", np.where(EVEN == 8, -4, EVEN)),
    "of_other_values": (NOT_SAID, "offsets", EVEN // 2),
    "that_overflow": (NOT_SAID, "lengths", np.full(N, (1 << 63) + 4, "u8")),
    "negative_lengths": (NOT_SAID, "lengths", np.array([-4, 28, *[0] * (N - 2)])),
    "huge_lengths": ("not say", "lengths", np.array([1 << 62, *OTHERS])),
}, ASKED, ASKED)  # fmt: skip


@attack(ASKED, "declares far more", ASKED)
def lengths_bomb(scratch: Scratch) -> Target:
    """Lengths of 260 million empty samples, in a file of less than a megabyte."""
    file = plain(scratch, data=False)
    file["data"] = np.arange(4.0)
    count = 260_000_000
    lengths = file.create_dataset(
        "data_lengths", (count,), "u1", chunks=(1 << 24,), compression="gzip"
    )
    zeros = zlib.compress(bytes(1 << 24), 9)
    for at in range(0, count, 1 << 24):
        lengths.id.write_direct_chunk((at,), zeros)
    return done(file, max_length=4)


@attack(ASKED, "outside|heap|longer", ASKED)
def lengths_variable_huge(scratch: Scratch) -> Target:
    """Numbers of variable length, whose first element claims 2^32 - 1 of them."""
    file = plain(scratch, data=False)
    data = file.create_dataset("data", (N,), h5py.vlen_dtype(np.dtype("f8")))
    for i in range(N):
        data[i] = np.arange(3.0) + i
    at = data.id.get_offset()
    path = Path(closed(file))
    with edited(path) as raw:
        raw[at : at + 4] = struct.pack("<I", (1 << 32) - 1)
    return Target(path, {"max_length": 4})


@attack(NONE, ways=ASKED)
def lengths_of_one_crowded_heap(scratch: Scratch) -> Target:
    """A million samples of variable length, all of them in one heap of as many objects as a heap
    can have."""
    objects = np.zeros(
        (1 << 16) - 1, [("number", "<u2"), ("head", "V6"), ("size", "<u8"), ("value", "V8")]
    )
    objects["number"], objects["size"] = np.arange(1, 1 << 16), 4
    heap = b"GCOL\x01\0\0\0" + struct.pack("<Q", 16 + objects.nbytes) + objects.tobytes()
    file = plain(scratch, data=False, labels=False)
    file["heap"] = np.frombuffer(heap, np.uint8)
    elements = np.zeros(1 << 20, ELEMENT)
    elements["length"] = elements["object"] = 1
    elements["address"] = file["heap"].id.get_offset()
    kind = h5py.h5t.py_create(h5py.vlen_dtype(np.dtype("f4")), logical=True)
    body = zlib.compress(elements)
    filtered(file, "data", elements.shape, kind, (1,), stored=body, optional=True, values=(9,))
    return done(file, max_length=4, labels_field=None)
