"""Hostile fields next to the pictures: in a set, and in a folder that is packed with them."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from .corpus import CANARY, CONVERT, SET, Scratch, Target, family, jpeg, sparse
from .hdf5.tools import (
    ROWS,
    N,
    done,
    elsewhere,
    external,
    filtered,
    leads_out,
    on,
    packed_set,
    plain,
    puts,
)
from .images import png

#: Masks (N, H, W) of the pictures of :func:`plain`.
MASKS = ROWS[:3]


def _made(*shape: int, kind: Any = "u1", **settings: Any) -> Callable[[Any, Scratch], None]:
    def change(file: Any, scratch: Scratch) -> None:
        file.create_dataset("mask", shape, kind, **settings)
        if "chunks" not in settings:
            file["mask"][:1] = np.zeros((1, *shape[1:]), kind)

    return change


ASKED = ("read", "info", "convert")
TWO = {"data_field": ["data", "mask"]}
EMPTY = _made(0, *MASKS[1:], maxshape=(None, *MASKS[1:]), chunks=(1, *MASKS[1:]))
OUT, SMALL = "link into another file", "lacks|number|too small"
# ``verify`` of others' sets checks the data alone
family("A second field", "field_", on(TWO), {
    "external_storage": ("outside the file", lambda f, p: external(f, "mask", MASKS, "u1", p)),
    "external_link": (OUT, leads_out("mask", "secret_h5", "data")),
    "link_to_a_pipe": (OUT, leads_out("mask", "pipe", "data")),
    "virtual": (
        "virtual dataset", lambda f, p: elsewhere(f, "mask", p.secret_h5, "data", MASKS, "u1")
    ),
    "plugin": ("filter 32099", lambda f, p: filtered(f, "mask", MASKS, "u1", optional=True)),
    "missing": ("mask", lambda f, p: None),
    "of_another_count": ("mask|number|count", _made(N - 1, *MASKS[1:])),
    "of_no_rows": ("mask|sample|count|number", EMPTY),
    "of_a_billion_rows": (SMALL, _made(1 << 40, 4, 4, chunks=(1 << 10, 4, 4))),
    "bomb": (
        "lacks|too small|size", _made(N, 1 << 20, 1 << 20, chunks=(1, 1 << 10, 1 << 10))
    ),
    "of_objects": (
        "plain numbers", puts(mask=np.zeros(MASKS, "M8[s]").astype(h5py.opaque_dtype("M8[s]")))
    ),
    "a_group": ("mask", lambda f, p: f.create_group("mask")),
    "dangling": ("mask", puts(mask=h5py.SoftLink("/nowhere"))),
    "in_circles": ("circles|soft", puts(mask=h5py.SoftLink("/mask"))),
    "the_data_again": (None, lambda f, p: f.__setitem__("mask", f["data"])),
    "of_another_size": (None, _made(N, 3, 3)),
}, ASKED, SET)  # fmt: skip


def named(scratch: Scratch, name: str) -> Target:
    """A second field of this name is asked for."""
    return done(plain(scratch), data_field=["data", name])


family("Fields that are asked for", "fields_", named, {
    "with_escapes": ("", "\x1b[2J"),
    "a_path_out": ("", "../../etc/passwd"),
    "with_nul": ("", "a\0b"),
}, ASKED, SET)  # fmt: skip


def _masked(scratch: Scratch) -> Path:
    """A set packed by asyncreader with masks."""
    path = scratch.corpus.root / "bases" / "masked.h5"
    if not path.exists():
        from converters import convert

        folder = scratch.corpus.root / "masked"
        for number in range(4):
            (folder / "p").mkdir(parents=True, exist_ok=True)
            (folder / "m").mkdir(exist_ok=True)
            (folder / "p" / f"{number}.jpg").write_bytes(jpeg(number))
            Image.fromarray(np.full((16, 12), number, np.uint8)).save(
                folder / "m" / f"{number}.png"
            )
        path.parent.mkdir(exist_ok=True)
        convert(folder / "p", path, fields={"mask": folder / "m"}, no_labels=True, jobs=1)
    return scratch.copy("masked.h5")


def replaced(scratch: Scratch, change: Callable[[Any, Scratch, Any, Any], Any]) -> Target:
    """Our set with something else in the place of its masks; ``change`` gets shape and dtype."""
    _masked(scratch)
    file = packed_set(scratch, "masked.h5")
    old = file["mask"]  # as long as it is open, its bytes stay in the file
    shape, kind = old.shape, old.dtype
    del file["mask"]
    change(file, scratch, shape, kind)
    return done(file, **TWO)


# the page shows the pictures alone
family("Our set's masks", "masks_of_ours_", replaced, {
    "external": ("outside the file", lambda f, p, *old: external(f, "mask", *old, p)),
    "linked": (OUT, lambda f, p, *old: leads_out("mask", "secret_h5", "data")(f, p)),
    "gone": ("mask", lambda f, p, *old: None),
    "fewer": (
        "mask|number|shape|description",
        lambda f, p, shape, kind: f.__setitem__("mask", np.zeros((shape[0] - 1, *shape[1:]), kind)),
    ),
}, SET, (*SET, "page"))  # fmt: skip


# -- folders -------------------------------------------------------------------------------------


def packed(scratch: Scratch, change: Callable[[Path, Scratch], Any], field: str = "mask") -> Target:
    """Pictures packed with a folder of masks that is then changed."""
    pictures, masks = scratch.folder / "pictures", scratch.folder / "masks"
    for number in range(4):
        for where in (pictures / "a", masks / "a"):
            where.mkdir(parents=True, exist_ok=True)
        (pictures / "a" / f"{number}.jpg").write_bytes(jpeg(number))
        mask = Image.fromarray(np.full((16, 12), number, np.uint8))
        mask.save(masks / "a" / f"{number}.png")
    change(masks, scratch)
    return Target(pictures, {"size": [8, 8]}, {"field": f"{field}={masks}"})


def _instead(how: Callable[[Path, Scratch], Any]) -> Callable[[Path, Scratch], Any]:
    """Something else instead of one mask."""

    def change(masks: Path, scratch: Scratch) -> None:
        path = masks / "a" / "2.png"
        path.unlink()
        how(path, scratch)

    return change


def _whole(how: Callable[[Path, Scratch], Any]) -> Callable[[Path, Scratch], Any]:
    """Something else instead of the folder."""

    def change(masks: Path, scratch: Scratch) -> None:
        masks.rename(masks.with_name("moved"))
        how(masks, scratch)

    return change


def _written(data: Callable[[], bytes]) -> Callable[[Path, Scratch], Any]:
    return _instead(lambda path, scratch: path.write_bytes(data()))


def _signed_tiff() -> bytes:
    import io

    held = io.BytesIO()
    Image.fromarray(np.full((16, 12), -1, np.int32)).save(held, "TIFF")
    return held.getvalue()


LED = "a link out of the folder"
NO_IMAGE, WITHOUT, NO_FOLDER = "not an image|no image", "without its 'mask'", "no folder of field"
family("A folder of masks", "mask_", packed, {
    "a_link_to_another_file": (LED, _instead(lambda p, at: p.symlink_to(at.secret))),
    "a_link_to_a_device": (f"regular|{LED}", _instead(lambda p, at: p.symlink_to("/dev/zero"))),
    "a_link_to_a_pipe": (f"regular|{LED}", _instead(lambda p, at: p.symlink_to(at.pipe))),
    "a_link_to_itself": (
        "link loop|Too many levels", _instead(lambda p, at: p.symlink_to("2.png"))
    ),
    "a_pipe": ("FIFO", _instead(lambda p, at: os.mkfifo(p))),
    "a_hard_link": (NO_IMAGE, _instead(lambda p, at: os.link(at.secret, p))),
    "a_folder": (WITHOUT, _instead(lambda p, at: p.mkdir())),
    "missing": (WITHOUT, _instead(lambda p, at: None)),
    "sparse": ("too large", _instead(lambda p, at: sparse(p, 1 << 43))),
    "bomb": ("pixels|larger", _written(lambda: png(30_000, 30_000, 8, 0, b"x"))),
    "a_bomb_that_inflates": (
        None, _written(lambda: png(12, 16, 8, 0, zlib.compress(bytes(80 << 20), 1)))
    ),
    "of_another_size": ("differ in size", _written(lambda: png(11, 16, 8, 2))),
    "of_one_pixel": ("differ in size", _written(lambda: png(1, 1, 8, 2))),
    "text": (NO_IMAGE, _written(lambda: b"#!/bin/sh\n" + CANARY[:20])),
    "numpy": (NO_IMAGE, _written(lambda: b"\x93NUMPY\x01\x00" + b"x" * 80)),
    "of_negative_numbers": ("mask|tiff|TIFF|image", _written(_signed_tiff)),
    "palette_of_nothing": (
        None, _written(lambda: png(12, 16, 8, 3, zlib.compress(bytes(13 * 16))))
    ),
    "with_two_suffixes": (
        "two of field", lambda masks, at: (masks / "a" / "2.jpg").write_bytes(jpeg(2))
    ),
    "with_escapes": (
        WITHOUT, lambda masks, at: (masks / "a" / "2.png").rename(masks / "a" / "\x1b[2J.png")
    ),
    "root_is_a_file": (NO_FOLDER, _whole(lambda p, at: p.touch())),
    "root_is_a_pipe": (NO_FOLDER, _whole(lambda p, at: os.mkfifo(p))),
    "root_is_a_device": (NO_FOLDER, _whole(lambda p, at: p.symlink_to("/dev/zero"))),
    "root_is_missing": (NO_FOLDER, _whole(lambda p, at: None)),
    "root_in_circles": (NO_FOLDER, _whole(lambda p, at: p.symlink_to("masks"))),
    "a_link_up": (None, lambda masks, at: (masks / "a" / "up").symlink_to("..")),
    "as_wide_as_can_be": (
        "pixels|larger|size|wide",
        _written(lambda: png((1 << 31) - 1, 1, 8, 0, struct.pack("<I", 0))),
    ),
    "name_of_a_table": ("", lambda masks, scratch: None, "labels"),
}, CONVERT, CONVERT)  # fmt: skip
