"""Rows of all kinds are filled inside of their memory: slots, scratch memory, decoded chunks and
what is read lie between guard pages, in a child process."""

import functools
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cut_jpegs
import h5py
import numpy as np
import pytest
from child_processes import Ended, Watched, answer_requests
from fakes import Packed, encoded, packed, paint, pictures, write_hdf5
from guard_pages import Guards
from PIL import Image

from asyncreader import AsyncReader, ParamsError
from asyncreader.pixels.codec import planes

#: Samples of a set.
COUNT = 7


def grey(image: np.ndarray) -> np.ndarray:
    return image.mean(axis=2, keepdims=True).astype(image.dtype)


def two(image: np.ndarray) -> np.ndarray:
    return image[:, :, [0, -1]]


def four(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.repeat(image[:, :, :1], 4, axis=2))


def taller(image: np.ndarray) -> np.ndarray:
    return np.concatenate([image, image[:, ::-1]])


def strided(image: np.ndarray) -> np.ndarray:
    return image[::2, ::-1]


#: Functions that leave other channels, another size, or steps between the pixels.
TRANSFORMS = (grey, two, four, taller, strided)

#: What may be asked of images; each with what it is left out for.
IMAGES: dict[str, tuple[Any, ...]] = {
    "layout": ("NCHW", "NHWC"),
    "contiguous": (False, True),
    "dtype": (None, "uint8", "float16", "float32", "float64", "int32"),
    "scale": (None, 1 / 255),
    "mean": (None, 0.5, (0.1, 0.2, 0.3)),
    "size": (None, None, (24, 20), (9, 11), (40, 31), (1, 1)),
    "crop": (None, "random", "random-resized", "none"),
    "crop_ratio": (None, 0.5),
    "crop_padding": (None, None, 3),
    "padding_mode": (None, "edge", "reflect"),
    "interpolation": (None, "bicubic", "area", "nearest"),
    "flip": (False, True),
    "augment": (
        None, None, ["random-erasing"], ["trivial-augment-wide"],
        [("gaussian-blur", {"kernel_size": 3}), ("random-affine", {"degrees": 30})],
        ["random-grayscale", ("random-erasing", {"p": 1.0})],
    ),
    "views": (None, None, 2, [{"count": 1}, {"count": 2, "size": (8, 6)}]),
    "transform": (None, None, *TRANSFORMS),
}  # fmt: skip
#: What may be asked of any set.
READING: dict[str, tuple[Any, ...]] = {
    "verify": (None, "always"),
    "io": (None, "pread"),
    "shuffle": (False, True),
    "copy": (False, True),
    "last_batch": ("short", "pad", "wrap"),
}


#: The same of sets without checksums.
IN_MEMORY = {name: values for name, values in READING.items() if name != "verify"}


def drawn(rng: np.random.Generator, *tables: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Parameters, each left out half of the time."""
    found = {}
    for name, values in (pair for table in tables for pair in table.items()):
        value = values[int(rng.integers(len(values)))]
        if value is not None and rng.random() < 0.5:
            found[name] = value
    return found


def drawn_images(rng: np.random.Generator) -> dict[str, Any]:
    """Parameters of images that fit each other."""
    found = drawn(rng, IMAGES, READING)
    if "crop_padding" in found:
        found["crop"] = "random"
    else:
        found.pop("padding_mode", None)
    if "crop" in found or "crop_ratio" in found:
        found.setdefault("size", (24, 20))
    if ("scale" in found or "mean" in found) and not str(found.get("dtype")).startswith("float"):
        found["dtype"] = "float32"
    return found


@functools.cache
def folder() -> Path:
    """Where the child's files are, as long as it lives."""
    held = tempfile.TemporaryDirectory()
    folder.held = held  # type: ignore[attr-defined]
    return Path(held.name)


def written(name: str, content: Callable[[], Packed]) -> str:
    """A packed file, which is written once."""
    path = folder() / f"{name}.h5"
    return str(path) if path.exists() else write_hdf5(path, content())


# -- sets ----------------------------------------------------------------------------------------


def arrays(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Images in memory, of any dtype, channels and order of axes."""
    dtype = str(rng.choice(["u1", "u1", "u1", "u2", ">i2", "f4", "?"]))
    channels = int(rng.choice([1, 3, 3, 3, 4, 6]))
    images = paint(COUNT, (24, 20, channels), dtype)
    given: dict[str, Any] = {"num_dim": 1, "h_dim": 2, "w_dim": 3, "cha_dim": 4}
    if rng.random() < 0.3:
        images = images.transpose(0, 3, 1, 2)
        given = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
    elif channels == 1 and dtype == "u1":
        images, given = images[..., 0], {}
    labels = g.of(np.arange(COUNT, dtype=np.int64))
    return {"data": g.of(images), "labels": labels, **given, **drawn_images(rng)}


def photographs(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """JPEGs of several sizes and kinds, with restart markers and without, and other images."""

    def content() -> Packed:
        rng = np.random.default_rng(1)
        images = [cut_jpegs.drawn(rng, 200, 330) for _ in range(4)]
        images += [encoded(one, "JPEG") for one in pictures(2, (90, 70, 3))]
        images += [encoded(pictures(1)[0], "PNG")]
        return Packed(images, np.arange(COUNT)[:, None], "original", None)

    return {
        "path": written("photographs", content), "size": (24, 20), **drawn_images(rng)
    }  # fmt: skip


def encoded_images(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Images of one size as JPEG, PNG, grey PNG, or planes."""
    kind = str(rng.choice(["jpeg", "png", "grey", "yuv420"]))

    def content() -> Packed:
        images = pictures(COUNT)
        if kind == "yuv420":
            labels = np.arange(COUNT)[:, None]
            return Packed([planes.encode(one) for one in images], labels, "yuv420", (24, 20, 3))
        return packed(
            images[..., :1] if kind == "grey" else images, "png" if kind == "grey" else kind
        )

    if kind == "yuv420" and rng.random() < 0.3:
        return {"path": written(kind, content), "layout": "planes", **drawn(rng, READING)}
    return {"path": written(kind, content), **drawn_images(rng)}


def masks(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Images with label maps and depth maps of one or of other sizes."""

    def content() -> Packed:
        found = packed(pictures(COUNT), "png")
        for name, shape, mode in (("mask", (12, 10), "u1"), ("depth", (24, 20), "u2")):
            values = paint(COUNT, shape, mode)
            samples = []
            for one in values:
                held = io.BytesIO()
                Image.fromarray(one).save(held, "PNG")
                samples.append(held.getvalue())
            found.fields[name] = Packed(
                samples, None, "png", (*shape, 1), 1, dtype=np.dtype(mode).name
            )
        return found

    fields = [["data", "mask"], ["data", "depth"], ["data", "mask", "depth"]]
    found = {"data_field": fields[int(rng.integers(3))], **drawn_images(rng)}
    if found.pop("transform", None) is not None:
        found["transform"] = crossed
    return {"path": written("masks", content), **found}


def crossed(fields: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(one[::2, :, :1]) for one in fields)


def numbers(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Rows of numbers: some columns, windows of them, or members of structured rows."""
    kind = str(rng.choice(["rows", "columns", "window", "structured", "vector"]))
    dtype = str(rng.choice(["u1", ">i2", "f2", "f4", "f8", "i8"]))
    ways = {"dtype": ("float16", "float32", "float64"), "scale": (None, 0.5)}
    given = drawn(rng, ways, IN_MEMORY)
    if "scale" in given:
        given.setdefault("dtype", "float32")
    if kind == "structured":
        members = [("a", dtype), ("b", "<u2"), ("c", "f4", (3,)), ("d", "S3")]
        rows = g.of(np.zeros((COUNT, 2), np.dtype(members)))
        asked = [["a"], ["b", "a"], "c", "a"][int(rng.integers(4))]
        return {"data": rows, "members": asked, **given}
    if kind == "vector":
        return {"data": g.of(paint(COUNT, (), dtype)), **given}
    rows = g.of(paint(40 if kind == "window" else COUNT, (5, 3) if kind == "rows" else (9,), dtype))
    if kind == "columns":
        return {"data": rows, "columns": rng.permutation(9)[: int(rng.integers(1, 10))], **given}
    if kind == "rows":
        return {"data": rows, **given}
    edge = str(rng.choice(["drop", "repeat", "zero"]))
    ends = {"x": rows, "ends": np.array([11, 12, 25, 40])}
    window = [5, (-2, 3), [0], (0, 8, 2)][int(rng.integers(4))]
    return {"data": ends, "episodes": "ends:ends", "window": window, "window_edge": edge, **given}


def lengths(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Samples of different length."""
    offsets = np.array([0, 3, 3, 20, 21, 60, 61, 64])
    values = paint(
        64, [(), (4,), (3, 2)][int(rng.integers(3))], str(rng.choice(["f4", "i8", "u1"]))
    )
    ways = {
        "overlong": ("cut", "random"), "pad_value": (0, 1), "dtype": (None, "float32", "float64"),
    }  # fmt: skip
    return {
        "data": {"hits": g.of(values), "hits_offsets": offsets},
        "max_length": int(rng.choice([1, 5, 30, 99])), **drawn(rng, ways, IN_MEMORY),
    }  # fmt: skip


def volumes(g: Guards, rng: np.random.Generator) -> dict[str, Any]:
    """Patches of a volume, and samples, in chunks and not."""
    dtype = str(rng.choice(["u1", "f4"]))
    storage: dict[str, Any] = [
        {}, {"chunks": (5, 8, 8)}, {"chunks": (3, 7, 30), "compression": "gzip", "shuffle": True},
    ][int(rng.integers(3))]  # fmt: skip
    path = folder() / f"volume-{dtype}-{storage.get('chunks', 0)}.h5"
    if not path.exists():
        with h5py.File(path, "w", libver=("v110", "v110")) as file:
            file.create_dataset("raw", data=paint(12, (30, 31), dtype), **storage)
    given = drawn(rng, {"dtype": (None, "float16", "float64")}, IN_MEMORY)
    if rng.random() < 0.5:
        return {"path": str(path), "data_field": "raw", **given}
    patch = tuple(rng.integers(1, (12, 30, 31)).tolist())
    more: dict[str, Any] = {"sample_axis": None, "patch": patch, "epoch_samples": 9}
    return {"path": str(path), "data_field": "raw", **more, **given}


SETS = (arrays, photographs, encoded_images, masks, numbers, lengths, volumes)


# -- the test ------------------------------------------------------------------------------------


def answer(request: list[Any]) -> list[str]:
    """In the child: read a set in many ways; the errors of those that are refused."""
    number, end, trials = request
    refused = []
    for trial in range(trials):
        guards = Guards(end)
        guards.replace_allocators()
        given = SETS[number](guards, np.random.default_rng(trial))
        try:
            with AsyncReader(given, batch_size=3, nthread=1, njob=2) as reader:
                for _ in reader:
                    pass
        except ParamsError as exc:
            refused.append(str(exc))
    return refused


@pytest.fixture(scope="module")
def child() -> Iterator[Watched]:
    """A process that reads."""
    with Watched(__file__, patience=None) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("end", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("number", range(len(SETS)), ids=[one.__name__ for one in SETS])
def test_rows_stay_in_their_memory(number: int, end: bool, child: Watched, long: bool) -> None:
    """Whatever is served of a set, with each parameter that changes the size of a row, no byte
    behind or before a slot, scratch memory, a chunk or what is read is touched."""
    trials = 300 if long else 30
    try:
        refused = child.ask([number, end, trials])
    except Ended as exc:
        pytest.fail(f"{exc.how}: {exc.said}")
    assert len(refused) < trials * 0.7, refused


if __name__ == "__main__":
    answer_requests(answer)
