"""Mistakes in a recipe: each is one error of its type, which says what was found and expected."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import process_functions
import pytest
from fakes import packed, write_hdf5

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    FormatError,
    ParamsError,
    SourceNotFoundError,
    WorkerError,
)

COUNT = 32
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 12, 3), dtype=np.uint8)
DATA[:9] &= 127  # records 0 to 8 are dark, and the others bright
DATA[9:] |= 128
LABELS = np.arange(COUNT) % 5
ARRAYS: dict[str, Any] = {"data": DATA, "labels": LABELS, "batch_size": 8}
SOFT: dict[str, Any] = {"mixup": 0.2, "num_classes": 5}
NAN, INF = math.nan, math.inf
FLOATS = {"scale": 1 / 255, "dtype": "float32"}


def serve(params: dict[str, Any]) -> None:
    """Open a reader and take an epoch; nothing may hang."""
    with AsyncReader(timeout=60, **params) as reader:
        for _ in range(len(reader)):
            reader.fetchData()
            reader.getNextBatch()


def refused(params: dict[str, Any], kind: type[AsyncReaderError], *says: str) -> AsyncReaderError:
    """The error of serving; its text is one line with all of ``says``."""
    with pytest.raises(AsyncReaderError) as caught:
        serve(params)
    text = str(caught.value)
    assert type(caught.value) is kind, text
    assert "\n" not in text
    for part in says:
        assert part in text
    return caught.value


def jitter(**options: Any) -> dict[str, Any]:
    return {"augment": ("color-jitter", options)}


# -- augment -------------------------------------------------------------------------------------

AUGMENT: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a name that is none": (
        "trivial-augment",
        (
            "unknown operation 'trivial-augment'",
            "expected trivial-augment-wide",
            "did you mean 'trivial-",
        ),
    ),
    "torchvision's name": ("RandAugment", ("unknown operation", "did you mean 'rand-augment'")),
    "nothing like a name": (
        "xyzzy",
        ("unknown operation 'xyzzy'", "expected trivial-augment-wide,"),
    ),
    "no name": (3, ("augment is not valid", "found 3", "expected a list of names")),
    "a name and a number": (["color-jitter", 0.4], ("changes nothing without options",)),
    "options as a list": ([("color-jitter", ["hue"])], ("expected a name, or (name,",)),
    "an option that is none": (
        ("color-jitter", {"brigthness": 1}),
        ("unknown option 'brigthness'", "expected brightness, contrast", "did you mean"),
    ),
    "an option left out": ("random-posterize", ('"random-posterize" needs bits', "whole number")),
    "a chance": (("random-erasing", {"p": 1.4}), ("p of", "found 1.4", "from 0 to 1")),
    "below 0": (("color-jitter", {"contrast": -1}), ("found -1", "at least 0")),
    "no number": (("color-jitter", {"hue": NAN}), ("found nan", "-0.5 to 0.5")),
    "text": (("color-jitter", {"hue": "0.1"}), ("found '0.1'",)),
    "hue": (("color-jitter", {"hue": 0.6}), ("found 0.6", "-0.5 to 0.5")),
    "reversed": (("gaussian-blur", {"kernel_size": 3, "sigma": (2, 1)}), ("found (2, 1)",)),
    "even": (("gaussian-blur", {"kernel_size": 4}), ("found 4", "odd number")),
    "a kernel": (("gaussian-blur", {"kernel_size": 99}), ("too large", "below twice 12 x 16")),
    "bits": (("random-posterize", {"bits": 9}), ("found 9", "below 9")),
    "endless": (("random-rotation", {"degrees": INF}), ("found inf", "in degrees")),
    "three ends": (("random-rotation", {"degrees": (1, 2, 3)}), ("found (1, 2, 3)",)),
    "fill": (("random-rotation", {"degrees": 1, "fill": 256}), ("found 256", "0 to 255")),
    "a magnitude": (("rand-augment", {"magnitude": 31}), ("below num_magnitude_bins", "31 of 31")),
    "a million": (("rand-augment", {"num_ops": 10**6}), ("found 1000000", "below 101")),
    "a policy": (("auto-augment", {"policy": "cifar100"}), ("found 'cifar100'", "'imagenet' or")),
    "not last": (["random-erasing", "random-equalize"], ("it comes last", "found random-erasing")),
    "an area": (("random-erasing", {"scale": (0.5, 2)}), ("found (0.5, 2)", "from 0 to 1")),
    "a ratio": (("random-erasing", {"ratio": (0, 1)}), ("found (0, 1)", "above 0")),
    "a colour": (("random-erasing", {"value": "blue"}), ("found 'blue'", "or 'random'")),
    "a level": (("random-erasing", {"value": 300}), ("uint8 images can hold", "dtype=")),
}


@pytest.mark.parametrize("case", AUGMENT)
def test_augment(case: str) -> None:
    """An operation or an option that is none, or out of its range, is a ParamsError that says what
    is expected, and which name may be meant."""
    augment, says = AUGMENT[case]
    refused({**ARRAYS, "augment": augment}, ParamsError, *says)


@pytest.mark.parametrize("shape", [(COUNT, 5), (COUNT, 9, 9, 4), (COUNT, 5, 4, 3, 2)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_augment_of_what_is_no_picture(shape: tuple[int, ...], dtype: str) -> None:
    """Operations are refused for data that are no pictures of 1 or 3 channels of 8 bits."""
    given = {"data": np.zeros(shape, dtype), "augment": "random-equalize"}
    refused({**ARRAYS, **given}, ParamsError, "needs images of 8 bits", "found")


# -- transform -----------------------------------------------------------------------------------


def bright(image: Any) -> bool:
    return bool(image[0, 0, 0] >= 128)


def another_shape(image: Any) -> Any:
    return image[1:] if bright(image) else image


def another_dtype(image: Any) -> Any:
    return image.astype(np.int16) if bright(image) else image


def raises(image: Any) -> None:
    if bright(image):
        raise KeyError("late")


def ends(image: Any) -> None:
    if bright(image):
        sys.exit(3)


def masked(image: Any) -> Any:
    return np.ma.masked_greater(image, 200) if bright(image) else image


def another_label(image: Any, label: Any) -> Any:
    return image, np.zeros(1 + bright(image))


TRANSFORMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "shape": (another_shape, ("another shape", "found (15, 12, 3)", "expected (16, 12, 3)")),
    "dtype": (another_dtype, ("found (16, 12, 3) int16", "expected (H, W, C) uint8")),
    "raises": (raises, ("transform raised KeyError: 'late'", "its cause")),
    "exits": (ends, ("a worker failed: SystemExit: 3", "its cause")),
    "mask": (masked, ("masked values, whose mask would be lost", "array.filled(0)")),
    "label": (another_label, ("another label", "found a label (2,)", "expected a label (1,)")),
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_transform(case: str) -> None:
    """A transform that is wrong for some samples is a WorkerError of their batches alone, which
    names the record."""
    function, says = TRANSFORMS[case]
    with AsyncReader(ARRAYS, transform=function, timeout=60) as reader:
        for step in range(4):
            reader.fetchData()
            if step == 0:
                assert len(reader.getNextBatch()) == 8
                continue
            with pytest.raises(WorkerError) as caught:
                reader.getNextBatch()
            for part in says:
                assert part in str(caught.value)
            if case != "exits":
                assert caught.value.index == max(9, 8 * step)


ALWAYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no function": (3, ("transform is not valid", "found 3", "expected a function")),
    "no arguments": (lambda: None, ("TypeError",)),
    "text": (lambda image: "cat", ("must return an image", "<U3", "expected (H, W, C) uint8")),
    "floats": (lambda image: image / 255, ("found (16, 12, 3) float64", "dtype=")),
    "nothing left": (lambda image: image[:0], ("found (0, 12, 3)",)),
    "ragged": (lambda image: [[1], [1, 2]], ("must return an array",)),
    "three values": (lambda image, label: (image, label, 1), ("found 3 values",)),
    "a name": (lambda image, label: (image, "cat"), ("a label of numbers", "'cat'")),
}


@pytest.mark.parametrize("case", ALWAYS)
def test_transform_in_its_trial_call(case: str) -> None:
    """What a transform never does right is an error when the reader is opened."""
    function, says = ALWAYS[case]
    with pytest.raises((ParamsError, WorkerError)) as caught:
        AsyncReader(ARRAYS, transform=function)
    for part in says:
        assert part in str(caught.value)


class Locked:
    """A transform that holds what no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, image: Any) -> Any:
        return image


@pytest.mark.parametrize("what", ["lambda", "lock"])
def test_transform_that_processes_cannot_get(what: str) -> None:
    """A function that cannot be sent to worker processes is a ParamsError at once."""
    function = (lambda image: image) if what == "lambda" else Locked()
    given = {**ARRAYS, "transform": function, "workers": "process"}
    refused(given, ParamsError, "cannot be sent to worker processes", "top of a module", "thread")


@pytest.mark.slow
def test_transform_that_processes_cannot_import(tmp_path: Path) -> None:
    """A function of a program that has no file is a ParamsError, and the program goes on."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), "raw"))
    program = (
        "from asyncreader import AsyncReader, ParamsError\n"
        "def f(image): return image\n"
        f"try: AsyncReader(path={path!r}, batch_size=8, transform=f, workers='process')\n"
        "except ParamsError as exc: print(exc)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "a worker process could not start" in ended.stdout, ended.stderr
    assert 'workers="thread"' in ended.stdout


@pytest.mark.slow
def test_transform_in_processes(tmp_path: Path) -> None:
    """A transform that returns another shape, or ends its process, is the error of its batch."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), "png"))
    given = {"path": path, "batch_size": 8, "workers": "process", "nthread": 2}
    wrong = {**given, "transform": process_functions.dies_in_worker}
    refused(wrong, WorkerError, "another shape", "found rows of (15, 12, 3)")
    refused({**given, "transform": process_functions.exits}, WorkerError, "process died")


# -- how often samples come ----------------------------------------------------------------------

ONES = np.ones(COUNT)

ORDERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "length": ({"weights": ONES[:5]}, ("another length", "found 5 weights", "expected 32")),
    "of a subset": (
        {"weights": ONES, "subset": slice(0, 9)},
        ("another length", "expected 9", "of these samples alone"),
    ),
    "negative": ({"weights": -ONES}, ("weights[0]", "found -1.0", "32 of 32")),
    "nan": ({"weights": np.where(LABELS == 3, NAN, 1)}, ("weights[3]", "found nan", "6 of 32")),
    "inf": ({"weights": np.where(np.arange(COUNT) == 7, INF, 1)}, ("weights[7]", "found inf")),
    "zero": ({"weights": 0 * ONES}, ("32 weights, all 0", "at least one weight above 0")),
    "two axes": ({"weights": np.ones((COUNT, 2))}, ("1-D array",)),
    "names": ({"weights": ["a"] * COUNT}, ("1-D array",)),
    "a word": ({"weights": "balance"}, ("found 'balance'", '"balanced"')),
    "one number": ({"weights": 1.0}, ("found 1.0", "1-D array")),
    "no weights": ({"weights": []}, ("found []",)),
    "two orders": (
        {"weights": "balanced", "shuffle": "balanced-permutation"},
        ("an order of their own", "leave one of them out"),
    ),
    "no labels": ({"weights": "balanced", "labels": None}, ("class number", "found no labels")),
    "floats": ({"weights": "balanced", "labels": LABELS / 2}, ("class number", "float64")),
    "columns": (
        {"shuffle": "balanced-permutation", "labels": np.zeros((COUNT, 2), int)},
        ("class number", "(32, 2), int64"),
    ),
    "an epoch of none": ({"weights": ONES, "epoch_samples": 0}, ("found 0", "at least 1")),
    "less than a batch": ({"weights": ONES, "epoch_samples": 3}, ("no batch", "found 3 samples")),
    "an epoch of all": ({"epoch_samples": 9}, ("epoch_samples goes with weights",)),
    "until": ({"mix_until": "first"}, ("mix_until goes with mix",)),
    "classes": ({"classes": "own"}, ("classes goes with mix",)),
}


@pytest.mark.parametrize("case", ORDERS)
def test_orders(case: str) -> None:
    """Weights that are none, or do not fit the set, are a ParamsError that names the first one."""
    given, says = ORDERS[case]
    refused({**ARRAYS, **given}, ParamsError, *says)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sets a.h5, b.h5, and one of another size, one of floats."""
    folder = tmp_path_factory.mktemp("mistakes")
    images = list(DATA)
    write_hdf5(folder / "a.h5", packed(images, "raw"))
    write_hdf5(folder / "b.h5", packed(images[:9], "png"))
    write_hdf5(folder / "small.h5", packed([image[:8] for image in images[:9]], "raw"))
    (folder / "photos").mkdir()
    (folder / "text.h5").write_text("no set")
    return folder


A, B = "a.h5", "b.h5"
MIXES: dict[str, tuple[Any, dict[str, Any], type[AsyncReaderError], tuple[str, ...]]] = {
    "empty": ({}, {}, ParamsError, ("found {}", "{path: ratio")),
    "a list": ([A, B], {}, ParamsError, ("{path: ratio",)),
    "zero": ({A: 0, B: 1}, {}, ParamsError, ("mix['a.h5']", "found 0", "above 0")),
    "negative": ({A: 1.5, B: -0.5}, {}, ParamsError, ("mix['b.h5']", "found -0.5")),
    "nan": ({A: NAN, B: 1}, {}, ParamsError, ("mix['a.h5']", "found nan", "finite")),
    "inf": ({A: INF, B: 1}, {}, ParamsError, ("mix['a.h5']", "found inf", "finite")),
    "text": ({A: "0.5", B: 0.5}, {}, ParamsError, ("found '0.5'",)),
    "nine to one": ({A: 9, B: 1}, {}, ParamsError, ("10 together", "they are 0.9, 0.1")),
    "too much": ({A: 0.9, B: 0.2}, {}, ParamsError, ("1.1 together", "0.818182, 0.181818")),
    "twice": ({A: 0.5, f"./{A}": 0.5}, {}, ParamsError, ("named twice",)),
    "nowhere": ({A: 0.5, "no.h5": 0.5}, {}, SourceNotFoundError, ("no such file", "no.h5")),
    "no set": ({A: 0.5, "text.h5": 0.5}, {}, FormatError, ("text.h5",)),
    "pictures": ({A: 0.5, "photos": 0.5}, {}, FormatError, ("photos", "asyncreader convert")),
    "sizes": (
        {A: 0.5, "small.h5": 0.5},
        {},
        ParamsError,
        ("small.h5", "found samples of 3 x 8 x 12", "3 x 16 x 12 uint8, as in", "size=(H, W)"),
    ),
    "weights": ({A: 0.5, B: 0.5}, {"weights": "balanced"}, ParamsError, ("leave one of them",)),
    "path": ({A: 0.5, B: 0.5}, {"path": A}, ParamsError, ("found path and mix",)),
    "an empty part": (
        {A: 0.5, B: 0.5},
        {"subset": slice(0, 9)},
        ParamsError,
        ("nothing of a dataset", B, "32 to 40"),
    ),
    "a split": ({A: 0.5, B: 0.5}, {"subset": "train"}, ParamsError, ("no split 'train'",)),
    "until": ({A: 0.5, B: 0.5}, {"mix_until": "last"}, ParamsError, ("'all' or 'first'",)),
}


@pytest.mark.parametrize("case", MIXES)
def test_mixes(case: str, sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios that are none, and sets that are not there or do not go together, are one error each,
    and leave nothing open."""
    monkeypatch.chdir(sets)
    mix, more, kind, says = MIXES[case]
    before = len(os.listdir("/proc/self/fd"))
    refused({"mix": mix, "batch_size": 4, **more}, kind, *says)
    assert len(os.listdir("/proc/self/fd")) == before


# -- mixing rows, and crops ----------------------------------------------------------------------

MIXING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "odd": ({**SOFT, "batch_size": 7}, ("needs an even batch_size", "found 7")),
    "odd for each rank": (
        {**SOFT, "batch_size": 3, "world_size": 2},
        ("needs an even batch_size", "found 3"),
    ),
    "0": ({**SOFT, "mixup": 0}, ("mixup is not valid", "found 0", "above 0")),
    "negative": ({"cutmix": -1, "num_classes": 5}, ("found -1", "above 0")),
    "nan": ({**SOFT, "mixup": NAN}, ("found nan",)),
    "inf": ({**SOFT, "mixup": INF}, ("found inf",)),
    "true": ({**SOFT, "mixup": True}, ("found True",)),
    "no names": ({"mixup": 0.2}, ("mixup needs the number of classes", "num_classes=10")),
    "smoothing alone": ({"label_smoothing": 0.1}, ("label_smoothing needs the number",)),
    "few classes": (
        {**SOFT, "num_classes": 3},
        ("no class number", "record 3", "found 3", "0 to 2, or -1 for none", "num_classes="),
    ),
    "below -1": ({**SOFT, "labels": LABELS - 2}, ("record 0", "found -2", "or -1 for none")),
    "2**64 - 1": (
        {**SOFT, "labels": np.full(COUNT, 2**64 - 1, np.uint64)},
        ("found 18446744073709551615", "0 to 4"),
    ),
    "floats": ({**SOFT, "labels": LABELS / 2}, ("a class number for each", "float64")),
    "columns": (
        {**SOFT, "labels": np.zeros((COUNT, 2), int)},
        ("a class number for each", "(2,) int64"),
    ),
    "no labels": ({**SOFT, "labels": None}, ("a class number for each", "found no labels")),
    "no classes": ({"num_classes": 0}, ("found 0", "at least 1")),
    "all of it": ({"num_classes": 5, "label_smoothing": 1}, ("found 1", "from 0, below 1")),
    "less than none": ({"num_classes": 5, "label_smoothing": -0.1}, ("found -0.1",)),
    "smooth nan": ({"num_classes": 5, "label_smoothing": NAN}, ("found nan",)),
    "vectors": (
        {"cutmix": 1, "num_classes": 5, "data": np.zeros((COUNT, 5))},
        ("cutmix works on images", "mixup blends rows of any numbers"),
    ),
    "flags": (
        {**SOFT, "data": np.zeros((COUNT, 5), bool)},
        ("numbers", "found bool", 'dtype="float32"'),
    ),
    "fields": ({**SOFT, "data": {"a": DATA, "b": DATA}}, ("several fields", "postprocess")),
    "padding": ({"crop_padding": 4, "size": (16, 12)}, ("crop_padding goes with", "'center'")),
    "a padding": (
        {"crop_padding": -4, "size": (16, 12), "crop": "random"},
        ("found -4", "at least 0"),
    ),
    "areas": (
        {"crop_area": (1, 0.5), "size": (9, 9), "crop": "random-resized"},
        ("found (1, 0.5)", "(least, most)"),
    ),
    "an area of 0": (
        {"crop_area": (0, 0.5), "size": (9, 9), "crop": "random-resized"},
        ("found (0, 0.5)", "above 0"),
    ),
    "an aspect": (
        {"crop_aspect": (-1, 1), "size": (9, 9), "crop": "random-resized"},
        ("found (-1, 1)", "above 0"),
    ),
    "no size": ({"crop": "random", "crop_padding": 4}, ("crop_padding needs size=(H, W)",)),
    "a slip": ({"mix_up": 0.2}, ("unknown parameter 'mix_up'", "did you mean 'mixup'")),
}


@pytest.mark.parametrize("case", MIXING)
def test_mixing_and_crops(case: str) -> None:
    """What cannot be mixed or cut is a ParamsError: at construction, or of the batch in which a
    label is no class."""
    given, says = MIXING[case]
    refused({**ARRAYS, **given}, ParamsError, *says)


def test_labels_without_a_class_are_no_mistake() -> None:
    """A label of -1 has no part in a loss: its row is zeros, and no neighbour is blended with it;
    two ranks mix, too."""
    labels = np.where(LABELS == 2, -1, LABELS)
    for rank in range(2):
        with AsyncReader({**ARRAYS, "labels": labels}, **SOFT, world_size=2, rank=rank) as reader:
            for batch in reader:
                known = labels[batch.indices] >= 0
                np.testing.assert_allclose(batch.labels.sum(axis=1), known, atol=1e-6)
