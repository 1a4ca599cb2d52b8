"""Hostile LMDB: pages that lead in circles, sizes that lie, descriptions that explode, pickles."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np

from .corpus import COUNT, NONE, SAMPLE, SET, Scratch, Target, attack, edited, jpeg, put_socket

PAGE = 4096
DBS = ("data", "meta", "labels", "checksums", "paths")


def environment(path: Path, named: dict[bytes | None, dict[bytes, bytes]], **flags: Any) -> Path:
    """An LMDB folder with these databases (None: the main one)."""
    with lmdb.open(str(path), map_size=1 << 28, max_dbs=32, sync=False) as env:
        for name, entries in named.items():
            database = None if name is None else env.open_db(name, **flags)
            with env.begin(write=True, db=database) as txn:
                for key, value in entries.items():
                    txn.put(key, value)
    (path / "lock.mdb").unlink()
    return path


def bare(scratch: Scratch, values: list[bytes], **named: Any) -> Path:
    """Values under numbers, as LSUN keeps its pictures."""
    entries = {b"%08d" % i: value for i, value in enumerate(values)}
    return environment(scratch.folder / "set", {None: entries, **named})


# -- the description of a packed set ---------------------------------------------------------------


def described(scratch: Scratch, change: Any) -> Target:
    """A set packed by asyncreader with another description."""
    path = scratch.copy("raw.lmdb")
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 28) as env:
        database = env.open_db(b"meta")
        with env.begin(write=True, db=database) as txn:
            facts = json.loads(txn.get(b"meta"))
            facts["digests"].pop("meta", None)  # an attacker would leave it out
            txn.put(b"meta", change(json.dumps(facts).encode()))
    (path / "lock.mdb").unlink(missing_ok=True)
    return Target(path)


def _with(**fields: Any) -> Any:
    return lambda text: json.dumps({**json.loads(text), **fields}).encode()


def _raw(field: str, literal: bytes) -> Any:
    def change(text: bytes) -> bytes:
        whole = json.dumps({**json.loads(text), field: "@"}).encode()
        return whole.replace(b'"@"', literal)

    return change


_DESCRIPTIONS: dict[str, tuple[Any, str]] = {
    "nested": (lambda text: b"[" * 200_000, "not JSON"),
    "nested_in_a_field": (
        _raw("classes", b"[" * 100_000 + b"]" * 100_000),
        "not JSON|wrong 'classes'",
    ),
    "huge_int": (_raw("count", b"9" * 100_000), "not JSON"),
    "infinite": (_raw("count", b"1e999"), "wrong 'count'"),
    "nan": (_raw("count", b"NaN"), "wrong 'count'"),
    "negative": (_with(count=-5), "wrong 'count'.*found -5"),
    "count_is_text": (_with(count="24"), "wrong 'count'.*found '24'"),
    "count_is_a_fraction": (_with(count=24.5), "wrong 'count'.*found 24.5"),
    "count_is_true": (_with(count=True), "wrong 'count'.*found True"),
    "many": (_with(count=1 << 61), "number of samples"),
    "list": (lambda text: b"[1, 2]", "did not write its description"),
    "empty": (lambda text: b"", "not JSON"),
    "binary": (lambda text: b"\x80\x04\x95" + text, "not JSON"),
    "pickle": (lambda text: pickle.dumps(json.loads(text)), "not JSON"),
    "shape_wraps": (_with(shape=[1 << 62, 4, 3]), "wrong 'shape'"),
    "shape_of_another_size": (_with(shape=[1000, 1000, 3]), "size does not match its shape"),
    "shape_negative": (_with(shape=[-16, -12, 3]), "wrong 'shape'"),
    "shape_is_text": (_with(shape="123"), "wrong 'shape'.*found '123'"),
    "shape_is_missing": (_with(shape=None), "wrong 'shape'.*of raw samples"),
    "class_is_a_number": (_with(classes=[0, 1]), "wrong 'classes'"),
    "digest_is_text": (_with(digests={"checksums": "xyz"}), "wrong 'digests'"),
    "channels": (_with(channels=1), "wrong 'shape'.*expected 1 channels"),
    "bomb_of_a_picture": (_with(encoding="jpeg", shape=[60000, 60000, 3]), "wrong 'shape'.*pixels"),
    "label_dtype": (_with(label_dtype="|O8"), "wrong 'label_dtype'"),
    "dtype": (_with(dtype="object"), "wrong 'dtype'"),
    "newer": (_with(version=10**30), "newer"),
    "digests": (_with(digests=[1, 2]), "wrong 'digests'"),
    "surrogates": (_raw("classes", b'["\\ud800", "b"]'), "wrong 'classes'"),
    "forty_megabytes": (
        lambda text: text[:-1] + b', "x": [' + b"[]," * (13 << 20) + b"[]]}",
        "too long",
    ),
}
for _name, (_change, _says) in _DESCRIPTIONS.items():

    def _described(scratch: Scratch, change: Any = _change) -> Target:
        return described(scratch, change)

    _described.__doc__ = f"Our description: {_name}."
    attack(SET, _says, SET, name=f"meta_{_name}")(_described)


@attack(NONE, ways=SET)
def meta_duplicate_keys(scratch: Scratch) -> Target:
    """Served: the last of two counts, which must be right, is the one that counts."""
    return described(scratch, lambda text: b'{"count": 99, ' + text[1:])


@attack(NONE, ways=SET)
def meta_escapes_in_classes(scratch: Scratch) -> Target:
    """Served: class names that would wipe a terminal are shown escaped."""
    return described(scratch, _with(classes=["\x1b[2J\x1b]0;owned\x07", "b\n\r\u202e\u2028"]))


# -- pages -----------------------------------------------------------------------------------------


def _paged(name: str, says: str, refused: tuple[str, ...] = SET) -> Any:
    """Register a change to the bytes of a bare set of pictures with two levels of pages."""

    def register(change: Any) -> Any:
        def make(scratch: Scratch) -> Target:
            path = bare(scratch, [jpeg(i % COUNT) for i in range(40)])
            with edited(path / "data.mdb") as raw:
                change(raw)
            return Target(path, {"size": [8, 8]})

        make.__doc__ = change.__doc__
        return attack(refused, says, SET, name=f"lmdb_{name}")(make)

    return register


def newest(raw: bytearray) -> int:
    """Where the newer meta page begins."""
    stamps = [struct.unpack_from("<Q", raw, at + 16 + 128)[0] for at in (0, PAGE)]
    return PAGE * stamps.index(max(stamps))


def tree(raw: bytearray) -> int:
    """Where the main tree's record is: flags at 4, depth at 6, entries at 32, root at 40."""
    return newest(raw) + 16 + 72


def root(raw: bytearray) -> int:
    """Where the main tree's root page begins."""
    number: int = struct.unpack_from("<Q", raw, tree(raw) + 40)[0]
    return number * PAGE


def nodes(raw: bytearray, page: int) -> list[int]:
    """Where the nodes of a page are."""
    lower = struct.unpack_from("<H", raw, page + 12)[0]
    return [page + at for at in struct.unpack_from(f"<{(lower - 16) // 2}H", raw, page + 16)]


def in_circles(raw: bytearray, record: int, depth: int) -> None:
    """Make the root page of the tree whose record that is a branch whose children are itself."""
    struct.pack_into("<H", raw, record + 6, depth)
    page = struct.unpack_from("<Q", raw, record + 40)[0] * PAGE
    struct.pack_into("<H", raw, page + 10, 1)
    for node in nodes(raw, page):
        struct.pack_into("<HHH", raw, node, page // PAGE, 0, 0)


@_paged("root_is_its_own_child", "reached twice|not what it should be|damaged")
def _(raw: bytearray) -> None:
    """A branch page whose children are itself, forty levels deep."""
    in_circles(raw, tree(raw), 40)


@_paged("depth_65535", "depth out of range")
def _(raw: bytearray) -> None:
    """The same, as deep as can be said."""
    in_circles(raw, tree(raw), 65535)


@_paged("root_out_of_range", "out of range")
def _(raw: bytearray) -> None:
    """A root page beyond the end of the file."""
    struct.pack_into("<Q", raw, tree(raw) + 40, 1 << 50)


@_paged("last_page_lies", "truncated")
def _(raw: bytearray) -> None:
    """More pages stated than there are."""
    struct.pack_into("<Q", raw, newest(raw) + 16 + 120, 1 << 50)


@_paged("entries_lie", "more entries|entries where")
def _(raw: bytearray) -> None:
    """2^60 entries."""
    struct.pack_into("<Q", raw, tree(raw) + 32, 1 << 60)


@_paged("entries_negative", "more entries|entries where")
def _(raw: bytearray) -> None:
    """2^64 - 1 entries."""
    struct.pack_into("<Q", raw, tree(raw) + 32, (1 << 64) - 1)


@_paged("page_size_0", "damaged|not an LMDB|truncated", ("read", "info", "verify", "convert"))
def _(raw: bytearray) -> None:
    """Pages of no bytes, by both meta pages."""
    for at in (0, PAGE):
        struct.pack_into("<I", raw, at + 16 + 24, 0)


@_paged("page_size_64k", "damaged|truncated|not an LMDB")
def _(raw: bytearray) -> None:
    """Pages of another size than those that are there."""
    for at in (0, PAGE):
        struct.pack_into("<I", raw, at + 16 + 24, 65536)


@_paged("another_version", "another LMDB data version")
def _(raw: bytearray) -> None:
    """A format of the future."""
    for at in (0, PAGE):
        struct.pack_into("<I", raw, at + 16 + 4, 999)


@_paged("map_of_2_62", "", NONE)
def _(raw: bytearray) -> None:
    """Served: a map size that no machine has; nothing is mapped by it."""
    for at in (0, PAGE):
        struct.pack_into("<Q", raw, at + 16 + 16, 1 << 62)


def _first_leaf(raw: bytearray) -> int:
    page = root(raw)
    while not struct.unpack_from("<H", raw, page + 10)[0] & 2:
        low, mid, high = struct.unpack_from("<HHH", raw, nodes(raw, page)[0])
        page = (low | mid << 16 | high << 32) * PAGE
    return page


@_paged("a_thousand_nodes_at_one_offset", "more nodes than fit|runs past|bounds")
def _(raw: bytearray) -> None:
    """A leaf whose node table fills the page, every entry the same node."""
    page = _first_leaf(raw)
    node = nodes(raw, page)[0] - page
    for at in range(page + 16, page + PAGE - 600, 2):
        struct.pack_into("<H", raw, at, node)
    struct.pack_into("<HH", raw, page + 12, PAGE - 600, PAGE - 600)


@_paged("value_beyond_its_page", "runs past its page")
def _(raw: bytearray) -> None:
    """A value of 2 GB in a page of 4 KiB."""
    struct.pack_into("<HH", raw, nodes(raw, _first_leaf(raw))[0], 0xFFFF, 0x7FFF)


@_paged("value_on_a_page_outside_the_file", "outside the file")
def _(raw: bytearray) -> None:
    """A value on overflow pages beyond the end of the file."""
    node = nodes(raw, _first_leaf(raw))[0]
    key = struct.unpack_from("<H", raw, node + 6)[0]
    struct.pack_into("<H", raw, node + 4, 1)
    struct.pack_into("<Q", raw, node + 8 + key, 1 << 40)


@_paged("value_of_4_gb_on_overflow_pages", "outside the file")
def _(raw: bytearray) -> None:
    """A chain of overflow pages longer than the file."""
    node = nodes(raw, _first_leaf(raw))[0]
    key = struct.unpack_from("<H", raw, node + 6)[0]
    struct.pack_into("<HHH", raw, node, 0xFFFF, 0xFFFF, 1)
    struct.pack_into("<Q", raw, node + 8 + key, 2)


@_paged("value_in_the_meta_page", "outside the file")
def _(raw: bytearray) -> None:
    """A value on page 0."""
    node = nodes(raw, _first_leaf(raw))[0]
    key = struct.unpack_from("<H", raw, node + 6)[0]
    struct.pack_into("<H", raw, node + 4, 1)
    struct.pack_into("<Q", raw, node + 8 + key, 0)


@_paged("key_of_64_kb", "runs past its page")
def _(raw: bytearray) -> None:
    """A key longer than its page."""
    struct.pack_into("<H", raw, nodes(raw, _first_leaf(raw))[0] + 6, 0xFFFF)


@_paged("leaf_is_leaf2", "not what it should be")
def _(raw: bytearray) -> None:
    """A page of keys alone, as DUPFIXED has them."""
    struct.pack_into("<H", raw, _first_leaf(raw) + 10, 0x22)


@_paged("duplicates", "unexpected|kind")
def _(raw: bytearray) -> None:
    """Values that say that they are trees of duplicates."""
    for node in nodes(raw, _first_leaf(raw)):
        struct.pack_into("<H", raw, node + 4, 4)


def _record(raw: bytearray, name: bytes) -> int:
    """Where the record of one of our databases is."""
    for node in nodes(raw, root(raw)):
        size, key = (struct.unpack_from("<H", raw, node + at)[0] for at in (0, 6))
        if bytes(raw[node + 8 : node + 8 + key]) == name and size == 48:
            return node + 8 + key
    raise AssertionError(name)


@attack(says="depth out of range|damaged", ways=SET)
def lmdb_description_in_circles(scratch: Scratch) -> Target:
    """Only the tree of our description leads to itself: it is searched before any other."""
    path = scratch.copy("raw.lmdb")
    with edited(path / "data.mdb") as raw:
        in_circles(raw, _record(raw, b"meta"), 65535)
    return Target(path)


def _without_children(name: bytes) -> Any:
    def make(scratch: Scratch) -> Target:
        path = scratch.copy("raw.lmdb")
        with edited(path / "data.mdb") as raw:
            record = _record(raw, name)
            struct.pack_into("<H", raw, record + 6, 2)
            page = struct.unpack_from("<Q", raw, record + 40)[0] * PAGE
            struct.pack_into("<H", raw, page + 10, 1)
            struct.pack_into("<H", raw, page + 12, 16)
        return Target(path)

    make.__doc__ = f"The root page of our {name.decode()} is a branch page that has no child."
    return make


for _name in DBS:
    # the paths are looked up for messages alone, and all of them by verify and convert
    attack(
        ("verify", "convert") if _name == "paths" else SET,
        "fewer than two children",
        SET,
        name=f"lmdb_{_name}_without_children",
    )(_without_children(_name.encode()))


@attack(SET, "not read|damaged", SET)
def lmdb_many_databases(scratch: Scratch) -> Target:
    """5,000 named databases."""
    path = scratch.folder / "set"
    settings: Any = {"map_size": 1 << 28, "max_dbs": 5001, "sync": False}
    with lmdb.open(str(path), **settings) as env, env.begin(write=True) as txn:
        for number in range(5000):
            env.open_db(b"d%d" % number, txn)
    (path / "lock.mdb").unlink()
    return Target(path)


@attack(says="not read|damaged|unexpected", ways=SET)
def lmdb_dupfixed_data(scratch: Scratch) -> Target:
    """Our names, with a data database of duplicates of fixed size."""
    path = scratch.copy("raw.lmdb")
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            txn.drop(env.open_db(b"data", txn))
        with env.begin(write=True) as txn:
            database = env.open_db(b"data2", txn, dupsort=True, dupfixed=True, integerdup=True)
            for number in range(3000):
                txn.put(b"0000000000", struct.pack("<Q", number), db=database)
    file = path / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"data2", b"data\0"))
    (path / "lock.mdb").unlink(missing_ok=True)
    return Target(path)


# -- what data.mdb is ------------------------------------------------------------------------------


def _is(name: str, make_file: Any, says: str) -> None:
    def make(scratch: Scratch) -> Target:
        folder = scratch.folder / "set"
        folder.mkdir()
        make_file(folder / "data.mdb", scratch)
        return Target(folder, {"pyxis": True})

    make.__doc__ = f"data.mdb is {name}."
    attack(("read", "info", "verify", "convert", "drop_in"), says, name=f"data_mdb_is_{name}")(make)


def _socket(path: Path, scratch: Scratch) -> None:
    put_socket(path)


_is("a_pipe", lambda path, scratch: os.mkfifo(path), "without an LMDB data file|no LMDB|no images")
_is("a_socket", _socket, "without an LMDB data file|no LMDB")
_is("a_folder", lambda path, scratch: path.mkdir(), "without an LMDB data file|no LMDB")
_is("a_device", lambda path, scratch: path.symlink_to("/dev/zero"), "without an LMDB|no LMDB")
_is(
    "another_file",
    lambda path, scratch: path.symlink_to(scratch.secret),
    "not an LMDB file|meta pages",
)
_is("empty", lambda path, scratch: path.touch(), "empty")
_is(
    "sparse",
    lambda path, scratch: (path.touch(), os.truncate(path, 1 << 42)),
    "not an LMDB file|cannot be mapped",
)


@attack(("read", "info", "verify", "convert", "drop_in"), "not a regular file|no LMDB")
def lmdb_path_is_a_pipe(scratch: Scratch) -> Target:
    """The path itself is one."""
    os.mkfifo(scratch.folder / "set")
    return Target(scratch.folder / "set", {"pyxis": True})


# -- values ----------------------------------------------------------------------------------------


class _Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, scratch: Scratch) -> None:
        self.target = str(scratch.corpus.touched)

    def __reduce__(self) -> Any:
        return open, (self.target, "w")


def _pickled(scratch: Scratch) -> bytes:
    return pickle.dumps([_Bomb(scratch), 1], protocol=4)


@attack(says="pickles, which can run any code", ways=SET)
def pickle_values(scratch: Scratch) -> Target:
    """Pickles as values (folder2lmdb, tensorpack)."""
    return Target(bare(scratch, [_pickled(scratch)] * 4))


@attack(says="pickles, which can run any code", ways=SET)
def pickle_values_with_keys(scratch: Scratch) -> Target:
    """With the keys in a pickle of their own."""
    path = bare(scratch, [_pickled(scratch)] * 4)
    return Target(
        environment(path, {None: {b"__keys__": _pickled(scratch), b"__len__": _pickled(scratch)}})
    )


@attack(says="neither msgpack nor pickle", ways=SET)
def pyarrow_values(scratch: Scratch) -> Target:
    """pyarrow.serialize, whose payload may hold pickles."""
    body = b"\x00\x00\x00\x00\xff\xff\xff\xff" + _pickled(scratch)
    return Target(
        environment(scratch.folder / "set", {None: {b"0": body, b"__keys__": b"\x91\xa10"}})
    )


def _tensorpack(scratch: Scratch, point: Any) -> Path:
    packed = point if isinstance(point, bytes) else msgpack.packb(point, use_bin_type=True)
    entries = {b"%08d" % i: packed for i in range(4)}
    return environment(scratch.folder / "set", {None: {**entries, b"__keys__": b"\x91\xa10"}})


def _array(**fields: Any) -> dict[bytes, Any]:
    good = {"nd": True, "type": "|u1", "kind": b"", "shape": [6, 2, 3], "data": bytes(36)}
    return {k.encode(): v for k, v in {**good, **fields}.items()}


_POINTS: dict[str, tuple[Any, str]] = {
    "object_array": (lambda p: [_array(kind=b"O", data=_pickled(p)), 1], "Python objects"),
    "object_dtype": (lambda p: [_array(type="|O", data=_pickled(p)), 1], "plain numbers"),
    "structured": (lambda p: [_array(kind=b"V", type=[["a", "|O"]]), 1], "structures"),
    "extension": (lambda p: [msgpack.ExtType(42, _pickled(p)), 1], "neither array"),
    "complex": (lambda p: [_array(nd=False, type="complex", data="1j"), 1], "plain numbers|text"),
    "nested": (lambda p: b"\x92" * 100_000 + b"\x01", "nested|cut short"),
    "bin_of_4_gb": (lambda p: b"\x92\xc6\xff\xff\xff\xff\x01", "cut short"),
    "list_of_4_g": (lambda p: b"\xdd\xff\xff\xff\xff" + bytes(99), "cut short|fields"),
    "shape_bomb": (lambda p: [_array(shape=[1 << 40, 1 << 40, 3]), 1], "size that its shape"),
    "negative_shape": (lambda p: [_array(shape=[-2, -2, 3]), 1], "no number"),
    "pickle_as_picture": (lambda p: [_pickled(p), 1], "axes|4-D|size|labels"),
}
for _name, (_point, _says) in _POINTS.items():

    def _pointed(scratch: Scratch, point: Any = _point) -> Target:
        return Target(_tensorpack(scratch, point(scratch)))

    _pointed.__doc__ = f"tensorpack's msgpack: {_name}."
    _refused = NONE if _name == "pickle_as_picture" else SET
    attack(_refused, "" if not _refused else _says, SET, name=f"msgpack_{_name}")(_pointed)


def _pyxis(scratch: Scratch, **fields: Any) -> Path:
    inner = {
        k.encode(): v
        for k, v in {
            "type": 2,
            "dtype": "|u1",
            "shape": [6, 2, 3],
            "data": bytes(36),
            **fields,
        }.items()
    }
    sample = msgpack.packb({"input": msgpack.packb(inner, use_bin_type=True)}, use_bin_type=True)
    data = {b"%010d" % i: sample for i in range(4)}
    meta = {b"nb_samples": b"4"}
    return environment(scratch.folder / "set", {b"data_db": data, b"meta_db": meta})


_ARRAYS: dict[str, dict[str, Any]] = {
    "object": {"dtype": "|O8"},
    "fields_by_the_million": {"dtype": "i1," * (1 << 20)},
    "structured": {"dtype": "i4,O"},
    "shape_bomb": {"shape": [1 << 40, 1 << 40]},
    "many_axes": {"shape": [1] * 60},
    "negative": {"shape": [-1, -12]},
    "void": {"dtype": "|V0"},
    "datetime": {"dtype": "M8[s", "data": bytes(96)},
}
for _name, _fields in _ARRAYS.items():

    def _arrayed(scratch: Scratch, fields: Any = _fields) -> Target:
        return Target(_pyxis(scratch, **fields), {"pyxis": True})

    _arrayed.__doc__ = f"ml-pyxis' arrays: {_name}."
    attack((*SET, "drop_in"), "", name=f"pyxis_{_name}")(_arrayed)


@attack(SET, "not a number", SET)
def pyxis_count_of_30_digits(scratch: Scratch) -> Target:
    """As many samples as can be written in 30 digits."""
    path = _pyxis(scratch)
    return Target(environment(path, {b"meta_db": {b"nb_samples": b"9" * 30}}), {"pyxis": True})


@attack(NONE, ways=SET)
def ocr_escapes(scratch: Scratch) -> Target:
    """Served: texts that would wipe a terminal, shown escaped."""
    entries = {b"num-samples": b"4"}
    for number in range(1, 5):
        entries[b"image-%09d" % number] = jpeg(number)
        entries[b"label-%09d" % number] = b"\x1b[2J\x1b]0;owned\x07\r\n%d" % number
    return Target(environment(scratch.folder / "set", {None: entries}))


@attack(SAMPLE, "key 0x|damaged|not an image", SET)
def escapes_in_keys(scratch: Scratch) -> Target:
    """Keys that would do so, of pictures that are damaged."""
    entries = {b"\x1b[2J%d" % i: jpeg(i)[:100] for i in range(4)}
    return Target(environment(scratch.folder / "set", {None: entries}), {"size": [8, 8]})


@attack(SET, "", SET)
def basicsr_list_is_a_bomb(scratch: Scratch) -> Target:
    """meta_info.txt: one line of 30 MB."""
    path = bare(scratch, [jpeg(i) for i in range(4)])
    (path / "meta_info.txt").write_bytes(b"x" * (30 << 20))
    return Target(path)


@attack(NONE, "", SET)
def basicsr_list_is_a_pipe(scratch: Scratch) -> Target:
    """meta_info.txt is a pipe: it is not looked at."""
    path = bare(scratch, [jpeg(i) for i in range(4)])
    os.mkfifo(path / "meta_info.txt")
    return Target(path)


@attack(SET, "", SET)
def npy_of_objects(scratch: Scratch) -> Target:
    """An array file of pickled objects, by a packed set's name."""
    path = scratch.folder / "set.h5"
    with open(path, "wb") as file:
        np.save(file, np.array([_Bomb(scratch)], dtype=object), allow_pickle=True)
    return Target(path)
