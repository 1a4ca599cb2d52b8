"""Hostile fields next to the pictures: in a set, and in a folder that is packed with them."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from .corpus import CANARY, NONE, SET, Scratch, Target, attack, jpeg
from .hdf5.tools import ROWS, N, closed, external, filtered, packed_set, plain
from .images import png

#: Masks (N, H, W) of the pictures of :func:`plain`.
MASKS = ROWS[:3]
#: The ways that are given the field; ``verify`` of others' sets checks the data alone.
ASKED = ("read", "info", "convert")


def field(
    name: str, change: Callable[[Any, Scratch], Any], says: str = "", harmless: bool = False
) -> None:
    """Register a foreign HDF5 file whose field ``mask`` is what ``change`` makes of it."""

    def make(scratch: Scratch) -> Target:
        file = plain(scratch)
        change(file, scratch)
        return Target(closed(file), {"data_field": ["data", "mask"]})

    make.__doc__ = f"A second field: {name.replace('_', ' ')}."
    attack(NONE if harmless else ASKED, says, SET, name=f"field_{name}")(make)


def _linked(target: str, inside: str) -> Callable[[Any, Scratch], None]:
    def change(file: Any, scratch: Scratch) -> None:
        file["mask"] = h5py.ExternalLink(getattr(scratch, target), inside)

    return change


def _virtual(file: Any, scratch: Scratch) -> None:
    layout = h5py.VirtualLayout(MASKS, "u1")
    layout[:] = h5py.VirtualSource(scratch.secret_h5, "data", MASKS, "u1")
    file.create_virtual_dataset("mask", layout)


def _made(*shape: int, kind: Any = "u1", **settings: Any) -> Callable[[Any, Scratch], None]:
    def change(file: Any, scratch: Scratch) -> None:
        file.create_dataset("mask", shape, kind, **settings)
        if "chunks" not in settings:
            file["mask"][:1] = np.zeros((1, *shape[1:]), kind)

    return change


field("external_storage", lambda f, p: external(f, "mask", MASKS, "u1", p), "outside the file")
field("external_link", _linked("secret_h5", "data"), "link into another file")
field("link_to_a_pipe", _linked("pipe", "data"), "link into another file")
field("virtual", _virtual, "virtual dataset")
field("plugin", lambda f, p: filtered(f, "mask", MASKS, "u1", optional=True), "filter 32099")
field("missing", lambda f, p: None, "mask")
field("of_another_count", _made(N - 1, *MASKS[1:]), "mask|number|count")
field(
    "of_no_rows",
    _made(0, *MASKS[1:], maxshape=(None, *MASKS[1:]), chunks=(1, *MASKS[1:])),
    "mask|sample|count|number",
)
field("of_a_billion_rows", _made(1 << 40, 4, 4, chunks=(1 << 10, 4, 4)), "lacks|number|too small")
field("bomb", _made(N, 1 << 20, 1 << 20, chunks=(1, 1 << 10, 1 << 10)), "lacks|too small|size")
field("of_objects", lambda f, p: _opaque(f), "plain numbers")
field("a_group", lambda f, p: f.create_group("mask"), "mask")
field("dangling", lambda f, p: f.__setitem__("mask", h5py.SoftLink("/nowhere")), "mask")
field("in_circles", lambda f, p: f.__setitem__("mask", h5py.SoftLink("/mask")), "circles|soft")
field("the_data_again", lambda f, p: f.__setitem__("mask", f["data"]), harmless=True)
field("of_another_size", _made(N, 3, 3), harmless=True)


def _opaque(file: Any) -> None:
    kind = h5py.opaque_dtype("M8[s]")
    file["mask"] = np.zeros(MASKS, "M8[s]").astype(kind)


def _named(name: str, fields: Any, says: str = "") -> None:
    def make(scratch: Scratch) -> Target:
        return Target(closed(plain(scratch)), {"data_field": fields})

    make.__doc__ = f"Fields that are asked for: {name.replace('_', ' ')}."
    attack(ASKED, says, SET, name=f"fields_{name}")(make)


_named("with_escapes", ["data", "\x1b[2J"])
_named("a_path_out", ["data", "../../etc/passwd"])
_named("with_nul", ["data", "a\0b"])


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


def _replaced(name: str, change: Callable[[Any, Scratch, Any], Any], says: str) -> None:
    def make(scratch: Scratch) -> Target:
        _masked(scratch)
        file = packed_set(scratch, "masked.h5")
        old = file["mask"]
        shape, kind = old.shape, old.dtype
        del file["mask"]
        change(file, scratch, (shape, kind))
        return Target(closed(file), {"data_field": ["data", "mask"]})

    make.__doc__ = f"Our set's masks: {name.replace('_', ' ')}."
    # the page shows the pictures alone
    attack(SET, says, (*SET, "page"), name=f"masks_of_ours_{name}")(make)


_replaced("external", lambda f, p, old: external(f, "mask", *old, p), "outside the file")
_replaced(
    "linked",
    lambda f, p, old: f.__setitem__("mask", h5py.ExternalLink(p.secret_h5, "data")),
    "link into another file",
)
_replaced("gone", lambda f, p, old: None, "mask")
_replaced(
    "fewer",
    lambda f, p, old: f.__setitem__("mask", np.zeros((old[0][0] - 1, *old[0][1:]), old[1])),
    "mask|number|shape|description",
)


# -- folders -------------------------------------------------------------------------------------

CONVERT = ("convert",)


def folder(
    what: str,
    change: Callable[[Path, Scratch], Any],
    says: str,
    harmless: bool = False,
    field: str = "mask",
) -> None:
    """Register pictures packed with a folder of masks that is then changed."""

    def make(scratch: Scratch) -> Target:
        pictures, masks = scratch.folder / "pictures", scratch.folder / "masks"
        for number in range(4):
            for where in (pictures / "a", masks / "a"):
                where.mkdir(parents=True, exist_ok=True)
            (pictures / "a" / f"{number}.jpg").write_bytes(jpeg(number))
            mask = Image.fromarray(np.full((16, 12), number, np.uint8))
            mask.save(masks / "a" / f"{number}.png")
        change(masks, scratch)
        options = {"field": f"{field}={masks}"}
        return Target(pictures, {"size": [8, 8]}, options)

    make.__doc__ = f"A folder of masks: {what.replace('_', ' ')}."
    attack(NONE if harmless else CONVERT, says, CONVERT, name=f"mask_{what}")(make)


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


OUT = "a link out of the folder"
folder("a_link_to_another_file", _instead(lambda p, at: p.symlink_to(at.secret)), OUT)
folder("a_link_to_a_device", _instead(lambda p, at: p.symlink_to("/dev/zero")), f"regular|{OUT}")
folder("a_link_to_a_pipe", _instead(lambda p, at: p.symlink_to(at.pipe)), f"regular|{OUT}")
folder(
    "a_link_to_itself", _instead(lambda p, at: p.symlink_to("2.png")), "link loop|Too many levels"
)
folder("a_pipe", _instead(lambda p, at: os.mkfifo(p)), "FIFO")
folder("a_hard_link", _instead(lambda p, at: os.link(at.secret, p)), "not an image|no image")
folder("a_folder", _instead(lambda p, at: p.mkdir()), "without its 'mask'")
folder("missing", _instead(lambda p, at: None), "without its 'mask'")
folder("sparse", _instead(lambda p, at: (p.touch(), os.truncate(p, 1 << 43))), "too large")
folder("bomb", _written(lambda: png(30_000, 30_000, 8, 0, b"x")), "pixels|larger")
folder(
    "a_bomb_that_inflates",
    _written(lambda: png(12, 16, 8, 0, zlib.compress(bytes(80 << 20), 1))),
    "",
    harmless=True,
)
folder("of_another_size", _written(lambda: png(11, 16, 8, 2)), "differ in size")
folder("of_one_pixel", _written(lambda: png(1, 1, 8, 2)), "differ in size")
folder("text", _written(lambda: b"#!/bin/sh\n" + CANARY[:20]), "not an image|no image")
folder("numpy", _written(lambda: b"\x93NUMPY\x01\x00" + b"x" * 80), "not an image|no image")
folder("of_negative_numbers", _written(_signed_tiff), "mask|tiff|TIFF|image")
folder(
    "palette_of_nothing",
    _written(lambda: png(12, 16, 8, 3, zlib.compress(bytes(13 * 16)))),
    "",
    harmless=True,
)
folder(
    "with_two_suffixes",
    lambda masks, scratch: (masks / "a" / "2.jpg").write_bytes(jpeg(2)),
    "two of field",
)
folder(
    "with_escapes",
    lambda masks, scratch: (masks / "a" / "2.png").rename(masks / "a" / "\x1b[2J.png"),
    "without its 'mask'",
)
folder("root_is_a_file", _whole(lambda p, at: p.touch()), "no folder of field")
folder("root_is_a_pipe", _whole(lambda p, at: os.mkfifo(p)), "no folder of field")
folder("root_is_a_device", _whole(lambda p, at: p.symlink_to("/dev/zero")), "no folder of field")
folder("root_is_missing", _whole(lambda p, at: None), "no folder of field")
folder("root_in_circles", _whole(lambda p, at: p.symlink_to("masks")), "no folder of field")


def _deep_mask(masks: Path, scratch: Scratch) -> None:
    (masks / "a" / "up").symlink_to("..")


folder("a_link_up", _deep_mask, "", harmless=True)


def _deflated_huge() -> bytes:
    """A PNG of 2^31 - 1 by 1."""
    return png((1 << 31) - 1, 1, 8, 0, struct.pack("<I", 0))


folder("as_wide_as_can_be", _written(_deflated_huge), "pixels|larger|size|wide")
folder(
    "name_of_a_table",
    lambda masks, scratch: None,
    "",
    field="labels",
)
