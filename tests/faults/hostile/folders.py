"""Hostile folders of pictures and CSVs, to be packed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .corpus import NONE, Scratch, Target, attack, class_folders, jpeg, put_socket

CONVERT = ("convert",)


def _holding(name: str, change: Any, says: str, harmless: bool = False, **options: Any) -> None:
    def make(scratch: Scratch) -> Target:
        folder = class_folders(scratch.folder / "pictures", 4)
        change(folder / "a", scratch)
        return Target(folder, {"size": [8, 8]}, options)

    make.__doc__ = f"A folder with {name.replace('_', ' ')}."
    attack(NONE if harmless else CONVERT, says, CONVERT, name=f"folder_{name}")(make)


def _socket(folder: Path, scratch: Scratch) -> None:
    put_socket(folder / "x.jpg")


def _links(folder: Path, scratch: Scratch) -> None:
    """Folders whose links lead to each other: 2^24 paths to a picture."""
    pool = folder.parent / "c"
    for level in range(24):
        (pool / f"{level}").mkdir(parents=True)
        (pool / f"{level}" / "p.jpg").write_bytes(jpeg(0))
        for way in "xy":
            (pool / f"{level}" / way).symlink_to(f"../{level + 1}")
    (pool / "24").mkdir()


def _deep(folder: Path, scratch: Scratch) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(60):
            os.mkdir("d" * 100)
            os.chdir("d" * 100)
        Path("x.jpg").write_bytes(jpeg(0))
    finally:
        os.chdir(before)


def _hidden(folder: Path, scratch: Scratch) -> None:
    for number in range(1500):
        (folder / f".{number}.jpg").touch()


def _odd_names(folder: Path, scratch: Scratch) -> None:
    for name in (
        b"\x1b[2J\x1b]0;owned\x07.jpg",
        b"new\nline.jpg",
        b"\xff\xfe.jpg",
        b"-rf.jpg",
        b"; id #.jpg",
        b"%s%n.jpg",
        b"..jpg.jpg",
        "\u202egpj.exe.jpg".encode(),
    ):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(jpeg(0))


def _odd_bad_names(folder: Path, scratch: Scratch) -> None:
    with open(os.path.join(os.fsencode(folder), b"\x1b[2J\xff\n.jpg"), "wb") as file:
        file.write(b"no picture")


def _odd_folder(folder: Path, scratch: Scratch) -> None:
    other = os.path.join(os.fsencode(folder.parent), b"\x1b[2J\xff\nclass")
    os.mkdir(other)
    with open(os.path.join(other, b"x.jpg"), "wb") as file:
        file.write(jpeg(0))


def _sparse(folder: Path, scratch: Scratch) -> None:
    path = folder / "x.jpg"
    path.touch()
    os.truncate(path, 1 << 43)


def _link(target: str) -> Any:
    return lambda folder, scratch: (folder / "x.jpg").symlink_to(getattr(scratch, target, target))


_holding("a_link_to_another_file", _link("secret"), "a link out of the folder")
_holding(
    "a_link_to_another_folder",
    lambda folder, scratch: (folder / "x").symlink_to(scratch.outside),
    "a link out of the folder",
)
_holding("a_link_to_a_device", _link("/dev/zero"), "not a regular file|out of the folder")
_holding("a_link_to_a_pipe", _link("pipe"), "not a regular file|out of the folder")
_holding("a_link_up", lambda folder, scratch: (folder / "x").symlink_to(".."), "a link loop")
_holding(
    "a_link_to_itself",
    lambda folder, scratch: (folder / "x.jpg").symlink_to("x.jpg"),
    "a link loop",
)
_holding("links_by_the_million", _links, "too many links|link loop")
_holding("a_pipe", lambda folder, scratch: os.mkfifo(folder / "x.jpg"), "a FIFO")
_holding("a_socket", _socket, "a socket")
_holding(
    "a_hard_link", lambda folder, scratch: os.link(scratch.secret, folder / "x.jpg"), "not an image"
)
_holding("a_path_of_6000_bytes", _deep, "cannot be read|too long")
_holding("hidden_files", _hidden, "", harmless=True)
_holding("odd_names", _odd_names, "", harmless=True)
_holding("odd_names_of_bad_files", _odd_bad_names, "not an image")
_holding("an_odd_class", _odd_folder, "", harmless=True)
_holding("a_sparse_picture", _sparse, "too large to be an image")


def _labelled(name: str, text: bytes | None, says: str, make_file: Any = None) -> None:
    def make(scratch: Scratch) -> Target:
        folder = class_folders(scratch.folder / "pictures", 4)
        csv = scratch.folder / "labels.csv"
        if text is None:
            make_file(csv, scratch)
        else:
            csv.write_bytes(text.replace(b"@", os.fsencode(scratch.secret)))
        return Target(folder, {"size": [8, 8]}, {"labels": str(csv)})

    make.__doc__ = f"A labels CSV: {name.replace('_', ' ')}."
    attack(CONVERT, says, CONVERT, name=f"csv_{name}")(make)


_labelled(
    "out_of_the_folder", b"a/0.jpg,1\n../../outside/secret.raw,1\n", "a path out of the folder"
)
_labelled("absolute", b"a/0.jpg,1\n@,1\n", "a path out of the folder")
_labelled("winding", b"a/0.jpg,1\na/../../../outside/secret.raw,2\n", "a path out of the folder")
_labelled("5000_digits", b"a/0.jpg," + b"9" * 5000 + b"\n", "beyond 64 bits")
_labelled("a_cell_of_a_megabyte", b"a/0.jpg," + b"x" * (1 << 20) + b"\n", "not a CSV file")
_labelled("nul", b"a/0.jpg\0,1\n", "a NUL character")
_labelled("an_open_quote", b'a/0.jpg,"1\n' + b"x\n" * 100, "not a CSV")
_labelled("escapes", b"a/0.jpg,1\n\x1b[2J.jpg,\x1b[2J,3\n", "another number of labels|not there")
_labelled("binary", bytes(range(256)) * 40, "CSV|not there|path")
_labelled("a_pipe", None, "not a regular file", lambda csv, scratch: os.mkfifo(csv))
_labelled("a_device", None, "not a regular file", lambda csv, scratch: csv.symlink_to("/dev/zero"))


def _classed(name: str, make_file: Any, says: str) -> None:
    def make(scratch: Scratch) -> Target:
        folder = class_folders(scratch.folder / "pictures", 4)
        classes = scratch.folder / "classes"
        make_file(classes, scratch)
        return Target(folder, {"size": [8, 8]}, {"classes": str(classes)})

    make.__doc__ = f"A file of class names: {name.replace('_', ' ')}."
    attack(CONVERT, says, CONVERT, name=f"classes_{name}")(make)


_classed("a_pipe", lambda path, scratch: os.mkfifo(path), "not a regular file")
_classed("a_device", lambda path, scratch: path.symlink_to("/dev/zero"), "not a regular file")
_classed("escapes", lambda path, scratch: path.write_bytes(b"\x1b[2J\na\n"), "an unknown class")
_classed("nul", lambda path, scratch: path.write_bytes(b"a\0\nb\n"), "not text")
