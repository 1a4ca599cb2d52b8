"""How hostile HDF5 files are made: what the modules of attacks share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.formats import packed as fmt

from ..corpus import CANARY, COUNT, Scratch, Target

N = COUNT
ROWS = (N, 16, 4, 3)
UNKNOWN = 32099


def plain(
    scratch: Scratch, name: str = "set.h5", data: bool = True, labels: bool = True, **settings: Any
) -> Any:
    """A new foreign file with data and labels of its own, open for writing."""
    file = h5py.File(scratch.folder / name, "w", **settings)
    if data:
        file["data"] = np.arange(np.prod(ROWS), dtype=np.uint8).reshape(ROWS)
    if labels:
        file["labels"] = np.arange(N)
    return file


def done(file: Any, **params: Any) -> Target:
    """Close it: it is opened by its path."""
    return Target(closed(file), params)


def with_classes(scratch: Scratch, *classes: bytes) -> Target:
    """Images and labels of AnnData's, which keeps the names of classes in a column: no digest is in
    the way."""
    file = plain(scratch, data=False, labels=False)
    file.create_group("var")
    file["X"] = np.zeros((N, 8, 8, 3), np.uint8)
    file["obs/kind"] = np.array(classes)[np.arange(N) % len(classes)]
    return done(file, labels_field="obs/kind")


def on(params: dict[str, Any] | None = None, **settings: Any) -> Callable[..., Target]:
    """The ``make`` of a family of attacks: what a function makes of a new foreign file, open for
    writing. ``params``: how the file is opened; ``settings``: of :func:`plain`."""

    def make(scratch: Scratch, change: Callable[[Any, Scratch], Any]) -> Target:
        file = plain(scratch, **settings)
        change(file, scratch)
        return done(file, **(params or {}))

    return make


def leads_out(name: str, target: str, inside: str) -> Callable[[Any, Scratch], None]:
    """A link to another file: ``target`` is an attribute of Scratch."""

    def change(file: Any, scratch: Scratch) -> None:
        file[name] = h5py.ExternalLink(getattr(scratch, target), inside)

    return change


def puts(**made: Any) -> Callable[[Any, Scratch], None]:
    """Data sets or links of these names."""

    def change(file: Any, scratch: Scratch) -> None:
        for name, value in made.items():
            file[name] = value

    return change


def creates(name: str, shape: tuple[int, ...], kind: str = "u1", **how: Any) -> Any:
    """A data set that is declared."""
    return lambda file, scratch: file.create_dataset(name, shape, kind, **how)


def patched(path: Path, old: bytes, new: bytes, count: int = 1) -> None:
    """Change bytes in place; they must be there."""
    raw = path.read_bytes()
    assert old in raw, old
    assert len(old) == len(new)
    path.write_bytes(raw.replace(old, new, count))


def filtered(
    file: Any,
    name: str,
    shape: tuple[int, ...],
    kind: Any,
    codes: tuple[int, ...] = (UNKNOWN,),
    chunk: tuple[int, ...] | None = None,
    stored: bytes | None = None,
    optional: bool = False,
    values: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7),
) -> None:
    """A chunked data set with any filters, its chunks' stored bytes as given.

    The library does not make one with a filter that it lacks, so that it is made with shuffle (or
    what else it has) and the numbers are changed when the file is closed: see :func:`refilter`.
    """
    chunk = chunk or shape
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(chunk)
    for code in codes:
        flag = h5py.h5z.FLAG_OPTIONAL
        plist.set_filter(code, flag if optional or code > 6 else 0, values)
    made = h5py.h5d.create(
        file.id,
        name.encode(),
        kind if isinstance(kind, h5py.h5t.TypeID) else h5py.h5t.py_create(np.dtype(kind)),
        space(shape),
        plist,
    )
    grid = [range(0, n, c) for n, c in zip(shape, chunk, strict=True)]
    body = stored if stored is not None else CANARY[:8]
    for at in np.ndindex(*(len(steps) for steps in grid)):
        made.write_direct_chunk(tuple(steps[i] for steps, i in zip(grid, at, strict=True)), body, 0)


def space(shape: tuple[int, ...], unlimited: bool = False) -> Any:
    """A simple dataspace."""
    most = (h5py.h5s.UNLIMITED, *shape[1:]) if unlimited else shape
    return h5py.h5s.create_simple(shape, most)


def opaque(tag: bytes, size: int = 8) -> Any:
    """An opaque type."""
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, size)
    kind.set_tag(tag)
    return kind


def external(file: Any, name: str, shape: tuple[int, ...], kind: Any, scratch: Scratch) -> None:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    file.create_dataset(name, shape, kind, external=[(scratch.secret, 0, size)])


def packed_set(scratch: Scratch, name: str = "raw.h5") -> Any:
    """A set packed by asyncreader, open for writing, without the digest of its description: an
    attacker leaves that out."""
    file = h5py.File(scratch.copy(name), "r+", libver=("v110", "v110"))
    redescribe(file)
    return file


def redescribe(file: Any, **changes: Any) -> None:
    """Change facts of a set packed by asyncreader; its description keeps no digest of itself."""
    facts = json.loads(file.attrs["description"]) | changes
    facts["digests"].pop(fmt.META, None)
    file.attrs["description"] = np.bytes_(json.dumps(facts))
    for name in set(changes) & set(file.attrs):
        value = changes[name]
        file.attrs[name] = np.bytes_(value) if isinstance(value, str) else value


def redigest(file: Any, name: str, digest: str) -> None:
    """Change the digest of one table."""
    digests = json.loads(file.attrs["description"])["digests"]
    redescribe(file, digests={**digests, name: digest})


def closed(file: Any) -> Path:
    path = Path(file.filename)
    file.close()
    return path


def elsewhere(
    file: Any, name: str, source: str, inside: str, shape: tuple[int, ...], kind: Any
) -> None:
    """A virtual data set: the rows of another file's."""
    layout = h5py.VirtualLayout(shape, kind)
    layout[:] = h5py.VirtualSource(source, inside, shape, kind)
    file.create_virtual_dataset(name, layout)


def virtually(scratch: Scratch, source: str, unlimited: bool, dataset: str = "data") -> Any:
    file = plain(scratch, data=False, libver="latest")
    most = (None, *ROWS[1:]) if unlimited else None
    layout = h5py.VirtualLayout(ROWS, "u1", maxshape=most)
    other = h5py.VirtualSource(source, dataset, ROWS, "u1", maxshape=most)
    rows = slice(0, h5py.h5s.UNLIMITED if unlimited else N)
    layout[rows] = other[rows]
    file.create_virtual_dataset("data", layout)
    return file
