"""Damage done through h5py and lmdb: files whose own metadata are sound and say something false."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np

Rng = np.random.Generator

TABLES = ("labels", "offsets", "checksums", "classes", "paths", "data")


def _one_of(rng: Rng, choices: Sequence[Any]) -> Any:
    """One of some things, of whatever types."""
    return choices[int(rng.integers(len(choices)))]


TEXTS = (
    *("<f8", "<i8", ">i8", "NCHW", "NHWC", "int8", "raw", "jpeg", "png", "yuv420", "original"),
    *("class", "values", "none", "", "\u00e9"),
)


def _other(value: Any, rng: Rng) -> Any:
    """Another value of about the same kind."""
    if isinstance(value, np.ndarray | list):
        values = [int(number) for number in value]
        moved = list(values)
        moved[int(rng.integers(len(moved)))] += int(rng.choice([-1, 1, 256, -1000]))
        return _one_of(rng, [values[1::-1] + values[2:], moved, values[:-1], values[::-1]])
    if isinstance(value, bytes | str | np.bytes_):
        given = value.decode() if isinstance(value, bytes) else str(value)
        return _one_of(rng, (*TEXTS, given[:-1], given + "0", given[::-1]))
    number = int(value)
    return _one_of(rng, (0, 1, -1, 2, 3, number + 1, number - 1, number * 2, 1 << 40))


# -- HDF5 ----------------------------------------------------------------------------------------


def _attribute(file: h5py.File, rng: Rng) -> str:
    names = list(file.attrs)
    if rng.random() < 0.6:
        text, said = _described(json.loads(file.attrs["description"]), rng)
        kept = rng.random() < 0.8
        file.attrs["description"] = np.bytes_(text.encode() or b" ") if kept else text
        return said
    name = _one_of(rng, names)
    if rng.random() < 0.25:
        del file.attrs[name]
        return f"attribute {name} deleted"
    value = _other(file.attrs[name], rng)
    if isinstance(value, str) and rng.random() < 0.8:
        value = np.bytes_(value.encode())  # else of variable length
    del file.attrs[name]
    file.attrs[name] = value
    return f"attribute {name} = {value!r}"


def _two(file: h5py.File, rng: Rng) -> tuple[str, str]:
    return tuple(rng.choice([name for name in TABLES if name in file], 2, replace=False).tolist())


def _links(file: h5py.File, rng: Rng) -> str:
    one, two = _two(file, rng)
    how = _one_of(rng, ("deleted", "exchanged with", "a soft link to", "a second hard link to"))
    if how == "exchanged with":
        for source, target in ((one, "aside"), (two, one), ("aside", two)):
            file.move(source, target)
    else:
        del file[one]
        if how != "deleted":
            file[one] = h5py.SoftLink(f"/{two}") if "soft" in how else file[two]
    return f"{one} is {how} {two}"


def _number(rows: Any, rng: Rng) -> Any:
    value = np.array(_one_of(rng, (0, 1, -1, 1 << 40, 7)))
    with np.errstate(all="ignore"):
        rows.reshape(-1)[int(rng.integers(rows.size))] = value.astype(rows.dtype)
    return rows


def _viewed(rows: Any, rng: Rng) -> Any:
    return rows.view(
        _one_of(rng, ("<i8", "<u8", "<f8") if rows.itemsize == 8 else ("i1", "u1", "?"))
    )


#: What becomes of the rows of a table; the first two are for numbers, the next for pictures.
ROWS: dict[str, Callable[[Any, Rng], Any]] = {
    "another number": _number,
    "another type": _viewed,
    "sides exchanged": lambda rows, rng: rows.reshape(
        rows.shape[0], rows.shape[2], rows.shape[1], *rows.shape[3:]),
    "one row less or more": lambda rows, rng: (
        rows[:-1] if rng.random() < 0.5 else np.concatenate([rows, rows[:1]])),
    "another order": lambda rows, rng: rows[rng.permutation(len(rows))],
    "another rank": lambda rows, rng: rows.reshape(-1) if rows.ndim > 1 else rows[:, None],
}  # fmt: skip


def _table(file: h5py.File, rng: Rng) -> str:
    name, _ = _two(file, rng)
    rows = file[name][()]
    fit = (rows.dtype.kind in "iuf", rows.dtype.kind in "iuf", rows.ndim > 2, True, True, True)
    how = _one_of(rng, [one for one, fits in zip(ROWS, fit, strict=True) if fits])
    rows = ROWS[how](rows, rng)
    del file[name]
    file[name] = rows
    return f"{name}: {how}, {rows.shape} {rows.dtype}"


def _layout(file: h5py.File, rng: Rng) -> str:
    """Data that are stored otherwise, or only declared."""
    rows = file["data"][()]
    del file["data"]
    kind = int(rng.integers(4))
    if kind == 0:
        file.create_dataset("data", rows.shape, rows.dtype)
        return "data declared and never written"
    if kind == 1:
        chunk = (min(7, len(rows)), *rows.shape[1:])
        data = file.create_dataset("data", rows.shape, rows.dtype, chunks=chunk)
        data[: len(rows) // 2] = rows[: len(rows) // 2]
        return "data in chunks, half of them written"
    if kind == 2:
        file.create_dataset("data", data=rows, chunks=True, shuffle=True, compression="lzf")
        return "data compressed by lzf"
    file.create_dataset("data", data=rows[..., :1] if rows.ndim == 4 else rows[:-1])
    return "data cut"


def rewrite_hdf5(path: Path, rng: Rng) -> str:
    """One change to a sound HDF5 set through h5py."""
    kinds: tuple[Callable[[h5py.File, Rng], str], ...] = (
        *(_attribute, _attribute, _links, _table, _table, _layout),
    )
    with h5py.File(path, "r+", libver=("v110", "v110"), locking=False) as file:
        return "h5py: " + kinds[int(rng.integers(len(kinds)))](file, rng)


# -- LMDB ----------------------------------------------------------------------------------------


def rewrite_lmdb(path: Path, rng: Rng) -> str:
    """One change to a sound LMDB set through lmdb; ``path``: its data file."""
    options = {"subdir": False, "map_size": 64 << 20, "max_dbs": 16, "lock": False, "sync": False}
    with contextlib.closing(lmdb.open(str(path), **options)) as env:
        with env.begin() as transaction:
            names = [key.decode() for key, _ in transaction.cursor()]
        databases = {name: env.open_db(name.encode(), create=False) for name in names}
        with env.begin(write=True) as transaction:
            return "lmdb: " + _change(transaction, databases, env, rng)


def _change(transaction: Any, databases: dict[str, Any], env: Any, rng: Rng) -> str:
    kind = int(rng.integers(8))
    if kind < 3:
        facts = json.loads(transaction.get(b"meta", db=databases["meta"]))
        text, said = _described(facts, rng)
        transaction.put(b"meta", text.encode(), db=databases["meta"])
        return said
    if kind == 3:
        name = str(rng.choice(list(databases)))
        transaction.drop(databases[name], delete=bool(rng.integers(2)))
        return f"{name} dropped"
    if kind == 4:
        name = str(rng.choice(["labels", "checksums"]))
        table = bytearray(transaction.get(b"table", db=databases[name]))
        at = int(rng.integers(len(table)))
        table[at] ^= int(rng.integers(1, 256))
        if rng.random() < 0.3:
            table = table[: 8 * int(rng.integers(len(table) // 8))]
        transaction.put(b"table", bytes(table), db=databases[name])
        return f"{name}, byte {at}; now {len(table)} bytes"
    name = str(rng.choice(["data", "paths"], p=[0.8, 0.2]))
    database = databases[name]
    count = transaction.stat(database)["entries"]
    one, two = (b"%010d" % n for n in rng.choice(count, 2, replace=False).tolist())
    if kind == 5:
        transaction.delete(one, db=database)
        if rng.random() < 0.5:
            key = [b"%010d" % count, b"x", b"\0" * 10, b"0000000001 "][int(rng.integers(4))]
            transaction.put(key, b"value", db=database)
            return f"{name}: {one!r} deleted, {key!r} added"
        return f"{name}: {one!r} deleted"
    first, second = (bytes(transaction.get(key, db=database)) for key in (one, two))
    if kind == 6:
        transaction.put(one, second, db=database)
        transaction.put(two, first, db=database)
        return f"{name}: values of {one!r} and {two!r} exchanged"
    new = [first[:-1], first + b"\0", b"", first * 2, second][int(rng.integers(5))]
    transaction.put(one, new, db=database)
    return f"{name}: {one!r} has {len(new)} bytes"


def _described(facts: dict[str, Any], rng: Rng) -> tuple[str, str]:
    """The JSON text of a description with one change, and what was changed."""
    name = _one_of(rng, list(facts))
    how, old = _one_of(rng, ("dropped", "cut", "a literal", "another")), facts[name]
    if how == "dropped":
        del facts[name]
    elif how == "a literal":
        literals = ("[" * 5000, "1e999", "-1", "null", '"x"', "[]", "{}", "true", "9" * 30)
        facts[name] = "@"
        return json.dumps(facts).replace('"@"', literal := _one_of(rng, literals)), (
            f"description: {name} = {literal[:20]}"
        )
    elif how == "another" and isinstance(old, dict):
        key = _one_of(rng, list(old))
        old[key] = old[key][::-1]
    elif how == "another" and old is not None:
        words = isinstance(old, list) and isinstance(old[0], str)
        facts[name] = old[::-1] if words else _other(old, rng)
    text = json.dumps(facts)
    if how == "cut":
        text = text[: int(rng.integers(len(text)))]
    return text, f"description: {name} {how}: {facts.get(name)!r}"
