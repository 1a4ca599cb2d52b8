"""Damages the bytes of a file: single bits, and the fields of its structure.

Every function takes a Mutant, damages it as ``rng`` says, and returns what it did, in words.
"""

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
        *(at // PAGE, int(rng.integers(size // PAGE + 2)), int(rng.integers(1 << 62))),
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


def piece(mutant: Mutant, rng: Rng) -> str:
    """A block, or a part of one, becomes something else; one side lies near the structure."""
    data, block = mutant.data, PAGE if mutant.parts.pages else int(rng.choice([512, PAGE]))
    size = int(rng.choice([block, block, 512, 64, 16]))
    places = [mutant.parts.offset(rng, kind) // size * size for kind in ("structure", "anywhere")]
    one, two = places[:: 1 if rng.random() < 0.5 else -1]
    held = bytes(data[two : two + size])
    new = {
        "those of another place": bytes(data[one : one + size]),
        "zeros": bytes(len(held)),
        "ones": b"\xff" * len(held),
        "noise": rng.bytes(len(held)),
        "those of another set": mutant.other[two : two + size],
    }
    how = str(rng.choice([*new, "exchanged"]))
    if how == "exchanged":
        data[two : two + size], data[one : one + size] = data[one : one + size], held
    else:
        data[two : two + size] = new[how][: len(held)].ljust(len(held), b"\0")
    return f"{size} bytes at {two}: {how} ({one})"


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

#: Numbers of LMDB, as offsets and widths. Of a meta page: version, page size, main tree's flags,
#: depth, branch, leaf and overflow pages, entries, root; last page, transaction; the free tree's
#: entries and root. Of a page: number, flags, lower, upper. Of a node: size or child, flags, the
#: key's size, key; where its value's overflow pages begin.
FIELDS = {
    "meta": (
        *((20, 4), (40, 4), (92, 2), (94, 2), (96, 8), (104, 8), (112, 8), (120, 8), (128, 8)),
        *((136, 8), (144, 8), (72, 8), (80, 8)),
    ),
    "page": ((0, 8), (8, 2), (10, 2), (12, 2), (14, 2), (12, 4)),
    "node": ((0, 2), (0, 4), (2, 2), (4, 2), (6, 2), (8, 2), (16, 2), (18, 8)),
}


def _nodes(mutant: Mutant, rng: Rng) -> tuple[int, list[int]]:
    """A branch or leaf page, and where its nodes are."""
    data, pages = mutant.data, mutant.parts.pages
    at = int(rng.choice([*pages["branch"], *pages["leaf"]])) * PAGE
    lower = int.from_bytes(data[at + 12 : at + 14], "little")
    offsets = range(at + 16, at + max(16, min(lower, PAGE)), 2)
    return at, [at + int.from_bytes(data[p : p + 2], "little") for p in offsets]


def field(mutant: Mutant, rng: Rng) -> str:
    """A number of one or both of LMDB's meta pages, of a page's header, of a node, or the pointer
    to a node: an edge of something, or a page's number, which may lead in circles."""
    kind = str(rng.choice(["meta", "page", "node", "node", "pointer"]))
    at, nodes = _nodes(mutant, rng)
    if kind in ("node", "pointer") and not nodes:
        return integer(mutant, rng)
    if kind == "pointer":
        return "pointer " + _put_int(mutant, rng, at + 16 + 2 * int(rng.integers(len(nodes))), 2)
    offset, width = FIELDS[kind][int(rng.integers(len(FIELDS[kind])))]
    places, overflow = [at], mutant.parts.pages["overflow"]
    if kind == "page" and overflow and rng.random() < 0.3:
        places = [int(rng.choice(overflow)) * PAGE]
    elif kind == "node":
        places = [nodes[int(rng.integers(len(nodes)))]]
    elif kind == "meta":
        places = [0, PAGE] if rng.random() < 0.3 else [int(rng.integers(2)) * PAGE]
    seed = int(rng.integers(1 << 30))  # the same in both
    said = (_put_int(mutant, np.random.default_rng(seed), p + offset, width) for p in places)
    return f"{kind} " + ", ".join(said)


def swap_nodes(mutant: Mutant, rng: Rng) -> str:
    """Two nodes of a page change their order: keys out of order, or values exchanged."""
    at, nodes = _nodes(mutant, rng)
    if len(nodes) < 2:
        return integer(mutant, rng)
    one, two = rng.choice(len(nodes), 2, replace=False).tolist()
    offsets, width = [at + 16 + 2 * one, at + 16 + 2 * two], 2
    if rng.random() < 0.5:  # the 8 or 26 bytes at the head of the node: other sizes, other pages
        offsets, width = [nodes[one], nodes[two]], int(rng.choice([8, 18, 26]))
    first, second = (bytes(mutant.data[p : p + width]) for p in offsets)
    for offset, part in zip(offsets, (second, first), strict=True):
        mutant.data[offset : offset + len(part)] = part
    return f"{width} bytes at {offsets[0]} and {offsets[1]} swapped"


Change = Callable[[Mutant, Rng], str]
ANY: tuple[Change, ...] = (*(integer, integer, integer, text, text), *(piece,) * 6, shift, splice)
HDF5_ONLY: tuple[Change, ...] = (resealed,) * 8
LMDB_ONLY: tuple[Change, ...] = (*(field,) * 7, swap_nodes)


def damage_structure(mutant: Mutant, rng: Rng) -> str:
    """One change of the structure, or in one case of five two of them."""
    kinds = ANY + (LMDB_ONLY if mutant.parts.pages else HDF5_ONLY)
    said = []
    for _ in range(2 if rng.random() < 0.2 else 1):
        kind = kinds[int(rng.integers(len(kinds)))]
        said.append(f"{kind.__name__}: {kind(mutant, rng)}")
    return "; ".join(said)
