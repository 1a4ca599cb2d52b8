"""convert --dry-run: what is in a folder of pictures, and what each encoding takes and gives."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_sets import run, save_images
from fakes import packed, pictures, write_hdf5
from told_rates import Told

from asyncreader import ParamsError, SampleError, SourceNotFoundError
from asyncreader.tools.doctor.advice import Candidate
from asyncreader.tools.doctor.folder import Survey, _advised
from asyncreader.tools.doctor.folder import survey as measured_survey

#: (H, W) of the pictures of the folder, three of each class.
SIZES = [(300, 400), (40, 50), (280, 270)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with JPEGs of three sizes, a PNG, a text file, a truncated JPEG, a dead link."""
    images: dict[str, Any] = {
        f"{name}/{number}, a.jpg": pictures(1, (high, wide, 3))[0]
        for name in ("cat", "dog")
        for number, (high, wide) in enumerate(SIZES)
    }
    images["dog/grey.png"] = np.zeros((40, 50), np.uint8)
    folder = save_images(tmp_path_factory.mktemp("dry") / "my photos", images)
    (folder / "dog" / "notes.txt").write_text("x")
    whole = (folder / "cat" / "0, a.jpg").read_bytes()
    (folder / "cat" / "bad.jpg").write_bytes(whole[: len(whole) // 2])
    os.symlink("/nowhere", folder / "dog" / "link.jpg")
    return folder


def survey(*paths: str, **given: Any) -> Survey:
    """A dry run with rates that are given."""
    return measured_survey(*paths, seconds=0.02, trials=Told, **given)


@pytest.fixture(scope="module")
def found(photos: Path) -> Survey:
    return survey(str(photos))


def test_what_is_there(found: Survey, photos: Path) -> None:
    """Pictures, classes, kinds, sizes, and what cannot be packed or is no picture."""
    seen = found.pictures
    assert (seen.count, seen.looked_at) == (8, 8)
    assert [(one.name, one.samples) for one in seen.classes or ()] == [("cat", 4), ("dog", 4)]
    assert seen.kinds == {"jpeg": 6, "png": 1}
    assert seen.sizes == ((40, 50), (280, 270), (300, 400))
    assert seen.different == 3
    assert seen.ignored == {"other suffix": 1}
    assert [Path(path).name for path, _ in seen.bad] == ["link.jpg", "bad.jpg"]
    good = [path for path in photos.rglob("*.*") if path.name not in ("bad.jpg", "notes.txt")]
    assert seen.size == pytest.approx(sum(p.stat().st_size for p in good if p.exists()))
    assert seen.packable == 7


def test_what_each_form_takes_and_gives(found: Survey, photos: Path, tmp_path: Path) -> None:
    """Each form has a size and a rate, and its command packs a file of that size."""
    encodings = [(form.options or {})["encoding"] for form in found.forms]
    assert encodings == ["original", "original", "jpeg", "png", "yuv420", "raw"]
    assert (found.served, found.cut, found.tried) == ((224, 224), "random-resized", 7)
    assert found.advised in found.forms
    for number, form in enumerate(found.forms):
        assert form.failure is None
        assert form.samples_per_second
        program, name, src, dst, *options = shlex.split(form.command or "")
        assert (program, name, src, dst) == ("asyncreader", "convert", str(photos), "my photos.h5")
        target = tmp_path / f"{number}.h5"
        done = run("convert", "-q", src, target, *options)
        assert done.exit_code == 3, done.output  # packed without the bad ones
        assert form.size == pytest.approx(target.stat().st_size, rel=0.1)


def test_options_are_those_of_convert(photos: Path) -> None:
    """With an encoding that one alone is tried, as it was asked for; the command has it all."""
    given: dict[str, Any] = {"encoding": "jpeg", "size": (32, 48), "quality": 50, "no_labels": True}
    given["split"] = {"train": 0.9, "val": 0.1}
    found = survey(str(photos), "a.lmdb", **given)
    (form,) = found.forms
    assert found.advised == form
    assert found.pictures.classes is None
    assert found.served == (32, 48)
    words = "--no-labels --split train=0.9,val=0.1 --skip-bad --encoding jpeg --size 32x48"
    assert form.command == f"asyncreader convert '{photos}' a.lmdb {words} --quality 50"


def test_small_pictures_of_one_size_keep_it(tmp_path: Path) -> None:
    """Nothing is scaled where all pictures are small and alike; grey ones are not stored as
    colours."""
    grey = pictures(5, (20, 24, 3))[..., 0]
    save_images(tmp_path / "in", {f"a/{number}.png": one for number, one in enumerate(grey)})
    found = survey(str(tmp_path / "in"), channels=1)
    assert (found.served, found.cut) == ((20, 24), "center")
    assert [form.options for form in found.forms] == [
        {"encoding": name} for name in ("original", "jpeg", "png", "raw")
    ]
    assert "--channels 1" in (found.forms[0].command or "")
    assert "--skip-bad" not in (found.forms[0].command or "")


def form(size: float, rate: float | None, fits: bool = True) -> Candidate:
    return Candidate("", "", size=size, fits=fits, samples_per_second=rate)


def test_which_form_is_advised() -> None:
    """The fastest that stays in memory; of forms that are about as fast, the smallest."""
    small, large, huge = form(1e9, 1000), form(9e9, 1050), form(9e12, 9000, False)
    assert _advised([huge, large, small]) == small
    assert _advised([form(1e9, 500), large]) == large
    assert _advised([huge]) == huge
    assert _advised([form(1e9, None)]) is None


def test_the_command(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--dry-run`` needs no DST and writes nothing; without it DST is missing."""
    monkeypatch.chdir(tmp_path)
    words = ["convert", photos, "--dry-run", "--encoding", "original", "--seconds", "0.2"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    for part in ("8, ", "cat 4, dog 4", "jpeg 6, png 1", "--skip-bad --encoding original"):
        assert part in done.stdout
    assert "bad.jpg" in done.stderr
    told = json.loads(run(*words, "--json").stdout)
    assert told["forms"][0]["options"] == {"encoding": "original"}
    assert not list(tmp_path.iterdir())
    for given, why in (([], "Missing argument 'DST'"), (["a.h5", "--seconds", "1"], "--dry-run")):
        done = run("convert", photos, *given)
        assert done.exit_code == 2
        assert why in done.stderr


def test_a_seed_of_zero_is_a_seed(photos: Path) -> None:
    """``--shuffle 0`` stands in the command that ``--dry-run`` prints for a folder of shards."""
    words = ["convert", photos, "set", "--dry-run", "--encoding", "original"]
    done = run(*words, "--shards", "2", "--seconds", "0.2", "--shuffle", "0")
    assert done.exit_code == 0, done.output
    assert "--shuffle 0 " in done.stdout


def test_what_cannot_be_surveyed(photos: Path, tmp_path: Path) -> None:
    """A packed set, wrong options, and folders that convert refuses, too, in its own words."""
    path = write_hdf5(tmp_path / "a.h5", packed(pictures(3, (8, 8, 3))))
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(b"no picture")
    for source, given, error, says in (
        (path, {}, ParamsError, "asyncreader doctor"),
        (photos, {"quality": 50}, ParamsError, "quality applies only"),
        (photos, {"sise": 3}, ParamsError, "unknown option"),
        (tmp_path / "none", {}, SourceNotFoundError, "none"),
        (tmp_path / "in", {}, SampleError, "none of the images"),
    ):
        with pytest.raises(error, match=says):
            survey(str(source), **given)
