"""The rivals, each as batches: the loaders that people would pick instead of ours.

In the mode "epochs" they loop as their users do, else as ``run.FASTEST_WAYS`` says.
"""

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
    """Raw rows out of an LMDB."""

    @functools.cached_property
    def env(self) -> Any:
        import lmdb

        env = lmdb.open(self.spec["path"], readonly=True, lock=False, readahead=False, max_dbs=8)
        self.db = env.open_db(b"data", create=False)
        return env

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        out = np.empty((1, *self.shape), np.uint8)
        self.rows([index], out)
        return out[0], 0

    def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
        with self.env.begin(buffers=True) as txn:
            for row, number in zip(out, numbers, strict=True):
                value = txn.get(b"%010d" % number, db=self.db)
                row[:] = np.frombuffer(value, np.uint8).reshape(self.shape)
        return np.zeros(len(numbers), np.int64)


class Recipe(Rows):
    """torchvision's v2 transforms of JPEGs in a folder, or of raw rows of an HDF5 file.

    ``decoder``: "tensor" (torchvision.io; transforms of uint8 tensors), "pillow" or "h5py".
    """

    def __init__(self, spec: Spec) -> None:
        import torch
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        super().__init__({**spec, "shape": (3, SIDE, SIDE)})
        self.decoder = spec["decoder"]
        self.stored: Any = (
            H5Rows(self.spec) if self.decoder == "h5py" else ImageFolder(spec["images"]).samples
        )
        random = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()]
        steps = {
            "center": [v2.Resize(round(SIDE / CROP_RATIO)), v2.CenterCrop(SIDE)],
            "random": random, "augmented": [*random, v2.TrivialAugmentWide()],
        }[spec["crop"]]  # fmt: skip
        steps += [v2.PILToTensor()] if self.decoder == "pillow" else []
        steps += [v2.RandomErasing(p=ERASED)] if spec["crop"] == "augmented" else []
        self.recipe = v2.Compose(steps)
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


def tfdata(spec: Spec) -> Batches:
    """tf.data over a TFRecord file of JPEGs, all records in its shuffle buffer."""
    import tensorflow as tf

    def write(target: str) -> None:
        with tf.io.TFRecordWriter(target) as writer:
            for name in files_of(spec["images"]):
                with open(name, "rb") as file:
                    writer.write(file.read())

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
                files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3],
                use_fast_idct=True,
            )  # fmt: skip
            images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR)
            return fn.flip(images, horizontal=fn.random.coin_flip()), labels
        shape = fn.peek_image_shape(files)[0:2]
        side = CROP_RATIO * fn.reductions.min(shape)
        low = (shape - side) / 2
        images = fn.decoders.image(files, use_fast_idct=True)
        images = fn.resize(
            images, size=size, roi_start=low, roi_end=low + side, interp_type=types.INTERP_LINEAR
        )
        return images, labels

    built = pipe()
    built.build()
    while True:
        yield built.run()[0]
