"""Hostile HDF5: the file itself, its trees, and what its path is."""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import NONE, SET, WAYS, Scratch, Target, attack, edited, family, sparse
from .tools import ROWS, done, patched, plain


@attack(NONE)
def user_block(scratch: Scratch) -> Target:
    """Served: a script before the HDF5, at byte 512."""
    made = done(plain(scratch, userblock_size=512))
    with open(made.path, "r+b") as file:
        file.write(b"#!/bin/sh\ncat /etc/passwd\n")
    return made


@attack(NONE)
def oldest_superblock(scratch: Scratch) -> Target:
    """Served: version 0, symbol tables, no checksums."""
    return done(plain(scratch, libver="earliest"))


@attack(says="HDF5 cannot read it")
def superblock_of_no_version(scratch: Scratch) -> Target:
    """The library looks among its plugins for one that opens a file which it cannot open."""
    made = done(plain(scratch))
    with edited(Path(made.path)) as raw:
        raw[8] = 9
    return made


@attack(NONE, ways=SET)
def chunk_index_in_circles(scratch: Scratch) -> Target:
    """A chunk B-tree whose node is its own child."""
    file = plain(scratch, data=False)
    file.create_dataset("data", data=np.zeros((400, 4), np.uint8), chunks=(1, 4))
    del file["labels"]
    made = done(file)
    with edited(Path(made.path)) as raw:
        found = [match.start() for match in re.finditer(b"TREE\x01", raw)]
        assert found
        for at in found:
            raw[at + 5] = 1  # a level above the leaves
            key = 8 + 3 * 8  # size and mask, offsets of two axes and of the element
            for child in range(2):
                address = at + 24 + key + child * (key + 8)
                raw[address : address + 8] = struct.pack("<Q", at)
    return made


@attack(NONE, ways=SET)
def group_index_in_circles(scratch: Scratch) -> Target:
    """A group's B-tree whose node is its own child."""
    file = plain(scratch)
    for number in range(40):
        file[f"x{number}"] = number
    made = done(file)
    with edited(Path(made.path)) as raw:
        at = raw.index(b"TREE\x00")
        raw[at + 5] = 3
        raw[at + 24 + 8 : at + 24 + 16] = struct.pack("<Q", at)
    return made


@attack(says="names in one place")
def names_of_two_groups_in_one_place(scratch: Scratch) -> Target:
    """Two heaps of names that say that their bytes are the same, as in CVE-2024-32609's file."""
    file = plain(scratch, data=False, labels=False, libver="earliest")
    file.create_group("a/b/c")["x"] = 1
    made = done(file)
    with edited(Path(made.path)) as raw:
        _, first, second, _ = (match.start() for match in re.finditer(b"HEAP\0", raw))
        size, _, at = struct.unpack_from("<QQQ", raw, first + 8)
        place = struct.pack("<Q", len(raw))
        raw += raw[at : at + size]
        raw[40:48] = struct.pack("<Q", len(raw))  # the superblock's end of the file
        raw[first + 24 : first + 32] = raw[second + 24 : second + 32] = place
    return made


@attack(says="HDF5 cannot read it|lacks some|wrong")
def header_in_circles(scratch: Scratch) -> Target:
    """An object header whose continuation is itself."""
    file = plain(scratch, data=False, labels=False)
    made_set = file.create_dataset("data", data=np.zeros(ROWS, np.uint8))
    for number in range(40):
        made_set.attrs[f"a{number}"] = np.zeros(20)
    address = h5py.h5o.get_info(made_set.id).addr
    made = done(file)
    with edited(Path(made.path)) as raw:
        at = raw.find(b"\x10\x00\x10\x00", address)  # continuation message of 16 bytes
        assert at > 0
        raw[at + 8 : at + 16] = struct.pack("<Q", address + 16)
    return made


@attack(says="cannot read it|outside the file|truncated|stores none|cannot be mapped")
def address_outside_the_file(scratch: Scratch) -> Target:
    """Pixels at an address beyond the file."""
    file = plain(scratch, data=False, labels=False)
    made_set = file.create_dataset("data", data=np.zeros(ROWS, np.uint8))
    offset, size = made_set.id.get_offset(), int(np.prod(ROWS))
    made = done(file)
    patched(
        Path(made.path), struct.pack("<QQ", offset, size), struct.pack("<QQ", 1 << 62, size), -1
    )
    return made


@attack(WAYS, "neither HDF5 nor LMDB")
def list_in_disguise(scratch: Scratch) -> Target:
    """A text that names another file and goes by the name of an HDF5 file."""
    path = scratch.folder / "set.h5"
    path.write_text(f"{scratch.secret_h5}\n")
    return Target(path)


@attack(says="neither HDF5", ways=SET)
def list_of_pipes(scratch: Scratch) -> Target:
    """A list of files, one of which is a pipe."""
    pipe = scratch.folder / "pipe.h5"
    os.mkfifo(pipe)
    path = scratch.folder / "set.txt"
    path.write_text("pipe.h5\n")
    return Target(path)


@attack(says="neither HDF5", ways=SET)
def list_of_itself(scratch: Scratch) -> Target:
    """A list of lists of itself."""
    path = scratch.folder / "set.txt"
    path.write_text("deeper.h5\n" * 1000)
    (scratch.folder / "deeper.h5").write_text("set.txt\n")
    return Target(path)


def path_is(scratch: Scratch, make: Callable[[Path, Scratch], Any]) -> Target:
    """The path itself is something else."""
    path = scratch.folder / "set.h5"
    return Target(make(path, scratch) or path)


family("The path is", "path_is_", path_is, {
    "a_pipe": ("not a regular file|no image", lambda path, scratch: os.mkfifo(path)),
    "a_device": ("not a regular file|no folder", lambda path, scratch: Path("/dev/zero")),
    "a_link_in_circles": (
        "cannot be reached|no folder", lambda path, scratch: path.symlink_to(path)
    ),
    "a_link_to_a_pipe": (
        "regular|no folder", lambda path, scratch: path.symlink_to(scratch.pipe)
    ),
    "another_file": ("neither HDF5 nor", lambda path, scratch: path.symlink_to(scratch.secret)),
    "empty": ("the file is empty", lambda path, scratch: path.touch()),
    # it cannot be mapped where memory is limited, as in an attack
    "a_sparse_exabyte": (
        "neither HDF5 nor|cannot be mapped", lambda path, scratch: sparse(path, 1 << 43)
    ),
}, SET, SET)  # fmt: skip
