"""Folders, good and treacherous, for the tests of what the converter finds."""

import os
from pathlib import Path
from typing import Any

from converter_corpus import image, put, saved

from converters.inputs.folder import Listing
from converters.options import Options

PNG = saved(image(6, 6), "PNG")


def tree(root: Path, *paths: str | bytes) -> Path:
    """Files with a picture in each; folders as needed."""
    return put(root, dict.fromkeys(paths, PNG))


def paths_of(listing: Listing) -> list[bytes]:
    return [listing.files[n] for n in range(listing.count)]


def labels_of(listing: Listing) -> list[object]:
    rows = listing.labels
    assert rows is not None
    found: list[object] = rows.tolist()
    return found


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(os.fsencode(text))
    return str(path)


def make_bad(root: Path, outside: Path) -> dict[str, str]:
    """Things that look like pictures and are none: path -> what is said of it."""
    tree(outside, "secret.png", "folder/1.png")
    tree(root, "c/good.png")
    os.mkfifo(root / "c" / "fifo.png")
    (root / "c" / "out.png").symlink_to(outside / "secret.png")
    (root / "c" / "nothing.png").symlink_to("nowhere.png")
    (root / "c" / "self.png").symlink_to("self.png")
    (root / "c" / "up").symlink_to("..")
    (root / "c" / "device.png").symlink_to("/dev/zero")
    (root / "outside").symlink_to(outside / "folder")
    return {
        "c/device.png": "a character device",
        "c/fifo.png": "a FIFO",
        "c/nothing.png": "a link to nothing",
        "c/out.png": "a link out of the folder",
        "c/self.png": "a link loop",
        "c/up": "a link loop",
        "outside": "a link out of the folder",
    }


def scan(
    root: str,
    exclude: str | None = None,
    classes: tuple[str, ...] | None = None,
    **options: Any,
) -> Listing:
    """What a folder is listed as, with such options of ``convert``."""
    return Listing(Options(root, "", (root,), **options), exclude, classes)
