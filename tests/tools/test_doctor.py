"""The doctor: its facts are right, its words follow from its rates, and its advice can be run."""

import json
import re
import shlex
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import run, save_images
from fakes import hdf5, packed, paint, write_hdf5
from PIL import Image
from told_rates import Told, rate

import converters
from asyncreader.params.parse import parse_params
from asyncreader.pixels import codec
from asyncreader.sources import Inspector, Request, open_source
from asyncreader.tools import doctor
from asyncreader.tools.doctor import Diagnosis, advice, measure
from asyncreader.tools.doctor.advice import Candidate, Ceilings
from asyncreader.tools.doctor.measure import Facts
from asyncreader.tools.trials import Rate, Trials

GIB = 1 << 30

RAW = Facts(
    path="train.h5",
    container="HDF5",
    layout="contiguous",
    ours=False,
    count=100_000,
    encoding="raw",
    encoded=False,
    compression=None,
    chunk=1,
    shape=(224, 224, 3),
    picture=(224, 224),
    unmarked=False,
    packable=True,
    sample_bytes=150_528,
    stored_bytes=150_528,
    files=("train.h5",),
    size=15_052_800_000,
    file_system="ext4",
    network=False,
    cached=1.0,
    memory=64 * GIB,
    cores=2,
)
TOPS = Ceilings(100_000, None, None, 1e9, 2e9)


def diagnose(params: dict[str, Any], told: Told | None = None, **how: Any) -> Diagnosis:
    """A diagnosis of rates that are given: hardly any time is spent on anything else."""
    asked = {"nthread": 2, "batch_size": 8, **params}
    return doctor.diagnose(asked, seconds=0.02, trials=lambda: told or Told(), **how)


def names(found: Facts, **params: Any) -> list[str]:
    asked = {"path": "train.h5", "shuffle": True, **params}
    return [p.name for p in advice.propose(found, parse_params(asked, {}))]


# -- what is proposed ----------------------------------------------------------------------------


GZIP64 = replace(RAW, compression="gzip", chunk=64, shape=(32, 32, 3), picture=(32, 32))
GZIP1 = replace(RAW, compression="gzip", chunk=1)
TINY = replace(RAW, container="LMDB", ours=True, shape=(32, 32, 3), picture=(32, 32))
JPEGS = replace(
    RAW, encoding="original", encoded=True, shape=None, picture=(3000, 4000), stored_bytes=4e6
)
UNMARKED = replace(JPEGS, picture=(300, 400), unmarked=True)
HUGE = replace(RAW, memory=GIB)


@pytest.mark.parametrize(
    ("found", "params", "expected"),
    [
        (RAW, {}, []),
        (GZIP64, {}, ["block", "raw"]),
        (GZIP64, {"shuffle": "block"}, ["raw"]),
        (GZIP1, {}, ["raw"]),
        (HUGE, {}, ["block", "many", "jpeg"]),
        (HUGE, {"shuffle": False}, ["many", "jpeg"]),
        (TINY, {}, []),
        (replace(TINY, memory=GIB), {}, ["block", "many"]),
        (replace(TINY, ours=False), {}, ["raw"]),
        (JPEGS, {"size": (224, 224)}, ["raw", "jpeg"]),
        (replace(JPEGS, deep=True), {"size": (224, 224)}, ["raw"]),
        (JPEGS, {"size": (224, 224), "crop": "random-resized"}, ["jpeg"]),
        (UNMARKED, {"size": (224, 224), "crop": "random-resized"}, ["restarts"]),
        (UNMARKED, {"size": (224, 224)}, ["raw"]),
        (RAW, {"size": (112, 112)}, ["raw"]),
        (replace(GZIP1, packable=False), {}, []),
    ],
)
def test_what_is_tried(found: Facts, params: dict[str, Any], expected: list[str]) -> None:
    """Only changes that could help this layout under these parameters are tried."""
    assert names(found, **params) == expected


def test_pictures_keep_what_crops_need() -> None:
    """Packed pictures keep the margin that crop_ratio or random crops will cut away."""
    for more, expected in (
        ({"crop_ratio": 0.875}, [("raw", (256, 256)), ("jpeg", 256)]),
        ({"crop": "random-resized"}, [("jpeg", 256)]),
    ):
        p = parse_params({"path": "x", "size": (224, 224), **more}, {})
        found = [change.options for change in advice.propose(JPEGS, p)]
        assert found == [{"encoding": encoding, "size": size} for encoding, size in expected]


# -- words ---------------------------------------------------------------------------------------


#: Where decoding is what limits.
DECODING = replace(TOPS, decode_one=500.0, decode_all=1000.0)
HALF = rate(900, decode=4e-4, read=6e-4)
CUT = {"size": (64, 64), "flip": True, "dtype": "float32"}


@pytest.mark.parametrize(
    ("found", "now", "tops", "params", "kind", "says"),
    [
        # chunks, images, the disk or memory, each in words of its own
        (GZIP64, rate(900, decode=1e-3), DECODING, {}, "decode", "63 of 64 are inflated for"),
        (GZIP64, rate(9, decode=1e-3), DECODING, {"shuffle": "block"}, "decode", "!63 of 64"),
        (GZIP64, rate(900, decode=1e-3), TOPS, {}, "decode", "Undoing gzip"),
        (JPEGS, rate(20, decode=0.1), DECODING, {"size": (224, 224)}, "decode",
         "3000 x 4000 (height x width) pixels, of which training sees 224 x 224: 0.4%"),
        (HUGE, rate(6000), TOPS, {}, "disk", "at least 93%"),
        (HUGE, rate(6000), TOPS, {}, "disk", "2.0 times"),
        (RAW, rate(60_000), TOPS, {"copied": True}, "memory", ""),
        # work that is no more than half decoding: what the parameters ask for, with the shares
        (RAW, rate(1000), TOPS, {"size": (100, 100)}, "work", "100 times"),
        (GZIP1, HALF, DECODING, CUT, "work",
         "cutting, resizing, mirroring and converting (60% of the threads' time), "),
        (GZIP1, HALF, DECODING, CUT, "work", "undoing gzip (40% of the threads' time)"),
        (GZIP1, HALF, DECODING, {}, "work",
         "copying (60% of the threads' time), undoing gzip (40%"),
        (GZIP1, HALF, DECODING, {}, "work", "!cutting"),
        (RAW, rate(900), DECODING, {"size": (64, 64)}, "work", "!undoing"),
        (JPEGS, HALF, DECODING, {"size": (64, 64)}, "work", "decoding the images (original) (40%"),
        (GZIP1, rate(900, decode=4e-4, read=6e-4, postprocess=1e-3), DECODING, {}, "work",
         "The work on each sample: postprocess (50% of the"),
        (GZIP1, rate(900, decode=4e-4, read=6e-4, blur=1e-3, postprocess=1e-3), DECODING, {},
         "work", "each sample: postprocess (33% of the threads' time), blur (33%"),
    ],
)  # fmt: skip
def test_what_limits(
    found: Facts, now: Rate, tops: Ceilings, params: dict[str, Any], kind: str, says: str
) -> None:
    """It is named in words, which follow from the facts and rates (!: they do not say so)."""
    copied = params.get("copied", False)
    given = {name: value for name, value in params.items() if name != "copied"}
    p = parse_params({"path": "train.h5", "shuffle": True, **given}, {})
    limit, words = advice.limit(found, p, now, tops, copied)
    assert limit == kind
    assert (says.lstrip("!") in " ".join(words)) is not says.startswith("!")


def tried(name: str, factor: float, command: str | None) -> Candidate:
    gain = {"samples_per_second": factor * 100, "factor": factor}
    return Candidate(name, name, command=command, size=1.0, fits=True, **gain)


def test_what_is_advised() -> None:
    """The most gain; with a consumer the cheapest that keeps up; nothing that gains little. A step
    of 35 ms with batch 128 needs 3,657 samples/s."""
    block, raw = tried("block", 50, None), tried("raw", 500, "asyncreader convert ...")
    assert advice.chosen([block, raw], None, None) is raw
    assert advice.chosen([block, raw], False, 4000.0) is block
    assert advice.chosen([block, raw], False, 40_000.0) is raw
    assert advice.chosen([block, raw], False, 1e9) is raw
    assert advice.chosen([block, raw], True, 50.0) is None
    assert advice.chosen([tried("raw", 1.2, "x")], None, None) is None
    assert advice.keeps_up(8000, 128, 0.035)[0] is True
    keeps, words = advice.keeps_up(1000, 128, 0.035)
    assert keeps is False
    assert "3,657 samples/s, and it gives 27% of that" in words


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        # the fewest threads within a tenth of the fastest
        ((8, 1000), (1, 950), 1),
        ((8, 1000), (1, 600), 8),
        ((8, 1000), None, 8),
        # a difference beyond the spread is one
        ((2, 960, 1000, 1010), (1, 970, 990, 1020), 1),
        ((2, 900, 1000, 1300), (1, 290, 300, 310), 2),
        ((2, 290, 300, 350), (1, 900, 1000, 1100), 1),
        # noise: the number stays, whichever was faster, and a sentence gives both differences
        ((2, 4673, 4777, 7532), (1, 4900, 5000, 5100), "nthread stays 2"),
        ((2, 4673, 4777, 7532), (1, 4400, 4500, 4600), "nthread stays 2"),
    ],
)
def test_threads_are_advised(first: Any, second: Any, number: int | str) -> None:
    """Threads are not wasted, and no number of them is advised for noise: where the turns of a
    trial differ more than the rates do."""
    given = [first] if second is None else [first, second]
    rates = [rate(*turns, nthread=nthread) for nthread, *turns in given]
    found, words = advice.threads(rates)
    if isinstance(number, int):
        assert (found, words) == (number, None)
    else:
        assert found == 2
        for part in ("1 and 2 threads differ by", "the turns of one trial by up to 60%", number):
            assert part in (words or "")


def test_commands_are_fit_for_a_shell() -> None:
    """Names with spaces and JSON values survive; an existing target is not named."""
    given = {"encoding": "raw", "size": (8, 9)}, {"data_field": "a b"}
    words = shlex.split(advice.command("my set.h5", "out.h5", *given))
    assert words[2:4] == ["my set.h5", "out.h5"]
    assert words[4:] == ["--encoding", "raw", "--size", "8x9", "-p", "data_field=a b"]
    taken = {"train-raw.h5", "train-raw-2.h5"}
    assert advice.free_name("train.lmdb/", "raw", taken.__contains__) == "train-raw-3.h5"


def test_rates_of_sets_that_do_not_fit() -> None:
    """What the page cache holds costs nothing, the rest the disk's time; in order nothing is held
    when it is wanted again."""
    assert measure.hit_share(RAW, False) == 1.0
    assert measure.hit_share(HUGE, False) == pytest.approx(GIB / 15_052_800_000)
    assert measure.hit_share(HUGE, True) == 0.0
    assert measure.expected_rate(50_000, 150_528, 0.5, 1e9) == pytest.approx(2e9 / 150_528)
    assert measure.expected_rate(50_000, 150_528, 1.0, 1e9) == 50_000
    assert measure.expected_rate(1000, 150_528, 0.0, 1e9) == 1000


# -- facts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 pictures of 16 x 16, gzip, 50 to a chunk, noise in half of each: (fields x and y)."""
    path = tmp_path_factory.mktemp("doctor") / "my set.h5"
    rng = np.random.default_rng(0)
    pixels = np.zeros((2000, 16, 16, 3), np.uint8)
    pixels[:, :8] = rng.integers(0, 256, (2000, 8, 16, 3), np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=pixels, chunks=(50, 16, 16, 3), compression="gzip")
        file["y"] = np.arange(2000) % 10
    return path


@pytest.mark.parametrize(
    ("order", "suited"),
    [
        ({"weights": "balanced", "epoch_samples": 500}, None),
        ({"shuffle": "balanced-permutation"}, "balanced-permutation"),
    ],
)
def test_draws_are_measured_as_draws(
    chunked: Path, order: dict[str, object], suited: str | None
) -> None:
    """Draws by weight or by class are measured as draws from anywhere in the set, which is told;
    what suits it is no other order than the one asked for."""
    found = diagnose({"path": str(chunked), "data_field": "x", "labels_field": "y", **order})
    assert found.params["shuffle"] == "replacement"
    assert {change.name for change in found.tried} == {"raw"}
    assert found.suited.get("shuffle") == suited
    assert any("measured as" in note for note in found.notes)


def test_a_mix_is_refused(chunked: Path) -> None:
    """The doctor is for one dataset, as it says."""
    result = run("doctor", "-p", f"mix={json.dumps({str(chunked): 1.0})}", "-p", "data_field=x")
    assert result.exit_code == 2
    assert "run it on each dataset of the mix" in result.stderr


def test_copies_are_not_all_the_work(tmp_path: Path) -> None:
    """Where samples are copied as they lie, but a stage takes longer, the stage is what limits."""
    pixels = np.zeros((200, 32, 32, 3), np.uint8)
    path = hdf5(tmp_path / "a.h5", data=pixels, labels=np.arange(200) % 10)
    params = {"path": str(path), "num_classes": 10}
    told = Told(now=rate(1000.0, mixup=1e-4))
    found = diagnose({**params, "mixup": 0.2}, told)
    assert found.limit == "work"
    assert re.search("mixup .*% of the threads' time", found.words[0])
    assert diagnose({**params, "num_classes": None}).limit == "memory"


def test_slow_sets_are_mixed_in_even_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the batch is made smaller for the trials, it stays one that mixup can mix."""
    assert [measure.batch_that_fits(128, rate, 2) for rate in (1, 740, 1e6)] == [2, 36, 128]
    assert [measure.batch_that_fits(127, rate) for rate in (1, 740, 1e6)] == [1, 37, 127]
    monkeypatch.setattr(measure, "_BATCH_SECONDS", 1e-9)
    pixels = np.zeros((50, 8, 8, 3), np.uint8)
    path = hdf5(tmp_path / "a.h5", data=pixels, labels=np.arange(50) % 10)
    told = Told()
    diagnose({"path": str(path), "num_classes": 10, "mixup": 1.0}, told)
    assert told.opened["now"]["batch_size"] == 2


def test_what_chunks_cost(chunked: Path, tmp_path: Path) -> None:
    """Bytes read and inflated for a sample at random are those of all chunks that it lies in; in
    order each chunk counts once, its part outside of the set included."""

    def cost(path: Path, data: str = "x") -> Any:
        source = open_source(path, Request(data=data, labels=None))
        with closing(source):
            return measure.chunk_cost(source.first.index)

    with h5py.File(chunked) as file:
        stored = file["x"].id.get_storage_size()
    assert cost(chunked) == measure.ChunkCost(stored / 40, 50 * 768, stored / 2000, 768)
    with h5py.File(tmp_path / "cut.h5", "w") as file:
        values = np.arange(10 * 30 * 40, dtype=np.float32).reshape(10, 30, 40)
        cut = file.create_dataset("x", data=values, chunks=(4, 30, 25), compression="gzip")
        size = cut.id.get_storage_size()
        file["plain"] = values
        file.create_dataset("chunks", data=values, chunks=(4, 30, 25))
    inflated = 6 * 4 * 30 * 25 * 4
    expected = measure.ChunkCost(size / 3, inflated / 3, size / 10, inflated / 10)
    assert cost(tmp_path / "cut.h5") == expected
    assert cost(tmp_path / "cut.h5", "plain") is None
    assert cost(tmp_path / "cut.h5", "chunks") is None


def test_what_an_epoch_costs() -> None:
    """An epoch takes count / rate; in blocks each chunk is read once, plain pixels are not
    inflated."""
    chunks = measure.ChunkCost(20_000.0, 196_608.0, 312.5, 3072.0)
    found = replace(GZIP64, chunks=chunks, count=1000)
    block = replace(tried("block", 5.0, None), size=1e6)
    raw = replace(block, name="raw", command="asyncreader convert ...", samples_per_second=2000.0)
    raw = replace(raw, size=3_072_000.0)
    failed = replace(raw, samples_per_second=None)
    p = parse_params({"path": "train.h5", "shuffle": True}, {})
    rows = advice.epochs(found, p, 100.0, [block, raw, failed])
    assert [(one.read, one.inflated, one.seconds) for one in rows] == [
        (20_000.0, 196_608.0, 10.0), (312.5, 3072.0, 2.0), (3072.0, 0.0, 0.5)
    ]  # fmt: skip
    assert [one.command for one in rows] == [None, None, "asyncreader convert ..."]
    p = parse_params({"path": "train.h5", "shuffle": "block"}, {})
    assert advice.epochs(found, p, 100.0, [])[0].inflated == 3072.0
    assert advice.epochs(GZIP1, p, 100.0, []) == []


# -- measuring -----------------------------------------------------------------------------------


def test_samples_for_packing() -> None:
    """Evenly spread records; whole chunks where samples are compressed together; of a subset."""
    assert measure.spread(1000, 4, 1, None).tolist() == [0, 333, 666, 999]
    chosen = measure.spread(1000, 120, 50, None)
    assert chosen.size == 120
    assert (np.diff(chosen.reshape(-1)[:50]) == 1).all()
    assert set(chosen[::50] % 50) == {0}
    assert measure.spread(9, 100, 1, np.array([5, 7])).tolist() == [5, 7]


# -- the whole -----------------------------------------------------------------------------------


def test_advice_can_be_followed(chunked: Path) -> None:
    """A compressed set: repacking and block shuffle are tried for real, the command that is named
    runs as it stands, and what it makes serves the same samples."""
    words = ("--batch-size", "32", "-p", "data_field=x", "-p", "labels_field=y")
    result = run("doctor", chunked, "--seconds", "1", "--json", *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["limit"] in {"decode", "work"}
    assert found["facts"]["chunk"] == 50
    assert found["now"]["samples_per_second"] > 0
    for nthread, median in found["by_nthread"].items():
        assert found["spread"][nthread][0] <= median <= found["spread"][nthread][1]
    assert {change["name"] for change in found["tried"]} == {"raw", "block"}
    assert all(change["factor"] > 0 and change["measured"] for change in found["tried"])
    (command,) = [change["command"] for change in found["tried"] if change["command"]]
    program, *arguments = shlex.split(command)
    assert program == "asyncreader"
    assert run(*arguments, "--quiet").exit_code == 0
    with h5py.File(chunked.with_name("my set-raw.h5")) as new, h5py.File(chunked) as old:
        assert (new["data"][()] == old["x"][()]).all()
        assert (new["labels"][:, 0] == old["y"][()]).all()


def test_restart_markers_are_tried(tmp_path: Path) -> None:
    """For random crops of plain JPEGs they are tried; the command that is named adds them without
    changing a pixel, and is not named again for the set that has them."""
    large = (Image.fromarray(one).resize((640, 480), Image.Resampling.BICUBIC) for one in paint(8))
    save_images(tmp_path / "in", {f"{n}.jpg": image for n, image in enumerate(large)})
    old, new = tmp_path / "set.h5", tmp_path / "set-restarts.h5"
    converters.convert(tmp_path / "in", old, encoding="original", no_labels=True)
    crop = {"size": (224, 224), "crop": "random-resized", "batch_size": 4}
    found = diagnose({"path": str(old), **crop})
    (change,) = [change for change in found.tried if change.name == "restarts"]
    assert change.factor == 1.0
    words = ["convert", str(old), str(new), "--restarts"]
    assert change.command == shlex.join(["asyncreader", *words])
    assert run(*words, "--quiet").exit_code == 0
    with closing(open_source(old)) as before, closing(open_source(new)) as after:
        assert not measure.look(after, str(new)).unmarked
        for record in range(8):
            first, second = (Inspector(one.first).bytes(record) for one in (before, after))
            assert first != second
            assert (codec.decode(first, 3) == codec.decode(second, 3)).all()


def test_doctor_prints_for_people(chunked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line but a command is longer than 80 columns; the sections are there; --quiet leaves what
    limits and what to do."""
    monkeypatch.setattr(doctor, "diagnose", partial(doctor.diagnose, trials=Told))
    words = ["doctor", chunked, "--seconds", "1", "-p", "data_field=x", "--consumer-ms", "35"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    for head in ("What limits it", "What was tried", "What to do"):
        assert f"\n{head}\n" in result.stdout
    assert "The loader " in result.stdout
    assert re.search(r"\nloader +[\d,]+ samples/s\s+\([\d,]+\s+to\s+[\d,]+\s+in", result.stdout)
    lines = [line for line in result.stdout.splitlines() if "asyncreader convert" not in line]
    assert max(map(len, lines)) <= 80
    assert result.stderr == ""
    short = run(*words, "--quiet")
    assert "What was tried" not in short.stdout
    assert "What to do" in short.stdout


def test_large_pictures_are_taken_to_be_cut(tmp_path: Path) -> None:
    """Original photographs of many megapixels: training is not taken to see them whole."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 30, 40, 3), np.uint8)
    large = (Image.fromarray(one).resize((1400, 1000)) for one in noise)
    save_images(tmp_path / "in", {f"{n}.jpg": image for n, image in enumerate(large)})
    converters.convert(tmp_path / "in", tmp_path / "o.h5", encoding="original", no_labels=True)
    told = Told(now=rate(100.0, decode=1e-2), jpeg=rate(500.0), raw=rate(400.0))
    found = diagnose({"path": str(tmp_path / "o.h5")}, told)
    assert any("224x224" in note for note in found.notes)
    assert found.limit == "decode"
    assert {change.name for change in found.tried} == {"raw", "jpeg"}
    best = found.tried[0]
    assert best.worth
    assert best.command is not None
    assert "--size 224" in best.command


def test_what_cannot_be_packed_is_told(tmp_path: Path) -> None:
    """A form that cannot be packed is listed with its reason; the diagnosis goes on."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        pixels = np.zeros((100, 8, 8, 3), "u1")
        file.create_dataset("data", data=pixels, chunks=(10, 8, 8, 3), compression="gzip")
    nonsense = [Candidate("raw", "pack it", options={"encoding": "nonsense"})]
    found = diagnose({"path": str(path)}, propose=lambda *_: nonsense)
    assert found.tried[0].failure is not None
    assert "nonsense" in found.tried[0].failure
    assert found.advised is None


@pytest.fixture(params=[False, True])
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> tuple[Path, bool]:
    """A set that is larger than the memory of the tests, and whether none of it is cached."""
    path = Path(write_hdf5(tmp_path / "a.h5", packed(paint(600, (16, 16, 3)))))
    if request.param:
        pages = -(-path.stat().st_size // 4096)
        monkeypatch.setattr(measure, "cached_pages", lambda _: np.zeros(pages, np.uint8))
    return path, request.param


def test_a_set_larger_than_memory(large: tuple[Path, bool]) -> None:
    """Trials read records that are not in memory, each trial its own; where there are none, that
    is told. What the page cache would hold is added by calculation, and said to be so."""
    (path, cold), told = large, Told()
    found = diagnose({"path": str(path)}, told, memory=200_000)
    opened = list(told.opened.values())
    assert not found.measured
    assert {change.name for change in found.tried} == {"block", "many"}
    assert found.suited["io"] == "pread"
    assert any("too little" in note for note in found.notes) is not cold
    parts = [(set(p["subset"].tolist()), p["shuffle"]) for p in opened if "subset" in p]
    assert bool(parts) is cold
    if cold:
        random = [part for part, shuffle in parts if shuffle is True]
        assert len(random) == 3
        assert sum(map(len, random)) == len(set.union(*random))
        assert all(p["io"] == "pread" for p in opened)


def test_a_subset_is_repacked_at_the_size_of_its_samples(
    chunked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk allows a repacked subset is worked out from the bytes of a repacked sample: the
    size told for the subset, by its number of samples."""
    asked: list[float] = []
    expected_rate = measure.expected_rate

    def noted(warm: float, stored_bytes: float, *rest: Any) -> float:
        asked.append(stored_bytes)
        return expected_rate(warm, stored_bytes, *rest)

    monkeypatch.setattr(measure, "expected_rate", noted)
    given = {"path": str(chunked), "data_field": "x", "labels_field": None}
    found = diagnose({**given, "subset": slice(0, 200), "nthread": 1}, memory=1000)
    (raw,) = (change for change in found.tried if change.command is not None)
    assert asked == [pytest.approx((raw.size or 0) / 200)]
    assert asked[0] >= 16 * 16 * 3


def test_several_fields(tmp_path: Path) -> None:
    """Pictures with their masks are measured together, a batch's bytes are those of both, and they
    are repacked together by the command."""
    rng, masks = np.random.default_rng(0), tmp_path / "masks"
    for folder, shape in (("in", (8, 40, 60, 3)), ("masks", (8, 40, 60))):
        pixels = rng.integers(0, 256, shape, np.uint8)
        save_images(tmp_path / folder, {f"{n}.png": one for n, one in enumerate(pixels)})
    path, more = str(tmp_path / "m.lmdb"), {"fields": {"mask": masks}, "no_labels": True}
    converters.convert(tmp_path / "in", path, encoding="original", **more)
    params = {"path": path, "data_field": ["data", "mask"]}
    found = diagnose(params)
    (raw,) = (change for change in found.tried if change.name == "raw")
    assert raw.failure is None
    assert (raw.size or 0) > 8 * 40 * 60 * (3 + 1)
    assert raw.command is not None
    assert run(*shlex.split(raw.command)[1:]).exit_code == 0
    with h5py.File(tmp_path / "m-raw.h5") as file:
        assert file["mask"].shape == (8, 40, 60, 1)
    with Trials() as trials:
        trials.add("now", {**params, "batch_size": 8})
        assert trials.run(0.01)["now"].batch_bytes == 8 * 40 * 60 * (3 + 1)


def test_several_files(chunked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glob is measured as one set; what it would be repacked as is told to go file by file, with
    --quiet as well."""
    given = {"path": str(chunked.with_name("my s[e]t.h5")), "data_field": "x"}
    found = diagnose({**given, "labels_field": None})
    assert {change.name: bool(change.failure) for change in found.tried} == {
        "block": False,
        "raw": True,
    }
    monkeypatch.setattr(doctor, "diagnose", partial(doctor.diagnose, trials=Told))
    words = ("--quiet", "--seconds", "1", "-p", "data_field=x", "-p", "labels_field=null")
    short = run("doctor", given["path"], *words)
    assert "doctor does not convert several files" in short.stdout


def test_records_that_lie_whole_below_an_offset(tmp_path: Path) -> None:
    """What of a file is in memory is measured by the records that end there; where the last one
    ends is not known."""
    with closing(open_source(hdf5(tmp_path / "a.h5", data=np.zeros((10, 100))))) as source:
        begins = source.first.offsets(np.arange(10))
        for more, last in ((0, 6), (99, 6), (800, 7), (1 << 20, 9)):
            below = measure.records_below(source.first, int(begins[6]) + more, None)
            assert below is not None
            assert below.tolist() == list(range(last))
