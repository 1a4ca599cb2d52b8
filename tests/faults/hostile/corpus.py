"""What an attack is, the canary files that it tries to read, and the good sets that it changes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import simplejpeg

from .stores.server import Store

COUNT = 6
SHAPE = (16, 12, 3)
#: Bytes that no reader may ever hand out; as pixels, labels and text they look the same.
CANARY = b"CANARYSECRET" * 96
assert len(CANARY) == COUNT * 192

#: Ways to open an attack: see child.py.
WAYS = ("read", "info", "verify", "convert", "drop_in")
#: Other ways, tried on whatever can be read: each opens the set as "info" does, so that it must
#: refuse what that must refuse.
OTHER_WAYS = ("preview", "batch", "page", "bench", "doctor", "process")


@dataclass(frozen=True)
class Target:
    """An attack that was made: what is opened, and how.

    ``params``: of AsyncReader, and of -p; ``options``: of ``convert`` alone.
    """

    path: Path | str
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attack:
    """One hostile file, folder or store.

    ``refused``: the ways that must answer with a typed error; the others may also serve what
    is harmless. ``says``: what one of those errors must say. ``ways``: those that are
    tried.
    """

    name: str
    make: Callable[[Scratch], Target]
    refused: frozenset[str]
    says: str
    ways: tuple[str, ...]


ATTACKS: dict[str, Attack] = {}

SET = ("read", "info", "verify", "convert")
SAMPLE = ("read", "verify", "convert")
CONVERT = ("convert",)
NONE: tuple[str, ...] = ()
#: Of a file without a known layout ``info`` lists what is in it.
UNKNOWN = SAMPLE


def attack(
    refused: tuple[str, ...] = SET,
    says: str = "",
    ways: tuple[str, ...] = WAYS,
    name: str | None = None,
) -> Callable[[Callable[[Scratch], Target]], Callable[[Scratch], Target]]:
    """Register an attack under its function's name."""
    re.compile(says)

    def register(make: Callable[[Scratch], Target]) -> Callable[[Scratch], Target]:
        known = name or make.__name__.strip("_")
        assert known not in ATTACKS, known
        chosen = frozenset(refused) & frozenset(ways)
        ATTACKS[known] = Attack(known, make, chosen, says, ways)
        return make

    return register


def family(
    words: str,
    prefix: str,
    make: Callable[..., Target],
    rows: Mapping[str, tuple[Any, ...]],
    refused: tuple[str, ...] = SET,
    ways: tuple[str, ...] = WAYS,
) -> None:
    """Register an attack for each row: its name, what an error must say (None: it may be served, as
    well), and what ``make`` gets after the scratch folder."""
    module = sys._getframe(1).f_globals["__name__"]  # it says which kind of file this is
    for name, (says, *given) in rows.items():

        def made(scratch: Scratch, given: Any = tuple(given)) -> Target:
            return make(scratch, *given)

        made.__doc__, made.__module__ = f"{words}: {name.replace('_', ' ')}.", module
        attack(NONE if says is None else refused, says or "", ways, f"{prefix}{name}")(made)


class Corpus:
    """A scratch folder with the canaries, and good sets to be changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outside = root / "outside"
        self.outside.mkdir(parents=True)
        self.plugins = root / "plugins"
        self.plugins.mkdir()
        #: of the child process: nothing may stay in it
        self.temporary = root / "temporary"
        self.temporary.mkdir()
        #: where shards of a store are kept
        self.cache = root / "cache"
        #: made by the canary plugin when a process loads it
        self.touched = root / "plugin-was-loaded"
        (self.outside / "secret.raw").write_bytes(CANARY)
        pixels = np.frombuffer(CANARY, np.uint8).reshape(COUNT, 16, 4, 3)
        with h5py.File(self.outside / "secret.h5", "w") as file:
            file["data"] = pixels
            file["labels"] = np.frombuffer(CANARY, np.int64)[:COUNT]
            file["text"] = np.frombuffer(CANARY, "S12")[:COUNT]
        os.mkfifo(self.outside / "pipe")
        self._make_plugin()
        self.made = 0

    def _make_plugin(self) -> None:
        """A library that creates a file when it is loaded. Without a C compiler it is a pipe: a
        process that tries to load it hangs, which is noticed too."""
        library = self.plugins / "libcanary.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            os.mkfifo(library)
            return
        source = self.root / "canary.c"
        source.write_text(
            "#include <fcntl.h>\n#include <unistd.h>\n"
            "__attribute__((constructor)) static void loaded(void)\n"
            f'{{ int file = open("{self.touched}", O_CREAT | O_WRONLY, 0600);\n'
            "  if (file >= 0) close(file); }\n"
        )
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)

    @cached_property
    def pictures(self) -> Path:
        """A folder of two classes, three JPEGs each."""
        return class_folders(self.root / "pictures", COUNT)

    def base(self, name: str) -> Path:
        """A good set: "raw.h5", "jpeg.h5", "raw.lmdb", "jpeg.lmdb", or "shards"."""
        path = self.root / "bases" / name
        if not path.exists():
            from converters import convert

            path.parent.mkdir(exist_ok=True)
            if name == "shards":
                convert(self.pictures, path, format="hdf5", shards=3, jobs=1)
            else:
                convert(self.pictures, path, encoding=name.split(".")[0], jobs=1)
        return path

    @cached_property
    def store(self) -> Store:
        """A server for stores, started with the first of them."""
        return Store()

    def close(self) -> None:
        """Stop the server."""
        if "store" in self.__dict__:
            self.store.close()

    def prepare(self, attack: Attack) -> tuple[Target, Path]:
        """Make an attack in a folder of its own."""
        self.made += 1
        folder = self.root / f"{self.made:03d}"
        folder.mkdir()
        return attack.make(Scratch(self, folder)), folder


class Scratch:
    """The folder that one attack is made in, and the files outside it."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        self.corpus = corpus
        self.folder = folder
        self.outside = corpus.outside

    @property
    def secret(self) -> str:
        """A file of another user's bytes."""
        return str(self.outside / "secret.raw")

    @property
    def secret_h5(self) -> str:
        """An HDF5 file that the user did not ask for."""
        return str(self.outside / "secret.h5")

    @property
    def pipe(self) -> str:
        """A FIFO: opening it waits for ever."""
        return str(self.outside / "pipe")

    def copy(self, name: str) -> Path:
        """A copy of a good set, to be changed."""
        source, target = self.corpus.base(name), self.folder / name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return target


def sparse(path: Path, size: int) -> None:
    """A file of that size without any bytes on the disk."""
    path.touch()
    os.truncate(path, size)


@contextmanager
def edited(path: Path) -> Iterator[bytearray]:
    """The bytes of a file, to be changed in the block; they are written back after it."""
    raw = bytearray(path.read_bytes())
    yield raw
    path.write_bytes(raw)


def class_folders(folder: Path, count: int) -> Path:
    """Make a folder of two classes, with so many JPEGs."""
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return folder


def put_socket(path: Path) -> None:
    """A socket under this name."""
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def picture(number: int) -> np.ndarray:
    """A small picture, another for each number."""
    rows, columns = np.indices(SHAPE[:2])
    return np.stack([rows * 9 + number, columns * 11, rows * columns], -1).astype(np.uint8)


def jpeg(number: int) -> bytes:
    """The same as a JPEG file."""
    data: bytes = simplejpeg.encode_jpeg(picture(number), quality=90)
    return data
