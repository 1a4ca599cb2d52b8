"""The rivals, each as batches: the loaders that people would pick instead of ours.

In the mode "epochs" they loop as their users do, else as ``run.FASTEST_WAYS`` says.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ours import files_of
from player import AHEAD, Batches, Spec

SIDE = 224
CROP_RATIO = 0.875
#: How often a recipe erases a rectangle.
ERASED = 0.1
#: Epochs in one index array of FFCV.
LONG = 100


class EndInsideError(RuntimeError):
    """An order ended inside a window."""


# -- JPEGs as Python code treats them --------------------------------------------------------------


def random_box(height: int, width: int, rng: Any) -> tuple[int, int, int, int]:
    """Top, left, height, width of a random-resized crop: area 0.08 to 1, ratio 3/4 to 4/3."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def center_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height, width of the square of 0.875 of the shorter side in the middle."""
    side = int(min(height, width) * CROP_RATIO)
    return (height - side) // 2, (width - side) // 2, side, side


def decode_into(data: Any, out: np.ndarray, rng: Any) -> None:
    """Decode, crop and resize a JPEG into a row; with ``rng`` cropped and mirrored at random."""
    import cv2
    import simplejpeg

    image = simplejpeg.decode_jpeg(data)
    size = image.shape[:2]
    top, left, h, w = center_box(*size) if rng is None else random_box(*size, rng)
    cv2.resize(image[top : top + h, left : left + w], (SIDE, SIDE), dst=out)
    if rng is not None and rng.random() < 0.5:
        out[:] = out[:, ::-1].copy()


# -- torch DataLoader ------------------------------------------------------------------------------


def torch_batches(spec: Spec, dataset: Any) -> Batches:
    """Batches of a dataset of :class:`Rows`, by worker processes that are kept."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batch = spec["batch"]
    keep = {"num_workers": spec["workers"], "prefetch_factor": AHEAD, "persistent_workers": True}
    if spec["mode"] == "epochs":
        loader = DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=True, **keep)
        while True:
            for data, _labels in loader:
                yield data

    class Endless:
        def __iter__(self) -> Iterator[list[int]]:
            rng = np.random.default_rng(0)
            while True:
                order = rng.permutation(len(dataset))
                for low in range(0, len(order) - batch + 1, batch):
                    yield order[low : low + batch].tolist()

    class Whole:
        """Batches by the numbers of their samples, in memory that needs no copy to be sent."""

        def __getitem__(self, numbers: list[int]) -> Any:
            shape = (len(numbers), *dataset.shape)
            size = int(np.prod(shape))
            shared = torch.UntypedStorage._new_shared(size)
            data = torch.empty(0, dtype=torch.uint8).set_(shared, 0, shape)  # type: ignore[call-overload]
            labels = torch.from_numpy(dataset.rows(numbers, data.numpy()))
            return data, labels

    loader = DataLoader(Whole(), batch_size=None, sampler=Endless(), **keep)  # type: ignore[arg-type]
    for data, _labels in loader:
        yield data


class Rows:
    """Samples by number, one by one, or whole batches of them written into ``out``.

    Files are opened in each worker, when the first sample is asked for: the usual recipe.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec, self.count, self.shape = spec, spec["count"], tuple(spec["shape"])

    def __len__(self) -> int:
        return int(self.count)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
        """Write these samples, and return their labels."""
        labels = np.empty(len(numbers), np.int64)
        for row, number in enumerate(numbers):
            out[row], labels[row] = self[number]
        return labels


class H5Rows(Rows):
    """Rows through h5py."""

    @functools.cached_property
    def data(self) -> Any:
        import h5py

        return h5py.File(self.spec["path"], "r")["data"]

    @functools.cached_property
    def labels(self) -> np.ndarray:
        labels: np.ndarray = self.data.file["labels"][:, 0]
        return labels

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.data[index], int(self.labels[index])

    def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
        if out[0].nbytes < 32 << 10:  # one call of h5py costs more than such a row
            order = np.argsort(numbers)
            out[order] = self.data[np.asarray(numbers)[order]]
        else:
            for row, number in zip(out, numbers, strict=True):
                self.data.read_direct(row, np.s_[number])
        return self.labels[numbers]


class LmdbRows(Rows):
    """Raw rows, or JPEGs cropped and resized with OpenCV, out of an LMDB."""

    @functools.cached_property
    def env(self) -> Any:
        import cv2
        import lmdb

        cv2.setNumThreads(0)
        crop = self.spec.get("crop")
        self.decoded, self.rng = crop is not None, None
        if crop == "random":
            self.rng = np.random.default_rng()
        env = lmdb.open(self.spec["path"], readonly=True, lock=False, readahead=False, max_dbs=8)
        self.db = env.open_db(b"data", create=False)
        return env

    def _row(self, txn: Any, number: int, out: np.ndarray) -> None:
        value = txn.get(b"%010d" % number, db=self.db)
        if self.decoded:
            decode_into(value, out, self.rng)
        else:
            out[:] = np.frombuffer(value, np.uint8).reshape(self.shape)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        out = np.empty((1, *self.shape), np.uint8)
        self.rows([index], out)
        return out[0], 0

    def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
        with self.env.begin(buffers=True) as txn:
            for row, number in zip(out, numbers, strict=True):
                self._row(txn, number, row)
        return np.zeros(len(numbers), np.int64)


class Pictures(Rows):
    """torchvision's ImageFolder and transforms; whole batches with torchvision's own decoder."""

    def __init__(self, spec: Spec) -> None:
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        super().__init__(spec)
        if spec["crop"] == "random":
            crop = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()]
        else:
            crop = [v2.Resize(int(SIDE / CROP_RATIO)), v2.CenterCrop(SIDE)]
        self.cropped = v2.Compose(crop)
        recipe = transforms.Compose([*crop, transforms.PILToTensor()])
        self.images = ImageFolder(spec["images"], recipe)

    def __getitem__(self, index: int) -> Any:
        return self.images[index]

    def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
        from torchvision.io import ImageReadMode, decode_image

        labels = np.empty(len(numbers), np.int64)
        for row, number in enumerate(numbers):
            path, labels[row] = self.images.samples[number]
            out[row] = self.cropped(decode_image(path, ImageReadMode.RGB)).numpy()
        return labels


class Recipe(Rows):
    """torchvision's v2 transforms of JPEGs in a folder, or of raw rows of an HDF5 file.

    ``decoder``: "tensor" (torchvision.io; transforms of uint8 tensors), "pillow" or "h5py".
    """

    def __init__(self, spec: Spec) -> None:
        import torch
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        super().__init__(spec)
        self.shape, self.decoder = (3, SIDE, SIDE), spec["decoder"]
        self.stored: Any = (
            H5Rows(spec) if self.decoder == "h5py" else ImageFolder(spec["images"]).samples
        )
        steps = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide()]
        steps += [v2.PILToTensor()] if self.decoder == "pillow" else []
        self.recipe = v2.Compose([*steps, v2.RandomErasing(p=ERASED)])
        torch.set_num_threads(1)

    def __getitem__(self, index: int) -> Any:
        import torch
        from PIL import Image
        from torchvision.io import ImageReadMode, decode_image

        stored, label = self.stored[index]
        if self.decoder == "h5py":
            return self.recipe(torch.from_numpy(stored).permute(2, 0, 1)), label
        if self.decoder == "pillow":
            with Image.open(stored) as image:
                return self.recipe(image.convert("RGB")), label
        return self.recipe(decode_image(stored, ImageReadMode.RGB)), label


def torch_h5py(spec: Spec) -> Batches:
    return torch_batches(spec, H5Rows(spec))


def torch_lmdb(spec: Spec) -> Batches:
    return torch_batches(spec, LmdbRows(spec))


def torch_folder(spec: Spec) -> Batches:
    return torch_batches(spec, Pictures({**spec, "shape": (3, SIDE, SIDE)}))


def torch_recipe(spec: Spec) -> Batches:
    return torch_batches(spec, Recipe(spec))


def torch_h5py_block(spec: Spec) -> Batches:
    """Whole chunks in random order, eight batches mixed: what a user writes for a gzip set."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    batch, workers, chunk = spec["batch"], spec["workers"], spec["chunk"]

    class Chunks(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            import h5py

            info = torch.utils.data.get_worker_info()
            assert info is not None
            with h5py.File(spec["path"], "r") as file:
                data, labels = file["data"], file["labels"]
                rng = np.random.default_rng(info.id)
                while True:
                    order = rng.permutation(len(data) // chunk)[info.id :: workers]
                    mixing = -(-8 * batch // chunk)
                    for low in range(0, len(order), mixing):
                        starts = order[low : low + mixing] * chunk
                        rows = np.concatenate([data[s : s + chunk] for s in starts])
                        marks = np.concatenate([labels[s : s + chunk] for s in starts])
                        mixed = rng.permutation(len(rows))
                        for at in range(0, len(rows) - batch + 1, batch):
                            pick = mixed[at : at + batch]
                            yield torch.from_numpy(rows[pick]), torch.from_numpy(marks[pick])

    loader = DataLoader(Chunks(), batch_size=None, num_workers=workers, prefetch_factor=AHEAD)
    for data, _labels in loader:
        yield data


# -- FFCV ------------------------------------------------------------------------------------------


class Ffcv:
    """FFCV's Loader, built once; each epoch, or each long index array, is a new iteration of it."""

    def __init__(self, spec: Spec) -> None:
        # it asks numba for as many threads as it has workers, and numba has as many as cores
        threads = max(spec["workers"], len(os.sched_getaffinity(0)))
        os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))
        from ffcv.fields.basics import IntDecoder
        from ffcv.fields.rgb_image import (
            CenterCropRGBImageDecoder,
            RandomResizedCropRGBImageDecoder,
            SimpleRGBImageDecoder,
        )
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import RandomHorizontalFlip

        size = (SIDE, SIDE)
        image = {
            None: lambda: [SimpleRGBImageDecoder()],
            "center": lambda: [CenterCropRGBImageDecoder(size, ratio=CROP_RATIO)],
            "random": lambda: [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()],
        }[spec.get("crop")]()
        self.long = spec["mode"] != "epochs"
        order: dict[str, Any] = {"order": OrderOption.RANDOM}
        if self.long:
            rng = np.random.default_rng(0)
            epochs = [rng.permutation(spec["count"]) for _ in range(LONG)]
            order = {
                "order": OrderOption.SEQUENTIAL,
                "indices": np.concatenate(epochs).astype(np.uint64),
            }
        self.loader = Loader(
            ffcv_file(spec), batch_size=spec["batch"], num_workers=spec["workers"], os_cache=True,
            drop_last=True, batches_ahead=AHEAD, **order,
            pipelines={"image": image, "label": [IntDecoder()]},
        )  # fmt: skip
        self.left = 0
        self.batches: Any = None

    def renew(self) -> None:
        """Between windows: a fresh long index array where less than half of one is left."""
        if self.long and self.left < len(self.loader) // 2:
            if self.left:
                self.batches.close()
            self.batches, self.left = iter(self.loader), len(self.loader)

    def __iter__(self) -> Batches:
        if not self.long:
            while True:
                for data, _labels in self.loader:
                    yield data
        while self.left:
            self.left -= 1
            yield next(self.batches)[0]
        raise EndInsideError("the index array ended inside a window: make LONG larger")


def beside(path: str, suffix: str, write: Callable[[str], None]) -> str:
    """A set in a format of another library beside ours, written once."""
    target = path.rstrip("/") + suffix
    if not os.path.exists(target):
        write(target + ".part")
        os.rename(target + ".part", target)
    return target


def ffcv_file(spec: Spec) -> str:
    """The set in FFCV's own format; its writer encodes JPEGs itself, at the originals' quality."""
    from ffcv.fields import RGBImageField
    from PIL import Image

    if "images" not in spec:
        pixels = np.load(spec["npy"], mmap_mode="r")
        samples: list[Any] = [(lambda i=i: np.array(pixels[i])) for i in range(len(pixels))]
        return write_ffcv(spec["npy"], samples, RGBImageField(write_mode="raw"))
    samples = [functools.partial(Image.open, file) for file in files_of(spec["images"])]
    field = RGBImageField(write_mode="jpg", jpeg_quality=spec["quality"])
    return write_ffcv(spec["images"], samples, field)


def write_ffcv(path: str, samples: Sequence[Callable[[], Any]], field: Any) -> str:
    """Images and their numbers in FFCV's format."""
    from ffcv.fields import IntField
    from ffcv.writer import DatasetWriter

    class Data:
        def __len__(self) -> int:
            return len(samples)

        def __getitem__(self, index: int) -> Any:
            return samples[index](), index

    def write(target: str) -> None:
        fields = {"image": field, "label": IntField()}
        DatasetWriter(target, fields, num_workers=1).from_indexed_dataset(Data())

    return beside(path, ".beton", write)


# -- other systems ---------------------------------------------------------------------------------


def each_file(folder: str, write: Callable[[bytes], None]) -> None:
    for name in files_of(folder):
        with open(name, "rb") as file:
            write(file.read())


def grain(spec: Spec) -> Batches:
    """Grain over an ArrayRecord file of JPEGs, read with threads."""
    import cv2
    import grain.python as pygrain
    from array_record.python.array_record_module import ArrayRecordWriter

    cv2.setNumThreads(0)

    def write(target: str) -> None:
        writer = ArrayRecordWriter(target, "group_size:1")
        each_file(spec["images"], writer.write)
        writer.close()

    def decoded(data: Any, rng: Any = None) -> np.ndarray:
        out = np.empty((SIDE, SIDE, 3), np.uint8)
        decode_into(data, out, rng)
        return out

    path = beside(spec["images"], ".arrayrecord", write)
    rows = pygrain.MapDataset.source(pygrain.ArrayRecordDataSource(path)).seed(0).shuffle()
    rows = rows if spec["mode"] == "epochs" else rows.repeat()
    rows = rows.map(decoded) if spec["crop"] == "center" else rows.random_map(decoded)
    options = pygrain.ReadOptions(
        num_threads=spec["workers"], prefetch_buffer_size=AHEAD * spec["batch"]
    )
    loader = rows.to_iter_dataset(options).batch(spec["batch"], drop_remainder=True)
    while True:
        yield from loader


def tfdata(spec: Spec) -> Batches:
    """tf.data over a TFRecord file of JPEGs, all records in its shuffle buffer."""
    import tensorflow as tf

    def write(target: str) -> None:
        with tf.io.TFRecordWriter(target) as writer:
            each_file(spec["images"], writer.write)

    endless = spec["mode"] != "epochs"
    method = "INTEGER_FAST" if endless else ""

    def parse(data: Any) -> Any:
        shape = tf.io.extract_jpeg_shape(data)
        if spec["crop"] == "center":
            side = tf.cast(
                tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * CROP_RATIO, "int32"
            )
            window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
        else:
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                shape, tf.zeros((1, 0, 4)), min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )  # fmt: skip
            window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.io.decode_and_crop_jpeg(data, window, channels=3, dct_method=method)
        image = tf.cast(tf.image.resize(image, (SIDE, SIDE)), tf.uint8)
        return tf.image.random_flip_left_right(image) if spec["crop"] == "random" else image

    records = tf.data.TFRecordDataset(beside(spec["images"], ".tfrecord", write))
    records = records.repeat() if endless else records
    loader = (
        records.shuffle(spec["count"]).map(parse, num_parallel_calls=spec["workers"])
        .batch(spec["batch"], drop_remainder=True).prefetch(AHEAD)
    )  # fmt: skip
    options = tf.data.Options()
    options.threading.private_threadpool_size = spec["workers"]
    options.deterministic = not endless
    loader = loader.with_options(options)
    while True:
        yield from loader


def dali(spec: Spec) -> Batches:
    """DALI's CPU pipeline over the folder; its reader goes round by itself, so it has one mode."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(
        batch_size=spec["batch"], num_threads=spec["workers"], device_id=None,
        prefetch_queue_depth=AHEAD, seed=0,
    )  # fmt: skip
    def pipe() -> Any:
        files, labels = fn.readers.file(
            file_root=spec["images"], random_shuffle=True, initial_fill=spec["count"]
        )
        size = (SIDE, SIDE)
        if spec["crop"] == "random":
            images = fn.decoders.image_random_crop(
                files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR)
            return fn.flip(images, horizontal=fn.random.coin_flip()), labels
        shape = fn.peek_image_shape(files)[0:2]
        side = CROP_RATIO * fn.reductions.min(shape)
        low = (shape - side) / 2
        images = fn.decoders.image(files)
        images = fn.resize(
            images, size=size, roi_start=low, roi_end=low + side, interp_type=types.INTERP_LINEAR
        )
        return images, labels

    built = pipe()
    built.build()
    while True:
        yield built.run()[0]
