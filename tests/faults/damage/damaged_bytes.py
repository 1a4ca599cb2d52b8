"""Damages the bytes of a file: single bits, and the fields of its structure.

Every function takes a Mutant, damages it as ``rng`` says, and returns what it did, in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from faults.damage.regions import PAGE, Regions
from faults.damage.reseal import seal

Rng = np.random.Generator


@dataclass
class Mutant:
    """A file's bytes, to be damaged; ``other``: those of a sound set of the same layout."""

    data: bytearray
    parts: Regions
    count: int
    other: bytes = b""


def flip(mutant: Mutant, rng: Rng) -> str:
    """One byte is changed: a bit of it, or all: in structure, tables, pixels or anywhere."""
    kind = str(rng.choice(["structure", "tables", "pixels", "anywhere"], p=[0.4, 0.2, 0.2, 0.2]))
    at = min(mutant.parts.offset(rng, kind), len(mutant.data) - 1)
    change = 1 << int(rng.integers(8)) if rng.random() < 0.5 else int(rng.integers(1, 256))
    mutant.data[at] ^= change
    return f"byte {at} ^= {change:#04x} ({kind})"


# -- structure: both containers ------------------------------------------------------------------


def _put_int(mutant: Mutant, rng: Rng, at: int, width: int) -> str:
    """Overwrite an integer by a value at an edge of something."""
    at = max(0, min(at, len(mutant.data) - width))
    old = int.from_bytes(mutant.data[at : at + width], "little")
    size, top = len(mutant.data), 1 << 8 * width
    edges = [
        *(0, 1, top - 1, top // 2 - 1, top // 2, old + 1, old - 1, old * 2, old ^ 1, ~old),
        *(size, size - 1, size + 1, size // PAGE, size // PAGE - 1, PAGE, 2 * PAGE),
        *(mutant.count, mutant.count - 1, mutant.count + 1, int(rng.integers(256))),
        int(rng.integers(1 << 62)),
    ]
    new = edges[int(rng.integers(len(edges)))] % top
    mutant.data[at : at + width] = new.to_bytes(width, "little")
    return f"u{8 * width} at {at}: {old} -> {new}"


def integer(mutant: Mutant, rng: Rng) -> str:
    """An aligned integer of 2, 4 or 8 bytes becomes another, mostly in the structure."""
    width = int(rng.choice([2, 4, 8]))
    kind = str(rng.choice(["structure", "tables", "anywhere"], p=[0.75, 0.15, 0.1]))
    return _put_int(mutant, rng, mutant.parts.offset(rng, kind) // width * width, width)


DIGITS, LETTERS = b"0123456789", b"abcdefghijklmnopqrstuvwxyzABNCHW"


def text(mutant: Mutant, rng: Rng) -> str:
    """A digit or letter of some text becomes another: numbers and names in descriptions."""
    data = mutant.data
    for _ in range(200):
        at = min(mutant.parts.offset(rng, "structure"), len(data) - 1)
        if data[at] in DIGITS + LETTERS:
            alphabet = DIGITS if data[at] in DIGITS else LETTERS
            new = alphabet[int(rng.integers(len(alphabet)))]
            said = f"text at {at}: {data[at]:#x} -> {new:#x}"
            data[at] = new
            return said
    return integer(mutant, rng)


def _unit(mutant: Mutant, rng: Rng) -> tuple[int, int, int]:
    """Bytes of a block, and where two of them are."""
    unit = PAGE if mutant.parts.pages else int(rng.choice([512, PAGE]))
    units = max(1, len(mutant.data) // unit)
    one, two = rng.integers(units, size=2).tolist()
    if rng.random() < 0.5:  # near the structure, on one side at least
        one = min(mutant.parts.offset(rng, "structure") // unit, units - 1)
    return unit, one * unit, two * unit


def swap_blocks(mutant: Mutant, rng: Rng) -> str:
    """Two pages are swapped."""
    unit, one, two = _unit(mutant, rng)
    data = mutant.data
    data[one : one + unit], data[two : two + unit] = data[two : two + unit], data[one : one + unit]
    return f"blocks of {unit} at {one} and {two} swapped"


def copy_block(mutant: Mutant, rng: Rng) -> str:
    """A page appears twice: over another."""
    unit, one, two = _unit(mutant, rng)
    mutant.data[two : two + unit] = mutant.data[one : one + unit]
    return f"block of {unit} at {one} copied to {two}"


def zero_block(mutant: Mutant, rng: Rng) -> str:
    """A page, or a part of one, reads as zeros (or ones)."""
    unit, one, _ = _unit(mutant, rng)
    size = int(rng.choice([unit, 512, 64, 16]))
    one += int(rng.integers(unit // size)) * size
    fill = b"\0" if rng.random() < 0.7 else b"\xff"
    mutant.data[one : one + size] = (fill * size)[: len(mutant.data) - one]
    return f"{size} bytes at {one} are {fill.hex()}"


def noise_block(mutant: Mutant, rng: Rng) -> str:
    """16 or 64 bytes of noise in the structure."""
    size = int(rng.choice([16, 64]))
    at = mutant.parts.offset(rng, "structure")
    mutant.data[at : at + size] = rng.bytes(size)[: len(mutant.data) - at]
    return f"{size} bytes of noise at {at}"


def move_bytes(mutant: Mutant, rng: Rng) -> str:
    """64 bytes are copied elsewhere in the structure."""
    one, two = (mutant.parts.offset(rng, "structure") // 8 * 8 for _ in range(2))
    piece = bytes(mutant.data[one : one + 64])
    mutant.data[two : two + len(piece)] = piece
    return f"{len(piece)} bytes from {one} to {two}"


def shift(mutant: Mutant, rng: Rng) -> str:
    """A few bytes, or a page, are put in or taken out."""
    at = mutant.parts.offset(rng, "anywhere")
    size = int(rng.choice([1, 8, 512, PAGE]))
    if rng.random() < 0.5:
        mutant.data[at:at] = rng.bytes(size)
        return f"{size} bytes put in at {at}"
    del mutant.data[at : at + size]
    return f"{size} bytes taken out at {at}"


def splice(mutant: Mutant, rng: Rng) -> str:
    """One part of this set, one of another."""
    unit = PAGE if mutant.parts.pages else int(rng.choice([1, 512, PAGE]))
    at = int(rng.integers(1, max(2, len(mutant.data) // unit))) * unit
    if rng.random() < 0.5:
        mutant.data[at:] = mutant.other[at:]
        return f"another set from byte {at} on"
    mutant.data[:at] = mutant.other[:at]
    return f"another set up to byte {at}"


def copy_from_other(mutant: Mutant, rng: Rng) -> str:
    """A page, or 16 bytes, of another set at the same offset."""
    unit, one, _ = _unit(mutant, rng)
    size = int(rng.choice([unit, 16]))
    piece = mutant.other[one : one + size]
    mutant.data[one : one + len(piece)] = piece
    return f"{size} bytes at {one} of another set"


# -- structure: HDF5's blocks --------------------------------------------------------------------


def resealed(mutant: Mutant, rng: Rng) -> str:
    """One to three numbers in a block of HDF5's metadata, whose checksum is made good again."""
    start, length = mutant.parts.sealed[int(rng.integers(len(mutant.parts.sealed)))]
    if start + length + 4 > len(mutant.data):
        return integer(mutant, rng)  # another change has cut it off
    said = []
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        width = int(rng.choice([1, 2, 4, 8]))
        at = start + int(rng.integers(4, length - width + 1))
        said.append(_put_int(mutant, rng, at, width))
    seal(mutant.data, start, length)
    return f"{', '.join(said)}, in a sealed block at {start}"


# -- structure: LMDB's pages ---------------------------------------------------------------------

#: Offsets in a meta page and sizes: version, page size, main tree's flags, depth, branch, leaf and
#: overflow pages, entries, root; last page, transaction; the free tree's entries and root.
META_FIELDS = (
    *((20, 4), (40, 4), (92, 2), (94, 2), (96, 8), (104, 8), (112, 8), (120, 8), (128, 8)),
    *((136, 8), (144, 8), (72, 8), (80, 8)),
)
#: Number, flags, lower, upper of a page.
PAGE_FIELDS = ((0, 8), (8, 2), (10, 2), (12, 2), (14, 2), (12, 4))


def _page(mutant: Mutant, rng: Rng, *kinds: str) -> int | None:
    numbers = [n for kind in kinds for n in mutant.parts.pages.get(kind, ())]
    return int(rng.choice(numbers)) * PAGE if numbers else None


def meta_field(mutant: Mutant, rng: Rng) -> str:
    """A field of one or both of LMDB's meta pages."""
    offset, width = META_FIELDS[int(rng.integers(len(META_FIELDS)))]
    both = rng.random() < 0.3
    chosen = (0, PAGE) if both else (int(rng.integers(2)) * PAGE,)
    seed = int(rng.integers(1 << 30))
    said = [_put_int(mutant, np.random.default_rng(seed), at + offset, width) for at in chosen]
    return "meta " + ", ".join(said)


def page_field(mutant: Mutant, rng: Rng) -> str:
    """A field of an LMDB page's header."""
    at = _page(mutant, rng, *(("branch", "leaf") if rng.random() < 0.7 else ("overflow",)))
    if at is None:
        return integer(mutant, rng)
    offset, width = PAGE_FIELDS[int(rng.integers(len(PAGE_FIELDS)))]
    return "page header " + _put_int(mutant, rng, at + offset, width)


def empty_page(mutant: Mutant, rng: Rng) -> str:
    """A branch or leaf page has no nodes any more."""
    kind = "branch" if mutant.parts.pages["branch"] and rng.random() < 0.5 else "leaf"
    at = _page(mutant, rng, kind)
    if at is None:
        return integer(mutant, rng)
    mutant.data[at + 12 : at + 14] = (16).to_bytes(2, "little")
    return f"no nodes on the page at {at}"


def _nodes(mutant: Mutant, at: int) -> list[int]:
    """Where the nodes of a page are."""
    data = mutant.data
    lower = int.from_bytes(data[at + 12 : at + 14], "little")
    offsets = range(at + 16, at + max(16, min(lower, PAGE)), 2)
    return [at + int.from_bytes(data[p : p + 2], "little") for p in offsets]


def node_field(mutant: Mutant, rng: Rng) -> str:
    """A node's size, flags, key size, key or child; or the pointer to a node."""
    at = _page(mutant, rng, "branch", "leaf")
    nodes = [] if at is None else _nodes(mutant, at)
    if at is None or not nodes:
        return integer(mutant, rng)
    number = int(rng.integers(len(nodes)))
    if rng.random() < 0.2:
        return "node pointer " + _put_int(mutant, rng, at + 16 + 2 * number, 2)
    offset, width = ((0, 2), (2, 2), (4, 2), (6, 2), (8, 2), (16, 2), (18, 8))[int(rng.integers(7))]
    return "node " + _put_int(mutant, rng, nodes[number] + offset, width)


def swap_nodes(mutant: Mutant, rng: Rng) -> str:
    """Two nodes of a page change their order: keys out of order, or values exchanged."""
    at = _page(mutant, rng, "branch", "leaf")
    nodes = [] if at is None else _nodes(mutant, at)
    if at is None or len(nodes) < 2:
        return integer(mutant, rng)
    one, two = rng.choice(len(nodes), 2, replace=False).tolist()
    offsets = [at + 16 + 2 * one, at + 16 + 2 * two]
    if rng.random() < 0.5:  # the 8 or 26 bytes at the head of the node: other sizes, other pages
        offsets, width = [nodes[one], nodes[two]], int(rng.choice([8, 18, 26]))
    else:
        width = 2
    first, second = (bytes(mutant.data[p : p + width]) for p in offsets)
    for offset, piece in zip(offsets, (second, first), strict=True):
        mutant.data[offset : offset + len(piece)] = piece
    return f"{width} bytes at {offsets[0]} and {offsets[1]} swapped"


def child_page(mutant: Mutant, rng: Rng) -> str:
    """A branch's child, or a value's overflow page, becomes any other page: loops too."""
    at = _page(mutant, rng, "branch", "leaf", "branch")
    nodes = [] if at is None else _nodes(mutant, at)
    if at is None or not nodes:
        return integer(mutant, rng)
    page = at // PAGE if rng.random() < 0.3 else int(rng.integers(len(mutant.data) // PAGE + 2))
    node = nodes[int(rng.integers(len(nodes)))]
    if at // PAGE in mutant.parts.pages["branch"]:
        mutant.data[node : node + 4] = page.to_bytes(4, "little")
        return f"child at {node} is page {page}"
    size = int.from_bytes(mutant.data[node + 6 : node + 8], "little")
    mutant.data[node + 8 + size : node + 16 + size] = page.to_bytes(8, "little")
    return f"value at {node} is on page {page}"


Change = Callable[[Mutant, Rng], str]
ANY: tuple[Change, ...] = (
    *(integer, integer, integer, text, text, swap_blocks, copy_block, zero_block, noise_block),
    *(move_bytes, shift, splice, copy_from_other),
)
HDF5_ONLY: tuple[Change, ...] = (resealed,) * 8
LMDB_ONLY: tuple[Change, ...] = (
    *(meta_field, meta_field, page_field, empty_page, node_field, node_field, swap_nodes),
    child_page,
)


def damage_structure(mutant: Mutant, rng: Rng) -> str:
    """One change of the structure, or in one case of five two of them."""
    kinds = ANY + (LMDB_ONLY if mutant.parts.pages else HDF5_ONLY)
    said = []
    for _ in range(2 if rng.random() < 0.2 else 1):
        kind = kinds[int(rng.integers(len(kinds)))]
        said.append(f"{kind.__name__}: {kind(mutant, rng)}")
    return "; ".join(said)
