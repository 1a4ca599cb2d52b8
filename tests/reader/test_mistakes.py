"""Mistakes in parameters: each is one error of its type, which says what was found and expected."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import process_functions
import pytest
from fakes import packed, write_hdf5, write_lmdb

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    Crop,
    FormatError,
    Lengths,
    ParamsError,
    Patch,
    SourceNotFoundError,
    Window,
    WorkerError,
)
from asyncreader.params.parse import parse_params
from asyncreader.params.reader import PARAMETERS

COUNT = 32
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 12, 3), dtype=np.uint8)
DATA[:9] &= 127  # records 0 to 8 are dark, and the others bright
DATA[9:] |= 128
LABELS, ONES = np.arange(COUNT) % 5, np.ones(COUNT)
ARRAYS: dict[str, Any] = {"data": DATA, "labels": LABELS, "batch_size": 8}
SOFT: dict[str, Any] = {"mixup": 0.2, "num_classes": 5}
NAN, INF = math.nan, math.inf


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


#: What is expected of a parameter, and values that are refused.
VALUES: list[tuple[str, str, list[Any]]] = [
    ("data", "an array", [np.float32, np.ndarray]),
    ("dtype", "numeric dtype", ["\ud800", {"data": "float999"}, "float999", "S5"]),
    ("dtype", "numeric dtype", [object, complex, [("a", "i4")]]),
    ("dtype", "{field: value, ...}", [{"": "float32"}]),
    ("dtype", "native byte order", [">f4"]),
    ("path", "a path", [np.ndarray, np.array(1), 5, b"a.h5", "", ["a.h5", 5], [["a.h5"]]]),
    ("path", "at least one", [[]]),
    ("values", "'stored' or 'physical'", ["raw", 5, None]),
    ("missing", "a number or None", ["0", True]),
    ("seed", "whole number", [np.timedelta64(1), None]),
    ("seed", "at least 0", [-1]),
    ("seed", "below", [2**64]),
    ("crop_ratio", "a number", [np.timedelta64(1), None]),
    ("crop_ratio", "above 0, at most 1", [0, 1.5]),
    ("scale", "finite number", [10**400, "1", NAN, INF, True, [1.0]]),
    ("mean", "a number", [10**400, "a"]),
    ("mean", "finite", [[], [[1.0]], [NAN]]),
    ("size", "such as (224, 224)", [224, 224.0, (224,), (224, 224, 3), "224", "224x224"]),
    ("size", "(H, W)", [[1, [2]]]),
    ("size", "from 1", [(0, 5), (5.0, 5)]),
    ("size", "65535", [(5, 70_000)]),
    ("data_field", "text", [None, ""]),
    ("data_field", "name in the file", [{"a": 1}]),
    ("boxes_field", "text or None", [["boxes"]]),
    ("keypoints_field", "text or None", [5]),
    ("labels_field", "text or None", [5]),
    ("labels_path", "text or None", [5]),
    ("subset", "1-D array", [[0.5], [], [[1, 2]], [[1], [1, 2]], {1, 2}, 5]),
    ("subset", "flatnonzero", [np.ones(5, bool)]),
    ("subset", "whole numbers", [slice("a"), slice(0.5)]),
    ("subset", "other than 0", [slice(0, 5, 0)]),
    ("batch_size", "at least 1", [0, -1]),
    ("batch_size", "whole number", [2.0, "8", True, None]),
    ("nthread", "at least 1", [0]),
    ("nthread", "below 1025", [1025]),
    ("nthread", "'auto'", ["all", None]),
    ("njob", "at least 1", [0]),
    ("njob", "whole number", ["auto"]),
    ("workers", "'process'", ["fork"]),
    ("shuffle", "False or 'block' or 'replacement'", [1, "yes", None]),
    ("shuffle_window", "at least 1", [0]),
    ("mix", "{path: ratio, ...}", [["a.h5", "b.h5"], {}, {5: 1.0}]),
    ("mix", "a finite ratio above 0", [{"a": 0, "b": 1}, {"a": -0.5, "b": 1.5}, {"a": True}]),
    ("mix", "a finite ratio above 0", [{"a": NAN, "b": 1}, {"a": INF, "b": 1}, {"a": "half"}]),
    ("mix", "ratios that add up to 1", [{"a": 0.5, "b": 0.4}, {"a": 1, "b": 1}]),
    ("mix", "each path once", [{"a.h5": 0.5, Path("a.h5"): 0.5}]),
    ("mix_until", "'first'", ["last"]),
    ("classes", "'joined' or 'own'", [["a"]]),
    ("columns", "none twice", [[], [3, 3], {"X": []}]),
    ("columns", "numbers or names", ["gene", [1, "gene"], [-1]]),
    ("columns", "field: columns", [{}]),
    ("episodes", "ends:NAME", ["ends", "nonsense"]),
    ("episodes", "ids:NAME", ["ids:"]),
    ("episodes_subset", "numbers or names", [[0.5]]),
    ("window", "number of rows", [0, (4, 4), (3, 1), (0, 4, 0), [], 1 << 17, "episodes"]),
    ("window", "field: rows", [{}]),
    ("window", "last", [{"a": "first"}]),
    ("window_every", "at least 1", [0]),
    ("window_edge", "'repeat'", ["pad"]),
    ("window_edge", "a pair", [("zero", "zero", "zero")]),
    ("window_outside", "before, after", [3]),
    ("window_outside", "at least 0", [(-1, 3)]),
    ("patch", "at least 1", [(3, 0), 4]),
    ("patch_axes", "different axes", [(1, 1)]),
    ("patch_step", "at least 1", [0]),
    ("sample_axis", "at least 0", [-1]),
    ("weights", "balanced", ["balance"]),
    ("weights", "one for each sample", [[], ["a", "b"]]),
    ("weights", "1-D", [[[1, 2]], 1.0]),
    ("weights", "finite number of at least 0", [[1, 2, -3, -4], [1, NAN], [INF, 1]]),
    ("weights", "one weight above 0", [[0, 0, 0]]),
    ("weights", "mask", [np.ma.masked_array([1, 2], [0, 1])]),
    ("epoch_samples", "at least 1", [0]),
    ("epoch_samples", "whole number", [1.5]),
    ("epochs", "at least 1", [0]),
    ("epochs", "None", ["all"]),
    ("last_batch", "'drop' or 'pad' or 'wrap'", ["keep", True]),
    ("rank", "at least 0", [-1]),
    ("rank", "'auto'", ["0"]),
    ("world_size", "at least 1", [0]),
    ("num_dim", "at least 1", [0]),
    ("h_dim", "below 5", [5]),
    ("w_dim", "whole number", ["3"]),
    ("cha_dim", "whole number", [1.0]),
    ("channel_order", "'stored'", ["BGR"]),
    ("layout", "'NHWC'", ["nchw"]),
    ("contiguous", "True or False", [1]),
    ("members", "different names", [[], 3, ["pt", "pt"], {"jets": [1]}]),
    ("members", "{field: value, ...}", [{}]),
    ("std", "other than 0", [{"data": 0}, 0, [1, 0, 1]]),
    ("crop", "'center'", ["centre"]),
    ("crop_area", "above 0", [(0, 0.5), (0.5, 0.2), (0.5, 1.5), 0.5]),
    ("crop_aspect", "above 0", [(1, INF), (-1, 1)]),
    ("crop_padding", "at least 0", [-1]),
    ("padding_mode", "'reflect'", ["constant"]),
    ("flip", "True or False", ["yes"]),
    ("augment", "a list of names", [5, [7]]),
    ("views", "a whole number of at least 1", [0]),
    ("transform", "f(image, label, rng)", [5]),
    ("mixup", "above 0", [0, NAN, INF, True]),
    ("cutmix", "above 0", [-1]),
    ("label_smoothing", "from 0, below 1", [1.5, -0.1, NAN]),
    ("num_classes", "at least 1", [0]),
    ("postprocess", "function", [5]),
    ("on_error", "'skip'", ["ignore"]),
    ("verify", "'always'", [True]),
    ("io", "'pread'", ["aio"]),
    ("timeout", "number", [0, -1, NAN, "1s"]),
    ("cuda", "cuda:N", ["gpu", 1]),
    ("copy", "True or False", [0]),
    ("debug", "True or False", [None]),
    ("hdf5_path", "a path", [5]),
    ("lmdb_path", "a path", [5]),
    ("labels", "an array", [5]),
    ("max_length", "at least 1", [0]),
    ("overlong", "'cut'", ["keep"]),
    ("pad_value", "a number", ["x"]),
    ("offsets_field", "False", [5]),
    ("patch_at", "'grid'", ["everywhere"]),
    ("interpolation", "'bicubic'", ["cubic"]),
    ("trace", "text or None", [5]),
]


@pytest.mark.parametrize(
    ("name", "expected", "value"),
    [(name, expected, value) for name, expected, values in VALUES for value in values],
)
def test_values(name: str, expected: str, value: Any) -> None:
    """A wrong value is a ParamsError that names the parameter, what was found and expected."""
    alone = name in ("path", "data", "mix", "hdf5_path", "lmdb_path")
    given = {name: value} if alone else {"path": "a.h5", name: value}
    with pytest.raises(ParamsError) as caught:
        parse_params(given, {})
    text = str(caught.value)
    assert text.startswith(name)
    assert "; found " in text
    assert expected in text.split("; expected ")[1]
    assert isinstance(caught.value, ValueError)


def test_each_parameter_has_a_wrong_value() -> None:
    """A parameter that takes anything has no check."""
    assert {name for name, _, _ in VALUES} == set(PARAMETERS)


#: Parameters that cannot go together, and a word of what is said.
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"path": None}, "none"),
    ({"path": "a", "hdf5_path": "b"}, "path and hdf5_path"),
    ({"path": "a", "data": np.zeros(3)}, "path and data"),
    ({"lmdb_path": "a", "hdf5_path": "b"}, "hdf5_path and lmdb_path"),
    ({"labels": np.zeros(3), "labels_field": "y"}, "both asked for"),
    ({"labels": np.zeros(3), "mix": {"a": 1}}, "labels= goes with"),
    ({"data": np.zeros(3), "labels_path": "y.h5"}, "labels_path"),
    ({"lmdb_path": "a", "labels_path": "y.h5"}, "labels_path"),
    ({"labels_path": "y.h5", "labels_field": None}, "labels_path"),
    ({"num_dim": 2}, "permutation"),
    ({"num_dim": 1, "h_dim": 1}, "permutation"),
    ({"rank": 1}, "below world_size"),
    ({"rank": 4, "world_size": 4}, "below world_size"),
    ({"last_batch": "short", "world_size": 2}, "short"),
    ({"crop": "random"}, "size="),
    ({"crop": "random-resized"}, "size="),
    ({"crop_ratio": 0.5}, "size="),
    ({"shuffle_window": 5}, 'shuffle_window goes with shuffle="block"'),
    ({"shuffle": True, "shuffle_window": 5}, "shuffle_window"),
    ({"weights": [1, 2], "shuffle": "block"}, "weights make independent draws"),
    ({"weights": "balanced", "shuffle": "balanced-permutation"}, "leave one of them out"),
    ({"epoch_samples": 5, "shuffle": "balanced-permutation"}, "epoch_samples goes with"),
    ({"mix": {"a": 1}, "path": "a"}, "path and mix"),
    ({"mix": {"a": 1}, "data": np.zeros(3)}, "mix and data"),
    ({"mix": {"a": 1}, "weights": "balanced"}, "mix and weights both"),
    ({"mix": {"a": 1}, "shuffle": "balanced-permutation"}, "mix and shuffle='balanced-"),
    ({"mix": {"a": 1}, "mix_until": "first", "epoch_samples": 9}, "both say when an epoch"),
    ({"mix": {"a": 1}, "labels_path": "b.h5"}, "labels_path goes with"),
    ({"epoch_samples": 5}, "epoch_samples goes with"),
    ({"epoch_samples": 5, "shuffle": True}, "epoch_samples goes with"),
    ({"mix_until": "first"}, "mix_until goes with mix"),
    ({"classes": "own"}, "classes goes with mix"),
    ({"window_every": 2}, "window_every goes with window or episodes"),
    ({"window": Window(edge="zero")}, "window_edge goes with window"),
    ({"window_outside": (1, 1), "window_edge": "zero"}, "window_edge goes with window"),
    ({"patch": Patch(at="grid")}, "patch_at goes with patch"),
    ({"patch_axes": [1]}, "patch_axes goes with patch"),
    ({"patch_step": 2}, "patch_step goes with patch"),
    ({"overlong": "error"}, "overlong goes with max_length"),
    ({"lengths": Lengths(pad=1)}, "pad_value goes with max_length"),
    ({"crop_area": (0.5, 1)}, 'crop_area goes with crop="random-resized"'),
    ({"crop_aspect": (1, 1), "size": (16, 12), "crop": "random"}, "crop_aspect goes with crop="),
    ({"crop": Crop(padding=4)}, 'crop_padding goes with crop="random"'),
    ({"crop_padding": 4, "size": (16, 12), "crop": "random-resized"}, "crop_padding goes with"),
    ({"crop": "random", "crop_padding": 4}, "crop_padding needs size=(H, W)"),
    ({"padding_mode": "edge"}, "padding_mode goes with crop_padding"),
]


@pytest.mark.parametrize(("given", "says"), TOGETHER)
def test_contradictions(given: dict[str, Any], says: str) -> None:
    """Parameters that cannot go together are an error that names them; nothing is opened."""
    if not given.keys() & {"path", "data", "hdf5_path", "lmdb_path", "mix"}:
        given = {"path": "a", **given}
    refused(given, ParamsError, says)


def test_contradictions_with_the_file(sets: Path) -> None:
    """What does not go with the file that was opened is an error, not silently something else."""
    h5, lm = str(sets / "a.h5"), write_lmdb(sets / "a.lmdb", packed(list(DATA)))
    refused({"path": lm, "labels_path": h5}, ParamsError, "labels_path")
    axes = {"cha_dim": 2, "h_dim": 3, "w_dim": 4}
    refused({"path": lm, **axes}, ParamsError, "axes of this dataset are known")
    for name in ("data_field", "labels_field"):
        with pytest.raises(ParamsError, match=r"'theirs'.*found data, labels"):
            AsyncReader({"path": lm, name: "theirs"})


#: Parameters of a reader that cannot be, and what is said about them.
MISTAKES: list[tuple[Any, ...]] = [
    ({"augment": "trivial-augment"}, "unknown operation 'trivial-", "did you mean 'trivial-"),
    ({"augment": "RandAugment"}, "unknown operation", "did you mean 'rand-augment'"),
    ({"augment": "xyzzy"}, "unknown operation 'xyzzy'", "expected trivial-augment-wide,"),
    ({"augment": ["color-jitter", 0.4]}, "changes nothing without options"),
    ({"augment": [("color-jitter", ["hue"])]}, "expected a name, or (name,"),
    (
        {"augment": ("color-jitter", {"brigthness": 1})},
        "unknown option 'brigthness'",
        "expected brightness, contrast",
        "did you mean",
    ),
    ({"augment": "random-posterize"}, '"random-posterize" needs bits', "whole number"),
    ({"augment": ("random-erasing", {"p": 1.4})}, "p of", "found 1.4", "from 0 to 1"),
    ({"augment": ("color-jitter", {"contrast": -1})}, "found -1", "at least 0"),
    ({"augment": ("color-jitter", {"hue": NAN})}, "found nan", "-0.5 to 0.5"),
    ({"augment": ("color-jitter", {"hue": "0.1"})}, "found '0.1'"),
    ({"augment": ("color-jitter", {"hue": 0.6})}, "found 0.6", "-0.5 to 0.5"),
    ({"augment": ("gaussian-blur", {"kernel_size": 3, "sigma": (2, 1)})}, "found (2, 1)"),
    ({"augment": ("gaussian-blur", {"kernel_size": 4})}, "found 4", "odd number"),
    ({"augment": ("gaussian-blur", {"kernel_size": 99})}, "too large", "below twice 12 x 16"),
    ({"augment": ("random-posterize", {"bits": 9})}, "found 9", "below 9"),
    ({"augment": ("random-rotation", {"degrees": INF})}, "found inf", "in degrees"),
    ({"augment": ("random-rotation", {"degrees": (1, 2, 3)})}, "found (1, 2, 3)"),
    ({"augment": ("random-rotation", {"degrees": 1, "fill": 256})}, "found 256", "0 to 255"),
    ({"augment": ("rand-augment", {"magnitude": 31})}, "below num_magnitude_bins", "31 of 31"),
    ({"augment": ("rand-augment", {"num_ops": 10**6})}, "found 1000000", "below 101"),
    ({"augment": ("auto-augment", {"policy": "cifar100"})}, "found 'cifar100'", "'imagenet' or"),
    ({"augment": ["random-erasing", "random-equalize"]}, "it comes last", "found random-erasing"),
    ({"augment": ("random-erasing", {"scale": (0.5, 2)})}, "found (0.5, 2)", "from 0 to 1"),
    ({"augment": ("random-erasing", {"ratio": (0, 1)})}, "found (0, 1)", "above 0"),
    ({"augment": ("random-erasing", {"value": "blue"})}, "found 'blue'", "or 'random'"),
    ({"augment": ("random-erasing", {"value": 300})}, "uint8 images can hold", "dtype="),
    ({"weights": ONES[:5]}, "another length", "found 5 weights", "expected 32"),
    ({"weights": ONES, "subset": slice(0, 9)}, "expected 9", "of these samples alone"),
    ({"weights": np.where(LABELS == 3, NAN, 1)}, "weights[3]", "found nan", "6 of 32"),
    ({"weights": "balanced", "labels": None}, "class number", "found no labels"),
    ({"weights": "balanced", "labels": LABELS / 2}, "class number", "float64"),
    ({"shuffle": "balanced-permutation", "labels": None}, "class number", "found no labels"),
    ({"shuffle": "balanced-permutation", "labels": LABELS / 2}, "class number", "float64"),
    ({"shuffle": "balanced-permutation", "labels": np.zeros((COUNT, 2), int)}, "(32, 2), int64"),
    ({"weights": ONES, "epoch_samples": 3}, "no batch", "found 3 samples"),
    ({**SOFT, "batch_size": 7}, "needs an even batch_size", "found 7"),
    ({**SOFT, "batch_size": 3, "world_size": 2}, "needs an even batch_size", "found 3"),
    ({"mixup": 0.2}, "mixup needs the number of classes", "num_classes=10"),
    ({"label_smoothing": 0.1}, "label_smoothing needs the number"),
    ({**SOFT, "num_classes": 3}, "record 3", "found 3", "0 to 2, or -1 for none", "num_classes="),
    ({**SOFT, "labels": LABELS - 2}, "record 0", "found -2", "or -1 for none"),
    ({**SOFT, "labels": np.full(COUNT, 2**64 - 1, np.uint64)}, "found 18446744073709551615"),
    ({**SOFT, "labels": LABELS / 2}, "a class number for each", "float64"),
    ({**SOFT, "labels": np.zeros((COUNT, 2), int)}, "a class number for each", "(2,) int64"),
    ({**SOFT, "labels": None}, "a class number for each", "found no labels"),
    ({"cutmix": 1, "num_classes": 5, "data": np.zeros((COUNT, 5))}, "cutmix works on images"),
    ({**SOFT, "data": np.zeros((COUNT, 5), bool)}, "numbers", "found bool", 'dtype="float32"'),
    ({**SOFT, "data": {"a": DATA, "b": DATA}}, "several fields", "postprocess"),
    ({"mix_up": 0.2}, "unknown parameter 'mix_up'", "did you mean 'mixup'"),
    ({"augment": ("gaussian-blur", {"kernel_size": 3, "sigma": 0})}, "above 0"),
    ({"augment": ("random-grayscale", {"p": NAN})}, "from 0 to 1"),
    ({"augment": ("random-solarize", {"threshold": 256})}, "from 0 to 255"),
    (
        {"augment": ("random-rotation", {"degrees": 5, "interpolation": "cubic"})},
        "'nearest' or 'bilinear'",
    ),
    ({"augment": ("random-affine", {"degrees": 5, "scale": (0, 1)})}, "above 0"),
    ({"augment": ("random-affine", {"degrees": 5, "translate": (0.1, 1.1)})}, "from 0 to 1"),
    ({"augment": ("random-affine", {"degrees": 5, "fill": (1, 2)})}, "one for each channel"),
    ({"data": DATA.astype(np.uint16), "augment": "random-equalize"}, "images of 8 bits"),
    ({"data": DATA.astype(np.float32), "augment": "random-equalize"}, "images of 8 bits"),
    ({"data": DATA[..., :2], "cha_dim": 4, "augment": "random-equalize"}, "found 2 channels"),
    ({"data": DATA[:, 0, 0], "augment": "random-erasing"}, "no images"),
    ({"augment": ("random-erasing", {"value": "random"})}, 'dtype="float32"'),
    ({"augment": ("random-erasing", {"value": (1, 2)})}, "each channel"),
    (
        {"data": DATA[..., :1], "cha_dim": 4, "augment": ("rand-augment", {"fill": (1, 2, 3)})},
        "has 3 numbers",
    ),
    ({"scale": 0.5}, "float dtype"),
    ({"dtype": "float32", "mean": [1, 2]}, "one per channel"),
    ({"dtype": "float32", "std": [1, 2, 3, 4]}, "std has one value"),
    ({"dtype": "int16", "mean": 1.0}, "float dtype"),
    ({"data": np.zeros((COUNT, 5)), "mean": [1, 2]}, "one for each number"),
    ({"data": np.zeros((COUNT, 5)), "flip": True}, "flip needs images"),
    ({"batch_size": COUNT + 1}, "no batch"),
    ({"batch_size": 11, "world_size": 3}, "no batch"),
    ({"subset": slice(COUNT, COUNT + 3)}, "selects nothing"),
    ({"subset": [0, COUNT]}, "does not exist"),
    ({"subset": [-1, 0]}, "does not exist"),
    ({"subset": "train"}, "no split"),
    ({"batch_size": 10**12, "last_batch": "pad"}, "memory"),
    ({"batch_size": 2**62, "last_batch": "pad"}, "memory"),
    ({"verify": "always"}, "without checksums"),
    ({"data": np.zeros((COUNT, 3)), "size": (2, 2)}, "size needs images"),
    ({"data": {"a": LABELS, "b": LABELS}, "transform": lambda fields: fields}, "works on images"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake[0])[:60])
def test_mistakes(mistake: tuple[Any, ...]) -> None:
    """A mistake is a ParamsError in one line that says what is wrong, and what was found or helps:
    at construction, or of the batch in which a label is no class."""
    given, *says = mistake
    error = refused({**ARRAYS, **given}, ParamsError, *says)
    assert "; " in str(error)


# -- transform -----------------------------------------------------------------------------------


def bright(image: Any) -> bool:
    return bool(image[0, 0, 0] >= 128)


def ends(image: Any) -> None:
    if bright(image):
        sys.exit(3)


def masked(image: Any) -> Any:
    return np.ma.masked_greater(image, 200) if bright(image) else image


TRANSFORMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "exits": (ends, ("a worker failed: SystemExit: 3", "its cause")),
    "mask": (masked, ("masked values, whose mask would be lost", "array.filled(0)")),
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_transform(case: str) -> None:
    """A transform that is wrong for some samples is a WorkerError of their batches alone, which
    names the record. tests/pixels/test_user_transform.py has what it may not return."""
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
            if case == "exits":
                assert isinstance(caught.value.__cause__, SystemExit)
            else:
                assert caught.value.index == max(9, 8 * step)


ALWAYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no arguments": (lambda: None, ("TypeError",)),
    "floats": (lambda image: image / 255, ("found (16, 12, 3) float64", "dtype=")),
    "nothing left": (lambda image: image[:0], ("found (0, 12, 3)",)),
    "ragged": (lambda image: [[1], [1, 2]], ("must return an array",)),
}


@pytest.mark.parametrize("case", ALWAYS)
def test_transform_in_its_trial_call(case: str) -> None:
    """What a transform never does right is an error when the reader is opened."""
    function, says = ALWAYS[case]
    with pytest.raises((ParamsError, WorkerError)) as caught:
        AsyncReader(ARRAYS, transform=function)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.slow
def test_transform_in_processes(tmp_path: Path) -> None:
    """A transform that returns another shape, or ends its process, is the error of its batch."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), "png"))
    given = {"path": path, "batch_size": 8, "workers": "process", "nthread": 2}
    wrong = {**given, "transform": process_functions.dies_in_worker}
    refused(wrong, WorkerError, "another shape", "found rows of (15, 12, 3)")
    refused({**given, "transform": process_functions.exits}, WorkerError, "process died")


# -- mixes ---------------------------------------------------------------------------------------


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
    "an empty part": (
        {A: 0.5, B: 0.5},
        {"subset": slice(0, 9)},
        ParamsError,
        ("nothing of a dataset", B, "32 to 40"),
    ),
    "a split": ({A: 0.5, B: 0.5}, {"subset": "train"}, ParamsError, ("no split 'train'",)),
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
