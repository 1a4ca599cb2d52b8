"""Sets as other programs write them: plain lmdb, h5py and msgpack, and protobuf bytes by hand.

Nothing here uses asyncreader: the readers are tested against the layouts as they are documented.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import msgpack
import numpy as np
from fakes import encoded, paint

Entries = Mapping[bytes, bytes]


def write_lmdb(path: Path, entries: Entries, *, subdir: bool = True) -> str:
    """An environment whose unnamed database holds ``entries``."""
    options = {"map_size": 64 << 20, "subdir": subdir, "lock": False, "sync": False}
    with lmdb.open(str(path), **options) as env, env.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return str(path)


def write_named(path: Path, databases: Mapping[bytes, Entries]) -> str:
    """An environment of named databases."""
    with lmdb.open(str(path), map_size=64 << 20, max_dbs=8, lock=False, sync=False) as env:
        for name, entries in databases.items():
            database = env.open_db(name)
            with env.begin(write=True, db=database) as transaction:
                for key, value in entries.items():
                    transaction.put(key, value)
    return str(path)


# -- Caffe ---------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A protobuf varint; negative numbers as ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def datum(
    shape: tuple[int, int, int] | None = None,
    data: bytes = b"",
    label: int | None = None,
    floats: np.ndarray | None = None,
    packed: bool = False,
    encoded: bool = False,
) -> bytes:
    """A Datum as protobuf writes it: fields in ascending order."""
    out = b""
    if shape is not None:
        out += b"".join(number_field(1 + i, n) for i, n in enumerate(shape))
    if data:
        out += bytes_field(4, data)
    if label is not None:
        out += number_field(5, label)
    if floats is not None:
        values = floats.astype("<f4").reshape(-1)
        if packed:
            out += bytes_field(6, values.tobytes())
        else:
            out += b"".join(varint(6 << 3 | 5) + struct.pack("<f", v) for v in values)
    return out + (number_field(7, 1) if encoded else b"")


def planes(image: np.ndarray) -> bytes:
    """(H, W, C) pixels as convert_imageset keeps them: planes, of colours blue first."""
    turned = image[:, :, ::-1] if image.shape[2] == 3 else image
    return np.ascontiguousarray(turned.transpose(2, 0, 1)).tobytes()


def caffe(images: Sequence[np.ndarray], labels: Sequence[int], key: str = "%08d_%s") -> Entries:
    """What convert_imageset writes without --encoded."""
    entries = {}
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = key % ((i, f"dir/{i}.jpg") if key.count("%") == 2 else i)
        high, wide, channels = image.shape
        entries[name.encode()] = datum((channels, high, wide), planes(image), int(label))
    return entries


# -- msgpack ---------------------------------------------------------------------------------------


def pyxis_array(array: Any) -> bytes:
    """ml-pyxis' inner msgpack of a value."""
    if isinstance(array, str):
        return msgpack.packb({b"type": 1, b"data": array}, use_bin_type=True)
    array = np.asarray(array)
    return msgpack.packb(
        {
            b"type": 2,
            b"dtype": array.dtype.str,
            b"shape": array.shape,
            b"data": array.tobytes(),
        },
        use_bin_type=True,
    )


def pyxis_sample(fields: Mapping[str, Any]) -> bytes:
    """ml-pyxis' value of one sample."""
    return msgpack.packb({k: pyxis_array(v) for k, v in fields.items()}, use_bin_type=True)


def write_pyxis(path: Path, samples: Sequence[bytes]) -> str:
    """ml-pyxis' two databases around values."""
    data = {b"%010d" % i: sample for i, sample in enumerate(samples)}
    about = {b"nb_samples": str(len(samples)).encode()}
    return write_named(path, {b"data_db": data, b"meta_db": about})


def numpy_map(array: Any) -> dict[bytes, Any]:
    """What msgpack_numpy makes of an array, or of a numpy scalar."""
    if isinstance(array, np.generic):
        return {b"nd": False, b"type": array.dtype.str, b"data": array.tobytes()}
    return {
        b"nd": True,
        b"type": array.dtype.str,
        b"kind": b"",
        b"shape": array.shape,
        b"data": array.tobytes(),
    }


def branch_sample(fields: Mapping[str, Any]) -> bytes:
    """The api-improvements branch's value of one sample."""
    packed = {
        name: msgpack.packb(
            numpy_map(value) if isinstance(value, np.ndarray | np.generic) else value,
            use_bin_type=True,
        )
        for name, value in fields.items()
    }
    return msgpack.packb(packed, use_bin_type=True)


def write_branch(path: Path, samples: Mapping[int, bytes], indices: Any = None) -> str:
    """The branch's databases, whose names and keys are msgpack themselves."""
    pack = msgpack.packb
    listed = sorted(samples) if indices is None else indices
    return write_named(
        path,
        {
            pack("main"): {pack(i): sample for i, sample in samples.items()},
            pack("metadata"): {pack("__indices"): pack(listed)},
        },
    )


def tensorpack(points: Sequence[Any], key: str = "{:08}", dumps: Any = None) -> Entries:
    """tensorpack's LMDBSerializer: datapoints and their keys, by ``dumps`` (msgpack)."""
    dumps = dumps or (lambda value: msgpack.packb(value, use_bin_type=True))
    keys = [key.format(i).encode() for i in range(len(points))]
    entries = {k: dumps(point) for k, point in zip(keys, points, strict=True)}
    entries[b"__keys__"] = dumps(keys)
    return entries


# -- image files -----------------------------------------------------------------------------------


def varied(count: int) -> list[np.ndarray]:
    """Images of different heights and widths."""
    return [paint(1, (6 + i % 5, 9 - i % 3, 3))[0] + i for i in range(count)]


def files(images: Sequence[np.ndarray], kind: str = "PNG") -> list[bytes]:
    """Image files' bytes; PNG keeps every pixel."""
    options = {"lossless": True} if kind == "WEBP" else {}
    return [encoded(image, kind, **options) for image in images]


def ocr(samples: Sequence[bytes], texts: Sequence[str]) -> Entries:
    """create_lmdb_dataset.py: numbers from 1, and their count."""
    entries = {b"num-samples": str(len(samples)).encode()}
    for i, (sample, text) in enumerate(zip(samples, texts, strict=True), 1):
        entries[b"image-%09d" % i] = sample
        entries[b"label-%09d" % i] = text.encode()
    return entries


def write_basicsr(path: Path, images: Mapping[str, np.ndarray]) -> str:
    """BasicSR's make_lmdb_from_imgs: PNG files and meta_info.txt."""
    write_lmdb(path, {name.encode(): encoded(image) for name, image in images.items()})
    lines = [
        f"{name}.png ({image.shape[0]},{image.shape[1]},{image.shape[2]}) 1\n"
        for name, image in images.items()
    ]
    (path / "meta_info.txt").write_text("".join(lines))
    return str(path)


def stylegan(by_size: Mapping[int, Sequence[bytes]]) -> Entries:
    """prepare_data.py: pictures by size and number, and how many there are of each size."""
    entries = {
        b"%d-%05d" % (size, i): sample
        for size, samples in by_size.items()
        for i, sample in enumerate(samples)
    }
    entries[b"length"] = str(len(next(iter(by_size.values())))).encode()
    return entries


# -- HDF5 ------------------------------------------------------------------------------------------


def vlen(file: h5py.File, name: str, values: Sequence[Any], **storage: Any) -> h5py.Dataset:
    """A data set of variable length."""
    plain = not values or isinstance(values[0], bytes)
    kind = np.uint8 if plain else np.asarray(values[0]).dtype
    data = file.create_dataset(name, (len(values),), h5py.vlen_dtype(kind), **storage)
    for i, value in enumerate(values):
        data[i] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    return data


def fuel_split(file: h5py.File, rows: Sequence[tuple[str, str, int, int, Any, bool]]) -> np.ndarray:
    """Fuel's ``split`` attribute: (split, source, start, stop, indices or None, available) rows."""
    words = [("split", "S5"), ("source", "S20"), ("start", np.int64), ("stop", np.int64)]
    rest = [("indices", h5py.ref_dtype), ("available", np.bool_), ("comment", "S1")]
    table = np.empty(len(rows), np.dtype([*words, *rest]))
    for i, (split, source, start, stop, indices, available) in enumerate(rows):
        reference = h5py.Reference() if indices is None else file[indices].ref
        table[i] = (split.encode(), source.encode(), start, stop, reference, available, b".")
    file.attrs["split"] = table
    return table


def label_axes(data: h5py.Dataset) -> None:
    """Fuel's names of the axes of images."""
    for dim, name in zip(data.dims, ("batch", "channel", "height", "width"), strict=True):
        dim.label = name


def shapes(file: h5py.File, data: h5py.Dataset, sizes: Any) -> None:
    """Fuel's dimension scales of a source of variable shape."""
    words = np.array([b"channel", b"height", b"width"])
    for name, table in (("shapes", np.asarray(sizes)), ("shape_labels", words)):
        scale = file.create_dataset(f"{data.name}_{name}", data=table)
        scale.make_scale(name)
        data.dims[0].attach_scale(scale)


def write_varied_fuel(path: Path, count: int, change: Any = lambda table: table) -> str:
    """Fuel's images of variable length, whose table of shapes was changed."""
    images = varied(count)
    table = np.array([(3, *image.shape[:2]) for image in images], np.int32)
    with h5py.File(path, "w") as file:
        flat = [np.ascontiguousarray(image.transpose(2, 0, 1)).reshape(-1) for image in images]
        shapes(file, vlen(file, "image_features", flat), change(table))
        file["targets"] = np.arange(count)[:, None]
        fuel_split(file, [("train", "image_features", 0, count, None, True)])
    return str(path)
