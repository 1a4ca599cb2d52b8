"""LMDB sets whose values are image files: OCR, BasicSR, StyleGAN2, and LSUN's bare ones."""

from __future__ import annotations

import os
import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import FormatError, ParamsError
from ...system.array_types import Array, Int64, UInt8
from ..extents import image_kind
from ..fields import Layout, SetIndex
from ..labels import numbered
from ..lmdb import AGAIN, Entries, shown_key
from .plugins import LENGTH, ForeignSet, encoded_images

_DATA: Final = ("data",)

#: The key under which OCR sets state their number of samples.
_SAMPLES: Final = b"num-samples"

#: A line of meta_info.txt: key with its suffix, shape, compression level.
_LISTED: Final = re.compile(r"(.+)\.(\w+) \((\d{1,6}),(\d{1,6}),(\d)\) (\d+)")
#: Bytes of a name that are no UTF-8, as it is decoded.
_ESCAPED: Final = re.compile("[\udc80-\udcff]")
#: The longest line that is read: a key has 511 bytes at most.
_LINE: Final = 1024


def stated_count(value: bytes, key: str) -> int:
    """A count that is stored as ASCII digits."""
    if not re.fullmatch(rb"\d{1,18}", value):
        raise FormatError(
            "its number of samples is not a number", key=key, found=repr(value[:32]), hint=AGAIN
        )
    return int(value)


def check_count(stated: int, held: int, key: str) -> None:
    """FormatError unless the set has the stated number of samples."""
    if stated != held:
        raise _other_count(None, key, f"{held} samples", f"{stated}")


def _other_count(index: int | None, key: str, found: str, expected: str) -> FormatError:
    return FormatError(
        "the number of samples is not what the dataset says",
        index=index,
        key=key,
        found=found,
        expected=expected,
        hint="it was not written to its end, or over an older one: write it again",
    )


def text_labels(
    data: UInt8, starts: Int64, sizes: Array, blame: Any
) -> tuple[Array, tuple[str, ...]]:
    """(class number of each sample, sorted class names) of labels that are UTF-8 text."""
    ends = starts + sizes
    texts = (data[at:end].tobytes() for at, end in zip(starts.tolist(), ends.tolist(), strict=True))
    labels, classes = numbered(texts)
    damaged = np.array([_ESCAPED.search(name) is not None for name in classes], np.bool_)
    for i in np.flatnonzero(damaged[labels])[:1].tolist():
        text = data[starts[i] : ends[i]][:32].tobytes()
        raise FormatError("a label is not UTF-8 text", **blame(i), found=repr(text), hint=AGAIN)
    return labels, classes


# -- OCR: image-%09d, label-%09d, num-samples ------------------------------------------------------


def index_ocr(found: ForeignSet) -> SetIndex:
    """Text recognition's layout: images and texts by number from 1, and how many there are."""
    found.check_fields(("data", "image"), ("labels", "label"))
    entries = found.entries
    count = stated_count(found.find(_SAMPLES) or b"", "num-samples")
    images = _numbered(entries, b"image-", count)
    labels = classes = None
    asked = found.fields.labels is not None
    if asked and not found.fields.labels_required:
        # images to recognise, as parseq's: a set without any text is one without labels
        asked = bool((entries.numbers(b"label-", 9) >= 0).any())
    if asked:
        texts = _numbered(entries, b"label-", count)
        labels, classes = text_labels(found.tree.data, texts.starts, texts.sizes, texts.blame)
    words = "OCR (image-%09d)" + ("" if labels is None else ", texts of label-%09d as classes")
    return encoded_images(
        found, images, images.starts, images.sizes, words, labels=labels, classes=classes
    )


def _numbered(entries: Entries, prefix: bytes, count: int) -> Entries:
    """Entries ``prefix`` + nine digits, which must be 1 to ``count``."""
    numbers = entries.numbers(prefix, 9)
    which = np.flatnonzero(numbers >= 0)
    name = prefix.decode()
    missing = np.flatnonzero(numbers[which[:count]] != np.arange(1, min(which.size, count) + 1))
    if missing.size:
        first = int(missing[0]) + 1
        raise FormatError(
            "a sample is missing",
            index=first - 1,
            key=f"{name}{first:09d}",
            found=f"{name}{int(numbers[which[first - 1]]):09d} in its place",
            hint=AGAIN,
        )
    if which.size != count or not count:
        first = min(which.size, count)
        key, there = f"{name}{first + 1:09d}", f"{which.size} entries {name}*"
        raise _other_count(first, key, there, f"{count}, by num-samples")
    return entries.pick(which)


# -- BasicSR: meta_info.txt ------------------------------------------------------------------------


def index_basicsr(found: ForeignSet) -> SetIndex:
    """BasicSR's layout: a list of keys and shapes next to the data; records in the list's order."""
    found.check_fields(_DATA, ("labels",))
    entries, listing = found.entries, meta_info(found.path)
    assert listing is not None
    names, shapes = _listed(listing, len(entries))
    check_count(len(names), len(entries), "meta_info.txt")
    # the tree's keys are sorted: sort these too, then both must be equal
    order = sorted(range(len(names)), key=names.__getitem__)
    at = np.empty(len(names), np.int64)
    for rank, number in enumerate(order):
        held, listed = entries.key(rank), names[number]
        if held != listed:
            raise FormatError(
                "the dataset holds an image that meta_info.txt does not list"
                if held < listed
                else "meta_info.txt lists an image that the dataset does not hold",
                index=number,
                key=shown_key(min(held, listed)),
                hint=AGAIN,
            )
        at[number] = rank
    entries = entries.pick(at)
    same = bool((shapes == shapes[0]).all())
    channels = 1 if bool((shapes[:, 2] == 1).all()) else 3
    shape = (int(shapes[0, 0]), int(shapes[0, 1]), channels) if same else None
    return encoded_images(
        found,
        entries,
        entries.starts,
        entries.sizes,
        "BasicSR (meta_info.txt)",
        shape=shape,
        channels=channels,
        look=False,
        origin=_with_png,
    )


def meta_info(path: str) -> str | None:
    """BasicSR's list next to the data file, if it exists."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    listing = os.path.join(folder, "meta_info.txt")
    return listing if os.path.isfile(listing) else None


def _with_png(key: bytes) -> bytes:
    """The name that meta_info.txt gives an image: always a PNG's."""
    return key + b".png"


def _listed(listing: str, most: int) -> tuple[list[bytes], npt.NDArray[np.int32]]:
    """Keys and (h, w, c) of meta_info.txt."""
    names: list[bytes] = []
    shapes: list[tuple[int, int, int]] = []
    with open(listing, encoding="utf-8", errors="surrogateescape", newline=None) as file:
        while line := file.readline(_LINE):
            text = line.rstrip("\r\n")
            if not text:
                continue
            match = _LISTED.fullmatch(text)
            good = match is not None and len(names) < most
            if match is None or not good:
                raise FormatError(
                    "a line of meta_info.txt is not 'key.png (h,w,c) level'"
                    if match is None
                    else "meta_info.txt lists more images than the dataset holds",
                    path=listing,
                    index=len(names),
                    found=ascii(text[:80]),
                    hint=AGAIN,
                )
            names.append(match[1].encode("utf-8", "surrogateescape"))
            shapes.append((int(match[3]), int(match[4]), int(match[5])))
    if not names:
        raise FormatError("meta_info.txt lists no image", path=listing)
    return names, np.array(shapes, np.int32)


# -- StyleGAN2: {size}-{number:05d}, length --------------------------------------------------------


_NO_KEY: Final = "a key that is not SIZE-NUMBER"
_SIZED: Final = re.compile(rb"([1-9]\d{0,4})-\d{5,9}")


def is_stylegan(entries: Entries) -> bool:
    """Whether the first key is one of StyleGAN2's."""
    return _SIZED.fullmatch(entries.key(0)) is not None


def index_stylegan(found: ForeignSet) -> SetIndex:
    """StyleGAN2's layout: the same images in one or more sizes; data_field names the size."""
    entries = found.records
    count = stated_count(found.find(LENGTH) or b"", "length")
    sizes = _sizes(entries)
    wanted = found.fields.data
    if wanted == "data":
        wanted = str(max(sizes))
    if not wanted.isascii() or not wanted.isdigit() or int(wanted) not in sizes:
        raise ParamsError(
            f"no images of size {wanted!r} in this dataset",
            found=", ".join(map(str, sorted(sizes))),
            hint="name one of them with data_field",
        )
    found.check_fields((found.fields.data,), ("labels",))
    side = int(wanted)
    by_size = {size: entries.numbers(b"%d-" % size) for size in sizes}
    known = np.any([numbers >= 0 for numbers in by_size.values()], axis=0)
    if not known.all():
        raise entries.refuse(int(np.argmin(known)), _NO_KEY, hint=AGAIN)
    numbers = by_size[side]
    which = np.flatnonzero(numbers >= 0)
    which = which[np.argsort(numbers[which], kind="stable")]
    gaps = np.flatnonzero(numbers[which] != np.arange(which.size))
    if gaps.size or which.size != count or not count:
        first = int(gaps[0]) if gaps.size else min(which.size, count)
        key, there = f"{side}-{first:05d}", f"{which.size} images of size {side}"
        raise _other_count(first, key, there, f"0 to {count - 1}, by length")
    entries = entries.pick(which)
    others = ", ".join(str(size) for size in sizes if size != side)
    words = f"StyleGAN2, {side} x {side}" + (f" (data_field: also {others})" if others else "")
    return encoded_images(
        found, entries, entries.starts, entries.sizes, words, shape=(side, side, 3), look=False
    )


def _sizes(entries: Entries) -> list[int]:
    """The image sizes in the set: one key is read for each run of keys of one size."""
    sizes, at = set(), 0
    while at < len(entries):
        match = _SIZED.fullmatch(entries.key(at))
        if match is None:
            raise entries.refuse(at, _NO_KEY, hint=AGAIN)
        sizes.add(int(match[1]))
        at = entries.place(match[1] + b".", at)  # after the prefix, for "." follows "-"
    return sorted(sizes)


# -- LSUN: nothing but images ----------------------------------------------------------------------


def index_bare(found: ForeignSet) -> SetIndex:
    """Keys of any kind and an image file under each, in key order; no labels."""
    found.check_fields(_DATA, ("labels",))
    entries = found.records
    kind = image_kind(entries.value(0)[:12].tobytes())
    return encoded_images(
        found, entries, entries.starts, entries.sizes, f"bare images (as LSUN), the first a {kind}"
    )


# -- the layouts ---------------------------------------------------------------------------------

OCR: Final = Layout[ForeignSet]("OCR", lambda found: found.find(_SAMPLES) is not None, index_ocr)
BASICSR: Final = Layout[ForeignSet](
    "BasicSR", lambda found: meta_info(found.path) is not None, index_basicsr
)
STYLEGAN: Final = Layout[ForeignSet](
    "StyleGAN2",
    lambda found: found.find(LENGTH) is not None and is_stylegan(found.records),
    index_stylegan,
)
BARE: Final = Layout[ForeignSet](
    "bare images (as LSUN)", lambda found: image_kind(found.first) is not None, index_bare
)
