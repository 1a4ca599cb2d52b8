"""Mistakes in parameters: each is one error of its type, which says what was found and expected."""

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
from fakes import packed, write_hdf5, write_lmdb

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    FormatError,
    ParamsError,
    SourceNotFoundError,
    WorkerError,
)
from asyncreader.params import PARAMETERS, parse_params

COUNT = 32
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 12, 3), dtype=np.uint8)
DATA[:9] &= 127  # records 0 to 8 are dark, and the others bright
DATA[9:] |= 128
LABELS, ONES = np.arange(COUNT) % 5, np.ones(COUNT)
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


#: Values of one parameter that are refused, and a word of what is expected instead.
VALUES: list[tuple[str, Any, str]] = [
    ("data", np.float32, "an array"),
    ("data", np.ndarray, "an array"),
    ("dtype", "\ud800", "numeric dtype"),
    ("path", np.ndarray, "a path"),
    ("path", np.array(1), "a path"),
    ("seed", np.timedelta64(1), "whole number"),
    ("crop_ratio", np.timedelta64(1), "a number"),
    ("scale", 10**400, "finite"),
    ("mean", 10**400, "a number"),
    ("size", [1, [2]], "(H, W)"),
    ("path", 5, "a path"),
    ("path", b"a.h5", "a path"),
    ("path", "", "a path"),
    ("path", [], "at least one"),
    ("path", ["a.h5", 5], "a path"),
    ("path", [["a.h5"]], "a path"),
    ("data_field", None, "text"),
    ("data_field", "", "text"),
    ("boxes_field", ["boxes"], "text or None"),
    ("keypoints_field", 5, "text or None"),
    ("labels_field", 5, "text or None"),
    ("labels_path", 5, "text or None"),
    ("subset", [0.5], "1-D array"),
    ("subset", [], "1-D array"),
    ("subset", [[1, 2]], "1-D array"),
    ("subset", [[1], [1, 2]], "1-D array"),
    ("subset", np.ones(5, bool), "flatnonzero"),
    ("subset", {1, 2}, "1-D array"),
    ("subset", 5, "1-D array"),
    ("subset", slice("a"), "whole numbers"),
    ("subset", slice(0.5), "whole numbers"),
    ("subset", slice(0, 5, 0), "other than 0"),
    ("batch_size", 0, "at least 1"),
    ("batch_size", -1, "at least 1"),
    ("batch_size", 2.0, "whole number"),
    ("batch_size", "8", "whole number"),
    ("batch_size", True, "whole number"),
    ("batch_size", None, "whole number"),
    ("nthread", 0, "at least 1"),
    ("nthread", 1025, "below 1025"),
    ("nthread", "all", "'auto'"),
    ("nthread", None, "'auto'"),
    ("njob", 0, "at least 1"),
    ("njob", "auto", "whole number"),
    ("workers", "fork", "'process'"),
    ("shuffle", 1, "'block'"),
    ("shuffle", "yes", "'replacement'"),
    ("shuffle", None, "True"),
    ("shuffle_window", 0, "at least 1"),
    ("mix", ["a.h5", "b.h5"], "{path: ratio, ...}"),
    ("mix", {}, "{path: ratio, ...}"),
    ("mix", {5: 1.0}, "{path: ratio, ...}"),
    ("mix", {"a.h5": 0, "b.h5": 1}, "a finite ratio above 0"),
    ("mix", {"a.h5": -0.5, "b.h5": 1.5}, "a finite ratio above 0"),
    ("mix", {"a.h5": float("nan"), "b.h5": 0.5}, "a finite ratio above 0"),
    ("mix", {"a.h5": "half", "b.h5": 0.5}, "a finite ratio above 0"),
    ("mix", {"a.h5": True}, "a finite ratio above 0"),
    ("mix", {"a.h5": 0.5, "b.h5": 0.4}, "ratios that add up to 1"),
    ("mix", {"a.h5": 1, "b.h5": 1}, "ratios that add up to 1"),
    ("mix", {"a.h5": 0.5, Path("a.h5"): 0.5}, "each path once"),
    ("mix_until", "last", "'first'"),
    ("classes", ["a"], "'joined' or 'own'"),
    ("columns", [], "none twice"),
    ("columns", "gene", "numbers or names"),
    ("columns", [1, "gene"], "numbers or names"),
    ("columns", [3, 3], "none twice"),
    ("columns", [-1], "numbers or names"),
    ("columns", {}, "field: columns"),
    ("columns", {"X": []}, "none twice"),
    ("episodes", "ends", "ends:NAME"),
    ("episodes", "ids:", "ids:NAME"),
    ("episodes_subset", [0.5], "numbers or names"),
    ("window", 0, "number of rows"),
    ("window", (4, 4), "number of rows"),
    ("window", (0, 4, 0), "number of rows"),
    ("window", [], "number of rows"),
    ("window", {}, "field: rows"),
    ("window", {"a": "first"}, "last"),
    ("window", 1 << 17, "number of rows"),
    ("window_every", 0, "at least 1"),
    ("window_edge", "pad", "'repeat'"),
    ("window_edge", ("zero", "zero", "zero"), "a pair"),
    ("window_outside", 3, "before, after"),
    ("window_outside", (-1, 3), "at least 0"),
    ("patch", (3, 0), "at least 1"),
    ("patch_axes", (1, 1), "different axes"),
    ("patch_step", 0, "at least 1"),
    ("sample_axis", -1, "at least 0"),
    ("data_field", {"a": 1}, "name in the file"),
    ("weights", "balance", "balanced"),
    ("weights", [], "one for each sample"),
    ("weights", [[1, 2]], "1-D"),
    ("weights", [1, 2, -3, -4], "finite number of at least 0"),
    ("weights", [1, float("nan")], "finite number of at least 0"),
    ("weights", [float("inf"), 1], "finite number of at least 0"),
    ("weights", [0, 0, 0], "one weight above 0"),
    ("weights", ["a", "b"], "one for each sample"),
    ("weights", np.ma.masked_array([1, 2], [0, 1]), "mask"),
    ("epoch_samples", 0, "at least 1"),
    ("epoch_samples", 1.5, "whole number"),
    ("seed", -1, "at least 0"),
    ("seed", 2**64, "below"),
    ("seed", None, "whole number"),
    ("epochs", 0, "at least 1"),
    ("epochs", "all", "None"),
    ("last_batch", "keep", "'wrap'"),
    ("last_batch", True, "'drop'"),
    ("rank", -1, "at least 0"),
    ("rank", "0", "'auto'"),
    ("world_size", 0, "at least 1"),
    ("num_dim", 0, "at least 1"),
    ("h_dim", 5, "below 5"),
    ("w_dim", "3", "whole number"),
    ("cha_dim", 1.0, "whole number"),
    ("channel_order", "BGR", "'stored'"),
    ("layout", "nchw", "'NHWC'"),
    ("contiguous", 1, "True or False"),
    ("members", [], "different names"),
    ("members", 3, "different names"),
    ("members", ["pt", "pt"], "different names"),
    ("members", {}, "{field: value, ...}"),
    ("members", {"jets": [1]}, "different names"),
    ("dtype", {"": "float32"}, "{field: value, ...}"),
    ("dtype", {"data": "float999"}, "numeric dtype"),
    ("std", {"data": 0}, "other than 0"),
    ("dtype", "float999", "numeric dtype"),
    ("dtype", "S5", "numeric dtype"),
    ("dtype", object, "numeric dtype"),
    ("dtype", complex, "numeric dtype"),
    ("dtype", ">f4", "native byte order"),
    ("dtype", [("a", "i4")], "numeric dtype"),
    ("scale", "1", "finite number"),
    ("scale", float("nan"), "finite number"),
    ("scale", float("inf"), "finite number"),
    ("scale", True, "finite number"),
    ("scale", [1.0], "finite number"),
    ("mean", "a", "number"),
    ("mean", [], "finite"),
    ("mean", [[1.0]], "finite"),
    ("mean", [float("nan")], "finite"),
    ("std", 0, "other than 0"),
    ("std", [1, 0, 1], "other than 0"),
    ("size", 224, "(H, W)"),
    ("size", (224,), "(H, W)"),
    ("size", (224, 224, 3), "(H, W)"),
    ("size", (0, 5), "from 1"),
    ("size", (5, 70_000), "65535"),
    ("size", (5.0, 5), "from 1"),
    ("size", "224x224", "(H, W)"),
    ("crop", "centre", "'center'"),
    ("crop_ratio", 0, "above 0, at most 1"),
    ("crop_ratio", 1.5, "above 0, at most 1"),
    ("crop_ratio", None, "number"),
    ("crop_area", (0, 0.5), "above 0"),
    ("crop_area", (0.5, 0.2), "above 0"),
    ("crop_area", 0.5, "above 0"),
    ("crop_aspect", (1, float("inf")), "above 0"),
    ("crop_padding", -1, "at least 0"),
    ("padding_mode", "constant", "'reflect'"),
    ("flip", "yes", "True or False"),
    ("augment", 5, "a list of names"),
    ("views", 0, "a whole number of at least 1"),
    ("transform", 5, "f(image, label, rng)"),
    ("mixup", 0, "above 0"),
    ("cutmix", -1, "above 0"),
    ("label_smoothing", 1.5, "from 0, below 1"),
    ("num_classes", 0, "at least 1"),
    ("postprocess", 5, "function"),
    ("on_error", "ignore", "'skip'"),
    ("verify", True, "'always'"),
    ("io", "aio", "'pread'"),
    ("timeout", 0, "number"),
    ("timeout", -1, "number"),
    ("timeout", float("nan"), "number"),
    ("timeout", "1s", "number"),
    ("cuda", "gpu", "cuda:N"),
    ("cuda", 1, "cuda:N"),
    ("copy", 0, "True or False"),
    ("debug", None, "True or False"),
    ("hdf5_path", 5, "a path"),
    ("lmdb_path", 5, "a path"),
    ("labels", 5, "an array"),
    ("max_length", 0, "at least 1"),
    ("overlong", "keep", "'cut'"),
    ("pad_value", "x", "a number"),
    ("offsets_field", 5, "False"),
    ("patch_at", "everywhere", "'grid'"),
    ("interpolation", "cubic", "'bicubic'"),
    ("trace", 5, "text or None"),
]


@pytest.mark.parametrize(("name", "value", "expected"), VALUES)
def test_values(name: str, value: Any, expected: str) -> None:
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
    ({"shuffle_window": 5}, "shuffle_window"),
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
    ({"mix_until": "first"}, "mix_until goes with mix"),
    ({"classes": "own"}, "classes goes with mix"),
    ({"epoch_samples": 5}, "epoch_samples goes with"),
    ({"epoch_samples": 5, "shuffle": True}, "epoch_samples goes with"),
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
    (
        {"augment": "trivial-augment"},
        "unknown operation 'trivial-augment'",
        "expected trivial-augment-wide",
        "did you mean 'trivial-",
    ),
    ({"augment": "RandAugment"}, "unknown operation", "did you mean 'rand-augment'"),
    ({"augment": "xyzzy"}, "unknown operation 'xyzzy'", "expected trivial-augment-wide,"),
    ({"augment": 3}, "augment is not valid", "found 3", "expected a list of names"),
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
    (
        {"weights": ONES, "subset": slice(0, 9)},
        "another length",
        "expected 9",
        "of these samples alone",
    ),
    ({"weights": -ONES}, "weights[0]", "found -1.0", "32 of 32"),
    ({"weights": np.where(LABELS == 3, NAN, 1)}, "weights[3]", "found nan", "6 of 32"),
    ({"weights": np.where(np.arange(COUNT) == 7, INF, 1)}, "weights[7]", "found inf"),
    ({"weights": 1.0}, "found 1.0", "1-D array"),
    (
        {"weights": "balanced", "shuffle": "balanced-permutation"},
        "an order of their own",
        "leave one of them out",
    ),
    ({"weights": "balanced", "labels": None}, "class number", "found no labels"),
    ({"weights": "balanced", "labels": LABELS / 2}, "class number", "float64"),
    (
        {"shuffle": "balanced-permutation", "labels": np.zeros((COUNT, 2), int)},
        "class number",
        "(32, 2), int64",
    ),
    ({"weights": ONES, "epoch_samples": 0}, "found 0", "at least 1"),
    ({"weights": ONES, "epoch_samples": 3}, "no batch", "found 3 samples"),
    ({"epoch_samples": 9}, "epoch_samples goes with weights"),
    ({**SOFT, "batch_size": 7}, "needs an even batch_size", "found 7"),
    ({**SOFT, "batch_size": 3, "world_size": 2}, "needs an even batch_size", "found 3"),
    ({**SOFT, "mixup": NAN}, "found nan"),
    ({**SOFT, "mixup": INF}, "found inf"),
    ({**SOFT, "mixup": True}, "found True"),
    ({"mixup": 0.2}, "mixup needs the number of classes", "num_classes=10"),
    ({"label_smoothing": 0.1}, "label_smoothing needs the number"),
    (
        {**SOFT, "num_classes": 3},
        "no class number",
        "record 3",
        "found 3",
        "0 to 2, or -1 for none",
        "num_classes=",
    ),
    ({**SOFT, "labels": LABELS - 2}, "record 0", "found -2", "or -1 for none"),
    (
        {**SOFT, "labels": np.full(COUNT, 2**64 - 1, np.uint64)},
        "found 18446744073709551615",
        "0 to 4",
    ),
    ({**SOFT, "labels": LABELS / 2}, "a class number for each", "float64"),
    ({**SOFT, "labels": np.zeros((COUNT, 2), int)}, "a class number for each", "(2,) int64"),
    ({**SOFT, "labels": None}, "a class number for each", "found no labels"),
    ({"num_classes": 5, "label_smoothing": -0.1}, "found -0.1"),
    ({"num_classes": 5, "label_smoothing": NAN}, "found nan"),
    (
        {"cutmix": 1, "num_classes": 5, "data": np.zeros((COUNT, 5))},
        "cutmix works on images",
        "mixup blends rows of any numbers",
    ),
    ({**SOFT, "data": np.zeros((COUNT, 5), bool)}, "numbers", "found bool", 'dtype="float32"'),
    ({**SOFT, "data": {"a": DATA, "b": DATA}}, "several fields", "postprocess"),
    ({"crop_padding": 4, "size": (16, 12)}, "crop_padding goes with", "'center'"),
    ({"crop_padding": -4, "size": (16, 12), "crop": "random"}, "found -4", "at least 0"),
    (
        {"crop_area": (1, 0.5), "size": (9, 9), "crop": "random-resized"},
        "found (1, 0.5)",
        "(least, most)",
    ),
    (
        {"crop_area": (0, 0.5), "size": (9, 9), "crop": "random-resized"},
        "found (0, 0.5)",
        "above 0",
    ),
    (
        {"crop_aspect": (-1, 1), "size": (9, 9), "crop": "random-resized"},
        "found (-1, 1)",
        "above 0",
    ),
    ({"crop": "random", "crop_padding": 4}, "crop_padding needs size=(H, W)"),
    ({"mix_up": 0.2}, "unknown parameter 'mix_up'", "did you mean 'mixup'"),
    ({"augment": "color-jitter"}, "changes nothing without options"),
    ({"augment": [7]}, "a list of names"),
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
    ({"data": DATA[..., :2], "cha_dim": 4, "augment": "random-equalize"}, "found 2 channels"),
    ({"data": DATA[:, 0, 0], "augment": "random-erasing"}, "no images"),
    ({"augment": ("random-erasing", {"value": "random"})}, 'dtype="float32"'),
    ({"augment": ("random-erasing", {"value": (1, 2)})}, "each channel"),
    (
        {"data": DATA[..., :1], "cha_dim": 4, "augment": ("rand-augment", {"fill": (1, 2, 3)})},
        "has 3 numbers",
    ),
    ({"crop_padding": 4, "size": (16, 12), "crop": "random-resized"}, "crop_padding goes with"),
    ({"crop_area": (0.5, 1), "size": (16, 12), "crop": "random"}, "crop_area goes with"),
    ({"crop_aspect": (1, 1), "size": (16, 12)}, "crop_aspect goes with"),
    ({"padding_mode": "edge", "size": (16, 12), "crop": "random"}, "padding_mode goes with"),
    ({"scale": 0.5}, "float dtype"),
    ({"dtype": "float32", "mean": [1, 2]}, "one per channel"),
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
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake[0])[:60])
def test_mistakes(mistake: tuple[Any, ...]) -> None:
    """A mistake is a ParamsError in one line that says what is wrong, and what was found or helps:
    at construction, or of the batch in which a label is no class."""
    given, *says = mistake
    error = refused({**ARRAYS, **given}, ParamsError, *says)
    assert "; " in str(error)


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
    "zero": ({A: 0, B: 1}, {}, ParamsError, ("mix['a.h5']", "found 0", "above 0")),
    "negative": ({A: 1.5, B: -0.5}, {}, ParamsError, ("mix['b.h5']", "found -0.5")),
    "nan": ({A: NAN, B: 1}, {}, ParamsError, ("mix['a.h5']", "found nan", "finite")),
    "inf": ({A: INF, B: 1}, {}, ParamsError, ("mix['a.h5']", "found inf", "finite")),
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


# -- mixing rows, and crops ----------------------------------------------------------------------


def test_labels_without_a_class_are_no_mistake() -> None:
    """A label of -1 has no part in a loss: its row is zeros, and no neighbour is blended with it;
    two ranks mix, too."""
    labels = np.where(LABELS == 2, -1, LABELS)
    for rank in range(2):
        with AsyncReader({**ARRAYS, "labels": labels}, **SOFT, world_size=2, rank=rank) as reader:
            for batch in reader:
                known = labels[batch.indices] >= 0
                np.testing.assert_allclose(batch.labels.sum(axis=1), known, atol=1e-6)
