"""``asyncreader bench``: what it prints, what it takes, and how it measures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_sets import differing, run

import asyncreader
from asyncreader import AsyncReader, ParamsError
from asyncreader.tools.trials import run_bench


def test_bench_prints_a_row_for_each_thread_count(packed: Path) -> None:
    """bench gives samples/s, MB/s and waiting by nthread, of a set smaller than its batch too."""
    result = run("bench", packed, "--seconds", "0.02", "--nthread", "2,1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"{packed}: 20 samples, shuffled, njob 4"
    assert lines[1] == "batch 128 x 3 x 12 x 10 uint8, 46.1 kB"
    assert lines[2].split() == ["nthread", "samples/s", "slowest", "-", "fastest", "MB/s", "wait"]
    assert [line.split()[0] for line in lines[3:]] == ["2", "1"]
    assert result.stderr == ""


def test_bench_json_and_parameters(packed: Path) -> None:
    """Options and --param reach the reader; the JSON carries every turn."""
    words = "--seconds 0.02 --nthread 1 --batch-size 4 --njob 2 --no-shuffle --dtype float32"
    result = run("bench", packed, *words.split(), "-p", "layout=NHWC", "-p", "scale=0.5", "--json")
    report = json.loads(result.stdout)
    assert report["data_shape"] == [4, 12, 10, 3]
    assert report["dtype"] == "float32"
    assert report["batch_bytes"] == 4 * 12 * 10 * 3 * 4
    assert report["params"]["shuffle"] is False
    (row,) = report["rows"]
    assert len(row["turns"]) == 3
    rates = sorted(turn["samples"] / turn["seconds"] for turn in row["turns"])
    assert [row["slowest"], row["samples_per_second"], row["fastest"]] == rates
    for turn in row["turns"]:
        assert turn["bytes"] == turn["samples"] * report["batch_bytes"] / 4


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["weights=balanced"], "drawn by weights"),
        (["weights=[1, 0, 0, 3]", "subset=0:4", "epoch_samples=40"], "drawn by weights"),
        (["shuffle=balanced-permutation"], "shuffled"),
        (["shuffle=replacement", "epoch_samples=9"], "shuffled"),
    ],
)
def test_bench_of_draws(packed: Path, words: list[str], order: str) -> None:
    """bench measures draws by weight and by class, given with -p, and says so."""
    asked = [part for word in words for part in ("-p", word)]
    result = run("bench", packed, "--seconds", "0.02", "--nthread", "1", *asked)
    assert result.exit_code == 0, result.stderr
    assert f", {order}, njob 4" in result.stdout.splitlines()[0]
    wrong = run("bench", packed, "--seconds", "0.02", "-p", "weights=[1, -1]")
    assert wrong.exit_code == 2
    assert "weights[1] is not valid; found -1.0" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["augment=trivial-augment-wide"], {"trivial-augment-wide"}),
        (['augment=["color-jitter", {"brightness": 0.4}]', "mixup=0.2"], {"color-jitter", "mixup"}),
        (["transform=dims:dim", "cutmix=1", "label_smoothing=0.1"], {"transform", "cutmix"}),
    ],
)
def test_bench_says_what_each_step_takes(
    words: list[str], steps: set[str], packed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Augmentation, transform and mixing are given with -p, and each has its part of the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dims.py").write_text("def dim(image): image //= 2\n")
    asked = [part for word in words for part in ("-p", word)]
    line = ["bench", packed, "--seconds", "0.02", "--nthread", "1", "--batch-size", "8", *asked]
    result = run(*line)
    assert result.exit_code == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("time of 1 thread: ")
    assert steps <= set(re.findall(r"([a-z-]+) \d+%", last))
    (row,) = json.loads(run(*line, "--json").stdout)["rows"]
    assert {"read", *steps} <= set(row["steps"])
    assert sum(row["steps"].values()) == pytest.approx(1)


def test_a_mix_on_the_command_line(packed: Path, tmp_path: Path) -> None:
    """bench and info take the sets of -p mix={...} in place of PATH; both or none is a mistake."""
    other = differing(tmp_path / "o.h5")
    mix = f"mix={json.dumps({str(packed): 0.75, str(other): 0.25})}"
    quick = ["--seconds", "0.01", "--nthread", "1", "--batch-size", "4"]
    result = run("bench", *quick, "--size", "8x8", "-p", mix, "-p", "labels_field=None")
    assert result.exit_code == 0, result.stderr
    assert re.match(r".* and 1 more: \d+ samples, shuffled, njob 4\n", result.stdout)
    told = json.loads(run("info", "-p", mix, "-p", "labels_field=None", "--json").stdout)
    with asyncreader.AsyncReader(str(other), size=(8, 8)) as reader:
        assert told["count"] == 20 + reader.count
    assert [(one["path"], one["ratio"]) for one in told["sets"]] == [
        (str(packed), 0.75),
        (str(other), 0.25),
    ]
    shown = run("info", "-p", mix, "-p", "labels_field=None").stdout
    assert f"set 0 {packed}: 0.75 of a batch, 20 samples" in re.sub(r"\s+", " ", shown)
    for words, says in (([packed, "-p", mix], "found path and mix"), ([], "Missing argument")):
        result = run("bench", *words)
        assert result.exit_code == 2
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
        assert says in result.stderr


def test_bench_of_pictures_that_differ_in_size(tmp_path: Path) -> None:
    """Such a set is measured at 224 x 224, and that is said, unless --size says otherwise."""
    target = differing(tmp_path / "o.h5")
    words = ["bench", target, "--seconds", "0.01", "--nthread", "1", "--batch-size", "2"]
    result = run(*words)
    assert "\nbatch 2 x 3 x 224 x 224 uint8" in result.stdout
    assert result.stderr == "the images differ in size: cut to 224x224; see --size\n"
    result = run(*words, "--size", "8x9")
    assert "\nbatch 2 x 3 x 8 x 9 uint8" in result.stdout
    assert result.stderr == ""


def test_bench_takes_turns(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread counts alternate and go back and forth, so that none always comes first. Whatever the
    turns, the structure of the file is read once."""
    order: list[int] = []
    opened: list[object] = []
    init, open_set = AsyncReader.__init__, asyncreader.pipeline.build.open_set

    def note(reader: AsyncReader, params: Any, **given: Any) -> None:
        order.append(given["nthread"])
        init(reader, params, **given)

    monkeypatch.setattr(AsyncReader, "__init__", note)
    monkeypatch.setattr(
        "asyncreader.pipeline.build.open_set", lambda params: opened.append(1) or open_set(params)
    )
    seen: list[tuple[int, int]] = []
    run_bench(
        {"path": str(packed), "batch_size": 4},
        nthreads=(1, 2, 3),
        seconds=0.003,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert order == [1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert seen == [(n, 9) for n in range(1, 10)]
    assert len(opened) == 1
    given = {"nthreads": (1,), "seconds": 0.01, "consumer_seconds": 0.01}
    (row,) = run_bench({"path": str(packed), "batch_size": 4}, **given).rows
    assert row.samples_per_second <= 4 / 0.01  # a consumer that takes so long is waited for


def test_bench_refuses_what_cannot_be(packed: Path) -> None:
    """Nothing to measure, or an unknown parameter, is a usage error."""
    with pytest.raises(ParamsError):
        run_bench({"path": str(packed)}, nthreads=())
    for words in (["--nthread", "x"], ["-p", "foo=1"], ["-p", "foo"], ["--size", "8"]):
        result = run("bench", packed, *words)
        assert result.exit_code == 2, words
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
