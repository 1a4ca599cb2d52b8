"""Sets that tests read: painted images, a source in memory with planned faults, small files.

The files are written with plain h5py and lmdb after the description in
``asyncreader/formats/packed.py``, not by ``converters``: the reader is tested against the layout,
not against its writer.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import xxhash
from observed import HANG
from PIL import Image

from asyncreader import AsyncReader, AsyncReaderError, Batch, testing
from asyncreader.formats import packed as fmt
from asyncreader.pixels.rows import RowWriter, Writer

#: Classes of the packed files below.
CLASSES = ("cat", "dog", "owl")


def paint(count: int, shape: tuple[int, ...] = (6, 5, 3), dtype: Any = "uint8") -> np.ndarray:
    """``count`` samples, all different, of any shape and dtype; sample ``i`` is known by its looks.

    The first elements of integer samples spell ``i`` (base 251), the rest is noise that depends on
    ``i`` and the place.
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    noise = np.random.default_rng(7).integers(0, 251, (count, max(1, size)))
    if size > 4:
        noise[:, 0], noise[:, 1] = np.arange(count) % 251, np.arange(count) // 251
    if kind.kind == "f":
        values = (noise - 100) / 8
    elif kind.kind == "b":
        values = noise % 2
    elif kind.itemsize > 1:
        values = noise * 257 % 32_000 - (9_000 if kind.kind == "i" else 0)
    else:
        values = noise - (125 if kind.kind == "i" else 0)
    return values[:, :size].reshape(count, *shape).astype(kind)


def pictures(count: int, shape: tuple[int, int, int] = (24, 20, 3)) -> np.ndarray:
    """``count`` smooth uint8 images that survive JPEG, all different."""
    height, width, channels = shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    images = np.empty((count, *shape), np.uint8)
    for i in range(count):
        for c in range(channels):
            wave = np.sin(x / (3 + i % 5) + c) + np.cos(y / (4 + i % 3) + i / 7)
            images[i, :, :, c] = np.clip(128 + 50 * wave + 3 * (i % 9) - 5 * c, 0, 255)
    return images


def encoded(image: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """An image file's bytes of (H, W, 1 or 3) uint8 pixels, by Pillow."""
    file = io.BytesIO()
    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, kind, **options)
    return file.getvalue()


def class_folders(folder: Path, count: int) -> Path:
    """So many JPEGs, in folders of three classes."""
    for number, image in enumerate(pictures(count)):
        into = folder / f"class{number % 3}"
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{number}.jpg").write_bytes(encoded(image, "JPEG"))
    return folder


# -- a source in memory --------------------------------------------------------------------------


class MemorySource(testing.MemorySource):
    """Samples in memory, with planned faults.

    ``fail_calls``: numbers of the calls that read rows and end in an I/O error; ``gate``: where
    set, each of these calls waits for it (``entered`` counts those that arrived). Single samples
    are looked at without.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        fail_calls: Sequence[int] = (),
        gate: threading.Event | None = None,
        **options: Any,
    ) -> None:
        super().__init__(images, labels, classes=CLASSES, **options)
        self.fail_calls = set(fail_calls)
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self.checked: list[int] = []
        self.closed = 0
        self._lock = threading.Lock()

    def read_into(self, writer: Writer) -> None:
        if not isinstance(writer, RowWriter):
            super().read_into(writer)
            return
        job = writer.job
        with self._lock:
            call = self.calls
            self.calls += 1
            if job.check is not None:
                self.checked.extend(job.records[job.check].tolist())
        self.entered.release()
        if self.gate is not None:
            assert self.gate.wait(HANG)
        if call in self.fail_calls:
            raise OSError(5, "Input/output error (planned)")
        super().read_into(writer)

    def close(self) -> None:
        self.closed += 1


def open_fake(patch: pytest.MonkeyPatch, source: MemorySource, **params: Any) -> AsyncReader:
    """A reader over ``source``."""
    patch.setattr("asyncreader.pipeline.build.open_set", lambda _: source.as_set())
    return AsyncReader({"path": "memory", **params})


# -- files of ours -------------------------------------------------------------------------------


@dataclass
class Packed:
    """What goes into a packed file: each sample's bytes, and the tables."""

    samples: list[bytes]
    labels: np.ndarray | None
    encoding: str
    shape: tuple[int, int, int] | None
    channels: int = 3
    paths: list[bytes] = field(default_factory=list)
    classes: tuple[str, ...] | None = CLASSES
    dtype: str = "uint8"
    #: Further fields by name.
    fields: dict[str, Packed] = field(default_factory=dict)

    @property
    def checksums(self) -> np.ndarray:
        return np.array([xxhash.xxh3_64_intdigest(s) for s in self.samples], np.uint64)

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum([len(s) for s in self.samples]))).astype(np.int64)

    def meta(self, offsets: bool) -> fmt.Meta:
        digests = {fmt.CHECKSUMS: fmt.digest(self.checksums)}
        if self.labels is not None:
            digests[fmt.LABELS] = fmt.digest(self.labels)
        if offsets:
            digests[fmt.OFFSETS] = fmt.digest(self.offsets)
        if self.paths:
            digests[fmt.PATHS] = fmt.names_digest(self.paths)
        if self.classes is not None:
            digests[fmt.CLASSES] = fmt.names_digest(name.encode() for name in self.classes)
        for name, other in self.fields.items():
            digests[f"{name}.checksums"] = fmt.digest(other.checksums)
            if offsets:
                digests[f"{name}.offsets"] = fmt.digest(other.offsets)
        return fmt.Meta(
            count=len(self.samples),
            encoding=self.encoding,
            shape=self.shape,
            channels=self.channels,
            label_kind="none" if self.labels is None else "class",
            classes=self.classes,
            digests=digests,
            label_dtype="<i8" if self.labels is None else self.labels.dtype.str,
            fields=tuple(
                fmt.FieldMeta(name, other.encoding, other.shape, other.channels, other.dtype)
                for name, other in self.fields.items()
            ),
        )


def packed(
    images: Sequence[np.ndarray],
    encoding: str = "raw",
    labels: np.ndarray | None = None,
    with_labels: bool = True,
    **options: Any,
) -> Packed:
    """``images`` (each (H, W, C) uint8) as samples of ``encoding`` ("raw", "png" or "jpeg")."""
    if encoding == "raw":
        samples = [np.ascontiguousarray(image).tobytes() for image in images]
    else:
        samples = [encoded(image, encoding.upper(), **options) for image in images]
    shapes = {image.shape for image in images}
    if labels is None and with_labels:
        labels = (np.arange(len(images), dtype=np.int64) % len(CLASSES))[:, None]
    return Packed(
        samples,
        labels,
        encoding,
        next(iter(shapes)) if len(shapes) == 1 else None,
        images[0].shape[2],
        [b"photos/%04d.png" % i for i in range(len(images))],
    )


def hdf5(path: str | Path, **fields: Any) -> Path:
    """A file of h5py with these data sets; a list of bytes is one of variable length."""
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            if isinstance(values, list) and isinstance(values[0], bytes):
                stored = file.create_dataset(name, (len(values),), h5py.vlen_dtype(np.uint8))
                for number, one in enumerate(values):
                    stored[number] = np.frombuffer(one, np.uint8)
            else:
                file[name] = values
    return Path(path)


def write_hdf5(path: str | Path, content: Packed, **storage: Any) -> str:
    """An HDF5 file of ours; ``storage``: keywords of h5py's create_dataset for raw data."""
    meta = content.meta(offsets=content.encoding != "raw")
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for name, one in {fmt.DATA: content, **content.fields}.items():
            joined = np.frombuffer(b"".join(one.samples), np.uint8)
            table = "" if one is content else f"{name}."
            if one.encoding == "raw":
                assert one.shape is not None
                shape = (len(one.samples), *one.shape)
                rows = joined.view(one.dtype).reshape(shape)
                file.create_dataset(name, data=rows, **storage)
            else:
                file.create_dataset(name, data=joined)
                file.create_dataset(f"{table}offsets", data=one.offsets)
            if table:
                file.create_dataset(f"{table}checksums", data=one.checksums)
        if content.labels is not None:
            file.create_dataset(fmt.LABELS, data=content.labels)
        file.create_dataset(fmt.CHECKSUMS, data=content.checksums)
        if content.paths:
            file.create_dataset(fmt.PATHS, data=np.array(content.paths))
        if content.classes is not None:
            names = np.array([name.encode() for name in content.classes])
            file.create_dataset(fmt.CLASSES, data=names)
        describe(file, meta.facts())
    return str(path)


def put_compact(file: h5py.File, name: str, values: np.ndarray) -> None:
    """A data set whose values lie in its object header."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    kind, space = h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape)
    made = h5py.h5d.create(file.id, name.encode(), kind, space, plan)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def describe(file: h5py.File, facts: Mapping[str, Any]) -> None:
    """Write the description of an HDF5 file of ours, and what is beside it for other readers."""
    for name in ("format", "version", "count", "encoding", "axes"):
        value = facts[name]
        file.attrs[name] = np.bytes_(value) if isinstance(value, str) else value
    held = {name: value for name, value in facts.items() if name != "classes"}
    file.attrs["description"] = np.bytes_(json.dumps(held))


def described(file: h5py.File) -> dict[str, Any]:
    """The description in an HDF5 file of ours."""
    facts: dict[str, Any] = json.loads(file.attrs["description"])
    return facts


def write_lmdb(path: str | Path, content: Packed) -> str:
    """An LMDB folder of ours."""
    with lmdb.open(str(path), map_size=64 << 20, max_dbs=16, lock=False, sync=False) as env:

        def put(name: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
            database = env.open_db(name.encode())
            with env.begin(write=True, db=database) as transaction:
                for key, value in entries:
                    transaction.put(key, value)

        put(fmt.DATA, [(fmt.record_key(i), s) for i, s in enumerate(content.samples)])
        for name, one in content.fields.items():
            put(name, [(fmt.record_key(i), s) for i, s in enumerate(one.samples)])
            put(f"{name}.checksums", [(fmt.TABLE_KEY, one.checksums.tobytes())])
        if content.paths:
            put(fmt.PATHS, [(fmt.record_key(i), p) for i, p in enumerate(content.paths)])
        put(fmt.CHECKSUMS, [(fmt.TABLE_KEY, content.checksums.tobytes())])
        if content.labels is not None:
            put(fmt.LABELS, [(fmt.TABLE_KEY, content.labels.tobytes())])
        put(fmt.META, [(fmt.META_KEY, content.meta(offsets=False).to_json().encode())])
    return str(path)


def data_file(path: str | Path) -> Path:
    """The one file that holds the bytes of a packed set."""
    inside = Path(path) / "data.mdb"
    return inside if inside.exists() else Path(path)


def damage(path: str, sample: bytes) -> None:
    """Flip the middle byte of ``sample`` wherever it lies in a file.

    LMDB leaves old copies on pages that are free again.
    """
    file = data_file(path)
    held = bytearray(file.read_bytes())
    at = held.find(sample)
    assert at >= 0
    while at >= 0:
        held[at + len(sample) // 2] ^= 0x55
        at = held.find(sample, at + 1)
    file.write_bytes(held)


def damage_chunk(path: str | Path, name: str, at: tuple[int, ...]) -> None:
    """Overwrite the chunk of a data set of HDF5 that begins at an element."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info_by_coord(at)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset + 2)
        raw.write(b"\xff" * min(64, chunk.size - 2))


def first(reader: AsyncReader) -> Batch:
    """The next batch; its arrays stay valid while the reader is not used."""
    reader.fetchData()
    return reader.getNextBatch()


def epoch_of(params: Mapping[str, Any], **more: Any) -> tuple[Any, Any, np.ndarray]:
    """Data, labels and record numbers of an epoch; of several fields a tuple."""

    def joined(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], tuple):
            return tuple(map(joined, zip(*parts, strict=True)))
        return None if parts[0] is None else np.concatenate(parts)

    with AsyncReader(params, copy=True, **more) as reader:
        batches = [(*batch, batch.indices) for batch in reader]
    data, labels, records = map(joined, zip(*batches, strict=True))
    return data, labels, records


def first_batch(*params: Any, **more: Any) -> Batch[Any, Any]:
    """The first batch of a reader, in memory of its own."""
    with AsyncReader(*params, copy=True, **more) as reader:
        return next(iter(reader))


def digest(reader: AsyncReader, epochs: int = 1) -> str:
    """One hash over all that a reader serves in some epochs."""
    state = hashlib.sha256()
    for _ in range(epochs):
        for batch in reader:
            data = batch.data if isinstance(batch.data, tuple) else (batch.data,)
            for array in (*data, batch.labels, batch.indices, batch.mask):
                state.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
            state.update(f"{batch.epoch} {batch.step}".encode())
    return state.hexdigest()


def s3_environment(patch: pytest.MonkeyPatch, url: str) -> None:
    """A store at that URL, and credentials, where AWS's own tools find them."""
    patch.setenv("AWS_ACCESS_KEY_ID", "key")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_ENDPOINT_URL", url)
    patch.setenv("AWS_ALLOW_HTTP", "true")


def error_of_batch(reader: AsyncReader[Any, Any], bad: int) -> AsyncReaderError:
    """The error of one batch of an epoch in file order; all other batches are served."""
    for step in range(len(reader)):
        reader.fetchData()
        if step == bad:
            with pytest.raises(AsyncReaderError) as caught:
                reader.getNextBatch()
        else:
            assert reader.getNextBatch().indices[0] == reader.params.batch_size * step
    return caught.value
