"""Every parameter: its default, its two spellings, and what is said about a wrong value."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, is_dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from fakes import CLASSES, packed, paint, write_hdf5
from keywords import KEYWORDS, keywords
from project import ROOT

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    Block,
    Crop,
    Lengths,
    Mix,
    ParamsError,
    Patch,
    SourceNotFoundError,
    Window,
)
from asyncreader.cli.main import cli
from asyncreader.faces import pyxis
from asyncreader.faces.hdf5matrix import HDF5Matrix
from asyncreader.params import (
    PARAMETERS,
    ReaderKeywords,
    ReaderParams,
    parse_params,
    snake_case,
)
from asyncreader.params.other_names import OTHER_NAMES
from asyncreader.pipeline import distributed
from asyncreader.pipeline.distributed import rank_and_world, worker_count
from asyncreader.system.text import plain_name, slip
from asyncreader.tools.bench import run_bench
from asyncreader.tools.preview_batch import preview_batch
from asyncreader.tools.trials import Trial
from asyncreader.tools.verify import verify_file
from converters import convert

HEAVY = {"numba", "llvmlite", "cv2", "h5py", "lmdb", "PIL", "simplejpeg", "imagecodecs", "asyncio"}


def test_parameters_load_nothing_heavy() -> None:
    """Declarations load not even numpy, for Tab and --help read them; checking values needs numpy
    alone: no compiler, no file format and no decoder."""
    code = """import sys, asyncreader.params as p
    print(*{name.split('.')[0] for name in sys.modules})
    p.parse_params('a.h5', dict(size=(2, 3), dtype='f4', mean=(1, 2), subset=[1], seed=1))
    print(*{name.split('.')[0] for name in sys.modules})"""
    words = [sys.executable, "-c", code.replace("\n    ", "\n")]
    out = subprocess.run(words, capture_output=True, text=True, check=True)
    declared, checked = (set(line.split()) for line in out.stdout.splitlines())
    assert {"numpy", "rich", "click", *HEAVY} & declared == set()
    assert "numpy" in checked
    assert HEAVY & checked == set()


DEFAULTS: dict[str, Any] = {
    "path": None,
    "hdf5_path": None,
    "lmdb_path": None,
    "mix": None,
    "mix_until": "all",
    "classes": "joined",
    "data": None,
    "labels": None,
    "data_field": "data",
    "boxes_field": None,
    "keypoints_field": None,
    "labels_field": "labels",
    "labels_path": None,
    "columns": None,
    "subset": None,
    "episodes": None,
    "episodes_subset": None,
    "window": None,
    "window_every": 1,
    "window_edge": "drop",
    "window_outside": None,
    "max_length": None,
    "overlong": "cut",
    "pad_value": 0,
    "offsets_field": None,
    "patch": None,
    "patch_at": "random",
    "patch_axes": None,
    "patch_step": None,
    "sample_axis": 0,
    "batch_size": 1,
    "nthread": 1,
    "njob": 1,
    "workers": "thread",
    "shuffle": False,
    "shuffle_window": 16_384,
    "weights": None,
    "epoch_samples": None,
    "seed": 0,
    "epochs": None,
    "last_batch": "drop",
    "rank": 0,
    "world_size": 1,
    "num_dim": None,
    "h_dim": None,
    "w_dim": None,
    "cha_dim": None,
    "channel_order": "RGB",
    "layout": "NCHW",
    "contiguous": False,
    "members": None,
    "dtype": None,
    "scale": None,
    "mean": None,
    "std": None,
    "size": None,
    "crop": "center",
    "crop_ratio": 1.0,
    "crop_area": (0.08, 1.0),
    "crop_aspect": (3 / 4, 4 / 3),
    "crop_padding": 0,
    "padding_mode": "zero",
    "interpolation": "bilinear",
    "flip": False,
    "augment": None,
    "views": None,
    "transform": None,
    "mixup": None,
    "cutmix": None,
    "label_smoothing": 0.0,
    "num_classes": None,
    "postprocess": None,
    "on_error": "raise",
    "verify": "first",
    "io": "auto",
    "timeout": None,
    "cuda": False,
    "trace": None,
    "copy": False,
    "debug": False,
}

#: The flat names of each family, that of its first field first.
FAMILIES = {
    "mix": ["mix", "mix_until", "classes"],
    "window": ["window", "window_every", "window_edge", "window_outside"],
    "patch": ["patch", "patch_at", "patch_axes", "patch_step"],
    "lengths": ["max_length", "overlong", "pad_value"],
    "crop": ["crop", "crop_ratio", "crop_area", "crop_aspect", "crop_padding", "padding_mode"],
    "axes": ["num_dim", "h_dim", "w_dim", "cha_dim"],
}

#: Families, what they say by flat names, and what else these need.
SAID: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"mix": {"a.h5": 1.0}}, {"mix": {"a.h5": 1.0}}, {}),
    ({"mix": Mix({"a.h5": 1.0}, until="first")}, {"mix": {"a.h5": 1.0}, "mix_until": "first"}, {}),
    ({"mix": Mix({"a.h5": 1.0}, classes="own")}, {"mix": {"a.h5": 1.0}, "classes": "own"}, {}),
    ({"window": Window(8)}, {"window": 8}, {}),
    ({"window": Window(8, every=4)}, {"window": 8, "window_every": 4}, {}),
    ({"window": Window(every=4)}, {"window_every": 4}, {"episodes": "files"}),
    ({"window": Window(8, edge="zero")}, {"window": 8, "window_edge": "zero"}, {}),
    (
        {"window": Window((-2, 2), edge="zero", outside=(1, None))},
        {"window": (-2, 2), "window_edge": "zero", "window_outside": (1, None)},
        {},
    ),
    ({"patch": Patch((4, 5))}, {"patch": (4, 5)}, {}),
    ({"patch": Patch((4, 5), at="center")}, {"patch": (4, 5), "patch_at": "center"}, {}),
    ({"patch": Patch((4, 5), axes=(1, 2))}, {"patch": (4, 5), "patch_axes": (1, 2)}, {}),
    (
        {"patch": Patch((4, 5), at="grid", step=2)},
        {"patch": (4, 5), "patch_at": "grid", "patch_step": 2},
        {"sample_axis": None},
    ),
    ({"lengths": 512}, {"max_length": 512}, {}),
    ({"lengths": {"data": 512}}, {"max_length": {"data": 512}}, {}),
    ({"lengths": Lengths(9, overlong="error")}, {"max_length": 9, "overlong": "error"}, {}),
    ({"lengths": Lengths(9, pad=-1)}, {"max_length": 9, "pad_value": -1}, {}),
    ({"crop": Crop("none")}, {"crop": "none"}, {}),
    ({"crop": Crop(ratio=0.875)}, {"crop_ratio": 0.875}, {"size": (4, 4)}),
    (
        {"crop": Crop("random-resized", area=(0.2, 1), aspect=(1, 1))},
        {"crop": "random-resized", "crop_area": (0.2, 1), "crop_aspect": (1, 1)},
        {"size": (4, 4)},
    ),
    (
        {"crop": Crop("random", padding=4, mode="edge")},
        {"crop": "random", "crop_padding": 4, "padding_mode": "edge"},
        {"size": (4, 4)},
    ),
    ({"shuffle": Block(64)}, {"shuffle": "block", "shuffle_window": 64}, {}),
    ({"shuffle": Block()}, {"shuffle": "block"}, {}),
    ({"axes": "NCHW"}, {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}, {}),
    ({"axes": "HWCN"}, {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3}, {}),
    ({"axes": None}, {}, {}),
]

CAMEL = {
    "hdf5_path": "hdf5Path",
    "batch_size": "batchSize",
    "data_field": "dataField",
    "boxes_field": "boxesField",
    "keypoints_field": "keypointsField",
    "labels_field": "labelsField",
    "num_dim": "numDim",
    "cha_dim": "chaDim",
    "world_size": "worldSize",
    "last_batch": "lastBatch",
    "crop_ratio": "cropRatio",
    "on_error": "onError",
    "shuffle_window": "shuffleWindow",
    "weights": "weights",
    "mix_until": "mixUntil",
    "epoch_samples": "epochSamples",
}

#: Values that are taken, and what they become.
GOOD: list[tuple[str, Any, Any]] = [
    ("path", "a.h5", "a.h5"),
    ("path", Path("a.h5"), "a.h5"),
    ("path", ["a.h5", Path("b.h5")], ("a.h5", "b.h5")),
    ("data_field", "group/x", "group/x"),
    ("boxes_field", "group/boxes", "group/boxes"),
    ("keypoints_field", "points", "points"),
    ("labels_field", None, None),
    ("subset", slice(1, None, 2), slice(1, None, 2)),
    ("subset", "train", "train"),
    ("batch_size", np.int32(7), 7),
    ("nthread", "auto", "auto"),
    ("nthread", 1024, 1024),
    ("njob", 4096, 4096),
    ("workers", "process", "process"),
    ("shuffle", np.True_, True),
    ("shuffle", "block", "block"),
    ("shuffle", "replacement", "replacement"),
    ("seed", 2**64 - 1, 2**64 - 1),
    ("epochs", 3, 3),
    ("last_batch", "wrap", "wrap"),
    ("rank", "auto", "auto"),
    ("world_size", "auto", "auto"),
    ("num_dim", 1, 1),
    ("channel_order", "stored", "stored"),
    ("layout", "NHWC", "NHWC"),
    ("contiguous", np.True_, True),
    ("members", "pt", "pt"),
    ("members", ["pt", "eta"], ("pt", "eta")),
    ("members", {"jets": ["pt"], "tracks": "d0"}, {"jets": ("pt",), "tracks": "d0"}),
    ("dtype", {"data": np.float16, "mask": "int64"}, {"data": "float16", "mask": "int64"}),
    ("scale", {"data": 2}, {"data": 2.0}),
    ("std", {"data": 2, "x": [1, 2]}, {"data": (2.0,), "x": (1.0, 2.0)}),
    ("dtype", "float16", "float16"),
    ("dtype", np.float64, "float64"),
    ("dtype", np.dtype("uint16"), "uint16"),
    ("scale", 1, 1.0),
    ("scale", np.float32(0.5), 0.5),
    ("mean", 3, (3.0,)),
    ("mean", [1, 2, 3], (1.0, 2.0, 3.0)),
    ("std", np.array([0.5]), (0.5,)),
    ("size", (5, 6), (5, 6)),
    ("size", [np.int64(5), 6], (5, 6)),
    ("postprocess", print, print),
    ("on_error", "zero", "zero"),
    ("verify", "never", "never"),
    ("io", "pread", "pread"),
    ("timeout", 1, 1.0),
    ("copy", True, True),
    ("debug", True, True),
]


def parse(**given: Any) -> ReaderParams:
    """Parameters with a path where none is given."""
    if not {"path", "data", "hdf5_path", "lmdb_path", "mix"} & given.keys():
        given["path"] = "a.h5"
    return parse_params(given, {})


def test_defaults() -> None:
    """The parameters are exactly these, with exactly these defaults, which the values of a reader
    have where nothing is said."""
    assert {name: one.default for name, one in PARAMETERS.items()} == DEFAULTS
    assert parse().flat() == {**DEFAULTS, "path": "a.h5"}


def test_keywords_are_the_parameters() -> None:
    """Type checkers know exactly the parameters, by both kinds of names, as they are declared;
    help() and notebooks show families as one parameter, with the fields of each under it."""
    assert set(ReaderKeywords.__annotations__) == {*DEFAULTS, *FAMILIES}
    assert (ROOT / KEYWORDS).read_text(encoding="utf-8") == keywords()
    shown = dict(inspect.signature(AsyncReader).parameters)
    assert shown.pop("params").default is None
    parts = {flat for names in FAMILIES.values() for flat in names}
    assert shown.keys() == DEFAULTS.keys() - parts | FAMILIES.keys()
    text = str(AsyncReader.__init__.__doc__)
    assert all(f"    {name}: " in text or f"(or {name}=): " in text for name in shown)
    assert all(f"(or {flat}=): " in text for names in FAMILIES.values() for flat in names[1:])

    class Mine(AsyncReader):
        def __init__(self, number: int) -> None: ...

    assert list(inspect.signature(Mine).parameters) == ["number"]


WRONG = """
from asyncreader import AsyncReader
from asyncreader.adapters.torch import TorchReader
from converters import convert
AsyncReader({"path": "a.h5", "batchSize": 3}, batch_size=3, size=(2, 3), shuffle="block")
AsyncReader(path="a.h5", batchsize=3)
AsyncReader(path="a.h5", batch_size="3")
AsyncReader(path="a.h5", shuffle="blok")
TorchReader(path="a.h5", zero_copy=True, njobs=3)
convert("a", "b.h5", encoding="jpg")
convert("a", "b.h5", qualty=90)
convert("a", "b.h5", size="224x224", encoding="jpeg", quality=90, fields={"mask": "masks"})
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_keywords(tmp_path: Path) -> None:
    """mypy knows the keywords, their types and values: a line that is right passes, and each
    that is wrong is an error."""
    pytest.importorskip("mypy", reason="mypy comes with the extra dev")
    (tmp_path / "wrong.py").write_text(WRONG)
    words = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "wrong.py")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert found == {6, 7, 8, 9, 10, 11}, done.stdout + done.stderr
    assert 'did you mean "batch_size"?' in done.stdout


@pytest.mark.parametrize("name", DEFAULTS)
def test_both_spellings(name: str) -> None:
    """camelCase is the same parameter; the same one in both spellings is an error."""
    camel = re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)
    assert snake_case(camel) == name
    assert CAMEL.get(name, camel) == camel
    if camel != name:
        with pytest.raises(ParamsError, match="given twice"):
            parse_params({"path": "a.h5", name: None, camel: None}, {})


@pytest.mark.parametrize(("said", "flat", "more"), SAID)
def test_families_say_what_flat_names_say(
    said: dict[str, Any], flat: dict[str, Any], more: dict[str, Any]
) -> None:
    """A family is what its fields say by their flat names, and its short form its first field; said
    in both ways at once it is an error, and in a keyword it replaces what a dict says."""
    assert parse(**said, **more) == parse(**flat, **more)
    ((name, value),) = said.items()
    for other in flat if is_dataclass(value) or name == "axes" else ():
        if other != name:
            for twice in ({other: flat[other], **said}, {**said, other: flat[other]}):
                with pytest.raises(
                    ParamsError, match=f"'{other}' is given twice, also as '{name}'"
                ):
                    parse(**twice)
    if is_dataclass(value):
        source = {} if name == "mix" else {"path": "a.h5"}
        assert parse_params({**source, **flat, **more}, said) == parse(**said, **more)


def test_every_flat_name_has_been_said() -> None:
    """Each field of each family is in the table above."""
    said = {name for _, flat, _ in SAID for name in flat}
    assert {flat for names in FAMILIES.values() for flat in names} <= said


HEADLESS = [
    ({"mix_until": "first"}, "mix_until goes with mix"),
    ({"classes": "own"}, "classes goes with mix"),
    ({"window_every": 2}, "window_every goes with window or episodes"),
    ({"window": Window(edge="zero")}, "window_edge goes with window"),
    ({"window_outside": (1, 1), "window_edge": "zero"}, "window_edge goes with window"),
    ({"patch": Patch(at="grid")}, "patch_at goes with patch"),
    ({"patch_axes": [1]}, "patch_axes goes with patch"),
    ({"patch_step": 2}, "patch_step goes with patch"),
    ({"sample_axis": None}, "sample_axis goes with patch"),
    ({"overlong": "error"}, "overlong goes with max_length"),
    ({"lengths": Lengths(pad=1)}, "pad_value goes with max_length"),
    ({"shuffle_window": 5}, 'shuffle_window goes with shuffle="block"'),
    ({"crop_area": (0.5, 1)}, 'crop_area goes with crop="random-resized"'),
    ({"crop": Crop(padding=4)}, 'crop_padding goes with crop="random"'),
    ({"padding_mode": "edge"}, "padding_mode goes with crop_padding"),
]


@pytest.mark.parametrize(("given", "says"), HEADLESS)
def test_a_field_without_what_it_goes_with(given: dict[str, Any], says: str) -> None:
    """A field of a family without its first field, or another value that it needs, is one error,
    which names both."""
    with pytest.raises(ParamsError, match=says):
        parse(**given)


@pytest.mark.parametrize("axes", ["NHW", "nhwc", "NHWCC", 5, ("N", "H", "W", "C")])
def test_axes_that_are_none(axes: Any) -> None:
    """axes takes the four letters of NHWC in any order, and nothing else."""
    with pytest.raises(ParamsError, match="axes is not valid"):
        parse(axes=axes)


def test_spellings_mean_the_same() -> None:
    """A dict in the Torch original's spelling gives the same parameters."""
    torch = {"hdf5_path": "a.h5", "batchSize": 8, "nthread": 2, "num_dim": 1, "shuffle": True}
    ours = {"hdf5_path": "a.h5", "batch_size": 8, "nthread": 2, "num_dim": 1, "shuffle": True}
    assert parse_params(torch, {}) == parse_params(ours, {}) == parse_params(None, torch)


def test_keywords_override_the_dict() -> None:
    """Keywords win over the dict, whichever way each is spelt; the dict is not changed."""
    given = {"path": "a.h5", "batchSize": 8}
    assert parse_params(given, {"batch_size": 64}).batch_size == 64
    assert parse_params({"path": "a.h5", "batch_size": 8}, {"batchSize": 64}).batch_size == 64
    assert given == {"path": "a.h5", "batchSize": 8}


@pytest.mark.parametrize(("name", "value", "becomes"), GOOD)
def test_good_value(name: str, value: Any, becomes: Any) -> None:
    """Every value of the right kind is taken, numpy's numbers and paths included."""
    found = parse(**{name: value}).flat()[name]
    assert found == becomes
    assert type(found) is type(becomes)


def test_frozen() -> None:
    """Checked parameters cannot be changed."""
    with pytest.raises(FrozenInstanceError):
        parse().batch_size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("batchsize", "batch_size"),
        ("batch_siz", "batch_size"),
        ("nthreads", "nthread"),
        ("suffle", "shuffle"),
        ("postProces", "postprocess"),
        ("worldsize", "world_size"),
        ("lables", "labels"),
        ("hdf5path", "hdf5_path"),
        ("hdf5-path", "hdf5_path"),
        ("BatchSize", "batch_size"),
        ("paht", "path"),
        ("crop_rato", "crop_ratio"),
        ("interpollatoin", "interpolation"),
    ],
)
def test_unknown_name_suggests(wrong: str, meant: str) -> None:
    """An unknown parameter is an error that suggests the nearest one."""
    with pytest.raises(ParamsError, match=f"did you mean '{meant}'"):
        parse(**{wrong: 1})


@pytest.mark.parametrize(
    "name",
    [
        "xyzzy",
        "no",
        "frobnicate",
        "depth",
        "rotten",
        "pathology",
        "seeding",
        "order_by",
    ],
)
def test_unknown_name_without_a_near_one(name: str) -> None:
    """A name that is neither known from elsewhere nor a slip of the keyboard gets no guess, but
    the two places that list all parameters; a name that is no text is named too."""
    with pytest.raises(ParamsError, match=name) as caught:
        parse(**{name: 1})
    assert caught.value.hint == "docs/parameters.md and help(AsyncReader) list all parameters"
    with pytest.raises(ParamsError, match="5"):
        parse_params({"path": "a", 5: 1}, {})
    with pytest.raises(ParamsError, match="must be a dict or a path"):
        parse_params(5, {})  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="arrays go as data="):
        parse_params(np.zeros(3), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("num_workers", 4, "nthread=4"),
        ("numWorkers", 4, "nthread=4"),
        ("num_worker", 4, "nthread=4"),
        ("prefetch_factor", 2, "njob=2"),
        ("drop_last", True, 'last_batch="drop"'),
        ("image_transform", print, "transform=f"),
        ("transforms", None, "crop="),
        ("bs", 64, "batch_size=64"),
        ("pin_memory", True, "cuda=True"),
        ("sampler", object(), "shuffle=True"),
        ("collate_fn", print, "postprocess=f"),
        ("image_size", 224, "size=(224, 224)"),
        ("img_size", (224, 192), "size=(224, 192)"),
        ("target_size", object(), "size=..."),
        ("persistent_workers", True, "nothing instead"),
        ("worker_init_fn", print, "rng"),
        ("dataset", "train.h5", "path='train.h5'"),
        ("root", Path("a"), "path='a'"),
        ("generator", None, "seed=0"),
        ("rescale", 0.5, "scale=0.5"),
        ("horizontal_flip", True, "flip=True"),
        ("validation_split", 0.2, "subset="),
        ("num_epochs", 9, "epochs=9"),
        ("data_format", "channels_last", 'layout="NHWC"'),
        ("order", 1, 'shuffle="block"'),
        ("train", True, "path="),
        ("repeat", 2, "epochs=2"),
        ("to_tensor", True, 'dtype="float32", scale=1/255'),
        ("image_shape", (3, 32, 32), "size=(H, W)"),
        ("rotate", 10, 'augment=[("random-rotation", {"degrees": 10})]'),
        ("random_erasing", True, 'augment="random-erasing"'),
        ("elastic", True, "postprocess=f"),
        ("labels_dtype", "float32", "cast labels in the loop"),
        ("nclasses", 10, "reader.classes"),
        ("grayscale", True, "--channels 1"),
        ("vflip", True, 'augment="random-vertical-flip"'),
        ("crop_scale", (0.2, 1), 'crop="random-resized"'),
        ("repeat", True, "epochs=... to end"),
        ("smoothing", 0.1, "label_smoothing=0.1"),
        ("padding", 4, "crop_padding=4"),
        ("padding", True, "max_length=, pad_value= for samples that differ in length"),
        ("maxlen", 64, "max_length=, pad_value= for samples that differ in length"),
        ("mixupAlpha", 0.2, "mixup=0.2"),
        ("sample_weights", [1, 2], "docs/splits-and-balance.md"),
        ("numWorkers", 0, "nthread=1"),
        ("prefetch_factor", None, "njob=..."),
        ("bs", "many", "batch_size=..."),
        ("clip", 1.0, "postprocess=f"),
        ("drop", True, 'last_batch="drop"'),
        ("RandAugment", True, 'augment="rand-augment"'),
        ("seq_length", 8, "window=8"),
        ("class_names", ["a"], "reader.classes"),
        ("proportions", [1, 2], "mix={path: ratio}"),
    ],
)
def test_habits_from_elsewhere(name: str, value: Any, line: str) -> None:
    """A name from torch, FFCV, Keras or DALI is answered with the line to write here."""
    with pytest.raises(ParamsError, match="unknown parameter") as caught:
        parse(**{name: value})
    assert str(caught.value.hint).startswith("write ")
    assert line in str(caught.value)


def test_lines_of_habits_are_right() -> None:
    """Every parameter that an answer names exists, and no habit hides one."""
    for name, line in OTHER_NAMES.items():
        assert name == plain_name(name) not in map(plain_name, DEFAULTS)
        for written, value in re.findall(r'(?<![\w.(])(\w+)=("[^"]*"|True|False|\d+\b|)', line):
            assert written in {*DEFAULTS, *FAMILIES}, line
            if value:
                PARAMETERS[written].check(written, ast.literal_eval(value))
        for operations in re.findall(r"augment=(\[.*\])", line.format(10)):
            PARAMETERS["augment"].check("augment", ast.literal_eval(operations))


def test_what_answers_to_habits_say_is_so(tmp_path: Path) -> None:
    """What the answers say of vertical flips and classes is what the reader does."""
    images = paint(8)
    file = write_hdf5(tmp_path / "a.h5", packed(images))

    always = [("random-vertical-flip", {"p": 1})]
    with AsyncReader(path=file, batch_size=8, augment=always, contiguous=True) as reader:
        batch = next(iter(reader))
        np.testing.assert_array_equal(batch.data, images[:, ::-1].transpose(0, 3, 1, 2))
        assert reader.classes == tuple(CLASSES)


def test_a_path_stands_for_the_dict(tmp_path: Path) -> None:
    """AsyncReader("train.h5", batch_size=2), a Path and a list of paths open what path= opens."""
    file = write_hdf5(tmp_path / "a.h5", packed(paint(8)))
    for given in (str(file), Path(file), [file], [Path(file), str(file)]):
        with AsyncReader(given, batch_size=2) as one, AsyncReader(path=given, batch_size=2) as two:
            assert len(one) == len(two)
            assert one.count == two.count
    with pytest.raises(SourceNotFoundError):
        AsyncReader(tmp_path / "b.h5")


class Unspeakable:
    """What has no text."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("name", ["batch_size", "rank", "size", "scale", "dtype", "path"])
def test_values_that_cannot_be_written(name: str) -> None:
    """A value whose repr() fails (a number of 5,000 digits, an odd object) is a ParamsError, too;
    one of 100,000 letters is cut."""
    for value in (10**5000, Unspeakable(), ["a" * 100_000, 5]):
        with pytest.raises(ParamsError, match=f"^{name} is not valid") as caught:
            parse(**{name: value})
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [224, "224", [224], 224.0])
def test_one_number_for_size(value: Any) -> None:
    """size=224 is an error that shows size=(224, 224)."""
    with pytest.raises(ParamsError, match=r"such as \(224, 224\)"):
        parse(size=value)


def test_dims() -> None:
    """One named axis brings the defaults of the others with it; none leaves it to the file."""
    assert parse().axes.dims is None
    assert parse(num_dim=1).axes.dims == (1, 2, 3, 4)
    assert parse(cha_dim=2, h_dim=3, w_dim=4).axes.dims == (1, 3, 4, 2)
    assert parse(numDim=4, hDim=1, wDim=2, chaDim=3).axes.dims == (4, 1, 2, 3)


def test_subset_is_a_copy() -> None:
    """What the caller does to his array later does not change the order."""
    mine = np.array([3, 1, 2])
    made = parse(subset=mine)
    mine[:] = 0
    assert made.subset.tolist() == [3, 1, 2]
    assert made.subset.dtype == np.int64


# -- ranks ---------------------------------------------------------------------------------------

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
}


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any launcher's variables."""
    for name in list(os.environ):
        if re.match(r"SLURM_|OMPI_|RANK$|WORLD_SIZE$|LOCAL_", name):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_from_a_launcher(launcher: str, no_launcher: pytest.MonkeyPatch) -> None:
    """ "auto" reads rank and world size of the usual launchers."""
    rank, world = LAUNCHERS[launcher]
    no_launcher.setenv(rank, "2")
    no_launcher.setenv(world, "5")
    assert rank_and_world(parse(rank="auto", world_size="auto")) == (2, 5)
    # one "auto" is enough; the other agrees or was left out
    assert rank_and_world(parse(rank="auto")) == (2, 5)
    assert rank_and_world(parse(world_size="auto")) == (2, 5)
    assert rank_and_world(parse(rank="auto", world_size=5)) == (2, 5)
    assert rank_and_world(parse(rank=2, world_size="auto")) == (2, 5)
    # without "auto" nothing is read
    assert rank_and_world(parse()) == (0, 1)
    assert rank_and_world(parse(rank=1, world_size=3)) == (1, 3)


def test_rank_order_of_launchers(no_launcher: pytest.MonkeyPatch) -> None:
    """torchrun inside a SLURM job goes by torchrun."""
    for (rank, world), value in zip(LAUNCHERS.values(), (1, 2, 3), strict=True):
        no_launcher.setenv(rank, str(value))
        no_launcher.setenv(world, "9")
    assert rank_and_world(parse(rank="auto", world_size="auto")) == (1, 9)


def test_rank_without_a_launcher(no_launcher: pytest.MonkeyPatch) -> None:
    """Without a launcher "auto" is a single process."""
    assert rank_and_world(parse(rank="auto", world_size="auto")) == (0, 1)
    assert rank_and_world(parse(rank="auto", world_size="auto", last_batch="short")) == (0, 1)
    for given in ({"rank": "auto", "world_size": 4}, {"rank": 1, "world_size": "auto"}):
        with pytest.raises(ParamsError, match="launcher"):
            rank_and_world(parse(**given))


@pytest.mark.parametrize(("rank", "world"), [("x", "4"), ("4", "4"), ("-1", "4"), ("0", "0")])
def test_rank_that_makes_no_sense(rank: str, world: str, no_launcher: pytest.MonkeyPatch) -> None:
    """A launcher's variables that cannot be are an error with both values."""
    no_launcher.setenv("RANK", rank)
    no_launcher.setenv("WORLD_SIZE", world)
    with pytest.raises(ParamsError, match=f"RANK={rank}, WORLD_SIZE={world}"):
        rank_and_world(parse(rank="auto", world_size="auto"))


@pytest.mark.parametrize(
    ("half", "says"),
    [
        ({"RANK": "3"}, "WORLD_SIZE go together; found RANK=3"),
        ({"WORLD_SIZE": "4"}, "found WORLD_SIZE=4"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE go together"),
        ({"SLURM_PROCID": "2"}, "SLURM_NTASKS go together"),
    ],
)
def test_half_a_launcher(half: dict[str, str], says: str, no_launcher: pytest.MonkeyPatch) -> None:
    """A rank without the number of ranks is an error: it would silently read the whole set."""
    for name, value in half.items():
        no_launcher.setenv(name, value)
    with pytest.raises(ParamsError, match=says):
        rank_and_world(parse(rank="auto", world_size="auto"))
    assert rank_and_world(parse()) == (0, 1)


@pytest.mark.parametrize("alone", [("RANK", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")])
def test_single_process_of_a_launcher(
    alone: tuple[str, str], no_launcher: pytest.MonkeyPatch
) -> None:
    """A batch script of SLURM, a shell of salloc and rank 0 alone are single processes."""
    no_launcher.setenv(*alone)
    assert rank_and_world(parse(rank="auto", world_size="auto")) == (0, 1)


def test_rank_against_the_launcher(no_launcher: pytest.MonkeyPatch) -> None:
    """A number given beside "auto" that the launcher contradicts is an error."""
    no_launcher.setenv("RANK", "2")
    no_launcher.setenv("WORLD_SIZE", "5")
    for given in ({"rank": 1, "world_size": "auto"}, {"rank": "auto", "world_size": 4}):
        with pytest.raises(ParamsError, match="launcher"):
            rank_and_world(parse(**given))


def test_short_batches_and_auto_ranks(no_launcher: pytest.MonkeyPatch) -> None:
    """last_batch="short" is refused as soon as a launcher says that there are several ranks."""
    no_launcher.setenv("RANK", "0")
    no_launcher.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParamsError, match="short"):
        AsyncReader(data=paint(9), last_batch="short", rank="auto", world_size="auto")


@pytest.mark.parametrize(
    ("set_by", "found"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE=3"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "SLURM_NTASKS=4"),
    ],
)
def test_ranks_left_out(
    set_by: dict[str, str], found: str, no_launcher: pytest.MonkeyPatch
) -> None:
    """Where a launcher says that there are several ranks, a reader without world_size, which serves
    every batch to each of them, warns once in a process, and says what to write."""
    for name, value in set_by.items():
        no_launcher.setenv(name, value)
    no_launcher.setattr(distributed, "_warned", False)
    with pytest.warns(UserWarning, match=f'{found}.*rank="auto", world_size="auto"'):
        AsyncReader(data=paint(9)).close()
    AsyncReader(data=paint(9), rank=0).close()  # a warning would be an error


@pytest.mark.parametrize(
    "set_by",
    [
        {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {"RANK": "0"},
        {"SLURM_NTASKS": "4"},
        {"WORLD_SIZE": "x"},
    ],
)
def test_no_ranks_to_leave_out(set_by: dict[str, str], no_launcher: pytest.MonkeyPatch) -> None:
    """One process of torchrun inside a SLURM job, rank 0 alone and a shell of salloc are single
    processes: nothing is said."""
    no_launcher.setattr(distributed, "_warned", False)
    for name, value in set_by.items():
        no_launcher.setenv(name, value)
    AsyncReader(data=paint(9)).close()


def test_ranks_said(no_launcher: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever names world_size or asks for "auto" is not warned, a pickled reader's copy is not,
    and neither are bench, doctor and preview, which are no training."""
    no_launcher.setattr(distributed, "_warned", False)
    no_launcher.setenv("RANK", "1")
    no_launcher.setenv("WORLD_SIZE", "2")
    for given in ({"worldSize": 1}, {"rank": "auto"}, {"world_size": "auto"}):
        with AsyncReader({"data": paint(9), **given}) as reader:
            pickle.loads(pickle.dumps(reader)).close()
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["data"] = paint(9)
    params = {"path": str(tmp_path / "set.h5")}
    run_bench(params, nthreads=[1], seconds=0.01)
    Trial(params).close()
    preview_batch(params, count=4)


# -- threads -------------------------------------------------------------------------------------


def test_automatic_threads(no_launcher: pytest.MonkeyPatch) -> None:
    """nthread="auto" shares the usable cores among the ranks of this machine."""
    assert worker_count(parse(nthread=3)) == 3
    no_launcher.setattr(distributed, "usable_cores", lambda: 12)
    auto = parse(nthread="auto")
    assert worker_count(auto) == 12
    for name in ("SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        no_launcher.setenv(name, "4")
        assert worker_count(auto) == 3
        for odd, threads in (("x", 12), ("0", 12), ("100", 1)):
            no_launcher.setenv(name, odd)
            assert worker_count(auto) == threads
        no_launcher.delenv(name)


@pytest.mark.parametrize(
    ("listed", "node", "threads"),
    [("4", "0", 3), ("2(x3),1", "0", 6), ("2(x3),1", "2", 6), ("2(x3),1", "3", 12), ("x", "0", 12)],
)
def test_automatic_threads_of_a_slurm_step(
    listed: str, node: str, threads: int, no_launcher: pytest.MonkeyPatch
) -> None:
    """srun lists its tasks by node, also where nobody asked for so many on each node."""
    no_launcher.setattr(distributed, "usable_cores", lambda: 12)
    no_launcher.setenv("SLURM_STEP_TASKS_PER_NODE", listed)
    no_launcher.setenv("SLURM_NODEID", node)
    assert worker_count(parse(nthread="auto")) == 12  # not a task of the step
    no_launcher.setenv("SLURM_PROCID", "3")
    assert worker_count(parse(nthread="auto")) == threads


def test_nothing_starts_before_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong parameter is found before a thread is started, wherever it is found."""
    import threading

    def never(*_: Any) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", never)
    for given in (
        {"data": paint(4), "nthread": 0},
        {"data": paint(4), "scale": 0.5},
        {"data": paint(4), "batch_size": 5},
        {"data": paint(4), "nonsense": 5},
    ):
        with pytest.raises(ParamsError):
            AsyncReader(given)


@pytest.mark.parametrize(
    ("typed", "names", "meant"),
    [
        ("dgo", ["cat", "dog"], "dog"),
        ("dig", ["cat", "dog"], None),
        ("Flip", ["flip"], "flip"),
        ("flap", ["clip", "flip"], "flip"),
        ("interpolaion", ["interpolation"], "interpolation"),
        ("intrpolaion", ["interpolation"], "interpolation"),
        ("suze", ["size"], "size"),
        ("suzi", ["size"], None),
        ("seeding", ["seed"], None),
        ("", ["seed"], None),
        ("labels_pahts", ["labels_field", "labels_path"], "labels_path"),
    ],
)
def test_slips_of_the_keyboard(typed: str, names: list[str], meant: str | None) -> None:
    """A letter too many, too few, wrong or swapped is a slip; in names of ten letters two are, in
    names of three only swapped ones. The nearest name is meant."""
    assert slip(typed, names) == meant


@pytest.mark.parametrize(
    "name", ["a\0b", "a\ud800b", "a\0*.h5", "dir\ud8ff/x.h5", "s3://b/\0", "\0"]
)
def test_paths_that_no_system_takes(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A null character or half a surrogate pair in a path is a ParamsError that shows it, wherever
    a path is given: readers, lists, labels_path, trace, converters, verify and commands."""
    monkeypatch.chdir(tmp_path)
    file = write_hdf5(tmp_path / "a.h5", packed(paint(8)))
    entries: dict[str, Callable[[], object]] = {
        "path": lambda: AsyncReader(path=name),
        "hdf5_path": lambda: AsyncReader(hdf5_path=name),
        "lmdb_path": lambda: AsyncReader(lmdb_path=name),
        "alone": lambda: AsyncReader(name),
        "list": lambda: AsyncReader([file, name]),
        "labels_path": lambda: AsyncReader(path=file, labels_path=name),
        "src": lambda: convert(name, "out.h5"),
        "dst": lambda: convert(file, f"{name}.h5"),
        "labels": lambda: convert(tmp_path, "out.h5", labels=name),
        "classes": lambda: convert(tmp_path, "out.h5", classes=name),
        "fields": lambda: convert(tmp_path, "out.h5", fields={"mask": name}),
        "params": lambda: convert(file, "out.h5", params={"labels_path": name}),
        "verify": lambda: verify_file(name),
        "HDF5Matrix": lambda: HDF5Matrix(name, "data"),
        "pyxis.Reader": lambda: pyxis.Reader(name),
        "pyxis.Writer": lambda: pyxis.Writer(name),
        "trace": lambda: AsyncReader(path=file, trace=name),
    }
    # of a URL, where none is read, there is no such file
    error = AsyncReaderError if "://" in name else ParamsError
    for where, enter in entries.items():
        with pytest.raises(error) as caught:
            enter()
        assert str(caught.value).isprintable(), where
    for words in (["info", name], ["verify", name], ["bench", name], ["doctor", name]):
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    drawn = CliRunner().invoke(cli, ["preview", file, "--output", f"{name}.png"])
    assert drawn.exit_code == 2 or name.startswith("s3")
    assert os.listdir(tmp_path) == ["a.h5"]


def test_the_home_folder_in_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    """A ~ in front of a path, a pattern or a target is the home folder, as in a shell; a file that
    has the name itself is meant by it."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here / "~"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    write_hdf5(home / "a.h5", packed(paint(8)))
    for given in ("~/a.h5", Path("~/a.h5"), "~/*.h5", ["~/a.h5"]):
        with AsyncReader(path=given, trace="~/t.json") as reader:
            assert reader.count == 8
    assert (home / "t.json").exists()
    assert verify_file("~/a.h5").ok
    convert("~/a.h5", "~/b.h5", params={"labels_path": None})
    assert (home / "b.h5").exists()
    write_hdf5(here / "~" / "a.h5", packed(paint(4)))
    with AsyncReader(path="~/a.h5") as reader:
        assert reader.count == 4
