"""Every parameter: its default, its two spellings, and what is said about a wrong value."""

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

import numpy as np
import pytest
from command_sets import run
from fakes import hdf5, packed, paint, write_hdf5
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
    Window,
)
from asyncreader.faces import pyxis
from asyncreader.faces.hdf5matrix import HDF5Matrix
from asyncreader.params.keywords import ReaderKeywords
from asyncreader.params.other_names import OTHER_NAMES
from asyncreader.params.parse import parse_params, snake_case
from asyncreader.params.reader import PARAMETERS, ReaderParams
from asyncreader.pipeline import distributed
from asyncreader.pipeline.distributed import rank_and_world, worker_count
from asyncreader.system.text import plain_name, slip
from asyncreader.tools.preview import preview_batch
from asyncreader.tools.trials import Trial, run_bench
from asyncreader.tools.verify import verify_file
from converters import convert

HEAVY = {"numba", "llvmlite", "cv2", "h5py", "lmdb", "PIL", "simplejpeg", "imagecodecs", "asyncio"}


def test_parameters_load_nothing_heavy() -> None:
    """Declarations load not even numpy, for Tab and --help read them; checking values needs numpy
    alone: no compiler, no file format and no decoder."""
    code = """import sys, asyncreader.params.parse as p
    print(*{name.split('.')[0] for name in sys.modules})
    p.parse_params('a.h5', dict(size=(2, 3), dtype='f4', mean=(1, 2), subset=[1], seed=1))
    print(*{name.split('.')[0] for name in sys.modules})"""
    words = [sys.executable, "-c", code.replace("\n    ", "\n")]
    out = subprocess.run(words, capture_output=True, text=True, check=True)
    declared, checked = (set(line.split()) for line in out.stdout.splitlines())
    assert {"numpy", "rich", "click", *HEAVY} & declared == set()
    assert "numpy" in checked
    assert HEAVY & checked == set()


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
    (
        {"mix": Mix({"a.h5": 1.0}, until="first", classes="own")},
        {"mix": {"a.h5": 1.0}, "mix_until": "first", "classes": "own"},
        {},
    ),
    ({"window": Window(every=4)}, {"window_every": 4}, {"episodes": "files"}),
    (
        {"window": Window((-2, 2), every=4, edge="zero", outside=(1, None))},
        {
            "window": (-2, 2),
            "window_every": 4,
            "window_edge": "zero",
            "window_outside": (1, None),
        },
        {},
    ),
    (
        {"patch": Patch((4, 5), axes=(1, 2), at="grid", step=2)},
        {"patch": (4, 5), "patch_axes": (1, 2), "patch_at": "grid", "patch_step": 2},
        {"sample_axis": None},
    ),
    ({"lengths": {"data": 512}}, {"max_length": {"data": 512}}, {}),
    (
        {"lengths": Lengths(9, overlong="error", pad=-1)},
        {"max_length": 9, "overlong": "error", "pad_value": -1},
        {},
    ),
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
    ({"axes": "HWCN"}, {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3}, {}),
    ({"axes": None}, {}, {}),
]

#: Values that are taken, and what they become.
GOOD: list[tuple[str, Any, Any]] = [
    ("path", Path("a.h5"), "a.h5"),
    ("path", ["a.h5", Path("b.h5")], ("a.h5", "b.h5")),
    ("batch_size", np.int32(7), 7),
    ("nthread", 1024, 1024),
    ("njob", 4096, 4096),
    ("shuffle", np.True_, True),
    ("seed", 2**64 - 1, 2**64 - 1),
    ("num_dim", 1, 1),
    ("members", "pt", "pt"),
    ("members", ["pt", "eta"], ("pt", "eta")),
    ("members", {"jets": ["pt"], "tracks": "d0"}, {"jets": ("pt",), "tracks": "d0"}),
    ("dtype", {"data": np.float16, "mask": "int64"}, {"data": "float16", "mask": "int64"}),
    ("dtype", np.dtype("uint16"), "uint16"),
    ("scale", {"data": 2}, {"data": 2.0}),
    ("scale", np.float32(0.5), 0.5),
    ("mean", 3, (3.0,)),
    ("mean", [1, 2, 3], (1.0, 2.0, 3.0)),
    ("std", {"data": 2, "x": [1, 2]}, {"data": (2.0,), "x": (1.0, 2.0)}),
    ("std", np.array([0.5]), (0.5,)),
    ("size", [np.int64(5), 6], (5, 6)),
    ("size", (65_535, 1), (65_535, 1)),
    ("timeout", 1, 1.0),
]


def parse(**given: Any) -> ReaderParams:
    """Parameters with a path where none is given."""
    if not {"path", "data", "hdf5_path", "lmdb_path", "mix"} & given.keys():
        given["path"] = "a.h5"
    return parse_params(given, {})


def test_defaults() -> None:
    """Where nothing is said a reader has the declared defaults, which docs/parameters.md lists."""
    assert parse().flat() == {n: one.default for n, one in PARAMETERS.items()} | {"path": "a.h5"}


def test_keywords_are_the_parameters() -> None:
    """Type checkers know exactly the parameters, by both kinds of names, as they are declared;
    help() and notebooks show families as one parameter, with the fields of each under it."""
    assert set(ReaderKeywords.__annotations__) == {*PARAMETERS, *FAMILIES}
    assert (ROOT / KEYWORDS).read_text(encoding="utf-8") == keywords()
    shown = dict(inspect.signature(AsyncReader).parameters)
    assert shown.pop("params").default is None
    parts = {flat for names in FAMILIES.values() for flat in names}
    assert shown.keys() == PARAMETERS.keys() - parts | FAMILIES.keys()
    text = str(AsyncReader.__init__.__doc__)
    assert all(f"    {name}: " in text or f"(or {name}=): " in text for name in shown)
    assert all(f"(or {flat}=): " in text for names in FAMILIES.values() for flat in names[1:])

    class Mine(AsyncReader):
        def __init__(self, number: int) -> None: ...

    assert list(inspect.signature(Mine).parameters) == ["number"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_both_spellings(name: str) -> None:
    """camelCase is the same parameter; the same one in both spellings is an error."""
    camel = re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)
    assert snake_case(camel) == name
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


@pytest.mark.parametrize("axes", ["NHW", "nhwc", "NHWCC", 5, ("N", "H", "W", "C")])
def test_axes_that_are_none(axes: Any) -> None:
    """axes takes the four letters of NHWC in any order, and nothing else."""
    with pytest.raises(ParamsError, match="axes is not valid"):
        parse(axes=axes)


def test_keywords_override_the_dict() -> None:
    """Keywords win over the dict, whichever way each is spelt; the dict is not changed."""
    given = {"path": "a.h5", "batchSize": 8}
    assert parse_params(given, {"batch_size": 64}).batch_size == 64
    assert parse_params({"path": "a.h5", "batch_size": 8}, {"batchSize": 64}).batch_size == 64
    assert parse_params({"hdf5Path": "a.h5"}, {}) == parse_params(None, {"hdf5_path": "a.h5"})
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


#: Names that no parameter has, a value, and what the answer says.
UNKNOWN: list[tuple[str, Any, str]] = [
    ("postProces", 1, "did you mean 'postprocess'?"),
    ("hdf5-path", 1, "did you mean 'hdf5_path'?"),
    ("paht", 1, "did you mean 'path'?"),
    ("seeding", 1, "docs/parameters.md and help(AsyncReader) list all parameters"),
    ("no", 1, "docs/parameters.md and help(AsyncReader) list all parameters"),
    ("num_workers", 4, "write nthread=4 "),
    ("numWorkers", 0, "write nthread=1 "),
    ("num_worker", 4, "write nthread=4 "),
    ("prefetch_factor", 0, "write njob=1 "),
    ("prefetch_factor", None, "write njob=... "),
    ("bs", 64, "write batch_size=64"),
    ("bs", "many", "write batch_size=..."),
    ("pin_memory", True, "write cuda=True"),
    ("image_size", 224, "write size=(224, 224)"),
    ("img_size", (224, 192), "write size=(224, 192)"),
    ("target_size", object(), "write size=..."),
    ("image_shape", (3, 32, 32), "write size=(H, W)"),
    ("dataset", "train.h5", "write path='train.h5'"),
    ("root", Path("a"), "write path='a'"),
    ("rotate", 10, 'write augment=[("random-rotation", {"degrees": 10})]'),
    ("RandAugment", True, 'write augment="rand-augment"'),
    ("crop_scale", (0.2, 1), 'write crop="random-resized", crop_area=(0.2, 1)'),
    ("repeat", True, "write epochs=... to end"),
    ("padding", 4, "crop_padding=4 for images; max_length="),
    ("proportions", [1, 2], "write mix={path: ratio}"),
]


@pytest.mark.parametrize(("name", "value", "says"), UNKNOWN)
def test_unknown_names(name: str, value: Any, says: str) -> None:
    """An unknown parameter is an error. A slip of the keyboard is answered with the nearest name, a
    name from torch, FFCV, Keras or DALI with the line to write here, with the value if it is one
    that the parameter takes; any other with the places that list all parameters."""
    with pytest.raises(ParamsError, match="unknown parameter") as caught:
        parse(**{name: value})
    assert name in str(caught.value)
    assert says in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "a", 5: 1}, "5"),
        (5, "must be a dict or a path"),
        (np.zeros(3), "arrays go as data="),
    ],
)
def test_params_that_are_none(given: Any, says: str) -> None:
    """A name that is no text is named, and what is no dict is told what to pass."""
    with pytest.raises(ParamsError, match=says):
        parse_params(given, {})


def test_lines_of_habits_are_right() -> None:
    """Every parameter that an answer names exists, and no habit hides one."""
    for name, line in OTHER_NAMES.items():
        assert name == plain_name(name) not in map(plain_name, PARAMETERS)
        for written, value in re.findall(r'(?<![\w.(])(\w+)=("[^"]*"|True|False|\d+\b|)', line):
            assert written in {*PARAMETERS, *FAMILIES}, line
            if value:
                PARAMETERS[written].check(written, ast.literal_eval(value))
        for operations in re.findall(r"augment=(\[.*\])", line.format(10)):
            PARAMETERS["augment"].check("augment", ast.literal_eval(operations))


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

AUTO: dict[str, Any] = {"rank": "auto", "world_size": "auto"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "5"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "9"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}

#: A launcher's variables, what is given, and the rank and world size, or what the error says.
RANKS: list[tuple[dict[str, str], dict[str, Any], tuple[int, int] | str]] = [
    (TORCHRUN, AUTO, (2, 5)),
    (MPI, AUTO, (3, 9)),
    (SLURM, AUTO, (1, 4)),
    # torchrun inside a job of SLURM goes by torchrun
    ({**SLURM, **MPI, **TORCHRUN}, AUTO, (2, 5)),
    ({**SLURM, **MPI}, AUTO, (3, 9)),
    # one "auto" is enough; the other agrees or was left out
    (TORCHRUN, {"rank": "auto"}, (2, 5)),
    (TORCHRUN, {"world_size": "auto"}, (2, 5)),
    (TORCHRUN, {"rank": "auto", "world_size": 5}, (2, 5)),
    (TORCHRUN, {"rank": 2, "world_size": "auto"}, (2, 5)),
    (TORCHRUN, {"rank": 1, "world_size": "auto"}, "rank is not what the launcher says"),
    (TORCHRUN, {"rank": "auto", "world_size": 4}, "world_size is not what the launcher says"),
    # without "auto" nothing is read
    (TORCHRUN, {}, (0, 1)),
    (TORCHRUN, {"rank": 1, "world_size": 3}, (1, 3)),
    ({"RANK": "3"}, {}, (0, 1)),
    # without a launcher it is a single process
    ({}, AUTO, (0, 1)),
    ({}, {**AUTO, "last_batch": "short"}, (0, 1)),
    ({}, {"rank": "auto", "world_size": 4}, "found no launcher"),
    ({}, {"rank": 1, "world_size": "auto"}, "found no launcher"),
    # numbers that make no sense
    ({"RANK": "x", "WORLD_SIZE": "4"}, AUTO, "RANK=x, WORLD_SIZE=4"),
    ({"RANK": "4", "WORLD_SIZE": "4"}, AUTO, "RANK=4, WORLD_SIZE=4"),
    ({"RANK": "-1", "WORLD_SIZE": "4"}, AUTO, "RANK=-1, WORLD_SIZE=4"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, AUTO, "RANK=0, WORLD_SIZE=0"),
    # half a launcher would silently read the whole set
    ({"RANK": "3"}, AUTO, "WORLD_SIZE go together; found RANK=3"),
    ({"WORLD_SIZE": "4"}, AUTO, "found WORLD_SIZE=4"),
    ({"OMPI_COMM_WORLD_RANK": "1"}, AUTO, "OMPI_COMM_WORLD_SIZE go together"),
    ({"SLURM_PROCID": "2"}, AUTO, "SLURM_NTASKS go together"),
    # a batch script of SLURM, a shell of salloc and rank 0 alone are single processes
    ({"RANK": "0"}, AUTO, (0, 1)),
    ({"SLURM_PROCID": "0"}, AUTO, (0, 1)),
    ({"SLURM_NTASKS": "4"}, AUTO, (0, 1)),
]


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any launcher's variables."""
    for name in list(os.environ):
        if re.match(r"SLURM_|OMPI_|RANK$|WORLD_SIZE$|LOCAL_", name):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(("variables", "given", "expected"), RANKS)
def test_ranks_of_launchers(
    variables: dict[str, str],
    given: dict[str, Any],
    expected: tuple[int, int] | str,
    no_launcher: pytest.MonkeyPatch,
) -> None:
    """ "auto" reads rank and world size of the usual launchers, or is an error."""
    for name, value in variables.items():
        no_launcher.setenv(name, value)
    if isinstance(expected, tuple):
        assert rank_and_world(parse(**given)) == expected
        return
    with pytest.raises(ParamsError, match=expected):
        rank_and_world(parse(**given))


def test_short_batches_and_auto_ranks(no_launcher: pytest.MonkeyPatch) -> None:
    """last_batch="short" is refused as soon as a launcher says that there are several ranks."""
    no_launcher.setenv("RANK", "0")
    no_launcher.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParamsError, match="short"):
        AsyncReader(data=paint(9), last_batch="short", rank="auto", world_size="auto")


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE=3"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "SLURM_NTASKS=4"),
        # single processes: torchrun inside a job of SLURM, rank 0 alone, a shell of salloc
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        ({"RANK": "0"}, None),
        ({"SLURM_NTASKS": "4"}, None),
        ({"WORLD_SIZE": "x"}, None),
    ],
)
def test_ranks_left_out(
    variables: dict[str, str], found: str | None, no_launcher: pytest.MonkeyPatch
) -> None:
    """Where a launcher says that there are several ranks, a reader without world_size, which serves
    every batch to each of them, warns once in a process, and says what to write."""
    for name, value in variables.items():
        no_launcher.setenv(name, value)
    no_launcher.setattr(distributed, "_warned", False)
    if found is not None:
        with pytest.warns(UserWarning, match=f'{found}.*rank="auto", world_size="auto"'):
            AsyncReader(data=paint(9)).close()
    AsyncReader(data=paint(9), rank=0).close()  # a warning would be an error


def test_ranks_said(no_launcher: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever names world_size or asks for "auto" is not warned, a pickled reader's copy is not,
    and neither are bench, doctor and preview, which are no training."""
    no_launcher.setattr(distributed, "_warned", False)
    no_launcher.setenv("RANK", "1")
    no_launcher.setenv("WORLD_SIZE", "2")
    for given in ({"worldSize": 1}, {"rank": "auto"}, {"world_size": "auto"}):
        with AsyncReader({"data": paint(9), **given}) as reader:
            pickle.loads(pickle.dumps(reader)).close()
    hdf5(tmp_path / "set.h5", data=paint(9))
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
        ("BatchSiz", ["batch_size"], "batch_size"),
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
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    drawn = run("preview", file, "--output", f"{name}.png")
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
