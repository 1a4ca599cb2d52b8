"""One contender in a process of its own: builds its loader, then consumes batches when told to.

``python players.py KIND JSON`` prints ``ready``; for each line ``go SECONDS`` on standard input it
takes batches for that long, throws them away, and prints one JSON line (samples, seconds).
Imports stay inside the contenders: each needs only its own packages.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

BATCH = 128
SKIPPED = 6  # batches at the start of a turn that were fetched before it


def endless(count: int, seed: int = 0) -> np.ndarray:
    """A long random order: ten epochs, each a permutation."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(count) for _ in range(10)])


# -- ours ----------------------------------------------------------------------------------------


def ours(spec: dict[str, Any]) -> Iterator[int]:
    from asyncreader import AsyncReader

    params = {"batch_size": BATCH, "shuffle": True, "nthread": 2, "njob": 4, **spec["params"]}
    reader = AsyncReader(params)
    for _ in range(params["njob"]):
        reader.fetchData()
    while True:
        batch = reader.getNextBatch()
        reader.fetchData()
        yield len(batch)


def verifying(spec: dict[str, Any]) -> Iterator[int]:
    """One whole epoch per reader, so that every epoch is one that verifies (or does not)."""
    from asyncreader import AsyncReader

    params = {"batch_size": BATCH, "shuffle": True, "nthread": 2, "njob": 4, **spec["params"]}
    while True:
        with AsyncReader(params, epochs=1) as reader:
            for batch in reader:
                yield len(batch)


# -- limits --------------------------------------------------------------------------------------


def threads_over(work: Any, threads: int = 2) -> Iterator[int]:
    """Batches done by ``threads`` threads that call ``work(thread)`` in a loop while asked to."""
    done = threading.Semaphore(0)
    wanted = threading.Semaphore(8)

    def run(number: int) -> None:
        while True:
            wanted.acquire()
            work(number)
            done.release()

    for number in range(threads):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    while True:
        done.acquire()
        wanted.release()
        yield BATCH


def memcpy(spec: dict[str, Any]) -> Iterator[int]:
    """As many threads copying one hot batch into the slots (five, as njob=4 has)."""
    size = spec["row_bytes"] * BATCH
    hot = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    slots = [np.ones(size, np.uint8) for _ in range(5)]
    turn = [0, 0]

    def work(number: int) -> None:
        turn[number] += 1
        np.copyto(slots[(2 * turn[number] + number) % 5], hot)

    return threads_over(work)


def fill(spec: dict[str, Any]) -> Iterator[int]:
    """As many threads filling float32 slots with a constant."""
    slots = [np.ones((BATCH, spec["row_values"]), np.float32) for _ in range(5)]
    turn = [0, 0]

    def work(number: int) -> None:
        turn[number] += 1
        slots[(2 * turn[number] + number) % 5].fill(turn[number])

    return threads_over(work)


def decode(spec: dict[str, Any]) -> Iterator[int]:
    """As many threads decoding JPEGs with simplejpeg into a buffer, and nothing else."""
    import simplejpeg

    images = [p.read_bytes() for p in sorted(_files(spec["folder"]))]
    orders = [np.random.default_rng(number).permutation(len(images)) for number in range(2)]
    buffers = [np.empty(1 << 21, np.uint8) for _ in range(2)]
    turn = [0, 0]

    def work(number: int) -> None:
        for _ in range(BATCH):
            turn[number] += 1
            which = orders[number][turn[number] % len(images)]
            simplejpeg.decode_jpeg(images[which], buffer=buffers[number])

    return threads_over(work)


def inflate(spec: dict[str, Any]) -> Iterator[int]:
    """As many threads inflating a gzip set's chunks with libdeflate, and nothing else."""
    import h5py
    import imagecodecs

    chunks: list[tuple[int, int]] = []
    with h5py.File(spec["path"], "r") as file:
        file["data"].id.chunk_iter(lambda info: chunks.append((info.byte_offset, info.size)))
        size = int(np.prod(file["data"].chunks))
    stored = np.memmap(spec["path"], np.uint8, "r")
    orders = [np.random.default_rng(number).permutation(len(chunks)) for number in range(2)]
    buffers = [np.empty(size, np.uint8) for _ in range(2)]
    turn = [0, 0]

    def work(number: int) -> None:
        for _ in range(max(1, BATCH // spec["chunk"])):
            turn[number] += 1
            offset, length = chunks[orders[number][turn[number] % len(chunks)]]
            imagecodecs.deflate_decode(stored[offset : offset + length], out=buffers[number])

    return threads_over(work)


def _files(folder: str) -> list[Any]:
    from pathlib import Path

    return list(Path(folder).rglob("*.jpg"))


# -- torch DataLoader ----------------------------------------------------------------------------


def _torch_loader(dataset: Any, count: int) -> Iterator[int]:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    while True:
        loader = DataLoader(
            dataset, batch_size=BATCH, num_workers=2, sampler=endless(count).tolist(),
            drop_last=True, prefetch_factor=4,
        )  # fmt: skip
        for data, _labels in loader:
            yield len(data)


class H5Rows:
    """Map-style data set over h5py, opened in each worker: the usual recipe."""

    def __init__(self, path: str) -> None:
        self.path, self.file = path, None

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if self.file is None:
            import h5py

            self.file = h5py.File(self.path, "r")
            self.data, self.labels = self.file["data"], self.file["labels"]
        return self.data[index], int(self.labels[index, 0])


class LmdbRows:
    """Map-style data set over LMDB: raw rows, or JPEGs cropped and resized with OpenCV."""

    def __init__(self, path: str, shape: list[int] | None) -> None:
        self.path, self.shape, self.env = path, shape, None

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if self.env is None:
            import lmdb

            self.env = lmdb.open(self.path, readonly=True, lock=False, readahead=False, max_dbs=8)
            self.db = self.env.open_db(b"data", create=False)
        with self.env.begin(buffers=True) as txn:
            value = txn.get(b"%010d" % index, db=self.db)
            if self.shape is not None:
                return np.frombuffer(value, np.uint8).reshape(self.shape).copy(), 0
            return decode_and_crop(value), 0


def decode_and_crop(data: Any) -> np.ndarray:
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    image = simplejpeg.decode_jpeg(data)
    h, w = image.shape[:2]
    side = int(min(h, w) * 0.875)
    top, left = (h - side) // 2, (w - side) // 2
    return cv2.resize(image[top : top + side, left : left + side], (224, 224))


class Folder:
    """Map-style data set over image files with Pillow: torchvision's ImageFolder, in short."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(_files(folder))

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        image = Image.open(self.files[index]).convert("RGB")
        w, h = image.size
        side = int(min(h, w) * 0.875)
        box = ((w - side) // 2, (h - side) // 2, (w + side) // 2, (h + side) // 2)
        return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box=box)), 0


class H5Chunks:
    """Iterable-style data set that reads whole chunks in random order and mixes 1,024 samples."""

    def __new__(cls, path: str, chunk: int) -> Any:
        import torch
        from torch.utils.data import IterableDataset

        class Chunks(IterableDataset):
            def __iter__(self) -> Iterator[Any]:
                import h5py

                info = torch.utils.data.get_worker_info()
                with h5py.File(path, "r") as file:
                    data, labels = file["data"], file["labels"]
                    rng = np.random.default_rng(info.id)
                    while True:
                        order = rng.permutation(len(data) // chunk)[info.id :: 2]
                        mixing = -(-8 * BATCH // chunk)
                        for lo in range(0, len(order), mixing):
                            starts = order[lo : lo + mixing] * chunk
                            rows = np.concatenate([data[s : s + chunk] for s in starts])
                            marks = np.concatenate([labels[s : s + chunk] for s in starts])
                            mixed = rng.permutation(len(rows))
                            for at in range(0, len(rows) - BATCH + 1, BATCH):
                                pick = mixed[at : at + BATCH]
                                yield torch.from_numpy(rows[pick]), torch.from_numpy(marks[pick])

        return Chunks()


def torch_h5py(spec: dict[str, Any]) -> Iterator[int]:
    return _torch_loader(H5Rows(spec["path"]), spec["count"])


def torch_lmdb(spec: dict[str, Any]) -> Iterator[int]:
    return _torch_loader(LmdbRows(spec["path"], spec.get("shape")), spec["count"])


def torch_folder(spec: dict[str, Any]) -> Iterator[int]:
    return _torch_loader(Folder(spec["folder"]), spec["count"])


def torch_h5py_block(spec: dict[str, Any]) -> Iterator[int]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        H5Chunks(spec["path"], spec["chunk"]), batch_size=None, num_workers=2, prefetch_factor=4
    )
    for data, _labels in loader:
        yield len(data)


# -- other systems -------------------------------------------------------------------------------


def ffcv(spec: dict[str, Any]) -> Iterator[int]:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption

    _make_beton(spec)
    image = (
        CenterCropRGBImageDecoder((224, 224), ratio=0.875)
        if spec.get("folder")
        else SimpleRGBImageDecoder()
    )
    while True:
        loader = Loader(
            spec["beton"], batch_size=BATCH, num_workers=2, order=OrderOption.RANDOM, os_cache=True,
            drop_last=True, indices=endless(spec["count"]), batches_ahead=4,
            pipelines={"image": [image], "label": [IntDecoder()]},
        )  # fmt: skip
        for data, _labels in loader:
            yield len(data)


def _make_beton(spec: dict[str, Any]) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    if os.path.exists(spec["beton"]):
        return
    if spec.get("folder"):
        from PIL import Image

        files = sorted(_files(spec["folder"]))

        class Data:
            def __len__(self) -> int:
                return len(files)

            def __getitem__(self, index: int) -> Any:
                return Image.open(files[index]), index

        # FFCV encodes itself: the quality that gives files of the same size as the originals
        field = RGBImageField(write_mode="jpg", jpeg_quality=spec.get("quality", 97))
    else:
        pixels = np.load(spec["npy"], mmap_mode="r")

        class Data:  # type: ignore[no-redef]
            def __len__(self) -> int:
                return len(pixels)

            def __getitem__(self, index: int) -> Any:
                return np.array(pixels[index]), index

        field = RGBImageField(write_mode="raw")
    writer = DatasetWriter(
        spec["beton"] + ".part", {"image": field, "label": IntField()}, num_workers=1
    )
    writer.from_indexed_dataset(Data())
    os.rename(spec["beton"] + ".part", spec["beton"])


def grain(spec: dict[str, Any]) -> Iterator[int]:
    """Grain over JPEG bytes in memory-resident records (ArrayRecord), read with threads."""
    import grain.python as pygrain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = spec["folder"].rstrip("/") + ".arrayrecord"
    if not os.path.exists(path):
        writer = ArrayRecordWriter(path + ".part", "group_size:1")
        for file in sorted(_files(spec["folder"])):
            writer.write(file.read_bytes())
        writer.close()
        os.rename(path + ".part", path)
    source = pygrain.ArrayRecordDataSource(path)
    loader = (
        pygrain.MapDataset.source(source)
        .shuffle(seed=0)
        .repeat()
        .map(decode_and_crop)
        .to_iter_dataset(pygrain.ReadOptions(num_threads=2, prefetch_buffer_size=512))
        .batch(BATCH)
    )
    for data in loader:
        yield len(data)


def tfdata(spec: dict[str, Any]) -> Iterator[int]:
    """tf.data over TFRecord: JPEGs decoded, cropped and resized; shuffle buffer of 1,000."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    path = spec["folder"].rstrip("/") + ".tfrecord"
    if not os.path.exists(path):
        with tf.io.TFRecordWriter(path + ".part") as writer:
            for file in sorted(_files(spec["folder"])):
                writer.write(file.read_bytes())
        os.rename(path + ".part", path)

    def parse(data: Any) -> Any:
        image = tf.io.decode_jpeg(data, channels=3)
        image = tf.image.central_crop(image, 0.875)
        return tf.cast(tf.image.resize(image, (224, 224)), tf.uint8)

    loader = (
        tf.data.TFRecordDataset(path).repeat().shuffle(1000)
        .map(parse, num_parallel_calls=2).batch(BATCH).prefetch(4)
    )  # fmt: skip
    for data in loader.as_numpy_iterator():
        yield len(data)


KINDS = {
    name: function
    for name, function in list(globals().items())
    if callable(function)
    and name
    in (
        "ours", "verifying", "memcpy", "fill", "decode", "inflate", "torch_h5py", "torch_lmdb",
        "torch_folder", "torch_h5py_block", "ffcv", "grain", "tfdata",
    )
}  # fmt: skip


def main() -> None:
    batches = KINDS[sys.argv[1]](json.loads(sys.argv[2]))
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line.split()[1])
        for _ in range(SKIPPED):
            next(batches)
        samples, started = 0, time.perf_counter()
        while True:
            samples += next(batches)
            elapsed = time.perf_counter() - started
            if elapsed >= seconds:
                break
        print(json.dumps({"samples": samples, "seconds": elapsed}), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # loaders of some peers do not end by themselves
