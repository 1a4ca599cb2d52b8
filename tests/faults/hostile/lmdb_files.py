"""Hostile LMDB: pages that lead in circles, sizes that lie, descriptions that explode, pickles."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np

from .corpus import (
    COUNT,
    NONE,
    SAMPLE,
    SET,
    WAYS,
    Scratch,
    Target,
    attack,
    edited,
    family,
    jpeg,
    put_socket,
    sparse,
)

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


_DESCRIPTIONS: dict[str, tuple[str, Any]] = {
    "nested": ("not JSON", lambda text: b"[" * 200_000),
    "nested_in_a_field": (
        "not JSON|wrong 'classes'",
        _raw("classes", b"[" * 100_000 + b"]" * 100_000),
    ),
    "huge_int": ("not JSON", _raw("count", b"9" * 100_000)),
    "infinite": ("wrong 'count'", _raw("count", b"1e999")),
    "nan": ("wrong 'count'", _raw("count", b"NaN")),
    "negative": ("wrong 'count'.*found -5", _with(count=-5)),
    "count_is_text": ("wrong 'count'.*found '24'", _with(count="24")),
    "count_is_a_fraction": ("wrong 'count'.*found 24.5", _with(count=24.5)),
    "count_is_true": ("wrong 'count'.*found True", _with(count=True)),
    "many": ("number of samples", _with(count=1 << 61)),
    "list": ("did not write its description", lambda text: b"[1, 2]"),
    "empty": ("not JSON", lambda text: b""),
    "binary": ("not JSON", lambda text: b"\x80\x04\x95" + text),
    "pickle": ("not JSON", lambda text: pickle.dumps(json.loads(text))),
    "shape_wraps": ("wrong 'shape'", _with(shape=[1 << 62, 4, 3])),
    "shape_of_another_size": ("size does not match its shape", _with(shape=[1000, 1000, 3])),
    "shape_negative": ("wrong 'shape'", _with(shape=[-16, -12, 3])),
    "shape_is_text": ("wrong 'shape'.*found '123'", _with(shape="123")),
    "shape_is_missing": ("wrong 'shape'.*of raw samples", _with(shape=None)),
    "class_is_a_number": ("wrong 'classes'", _with(classes=[0, 1])),
    "digest_is_text": ("wrong 'digests'", _with(digests={"checksums": "xyz"})),
    "channels": ("wrong 'shape'.*expected 1 channels", _with(channels=1)),
    "bomb_of_a_picture": ("wrong 'shape'.*pixels", _with(encoding="jpeg", shape=[60000, 60000, 3])),
    "label_dtype": ("wrong 'label_dtype'", _with(label_dtype="|O8")),
    "dtype": ("wrong 'dtype'", _with(dtype="object")),
    "newer": ("newer", _with(version=10**30)),
    "digests": ("wrong 'digests'", _with(digests=[1, 2])),
    "surrogates": ("wrong 'classes'", _raw("classes", b'["\\ud800", "b"]')),
    "forty_megabytes": (
        "too long",
        lambda text: text[:-1] + b', "x": [' + b"[]," * (13 << 20) + b"[]]}",
    ),
}
#: The last of two counts, which must be right, is the one that counts; class names that would wipe
#: a terminal are shown escaped.
_SERVED = {
    "duplicate_keys": (None, lambda text: b'{"count": 99, ' + text[1:]),
    "escapes_in_classes": (None, _with(classes=["\x1b[2J\x1b]0;owned\x07", "b\n\r\u202e\u2028"])),
}
family("Our description", "meta_", described, _DESCRIPTIONS | _SERVED, SET, SET)


# -- its tables, changed through lmdb --------------------------------------------------------------


def rewritten(scratch: Scratch, name: str, change: Callable[[Any, Any], Any]) -> Target:
    """A set packed by asyncreader, of which one database was changed."""
    path = scratch.copy("raw.lmdb")
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 28) as env:
        database = env.open_db(name.encode())
        with env.begin(write=True, db=database) as txn:
            change(txn, database)
    (path / "lock.mdb").unlink(missing_ok=True)
    return Target(path)


def _value(change: Callable[[bytes], bytes]) -> Callable[[Any, Any], Any]:
    """Another value of a record."""
    return lambda txn, _: txn.put(b"0000000002", change(txn.get(b"0000000002")))


def _exchanged(txn: Any, _: Any) -> None:
    one, two = (bytes(txn.get(key)) for key in (b"0000000002", b"0000000003"))
    txn.put(b"0000000002", two)
    txn.put(b"0000000003", one)


def _renamed(txn: Any, _: Any) -> None:
    txn.put(b"0000000009", txn.pop(b"0000000002"))


family("Our records", "lmdb_data_", rewritten, {
    "one_gone": ("samples", "data", lambda txn, _: txn.delete(b"0000000002")),
    "one_more": ("samples", "data", lambda txn, _: txn.put(b"0000000099", b"value")),
    "one_renamed": ("numbers with gaps", "data", _renamed),
    "one_empty": ("size", "data", _value(lambda value: b"")),
    "one_cut": ("size", "data", _value(lambda value: value[:-1])),
    "one_longer": ("size", "data", _value(lambda value: value + b"\0")),
}, SET, SET)  # fmt: skip
family("Our records", "lmdb_data_", rewritten, {
    "two_exchanged": ("checksum", "data", _exchanged),
}, SAMPLE, SAMPLE)  # fmt: skip
family("Our tables", "lmdb_", rewritten, {
    f"{name}_dropped": (f"{name}|not read", name, lambda txn, database: txn.drop(database))
    for name in ("data", "labels", "checksums", "meta")
}, SET, SET)  # fmt: skip


# -- pages -----------------------------------------------------------------------------------------


def paged(scratch: Scratch, change: Callable[[bytearray], None]) -> Target:
    """A bare set of pictures with two levels of pages, its bytes changed."""
    path = bare(scratch, [jpeg(i % COUNT) for i in range(40)])
    with edited(path / "data.mdb") as raw:
        change(raw)
    return Target(path, {"size": [8, 8]})


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


def _first_leaf(raw: bytearray) -> int:
    page = root(raw)
    while not struct.unpack_from("<H", raw, page + 10)[0] & 2:
        low, mid, high = struct.unpack_from("<HHH", raw, nodes(raw, page)[0])
        page = (low | mid << 16 | high << 32) * PAGE
    return page


def _first_node(raw: bytearray) -> int:
    return nodes(raw, _first_leaf(raw))[0]


def _put(where: Callable[[bytearray], int], at: int, form: str, *values: int) -> Any:
    """Numbers at an offset from some place."""
    return lambda raw: struct.pack_into(form, raw, where(raw) + at, *values)


def _in_both(at: int, form: str, value: int) -> Any:
    """A number of both meta pages."""

    def change(raw: bytearray) -> None:
        for page in (0, PAGE):
            struct.pack_into(form, raw, page + 16 + at, value)

    return change


def _one_node(raw: bytearray) -> None:
    """A node table that fills the page, every entry the same node."""
    page = _first_leaf(raw)
    node = nodes(raw, page)[0] - page
    for at in range(page + 16, page + PAGE - 600, 2):
        struct.pack_into("<H", raw, at, node)
    struct.pack_into("<HH", raw, page + 12, PAGE - 600, PAGE - 600)


def _on_page(page: int, *size: int) -> Any:
    """The first value, of another size perhaps, on overflow pages from that one on."""

    def change(raw: bytearray) -> None:
        node = _first_node(raw)
        key = struct.unpack_from("<H", raw, node + 6)[0]
        struct.pack_into(f"<{len(size) + 1}H", raw, node + 4 - 2 * len(size), *size, 1)
        struct.pack_into("<Q", raw, node + 8 + key, page)

    return change


def _trees_of_duplicates(raw: bytearray) -> None:
    for node in nodes(raw, _first_leaf(raw)):
        struct.pack_into("<H", raw, node + 4, 4)


ENTRIES, PAST, OUTSIDE = "more entries|entries where", "runs past its page", "outside the file"
family("Pages of an LMDB", "lmdb_", paged, {
    "root_is_its_own_child": (
        "reached twice|not what it should be|damaged", lambda raw: in_circles(raw, tree(raw), 40)
    ),
    "depth_65535": ("depth out of range", lambda raw: in_circles(raw, tree(raw), 65535)),
    "root_out_of_range": ("out of range", _put(tree, 40, "<Q", 1 << 50)),
    "last_page_lies": ("truncated", _put(newest, 16 + 120, "<Q", 1 << 50)),
    "entries_lie": (ENTRIES, _put(tree, 32, "<Q", 1 << 60)),
    "entries_negative": (ENTRIES, _put(tree, 32, "<Q", (1 << 64) - 1)),
    "page_size_0": ("damaged|not an LMDB|truncated", _in_both(24, "<I", 0)),
    "page_size_64k": ("damaged|truncated|not an LMDB", _in_both(24, "<I", 65536)),
    "another_version": ("another LMDB data version", _in_both(4, "<I", 999)),
    "map_of_2_62": (None, _in_both(16, "<Q", 1 << 62)),  # nothing is mapped by it
    "a_thousand_nodes_at_one_offset": ("more nodes than fit|runs past|bounds", _one_node),
    "value_beyond_its_page": (PAST, _put(_first_node, 0, "<HH", 0xFFFF, 0x7FFF)),
    "value_on_a_page_outside_the_file": (OUTSIDE, _on_page(1 << 40)),
    "value_of_4_gb_on_overflow_pages": (OUTSIDE, _on_page(2, 0xFFFF, 0xFFFF)),
    "value_in_the_meta_page": (OUTSIDE, _on_page(0)),
    "key_of_64_kb": (PAST, _put(_first_node, 6, "<H", 0xFFFF)),
    "leaf_is_leaf2": ("not what it should be", _put(_first_leaf, 10, "<H", 0x22)),
    "duplicates": ("unexpected|kind", _trees_of_duplicates),
}, SET, SET)  # fmt: skip


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


def childless(scratch: Scratch, name: str) -> Target:
    """The root page of one of our databases is a branch page that has no child."""
    path = scratch.copy("raw.lmdb")
    with edited(path / "data.mdb") as raw:
        record = _record(raw, name.encode())
        struct.pack_into("<H", raw, record + 6, 2)
        page = struct.unpack_from("<Q", raw, record + 40)[0] * PAGE
        struct.pack_into("<H", raw, page + 10, 1)
        struct.pack_into("<H", raw, page + 12, 16)
    return Target(path)


for _name in DBS:
    # the paths are looked up for messages alone, and all of them by verify and convert
    _refused = ("verify", "convert") if _name == "paths" else SET
    _row = {f"{_name}_without_children": ("fewer than two children", _name)}
    family("Our tables", "lmdb_", childless, _row, _refused, SET)


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


def instead(scratch: Scratch, make: Callable[[Path, Scratch], Any]) -> Target:
    """Something else as data.mdb."""
    folder = scratch.folder / "set"
    folder.mkdir()
    make(folder / "data.mdb", scratch)
    return Target(folder, {"pyxis": True})


WITHOUT = "without an LMDB data file|no LMDB"
family("data.mdb is", "data_mdb_is_", instead, {
    "a_pipe": (f"{WITHOUT}|no images", lambda path, scratch: os.mkfifo(path)),
    "a_socket": (WITHOUT, lambda path, scratch: put_socket(path)),
    "a_folder": (WITHOUT, lambda path, scratch: path.mkdir()),
    "a_device": (
        "without an LMDB|no LMDB", lambda path, scratch: path.symlink_to("/dev/zero")
    ),
    "another_file": (
        "not an LMDB file|meta pages", lambda path, scratch: path.symlink_to(scratch.secret)
    ),
    "empty": ("empty", lambda path, scratch: path.touch()),
    "sparse": (
        "not an LMDB file|cannot be mapped", lambda path, scratch: sparse(path, 1 << 42)
    ),
}, WAYS)  # fmt: skip


@attack(WAYS, "not a regular file|no LMDB")
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


def pointed(scratch: Scratch, point: Callable[[bytes], Any]) -> Target:
    """tensorpack's msgpack with that point, which gets a pickle."""
    return Target(_tensorpack(scratch, point(_pickled(scratch))))


family("tensorpack's msgpack", "msgpack_", pointed, {
    "object_array": ("Python objects", lambda p: [_array(kind=b"O", data=p), 1]),
    "object_dtype": ("plain numbers", lambda p: [_array(type="|O", data=p), 1]),
    "structured": ("structures", lambda p: [_array(kind=b"V", type=[["a", "|O"]]), 1]),
    "extension": ("neither array", lambda p: [msgpack.ExtType(42, p), 1]),
    "complex": ("plain numbers|text", lambda p: [_array(nd=False, type="complex", data="1j"), 1]),
    "nested": ("nested|cut short", lambda p: b"\x92" * 100_000 + b"\x01"),
    "bin_of_4_gb": ("cut short", lambda p: b"\x92\xc6\xff\xff\xff\xff\x01"),
    "list_of_4_g": ("cut short|fields", lambda p: b"\xdd\xff\xff\xff\xff" + bytes(99)),
    "shape_bomb": ("size that its shape", lambda p: [_array(shape=[1 << 40, 1 << 40, 3]), 1]),
    "negative_shape": ("no number", lambda p: [_array(shape=[-2, -2, 3]), 1]),
    "pickle_as_picture": (None, lambda p: [p, 1]),
}, SET, SET)  # fmt: skip


def pyxis(scratch: Scratch, fields: dict[str, Any]) -> Target:
    """A set as ml-pyxis writes it, with these fields of its arrays."""
    good = {"type": 2, "dtype": "|u1", "shape": [6, 2, 3], "data": bytes(36)}
    inner = {k.encode(): v for k, v in {**good, **fields}.items()}
    sample = msgpack.packb({"input": msgpack.packb(inner, use_bin_type=True)}, use_bin_type=True)
    data = {b"%010d" % i: sample for i in range(4)}
    meta = {b"nb_samples": b"4"}
    path = environment(scratch.folder / "set", {b"data_db": data, b"meta_db": meta})
    return Target(path, {"pyxis": True})


family("ml-pyxis' arrays", "pyxis_", pyxis, {
    "object": ("", {"dtype": "|O8"}),
    "fields_by_the_million": ("", {"dtype": "i1," * (1 << 20)}),
    "structured": ("", {"dtype": "i4,O"}),
    "shape_bomb": ("", {"shape": [1 << 40, 1 << 40]}),
    "many_axes": ("", {"shape": [1] * 60}),
    "negative": ("", {"shape": [-1, -12]}),
    "void": ("", {"dtype": "|V0"}),
    "datetime": ("", {"dtype": "M8[s", "data": bytes(96)}),
}, WAYS)  # fmt: skip


@attack(SET, "not a number", SET)
def pyxis_count_of_30_digits(scratch: Scratch) -> Target:
    """As many samples as can be written in 30 digits."""
    made = pyxis(scratch, {})
    environment(Path(made.path), {b"meta_db": {b"nb_samples": b"9" * 30}})
    return made


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
