"""Hostile HDF5: bytes of other files, programs as filters, declared sizes, odd types, loops."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader import format as fmt

from .corpus import CANARY, COUNT, NONE, SET, Place, Try, attack

N = COUNT
ROWS = (N, 16, 4, 3)
UNKNOWN = 32099


def plain(
    place: Place, name: str = "set.h5", data: bool = True, labels: bool = True, **settings: Any
) -> Any:
    """A new foreign file with data and labels of its own, open for writing."""
    file = h5py.File(place.here / name, "w", **settings)
    if data:
        file["data"] = np.arange(np.prod(ROWS), dtype=np.uint8).reshape(ROWS)
    if labels:
        file["labels"] = np.arange(N)
    return file


def done(file: Any, **params: Any) -> Try:
    """Close it: it is opened by its path."""
    path = Path(file.filename)
    file.close()
    return Try(path, params)


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


# -- the bytes of other files --------------------------------------------------------------------


def _external(file: Any, name: str, shape: tuple[int, ...], kind: Any, place: Place) -> None:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    file.create_dataset(name, shape, kind, external=[(place.secret, 0, size)])


@attack(says="keeps its bytes outside the file")
def external_storage_data(place: Place) -> Try:
    """The pixels are another file's bytes."""
    file = plain(place, data=False)
    _external(file, "data", ROWS, "u1", place)
    return done(file)


@attack(says="keeps its bytes outside the file", entrances=SET)
def external_storage_labels(place: Place) -> Try:
    """So are the labels."""
    file = plain(place, labels=False)
    _external(file, "labels", (N,), "i8", place)
    return done(file)


@attack(says="keeps its bytes outside the file")
def external_storage_in_a_group(place: Place) -> Try:
    """Behind a soft link, two groups down."""
    file = plain(place, data=False)
    _external(file.create_group("a/b"), "x", ROWS, "u1", place)
    file["data"] = h5py.SoftLink("a/b/x")
    return done(file)


def _ours(place: Place, name: str = "raw.h5") -> Any:
    """A set of ours, open for writing, without the digest of its description: an attacker leaves
    that out."""
    file = h5py.File(place.copy(name), "r+", libver=("v110", "v110"))
    file.attrs.pop(f"digest_{fmt.META}", None)
    return file


def _replaced(place: Place, table: str, how: str, base: str = "raw.h5") -> Try:
    """A set of ours one of whose tables is somewhere else."""
    file = _ours(place, base)
    old = file[table]
    shape, kind = old.shape, old.dtype
    del file[table]
    if how == "storage":
        _external(file, table, shape, kind, place)
    elif how == "link":
        file[table] = h5py.ExternalLink(place.secret_h5, "text" if kind.kind == "S" else "labels")
    elif how == "pipe":
        file[table] = h5py.ExternalLink(place.pipe, "x")
    elif how == "virtual":
        layout = h5py.VirtualLayout(shape, kind)
        layout[:] = h5py.VirtualSource(place.secret_h5, "labels", shape, kind)
        file.create_virtual_dataset(table, layout)
    elif how == "plugin":
        filtered(file, table, shape, kind)
    elif how == "bomb":
        file.create_dataset(table, (1 << 40, *shape[1:]), kind, chunks=(1 << 16, *shape[1:]))
    elif how == "opaque":
        file[table] = np.zeros(shape, "M8[s]").astype(h5py.opaque_dtype("M8[s]"))
    return done(file)


def _tables(table: str, base: str, refused: tuple[str, ...] = SET) -> None:
    says = {
        "storage": "outside the file",
        "link": "link into another file",
        "pipe": "link into another file",
        "virtual": "virtual data set",
        "plugin": "filter that is not read|found filter",
        "bomb": "wrong shape|lacks some|another number|too small|not the blob",
        "opaque": "plain numbers|wrong shape|no list of text",
    }
    for how, message in says.items():

        def make(place: Place, how: str = how) -> Try:
            return _replaced(place, table, how, base)

        make.__doc__ = f"Our set's {table}: {how}."
        attack(refused, message, SET, name=f"ours_{table}_{how}")(make)


for _table in ("labels", "checksums", "classes"):
    _tables(_table, "raw.h5")
_tables("offsets", "jpeg.h5")
_tables("paths", "raw.h5", ("verify", "convert"))


@attack(says="link into another file")
def external_link_data(place: Place) -> Try:
    """The data are a link to another file's data."""
    file = plain(place, data=False)
    file["data"] = h5py.ExternalLink(place.secret_h5, "data")
    return done(file)


@attack(says="link into another file", entrances=SET)
def external_link_labels(place: Place) -> Try:
    """The labels are a link to another file's labels."""
    file = plain(place, labels=False)
    file["labels"] = h5py.ExternalLink(place.secret_h5, "labels")
    return done(file)


@attack(says="link into another file")
def external_link_to_a_pipe(place: Place) -> Try:
    """Whoever follows it waits for ever."""
    file = plain(place, data=False)
    file["data"] = h5py.ExternalLink(place.pipe, "data")
    return done(file)


@attack(says="link into another file")
def external_link_behind_soft_link(place: Place) -> Try:
    """A soft link inside the file, to a link out of it, to a pipe."""
    file = plain(place, data=False)
    file["way"] = h5py.ExternalLink(place.pipe, "data")
    file["data"] = h5py.SoftLink("/way")
    return done(file)


@attack(says="link into another file")
def external_link_as_a_group(place: Place) -> Try:
    """The group that the data lie in is another file's."""
    file = plain(place, data=False)
    file["way"] = h5py.ExternalLink(place.pipe, "/")
    return done(file, data_field="way/data")


def _closed(file: Any) -> Path:
    path = Path(file.filename)
    file.close()
    return path


@attack(says="link into another file", entrances=SET)
def external_link_labels_to_a_pipe(place: Place) -> Try:
    """Labels by the names that are tried: each of them a pipe."""
    file = plain(place, labels=False)
    for name in ("labels", "label", "targets", "target"):
        file[name] = h5py.ExternalLink(place.pipe, "x")
    return done(file)


@attack(says="no data set 'data'|link into another file")
def external_link_in_all_known_names(place: Place) -> Try:
    """Every name that a known layout has, each a pipe."""
    file = plain(place, data=False, labels=False)
    names = "train_set_x test_set_x features image_features encoded_images images image jpegs x y"
    for name in names.split():
        file[name] = h5py.ExternalLink(place.pipe, "x")
    return done(file)


@attack(says="link into another file")
def user_defined_link(place: Place) -> Try:
    """A link of a kind that some program would have to register."""
    file = plain(place, data=False)
    file["data"] = h5py.ExternalLink(place.secret_h5, "data")
    made = done(file)
    raw = Path(made.path).read_bytes()
    at = raw.index(b"\x40\x04data")  # type 64, length of the name, name
    Path(made.path).write_bytes(raw[:at] + b"\x41" + raw[at + 1 :])
    return made


@attack(says="leads in circles|soft link")
def soft_link_cycle(place: Place) -> Try:
    """Soft links that lead to each other."""
    file = plain(place, data=False)
    file["data"] = h5py.SoftLink("/other")
    file["other"] = h5py.SoftLink("/data")
    return done(file)


@attack(says="leads in circles|soft link")
def soft_link_that_grows(place: Place) -> Try:
    """A soft link through itself, longer with each step."""
    file = plain(place, data=False)
    file["data"] = h5py.SoftLink("/data/" + "a/" * 2000)
    return done(file)


@attack(says="no data set 'data'")
def soft_link_to_nothing(place: Place) -> Try:
    """A soft link that tries a file system's path."""
    file = plain(place, data=False)
    file["data"] = h5py.SoftLink("/../../../../etc/passwd")
    return done(file)


@attack(says="no data set 'data'", entrances=SET)
def groups_in_circles(place: Place) -> Try:
    """A group that holds itself, and the root."""
    file = plain(place, data=False)
    group = file.create_group("g")
    group["again"] = group
    group["root"] = file["/"]
    return done(file)


@attack(NONE)
def data_behind_circles(place: Place) -> Try:
    """Served: many steps round a circle of groups are still this file's data."""
    file = plain(place)
    file["me"] = file["/"]
    return Try(_closed(file), {"data_field": "me/" * 50 + "data"})


def _virtual(place: Place, source: str, unlimited: bool, dataset: str = "data") -> Any:
    file = plain(place, data=False, libver="latest")
    most = (None, *ROWS[1:]) if unlimited else None
    layout = h5py.VirtualLayout(ROWS, "u1", maxshape=most)
    other = h5py.VirtualSource(source, dataset, ROWS, "u1", maxshape=most)
    rows = slice(0, h5py.h5s.UNLIMITED if unlimited else N)
    layout[rows] = other[rows]
    file.create_virtual_dataset("data", layout)
    return file


@attack(says="virtual data set.*pass those files as a list")
def virtual(place: Place) -> Try:
    """Pixels mapped from another file."""
    return done(_virtual(place, place.secret_h5, False))


@attack(says="virtual data set")
def virtual_to_a_pipe(place: Place) -> Try:
    """Asking for its shape opens the file: a pipe."""
    return done(_virtual(place, place.pipe, True))


@attack(says="virtual data set")
def virtual_of_itself(place: Place) -> Try:
    """Mapped from itself."""
    return done(_virtual(place, ".", False))


@attack(says="no data set|virtual", entrances=SET)
def virtual_by_known_names(place: Place) -> Try:
    """Names that are only tried must not be asked for their shape either."""
    file = _virtual(place, place.pipe, True)
    for name in ("x", "images", "encoded_images", "label", "labels2", "data_shapes"):
        file[name] = file["data"]
    del file["data"]
    return done(file)


@attack(says="virtual data set", entrances=SET)
def virtual_labels_to_a_pipe(place: Place) -> Try:
    """The labels' shape opens a pipe."""
    file = _virtual(place, place.pipe, True)
    file.move("data", "other")
    del file["labels"]
    file["labels"] = file["other"]
    file["data"] = np.zeros(ROWS, np.uint8)
    return done(file)


# -- programs as filters -------------------------------------------------------------------------


@attack(says="filter 32099")
def plugin_data(place: Place) -> Try:
    """Pixels behind a filter that HDF5 would look for in HDF5_PLUGIN_PATH."""
    file = plain(place, data=False)
    filtered(file, "data", ROWS, "u1", optional=True)
    return done(file)


@attack(says="filter 32099", entrances=SET)
def plugin_labels(place: Place) -> Try:
    """Labels behind one: a small table is read by the HDF5 library."""
    file = plain(place, labels=False)
    filtered(file, "labels", (N,), "i8")
    return done(file)


@attack(says="filters that are not read together")
def plugin_beside_a_built_in(place: Place) -> Try:
    """nbit, which HDF5 must undo, and blosc, which is known but not by HDF5."""
    file = plain(place, data=False)
    filtered(file, "data", ROWS, "u1", codes=(2, 32001), optional=True)
    made = done(file)
    path = Path(made.path)
    raw = path.read_bytes()
    at = raw.index(struct.pack("<HH", 2, 8) if struct.pack("<HH", 2, 8) in raw else b"shuffle\0")
    if raw[at : at + 7] == b"shuffle":
        at -= 8
    path.write_bytes(raw[:at] + struct.pack("<H", 5) + raw[at + 2 :])
    return made


@attack(says="is not read|needs a filter", entrances=SET)
def plugin_blosc_labels(place: Place) -> Try:
    """A known filter on a table that only the HDF5 library reads."""
    file = plain(place, labels=False)
    filtered(file, "labels", (N,), "i8", codes=(32001,))
    return done(file)


@attack(says="filter that is not read")
def plugin_vlen(place: Place) -> Try:
    """Pictures of variable length behind one."""
    file = plain(place, data=False)
    kind = h5py.h5t.py_create(h5py.vlen_dtype(np.dtype("u1")), logical=True)
    filtered(file, "data", (N,), kind, optional=True)
    return done(file)


def _labels_file(place: Place, how: str) -> Try:
    file = plain(place, labels=False)
    other = h5py.File(place.here / "labels.h5", "w")
    if how == "plugin":
        filtered(other, "labels", (N,), "i8")
    elif how == "storage":
        _external(other, "labels", (N,), "i8", place)
    elif how == "link":
        other["labels"] = h5py.ExternalLink(place.pipe, "labels")
    elif how == "bomb":
        other.create_dataset("labels", (N, 1 << 50), "i8", chunks=(1, 1 << 20))
    elif how == "virtual":
        layout = h5py.VirtualLayout((N,), "i8")
        layout[:] = h5py.VirtualSource(place.secret_h5, "labels", (N,), "i8")
        other.create_virtual_dataset("labels", layout)
    path = _closed(other)
    return Try(_closed(file), {"labels_path": str(path)})


def _labels_files() -> None:
    says = {
        "plugin": "filter 32099",
        "storage": "outside the file",
        "link": "link into another file",
        "bomb": "lacks some",
        "virtual": "virtual",
    }
    for how, message in says.items():

        def make(place: Place, how: str = how) -> Try:
            return _labels_file(place, how)

        entrances = ("read", "info", "convert")
        attack(entrances, message, entrances, name=f"labels_path_{how}")(make)


_labels_files()


@attack(("read", "info", "convert"), "no such labels file", ("read", "info", "convert"))
def labels_path_pipe(place: Place) -> Try:
    """The labels' file is a pipe."""
    return Try(_closed(plain(place, labels=False)), {"labels_path": place.pipe})


@attack(("read", "info", "convert"), "no such labels file", ("read", "info", "convert"))
def labels_path_device(place: Place) -> Try:
    """The labels' file is endless."""
    return Try(_closed(plain(place, labels=False)), {"labels_path": "/dev/zero"})


@attack(entrances=SET, says="no data set 'data'")
def sidecar_is_a_pipe(place: Place) -> Try:
    """PCam's labels lie in a file beside: a pipe of that name."""
    os.mkfifo(place.here / "set_y.h5")
    with h5py.File(place.here / "set_x.h5", "w") as file:
        file["x"] = np.zeros(ROWS, np.uint8)
    return Try(place.here / "set_x.h5")


def _fuel(file: Any, start: int, indices: Any) -> None:
    kind = np.dtype(
        [
            ("split", "S5"),
            ("source", "S6"),
            ("start", "i8"),
            ("stop", "i8"),
            ("indices", h5py.ref_dtype),
            ("available", "?"),
            ("comment", "S1"),
        ]
    )
    table = np.zeros(2, kind)
    for row, source in zip(table, (b"data", b"labels"), strict=True):
        row["split"], row["source"], row["available"] = b"train", source, True
        row["start"], row["stop"], row["indices"] = start, N, indices
    file.attrs["split"] = table


@attack(says="filter 32099|found filter", entrances=SET)
def fuel_indices_plugin(place: Place) -> Try:
    """A split's records behind a filter."""
    file = plain(place)
    filtered(file, "rows", (N,), "i8")
    _fuel(file, 0, file["rows"].ref)
    return done(file)


@attack(says="outside the file", entrances=SET)
def fuel_indices_storage(place: Place) -> Try:
    """A split's records are another file's bytes."""
    file = plain(place)
    _external(file, "rows", (N,), "i8", place)
    _fuel(file, 0, file["rows"].ref)
    return done(file)


@attack(says="is not a data set", entrances=SET)
def fuel_indices_group(place: Place) -> Try:
    """A reference to a group."""
    file = plain(place)
    _fuel(file, 0, file.create_group("g").ref)
    return done(file)


@attack(NONE, entrances=SET)
def fuel_reference_to_garbage(place: Place) -> Try:
    """A reference to an address in the middle of pixels."""
    file = plain(place)
    group = file.create_group("g")
    _fuel(file, 0, group.ref)
    address = h5py.h5o.get_info(group.id).addr
    made = done(file)
    raw = Path(made.path).read_bytes()
    old = struct.pack("<QQ", N, address)
    assert old in raw
    Path(made.path).write_bytes(raw.replace(old, struct.pack("<QQ", N, 1 << 60)))
    return made


@attack(says="virtual|shape", entrances=SET, refused=NONE)
def fuel_shapes_virtual(place: Place) -> Try:
    """A dimension scale whose shape opens a pipe."""
    file = _virtual(place, place.pipe, True)
    file["shapes"] = file["data"]
    del file["data"]
    kind = h5py.vlen_dtype("u1")
    file.create_dataset("data", (N,), kind)
    for number in range(N):
        file["data"][number] = np.full(12, number, np.uint8)
    _fuel(file, 0, h5py.Reference())
    return done(file)


# -- more than is stored -------------------------------------------------------------------------


@attack(says="lacks some|too small")
def shape_bomb_chunked(place: Place) -> Try:
    """2^60 rows of which none is stored."""
    file = plain(place, data=False, labels=False)
    file.create_dataset("data", (1 << 60, 4), "u1", chunks=(1 << 20, 4))
    return done(file)


@attack(says="stores none")
def shape_bomb_contiguous(place: Place) -> Try:
    """2^50 rows, never written."""
    file = plain(place, data=False, labels=False)
    file.create_dataset("data", (1 << 50, 4), "u1")
    return done(file)


@attack(says="lacks some|too small")
def fill_value_bomb(place: Place) -> Try:
    """A fill value, a count, and one chunk."""
    file = plain(place, data=False, labels=False)
    made = file.create_dataset("data", (1 << 40, 4), "u1", chunks=(64, 4), fillvalue=67)
    made[0:64] = 1
    return done(file)


@attack(says="another number of rows|lacks some|stores none", entrances=SET)
def labels_bomb(place: Place) -> Try:
    """As many labels as no memory holds, all of them the fill value."""
    file = plain(place, labels=False)
    file.create_dataset("labels", (N, 1 << 45), "i8", chunks=(N, 1 << 20), fillvalue=1)
    return done(file)


@attack(says="declares far more than it stores", entrances=SET)
def labels_gzip_bomb(place: Place) -> Try:
    """Labels of 1.9 GB in 2 MB."""
    file = plain(place, labels=False)
    body = zlib.compressobj(9)
    piece = bytes(1 << 20)
    stored = b"".join(body.compress(piece) for _ in range(300)) + body.flush()
    filtered(file, "labels", (N, 300 << 17), "i8", (1,), (1, 300 << 17), stored, values=(9,))
    return done(file)


@attack(says="declares far more than it stores")
def chunk_gzip_bomb(place: Place) -> Try:
    """A chunk of 300 MB in 300 kB."""
    file = plain(place, data=False, labels=False)
    body = zlib.compressobj(9)
    piece = bytes(1 << 20)
    stored = b"".join(body.compress(piece) for _ in range(300)) + body.flush()
    filtered(file, "data", (300, 1 << 20), "u1", (1,), (300, 1 << 20), stored, values=(9,))
    return done(file)


@attack(says="declares far more than it stores")
def chunk_declares_gigabytes(place: Place) -> Try:
    """A chunk of 4 GB, ten bytes of it stored."""
    file = plain(place, data=False, labels=False)
    shape = (1 << 12, (1 << 20) - 1)
    filtered(file, "data", shape, "u1", (1,), shape, zlib.compress(b"abc"), values=(9,))
    return done(file)


def _chunk(code: int, stored: bytes, says: str, name: str, **settings: Any) -> None:
    def make(place: Place) -> Try:
        file = plain(place, data=False)
        filtered(file, "data", ROWS, "u1", (code,), (1, *ROWS[1:]), stored, **settings)
        return done(file)

    make.__doc__ = f"Chunks: {name}."
    attack(("read", "verify", "convert", "face"), says, name=f"chunk_{name}")(make)


ROW = 16 * 4 * 3
_chunk(1, zlib.compress(bytes(50 << 20), 9), "decompress|size", "inflates_to_50_mb", values=(9,))
_chunk(1, zlib.compress(bytes(10)), "size", "inflates_short", values=(9,))
_chunk(1, b"\x78\x9c" + b"\xff" * 60, "decompress", "of_garbage", values=(9,))
_chunk(3, CANARY[:ROW] + b"\0\0\0\0", "fletcher32", "of_a_wrong_fletcher32")
_chunk(3, b"ab", "too short", "shorter_than_its_fletcher32")
_chunk(2, CANARY[:5], "size", "shuffled_short", values=(1 << 31,))
_chunk(
    32001,
    b"\x02\x01\x00\x01" + struct.pack("<III", 0x7FFFFFFF, 1 << 20, 16),
    "blosc",
    "blosc_states_2_gb",
)
_chunk(
    32001,
    b"\x02\x01\x00\x01" + struct.pack("<III", ROW, 0, 1 << 31) + bytes(64),
    "blosc|size",
    "blosc_of_garbage",
)
_chunk(32004, struct.pack(">QI", 1 << 62, 1 << 30) + bytes(64), "lz4|size", "lz4_states_2_62")
_chunk(
    32015, bytes.fromhex("28b52ffde0ffffffffffffff7f") + bytes(20), "zstd|size", "zstd_states_much"
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 1) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_tiny_block",
    values=(0, 3, 1, 0, 2),
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 1 << 31) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_huge_item",
    values=(0, 3, (1 << 31) - 1, 1 << 30, 0),
)
_chunk(
    32008,
    b"A" * (ROW - 1),
    "bitshuffle|size",
    "bitshuffle_huge_block",
    values=(0, 3, 1, (1 << 31) - 8, 0),
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 8) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_item_0",
    values=(0, 3, 0, 0, 3),
)
_chunk(32000, b"\xff" * 40, "lzf|size", "lzf_of_garbage")


@attack(says="a chunk has the wrong size")
def chunk_shorter_than_declared(place: Place) -> Try:
    """An unfiltered chunk of five bytes: what follows it would be served."""
    file = plain(place, data=False)
    made = file.create_dataset("data", ROWS, "u1", chunks=(1, *ROWS[1:]))
    for number in range(N):
        made.id.write_direct_chunk((number, 0, 0, 0), CANARY[:5], 0)
    return done(file)


@attack(says="no samples")
def no_rows(place: Place) -> Try:
    """A set without a sample."""
    file = plain(place, data=False, labels=False)
    file["data"] = np.zeros((0, 4, 4, 3), np.uint8)
    return done(file)


@attack(says="another number of rows", entrances=SET)
def labels_without_values(place: Place) -> Try:
    """Labels of shape (N, 0)."""
    file = plain(place, labels=False)
    file["labels"] = np.zeros((N, 0), np.int64)
    return done(file)


@attack(NONE, entrances=SET)
def labels_far_away(place: Place) -> Try:
    """Class names, and labels of 2^61: counting from 0 would need all memory."""
    file = plain(place, data=False, labels=False)
    file["train_set_x"] = np.zeros(ROWS, np.uint8)
    file["train_set_y"] = np.full(N, 1 << 61)
    file["list_classes"] = np.array([b"a", b"b"])
    return done(file)


@attack(NONE, entrances=SET)
def sparse_terabyte(place: Place) -> Try:
    """A file of 4 TiB that takes none of the disk."""
    file = plain(place, data=False, labels=False)
    made = file.create_dataset("data", (1 << 12, 1 << 30), "u1")
    plist = made.id.get_create_plist()
    del file["data"]
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space((1 << 12, 1 << 30)), plist)
    return done(file)


# -- types, attributes, names --------------------------------------------------------------------


def _typed(
    name: str, kind: Any, says: str = "plain numbers", refused: tuple[str, ...] = SET
) -> None:
    def make(place: Place) -> Try:
        file = plain(place, data=False)
        h5py.h5d.create(file.id, b"data", kind(), space((N,)))
        return done(file)

    make.__doc__ = f"Data of an odd type: {name}."
    attack(refused, says, name=f"type_{name}")(make)


def _nested(levels: int, how: str) -> Any:
    kind = h5py.h5t.NATIVE_UINT8.copy()
    for _ in range(levels):
        if how == "vlen":
            kind = h5py.h5t.vlen_create(kind)
        elif how == "array":
            kind = h5py.h5t.array_create(kind, (1,))
        else:
            outer = h5py.h5t.create(h5py.h5t.COMPOUND, kind.get_size())
            outer.insert(b"a", 0, kind)
            kind = outer
    return kind


def _opaque(tag: bytes, size: int = 8) -> Any:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, size)
    kind.set_tag(tag)
    return kind


_typed("vlen_of_vlen_3000", lambda: _nested(3000, "vlen"))
_typed("array_of_array_2000", lambda: _nested(2000, "array"))
_typed("compound_1000", lambda: _nested(1000, "compound"))
_typed("opaque", lambda: _opaque(b"pickle"))
_typed("opaque_as_objects", lambda: _opaque(b"NUMPY:O"))
_typed("opaque_as_a_long_list", lambda: _opaque(b"NUMPY:" + b"i1," * 80))
_typed("object_reference", lambda: h5py.h5t.STD_REF_OBJ)
_typed("text", lambda: h5py.h5t.py_create(h5py.string_dtype(), logical=True), "variable length")
_typed("float128", lambda: h5py.h5t.IEEE_F128LE, "plain numbers|Insufficient precision")
_typed(
    "vlen_of_text",
    lambda: h5py.h5t.vlen_create(h5py.h5t.py_create(np.dtype("S4"))),
    "variable length|plain numbers|holds neither|stored",
)


@attack(NONE)
def committed_type(place: Place) -> Try:
    """Served: a named type of plain numbers."""
    file = plain(place, data=False)
    file["kind"] = np.dtype("u1")
    file.create_dataset("data", data=np.zeros(ROWS, np.uint8), dtype=file["kind"])
    return done(file)


def _attributed(name: str, make_attribute: Any, base: str | None = None) -> None:
    def make(place: Place) -> Try:
        file = plain(place) if base is None else _ours(place, base)
        make_attribute(file)
        return done(file)

    make.__doc__ = f"An odd attribute: {name}."
    attack(NONE, entrances=SET, name=f"attribute_{name}")(make)


def _raw_attribute(name: bytes, kind: Any, count: int = 2) -> Any:
    def make(file: Any) -> None:
        if h5py.h5a.exists(file.id, name):
            h5py.h5a.delete(file.id, name)
        h5py.h5a.create(file.id, name, kind() if callable(kind) else kind, space((count,)))

    return make


for _name in ("format", "split", "train"):
    _attributed(f"{_name}_of_objects", _raw_attribute(_name.encode(), lambda: _opaque(b"NUMPY:O")))
    _attributed(f"{_name}_deep", _raw_attribute(_name.encode(), lambda: _nested(1500, "vlen")))
    _attributed(
        f"{_name}_compound_of_objects",
        _raw_attribute(_name.encode(), lambda: _compound(_opaque(b"NUMPY:O"))),
    )


def _compound(member: Any) -> Any:
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    kind.insert(b"split", 0, member)
    kind.insert(b"source", 8, member)
    return kind


def _huge_attribute(file: Any) -> None:
    plist = h5py.h5a.create(file.id, b"digest_huge", h5py.h5t.NATIVE_UINT8, space((60_000,)))
    plist.write(np.full(60_000, 66, np.uint8))


_attributed("huge", _huge_attribute, "raw.h5")


@attack(NONE, entrances=SET)
def attributes_by_the_thousand(place: Place) -> Try:
    """5,000 attributes of the root group."""
    file = plain(place, libver="latest")
    for number in range(5000):
        file.attrs[f"a{number}"] = number
    return done(file)


def _described(
    name: str, field: str, value: Any, refused: tuple[str, ...] = SET, says: str = ""
) -> None:
    def make(place: Place) -> Try:
        file = _ours(place)
        file.attrs[field] = value
        return done(file)

    make.__doc__ = f"Our description with {field} = {name}."
    attack(refused, says, SET, name=f"description_{field}_{name}")(make)


_described("huge", "count", 1 << 62, says="makes no sense|number of samples")
_described("negative", "count", -1, says="makes no sense")
_described("nan", "count", np.nan, says="not JSON|garbles")
_described("infinite", "count", np.inf, says="not JSON|garbles")
_described("text", "count", np.bytes_(b"9" * 5000), says="garbles|not JSON")
_described("huge", "shape", np.array([1 << 62, 4, 3]), says="makes no sense")
_described("short", "shape", np.array([4]), says="garbles")
_described("huge", "version", 1 << 40, says="newer")
_described("two", "channels", 2, says="makes no sense")
_described("jpeg", "encoding", np.bytes_(b"jpeg"), says="blob|not the")
_described("object", "dtype", np.bytes_(b"object"), says="makes no sense")
_described("floats", "label_dtype", np.bytes_(b"|O8"), says="makes no sense")

ESCAPES = b"\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x7f"


@attack(says="no data set 'data'", entrances=SET)
def escapes_in_names(place: Place) -> Try:
    """Names that would retitle a terminal and wipe it: listed where data is not found."""
    file = plain(place, data=False, labels=False)
    file[ESCAPES.decode("latin-1")] = np.zeros(ROWS)
    file["é" * 30_000] = np.zeros(4)
    return done(file)


@attack(NONE, entrances=SET)
def escapes_in_classes(place: Place) -> Try:
    """Class names of another's set that would do so: shown, escaped."""
    file = plain(place, data=False, labels=False)
    file["train_set_x"] = np.zeros(ROWS, np.uint8)
    file["train_set_y"] = np.arange(N) % 2
    file["list_classes"] = np.array([ESCAPES, b"\xff\xfe\n\n"])
    return done(file)


@attack(("read", "verify", "convert"), "packed from", entrances=("read", "verify", "convert"))
def escapes_in_paths(place: Place) -> Try:
    """Recorded paths that would do so, of samples that are damaged: named in the errors."""
    with _ours(place) as file:
        path = Path(file.filename)
        offset = file["data"].id.get_offset()
        paths = np.array([b"../../" + ESCAPES + b"%d" % i for i in range(N)])
        del file["paths"]
        file["paths"] = paths
        file.attrs[f"digest_{fmt.PATHS}"] = np.bytes_(
            fmt.names_digest(bytes(p) for p in paths).encode()
        )
    with open(path, "r+b") as raw:
        raw.seek(offset)
        raw.write(bytes(64))
    return Try(path)


@attack(NONE, entrances=SET)
def paths_out_of_the_folder(place: Place) -> Try:
    """Recorded paths that lead elsewhere are words: nothing is opened or written there."""
    with _ours(place) as file:
        path = Path(file.filename)
        paths = np.array([(b"../" * 9 + b"tmp/%d" % i) for i in range(N - 1)] + [b"/etc/passwd"])
        del file["paths"]
        file["paths"] = paths
        file.attrs[f"digest_{fmt.PATHS}"] = np.bytes_(
            fmt.names_digest(bytes(p) for p in paths).encode()
        )
    return Try(path)


def _offsets(name: str, change: Any, says: str) -> None:
    def make(place: Place) -> Try:
        with _ours(place, "jpeg.h5") as file:
            path = Path(file.filename)
            places = file["offsets"][()]
            change(places)
            file["offsets"][...] = places
            file.attrs[f"digest_{fmt.OFFSETS}"] = np.bytes_(fmt.digest(places).encode())
        return Try(path)

    make.__doc__ = f"Our offsets {name}, their digest right."
    attack(SET, says, SET, name=f"offsets_{name}")(make)


def _set(index: int, value: int) -> Any:
    def change(places: Any) -> None:
        places[index] = value

    return change


_offsets("beyond", _set(2, 1 << 40), "outside the file|lies outside")
_offsets("negative", _set(0, -(1 << 40)), "outside")
_offsets("wrapping", _set(1, (1 << 63) - 1), "outside")
_offsets("backwards", lambda p: p.__setitem__(slice(1, 5), p[1:5][::-1].copy()), "outside")
_offsets("end", _set(-1, 1 << 50), "do not end")


# -- the file itself -----------------------------------------------------------------------------


@attack(NONE)
def user_block(place: Place) -> Try:
    """Served: a script before the HDF5, at byte 512."""
    made = done(plain(place, userblock_size=512))
    with open(made.path, "r+b") as file:
        file.write(b"#!/bin/sh\ncat /etc/passwd\n")
    return made


@attack(NONE)
def oldest_superblock(place: Place) -> Try:
    """Served: version 0, symbol tables, no checksums."""
    return done(plain(place, libver="earliest"))


@attack(NONE, entrances=SET)
def chunk_index_in_circles(place: Place) -> Try:
    """A chunk B-tree whose node is its own child."""
    file = plain(place, data=False)
    file.create_dataset("data", data=np.zeros((400, 4), np.uint8), chunks=(1, 4))
    del file["labels"]
    made = done(file)
    raw = bytearray(Path(made.path).read_bytes())
    at = raw.find(b"TREE\x01")
    found = []
    while at >= 0:
        found.append(at)
        at = raw.find(b"TREE\x01", at + 1)
    assert found
    for at in found:
        raw[at + 5] = 1  # a level above the leaves
        key = 8 + 3 * 8  # size and mask, offsets of two axes and of the element
        for child in range(2):
            place_of = at + 24 + key + child * (key + 8)
            raw[place_of : place_of + 8] = struct.pack("<Q", at)
    Path(made.path).write_bytes(raw)
    return made


@attack(NONE, entrances=SET)
def group_index_in_circles(place: Place) -> Try:
    """A group's B-tree whose node is its own child."""
    file = plain(place)
    for number in range(40):
        file[f"x{number}"] = number
    made = done(file)
    raw = bytearray(Path(made.path).read_bytes())
    at = raw.index(b"TREE\x00")
    raw[at + 5] = 3
    raw[at + 24 + 8 : at + 24 + 16] = struct.pack("<Q", at)
    Path(made.path).write_bytes(raw)
    return made


@attack(says="HDF5 cannot read it|lacks some|wrong")
def header_in_circles(place: Place) -> Try:
    """An object header whose continuation is itself."""
    file = plain(place, data=False, labels=False)
    made_set = file.create_dataset("data", data=np.zeros(ROWS, np.uint8))
    for number in range(40):
        made_set.attrs[f"a{number}"] = np.zeros(20)
    address = h5py.h5o.get_info(made_set.id).addr
    made = done(file)
    raw = bytearray(Path(made.path).read_bytes())
    at = raw.find(b"\x10\x00\x10\x00", address)  # continuation message of 16 bytes
    assert at > 0
    raw[at + 8 : at + 16] = struct.pack("<Q", address + 16)
    Path(made.path).write_bytes(raw)
    return made


@attack(says="cannot read it|outside the file|truncated|stores none|cannot be mapped")
def address_far_away(place: Place) -> Try:
    """Pixels at an address beyond the file."""
    file = plain(place, data=False, labels=False)
    made_set = file.create_dataset("data", data=np.zeros(ROWS, np.uint8))
    offset = made_set.id.get_offset()
    made = done(file)
    raw = Path(made.path).read_bytes()
    size = struct.pack("<Q", int(np.prod(ROWS)))
    Path(made.path).write_bytes(
        raw.replace(struct.pack("<Q", offset) + size, struct.pack("<Q", 1 << 62) + size)
    )
    return made


@attack(("read", "info", "verify", "convert", "face"), "neither HDF5 nor LMDB")
def list_in_disguise(place: Place) -> Try:
    """A text that names another file and goes by the name of an HDF5 file."""
    path = place.here / "set.h5"
    path.write_text(f"{place.secret_h5}\n")
    return Try(path)


@attack(says="not a regular file|not HDF5", entrances=SET)
def list_of_pipes(place: Place) -> Try:
    """A list of files, one of which is a pipe."""
    pipe = place.here / "pipe.h5"
    os.mkfifo(pipe)
    path = place.here / "set.txt"
    path.write_text("pipe.h5\n")
    return Try(path)


@attack(says="neither HDF5", entrances=SET)
def list_of_itself(place: Place) -> Try:
    """A list of lists of itself."""
    path = place.here / "set.txt"
    path.write_text("deeper.h5\n" * 1000)
    (place.here / "deeper.h5").write_text("set.txt\n")
    return Try(path)


def _path_is(name: str, make_path: Any, says: str, entrances: tuple[str, ...] = SET) -> None:
    def make(place: Place) -> Try:
        path = place.here / "set.h5"
        return Try(make_path(path, place) or path)

    make.__doc__ = f"The path is {name}."
    attack(entrances, says, entrances, name=f"path_is_{name}")(make)


def _sparse(path: Path, place: Place) -> None:
    path.touch()
    os.truncate(path, 1 << 43)


_path_is("a_pipe", lambda path, place: os.mkfifo(path), "not a regular file|no picture")
_path_is("a_device", lambda path, place: Path("/dev/zero"), "not a regular file|no folder")
_path_is(
    "a_link_in_circles", lambda path, place: path.symlink_to(path), "cannot be reached|no folder"
)
_path_is("a_link_to_a_pipe", lambda path, place: path.symlink_to(place.pipe), "regular|no folder")
_path_is("another_file", lambda path, place: path.symlink_to(place.secret), "neither HDF5 nor")
_path_is("empty", lambda path, place: path.touch(), "neither HDF5 nor")
_path_is(
    "a_sparse_exabyte",
    _sparse,
    "neither HDF5 nor",
)
