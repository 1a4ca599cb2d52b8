"""Hostile folders of pictures and CSVs, to be packed."""

import os
from pathlib import Path
from typing import Any

from .corpus import CONVERT, Scratch, Target, class_folders, family, jpeg, put_socket, sparse


def holding(scratch: Scratch, change: Any) -> Target:
    """A folder of pictures, changed."""
    folder = class_folders(scratch.folder / "pictures", 4)
    change(folder / "a", scratch)
    return Target(folder, {"size": [8, 8]})


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


def _named(data: bytes, *names: bytes) -> Any:
    """Files of these names."""

    def change(folder: Path, scratch: Scratch) -> None:
        for name in names:
            path = os.path.join(os.fsencode(folder), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)

    return change


ODD = (
    *(b"\x1b[2J\x1b]0;owned\x07.jpg", b"new\nline.jpg", b"\xff\xfe.jpg", b"-rf.jpg"),
    *(b"; id #.jpg", b"%s%n.jpg", b"..jpg.jpg", "\u202egpj.exe.jpg".encode()),
)


def _link(target: str, name: str = "x.jpg") -> Any:
    return lambda folder, scratch: (folder / name).symlink_to(getattr(scratch, target, target))


OUT, IRREGULAR = "a link out of the folder", "not a regular file|out of the folder"
family("A folder with", "folder_", holding, {
    "a_link_to_another_file": (OUT, _link("secret")),
    "a_link_to_another_folder": (OUT, _link("outside", "x")),
    "a_link_to_a_device": (IRREGULAR, _link("/dev/zero")),
    "a_link_to_a_pipe": (IRREGULAR, _link("pipe")),
    "a_link_up": ("a link loop", _link("..", "x")),
    "a_link_to_itself": ("a link loop", _link("x.jpg")),
    "links_by_the_million": ("too many links|link loop", _links),
    "a_pipe": ("a FIFO", lambda folder, scratch: os.mkfifo(folder / "x.jpg")),
    "a_socket": ("a socket", lambda folder, scratch: put_socket(folder / "x.jpg")),
    "a_hard_link": (
        "not an image", lambda folder, scratch: os.link(scratch.secret, folder / "x.jpg")
    ),
    "a_path_of_6000_bytes": ("cannot be read|too long", _deep),
    "hidden_files": (None, _named(b"", *(b".%d.jpg" % number for number in range(1500)))),
    "odd_names": (None, _named(jpeg(0), *ODD)),
    "odd_names_of_bad_files": ("not an image", _named(b"no picture", b"\x1b[2J\xff\n.jpg")),
    "an_odd_class": (None, _named(jpeg(0), b"../\x1b[2J\xff\nclass/x.jpg")),
    "a_sparse_picture": (
        "too large to be an image", lambda folder, scratch: sparse(folder / "x.jpg", 1 << 43)
    ),
}, CONVERT, CONVERT)  # fmt: skip


def optioned(scratch: Scratch, name: str, make: Any) -> Target:
    """A good folder, and a file beside it that an option names: its bytes, or what makes it."""
    folder, path = class_folders(scratch.folder / "pictures", 4), scratch.folder / name
    if isinstance(make, bytes):
        path.write_bytes(make.replace(b"@", os.fsencode(scratch.secret)))
    else:
        make(path)
    return Target(folder, {"size": [8, 8]}, {path.stem: str(path)})


OUTSIDE = "a path out of the folder"
SPECIAL = {
    "a_pipe": ("not a regular file", os.mkfifo),
    "a_device": ("not a regular file", lambda path: path.symlink_to("/dev/zero")),
}
LABELS: dict[str, tuple[str, Any]] = {
    "out_of_the_folder": (OUTSIDE, b"a/0.jpg,1\n../../outside/secret.raw,1\n"),
    "absolute": (OUTSIDE, b"a/0.jpg,1\n@,1\n"),
    "winding": (OUTSIDE, b"a/0.jpg,1\na/../../../outside/secret.raw,2\n"),
    "5000_digits": ("beyond 64 bits", b"a/0.jpg," + b"9" * 5000 + b"\n"),
    "a_cell_of_a_megabyte": ("not a CSV file", b"a/0.jpg," + b"x" * (1 << 20) + b"\n"),
    "nul": ("a NUL character", b"a/0.jpg\0,1\n"),
    "an_open_quote": ("not a CSV", b'a/0.jpg,"1\n' + b"x\n" * 100),
    "escapes": ("another number of labels|not there", b"a/0.jpg,1\n\x1b[2J.jpg,\x1b[2J,3\n"),
    "binary": ("CSV|not there|path", bytes(range(256)) * 40),
    **SPECIAL,
}
CLASSES: dict[str, tuple[str, Any]] = {
    "escapes": ("an unknown class", b"\x1b[2J\na\n"),
    "nul": ("not text", b"a\0\nb\n"),
    **SPECIAL,
}
for _file, _prefix, _rows in (("labels.csv", "csv_", LABELS), ("classes", "classes_", CLASSES)):
    _given = {name: (says, _file, make) for name, (says, make) in _rows.items()}
    family(f"A file {_file}", _prefix, optioned, _given, CONVERT, CONVERT)
