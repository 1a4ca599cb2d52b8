"""Packing into shards: the same bytes whatever happens on the way, and nothing done twice."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from click.testing import Result
from command_sets import run as command
from converter_corpus import files, hash_of, image, listed, put, saved, stop_at, write_small
from fake_ray import FakeRay
from fakes import hdf5

import asyncreader
from asyncreader import DecodeError, FormatError, ParamsError, SourceError
from asyncreader.formats.manifest import NAME, Manifest, read_manifest
from asyncreader.formats.packed import record_key
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.outputs.sharded_set import ShardPlan, Workspace

COUNT = 23


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 pictures of 20x30 in three classes."""
    return write_small(tmp_path_factory.mktemp("photos"))


def manifest(folder: Path) -> Manifest:
    return read_manifest(str(folder / NAME))


def samples(path: Path) -> list[tuple[bytes, Any, str | None]]:
    """(bytes, labels, path) of every sample of a set."""
    with asyncreader.open(path) as found:
        every = [found.sample(n) for n in range(len(found))]
        labels = [None] * len(every) if found.labels is None else found.labels.tolist()
    return [(one.stored["data"], labels[n], one.path) for n, one in enumerate(every)]


OPTIONS: dict[str, dict[str, Any]] = {
    "raw": {},
    "gzip": {"compression": "gzip", "chunk": 3},
    "jpeg": {"encoding": "jpeg", "size": 16},
    "lmdb": {"format": "lmdb"},
    "lmdb png": {"format": "lmdb", "encoding": "png"},
    "original": {"encoding": "original", "no_labels": True},
    "shuffled": {"shuffle": 4},
}


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", OPTIONS)
def test_shards_hold_what_one_file_holds(photos: Path, tmp_path: Path, kind: str) -> None:
    """The shards, one behind the other, are the samples, labels and paths of the single file, and
    convert to it again; with more threads they are the same to the byte."""
    options = OPTIONS[kind]
    suffix = "lmdb" if "lmdb" in kind else "h5"
    one, back = tmp_path / f"one.{suffix}", tmp_path / f"back.{suffix}"
    convert(photos, one, **options)
    report = convert(photos, tmp_path / "set", shards=4, jobs=1, **options)
    assert (report.count, report.shards, report.kept) == (COUNT, 4, 0)
    assert samples(tmp_path / "set") == samples(one)
    assert manifest(tmp_path / "set").counts.tolist() == [5, 6, 6, 6]
    assert report.bytes == sum(
        path.stat().st_size for path in (tmp_path / "set").iterdir() if path.name != NAME
    )
    assert verify_file(str(tmp_path / "set"), decode=True).ok
    convert(tmp_path / "set" / NAME, back, **({} if kind != "gzip" else options))
    assert hash_of(back) == hash_of(one)
    convert(photos, tmp_path / "again", shards=4, jobs=3, **options)
    assert files(tmp_path / "again") == files(tmp_path / "set")


def test_shards_are_ordinary_files(photos: Path, tmp_path: Path) -> None:
    """A shard is a packed file of its own; an LMDB shard opens with lmdb alone, subdir=False."""
    convert(photos, tmp_path / "set", shards=3, format="lmdb")
    assert listed(tmp_path / "set") == [NAME, *(f"shard-{n:05d}-of-00003.lmdb" for n in range(3))]
    path = tmp_path / "set" / "shard-00001-of-00003.lmdb"
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=8) as env,
        env.begin(db=env.open_db(b"data")) as transaction,
    ):
        assert transaction.get(record_key(0)) == samples(tmp_path / "set")[7][0]
    report = verify_file(str(path))
    assert (report.ok, report.count) == (True, 8)


@pytest.mark.parametrize(("size", "shards"), [(3600, 12), ("4kB", 10), ("1GB", 1), ("9 KiB", 4)])
def test_shard_size(photos: Path, tmp_path: Path, size: Any, shards: int) -> None:
    """So many shards as make them about that large: 23 samples of 1,800 bytes each. Where pictures
    differ in size, it follows from some of them."""
    assert convert(photos, tmp_path / "set", shard_size=size).shards == shards
    if size == "4kB":
        report = convert(photos, tmp_path / "png", encoding="png", shard_size=5000)
        data = sum(len(data) for data, _, _ in samples(tmp_path / "png"))
        assert data / 5000 * 0.8 < (report.shards or 0) < data / 5000 * 1.2 + 1


def test_shard_size_below_a_sample(photos: Path, tmp_path: Path) -> None:
    """It is told with both sizes and the target, of samples of different length, too; samples that
    are larger than the shards of a set that grows get a shard each."""
    says = r"shard_size is less than one sample takes.*set.*700 bytes.*1,800 on average.*--shards"
    with pytest.raises(ParamsError, match=says):
        convert(photos, tmp_path / "set", shard_size=700)
    rows = [np.arange(n, dtype="f4") for n in (100, 2000, 300)]
    given: Any = {"format": "hdf5", "variable_length": True}
    with pytest.raises(ParamsError, match=r"500 bytes; a sample takes 3,200 on average"):
        convert(rows, tmp_path / "rows", shard_size=500, **given)
    assert listed(tmp_path) == []
    assert convert(rows, tmp_path / "rows", shard_size=3000, **given).shards == 3
    convert([np.zeros(99_000, "f4")] * 2, tmp_path / "large.h5", variable_length=True)
    assert convert(tmp_path / "large.h5", tmp_path / "rows", append=True).shards == 2


# -- bad pictures --------------------------------------------------------------------------------


@pytest.fixture
def spoiled(photos: Path, tmp_path: Path) -> Path:
    """The pictures at places 0, 6..11 (all of one shard of four) and 20 are none."""
    folder = shutil.copytree(photos, tmp_path / "spoiled")
    paths = sorted(folder.rglob("*.png"), key=lambda path: os.fsencode(path).split(b"/"))
    for place in (0, *range(5, 11), 20):
        paths[place].write_bytes(b"no picture")
    return folder


@pytest.mark.slow
def test_bad_pictures_move_no_other(spoiled: Path, photos: Path, tmp_path: Path) -> None:
    """A bad picture shortens its own shard; a shard of bad ones is left out; counts add up."""
    report = convert(spoiled, tmp_path / "set", shards=4, skip_bad=True)
    assert (report.count, len(report.skipped), report.shards) == (COUNT - 8, 8, 3)
    found = manifest(tmp_path / "set")
    assert found.counts.tolist() == [4, 6, 5]
    assert [found.name(n)[6:11] for n in range(3)] == ["00000", "00002", "00003"]
    assert listed(tmp_path / "set") == [NAME, *(found.name(n) for n in range(3))]
    convert(spoiled, tmp_path / "one.h5", skip_bad=True)
    assert samples(tmp_path / "set") == samples(tmp_path / "one.h5")
    convert(photos, tmp_path / "good", shards=4)
    whole, some = files(tmp_path / "good"), files(tmp_path / "set")
    assert whole[found.name(1)] == some[found.name(1)]
    assert whole[found.name(0)] != some[found.name(0)]


def test_a_bad_picture_keeps_finished_shards(spoiled: Path, photos: Path, tmp_path: Path) -> None:
    """Without skip_bad the run fails, says that shards are kept, and goes on when it is mended."""
    bad = sorted(spoiled.rglob("*.png"), key=lambda path: os.fsencode(path).split(b"/"))
    good = sorted(photos.rglob("*.png"), key=lambda path: os.fsencode(path).split(b"/"))
    for place in range(20):
        shutil.copy(good[place], bad[place])
    with pytest.raises(DecodeError, match=r"finished shards are kept \(3\): resume") as caught:
        convert(spoiled, tmp_path / "set", shards=4)
    assert caught.value.source_path == str(bad[20])
    assert not (tmp_path / "set").exists()
    shutil.copy(good[20], bad[20])
    with pytest.raises(SourceError, match="has left finished shards"):
        convert(spoiled, tmp_path / "set", shards=4)
    report = convert(spoiled, tmp_path / "set", shards=4, resume=True)
    assert report.kept == 3
    convert(photos, tmp_path / "whole", shards=4)
    assert files(tmp_path / "set") == files(tmp_path / "whole")
    assert listed(tmp_path) == ["set", "spoiled", "whole"]


def test_all_bad(tmp_path: Path) -> None:
    """Nothing to pack is an error that names the first bad image, and leaves nothing."""
    put(tmp_path / "c", dict.fromkeys(("0.png", "1.png", "2.png", "3.png"), b"no"))
    sharded = {"shards": 2}, {"shard_size": 100}, {"shards": 2, "encoding": "jpeg"}
    targets: list[tuple[str, dict[str, Any]]] = [("out.h5", {}), *(("set", how) for how in sharded)]
    for name, how in targets:
        with pytest.raises(SourceError, match=r"every image was bad.*4 bad ones.*c/0\.png"):
            convert(tmp_path, tmp_path / name, skip_bad=True, **how)
    assert listed(tmp_path) == ["c"]


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_folders_of_shards_are_judged_alike(
    photos: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards, Ray's too, refuse train/ and val/ as classes, and report what folders lose."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    for part in ("train", "val"):
        shutil.copytree(photos, tmp_path / "in" / part)
    options: dict[str, Any] = {"shards": 2, "engine": engine, "encoding": "original"}
    with pytest.raises(FormatError, match=r"'train' and 'val'.*--classes-from-folders"):
        convert(tmp_path / "in", tmp_path / "set", **options)
    report = convert(tmp_path / "in", tmp_path / "set", classes_from_folders=True, **options)
    assert (report.classes, report.notes) == (("train", "val"), ())
    (tmp_path / "in" / "val").rename(tmp_path / "in" / "animals")
    report = convert(tmp_path / "in", tmp_path / "two", **options)
    assert ["'animals/class 0'" in note for note in report.notes] == [True]


# -- cut and resumed -----------------------------------------------------------------------------


@pytest.fixture
def cut(photos: Path, tmp_path: Path) -> Path:
    """A workspace with two of four shards finished. The error, which is not ours, says so."""
    (note,) = stop_at(13, photos, tmp_path / "set", shards=4).__notes__
    assert note.startswith("finished shards are kept (2): resume (--resume) goes on")
    return tmp_path / ".set.asyncreader-tmp"


def stopped(photos: Path, target: Path, at: int, *words: str) -> Result:
    """``asyncreader convert --shards 4``, with Ctrl-C behind picture ``at``."""

    def stop(_: object, done: int, __: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncreader.cli.terminal.Progress.__call__", stop)
        return command("convert", photos, target, "--shards", "4", *words)


def test_ctrl_c_says_which_shards_are_kept(photos: Path, tmp_path: Path) -> None:
    """It ends with 130 and names the finished shards, their folder and --resume."""
    target = tmp_path / "set"
    work = tmp_path / ".set.asyncreader-tmp"
    result = stopped(photos, target, 3)
    assert result.exit_code == 130
    assert result.stderr == "interrupted: no shard was finished, nothing is kept\n"
    assert not work.exists()
    result = stopped(photos, target, 13)
    assert result.exit_code == 130
    assert result.stderr == (
        "interrupted: finished shards are kept (2): resume (--resume) goes on with them, "
        f"in '{work}'; with other options remove that folder first\n"
    )
    assert len(listed(work / "set")) == 2
    result = stopped(photos, target, 20, "--resume")
    assert "(3): resume (--resume) goes on with them, in" in result.stderr
    assert stopped(photos, target, -1, "--resume").exit_code == 0
    assert manifest(target).count == COUNT


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SourceError("a folder cannot be read")])
def test_an_error_while_listing_keeps_what_was_finished(
    photos: Path, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A resumed run that ends before it begins to pack, by Ctrl-C or an error, clears nothing."""

    def stop(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("converters.inputs.folder.open_origin", stop)
    with pytest.raises(type(error)):
        convert(photos, tmp_path / "set", shards=4, resume=True)
    assert len(listed(cut / "set")) == 2
    monkeypatch.undo()
    assert convert(photos, tmp_path / "set", shards=4, resume=True).kept == 2


def test_a_damaged_shard_is_packed_again(photos: Path, cut: Path, tmp_path: Path) -> None:
    """Only whole shards are kept: one that was damaged, lost or has no record is packed again."""
    shard = cut / "set" / "shard-00001-of-00004.h5"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    (cut / "records" / "00000.json").write_text("{")
    (cut / "attempts" / "00002.x.h5").write_text("half")
    (cut / "set" / "lock.mdb").write_text("")
    assert convert(photos, tmp_path / "set", shards=4, resume=True).kept == 0
    convert(photos, tmp_path / "whole", shards=4)
    assert files(tmp_path / "set") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    "change",
    [
        *({"encoding": "png"}, {"shards": 5}, {"shuffle": 1}, {"no_labels": True}, {"bits": 8}),
        {"src": "other"},
    ],
)
def test_other_options_are_not_resumed(
    photos: Path, cut: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Resuming with other options or another folder is an error; what was finished stays."""
    other = shutil.copytree(photos, tmp_path / "other")
    (other / "class 2" / "new.png").write_bytes(saved(image(20, 30), "PNG"))
    given = {"shards": 4, "resume": True, **change}
    given["src"] = other if "src" in change else photos
    with pytest.raises(SourceError, match="other sources or options"):
        convert(dst=tmp_path / "set", **given)
    assert len(listed(cut / "set")) == 2
    assert convert(photos, tmp_path / "set", shards=4, resume=True).kept == 2


def write_with_old_times(path: Path, data: bytes, moved: bool) -> None:
    """Write a file anew, in place or ``moved`` in, with the times of the old one, not shorter."""
    facts, new = path.stat(), path.with_name("new") if moved else path
    new.write_bytes(data.ljust(facts.st_size, b"\0"))
    os.utime(new, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    new.rename(path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("change", ["written", "in place", "moved in", "removed and bad"])
def test_edited_pictures_are_packed_again(
    photos: Path, tmp_path: Path, change: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards whose pictures were edited between the runs are packed anew, the others are kept."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    folder = shutil.copytree(photos, tmp_path / "photos")
    paths = sorted(folder.rglob("*.png"), key=lambda path: os.fsencode(path).split(b"/"))
    good, edited = paths[20].read_bytes(), paths[8]
    paths[20].write_bytes(b"bad")
    options: dict[str, Any] = {"shards": 4, "engine": engine, "encoding": "original"}
    with pytest.raises(DecodeError):
        convert(folder, tmp_path / "set", **options)
    paths[20].write_bytes(good)
    other = saved(image(20, 30, seed=99), "PNG")
    if change in ("in place", "moved in"):
        write_with_old_times(edited, other, change == "moved in")
    else:
        if change == "removed and bad":
            edited.write_bytes(b"bad")
            with pytest.raises(DecodeError) as caught:
                convert(folder, tmp_path / "set", resume=True, **options)
            assert caught.value.source_path == str(edited)
        edited.write_bytes(other)
    report = convert(folder, tmp_path / "set", resume=True, **options)
    # of Ray's tasks the last one was done in the run before
    assert report.kept == 2 + (engine == "ray" and change == "removed and bad")
    convert(folder, tmp_path / "whole", shards=4, encoding="original")
    assert files(tmp_path / "set") == files(tmp_path / "whole")


@pytest.mark.slow
def test_an_edited_packed_source_is_packed_again(tmp_path: Path) -> None:
    """Of a packed source of others, whose samples have no checksums, the file's time counts."""
    pixels = np.random.default_rng(0).integers(0, 255, (400, 6, 5, 3), dtype=np.uint8)
    source = hdf5(tmp_path / "theirs.h5", data=pixels)
    stop_at(250, source, tmp_path / "set", shards=4)
    with h5py.File(source, "r+") as file:
        file["data"][7] = 0  # not among the samples that make the fingerprint
    assert convert(source, tmp_path / "set", shards=4, resume=True).kept == 0
    convert(source, tmp_path / "whole", shards=4)
    assert files(tmp_path / "set") == files(tmp_path / "whole")


@pytest.mark.parametrize("resumed", [{"h_dim": 3, "w_dim": 2}, {}], ids=["turned", "left out"])
def test_a_set_read_in_another_way_is_not_resumed(tmp_path: Path, resumed: dict[str, int]) -> None:
    """Shards of pictures that are read with other axes are not mixed: it is an error."""
    axes = {"num_dim": 1, "h_dim": 2, "w_dim": 3, "cha_dim": 4}
    pixels = np.arange(400 * 72, dtype=np.uint32).reshape(400, 6, 4, 3).astype(np.uint8)
    source, how = hdf5(tmp_path / "theirs.h5", data=pixels), {"shards": 4, "encoding": "png"}
    stop_at(250, source, tmp_path / "set", params=axes, **how)
    other = {**axes, **resumed} if resumed else None
    with pytest.raises(SourceError, match="other sources or options"):
        convert(source, tmp_path / "set", resume=True, params=other, **how)  # type: ignore[arg-type]
    assert convert(source, tmp_path / "set", resume=True, params=axes, **how).kept == 2  # type: ignore[arg-type]


def test_nothing_to_resume(photos: Path, tmp_path: Path) -> None:
    """Where nothing was begun, resume begins; a finished set is not touched."""
    assert convert(photos, tmp_path / "set", shards=3, resume=True).kept == 0
    before = files(tmp_path / "set")
    with pytest.raises(SourceError, match="exists already"):
        convert(photos, tmp_path / "set", shards=3, resume=True)
    assert files(tmp_path / "set") == before


def test_overwrite_replaces_a_set_only(photos: Path, tmp_path: Path) -> None:
    """overwrite replaces a sharded set as a whole, and leaves any other folder alone."""
    target = tmp_path / "set"
    convert(photos, target, shards=5)
    convert(photos, target, shards=2, overwrite=True)
    assert len(listed(target)) == 3
    (target / "notes.txt").write_text("precious")
    with pytest.raises(SourceError, match=r"notes\.txt"):
        convert(photos, target, shards=2, overwrite=True)
    (target / "notes.txt").unlink()
    (target / NAME).unlink()
    with pytest.raises(SourceError, match="without a manifest"):
        convert(photos, target, shards=2, overwrite=True)
    assert len(listed(target)) == 2
    assert listed(tmp_path) == ["set"]


@pytest.mark.parametrize("broken", ["manifest", "shard"])
def test_a_set_that_cannot_be_opened_is_not_published(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The manifest is read back, and each shard opened, before overwrite replaces the old set: with
    channels that contradict the shape, or a shard of another length, the old set stays."""
    target = tmp_path / "set"
    convert(photos, target, shards=2)
    before = files(target)
    write = Workspace.seal

    def seal(self: Workspace, manifest: Manifest) -> None:
        common = replace(manifest.common, channels=1)
        write(self, replace(manifest, common=common) if broken == "manifest" else manifest)
        if broken == "shard":
            with open(Path(self.set, manifest.name(1)), "r+b") as file:
                file.truncate(file.seek(0, 2) - 1)

    monkeypatch.setattr(Workspace, "seal", seal)
    with pytest.raises(SourceError, match=r"cannot be opened.*(shape|size)"):
        convert(photos, target, shards=3, overwrite=True)
    assert files(target) == before


def test_spans_are_fair() -> None:
    """Shards of a plan follow on each other, cover all samples, and differ by one at most."""
    for count, shards in ((23, 4), (5, 5), (10**12, 999_983), (7, 1)):
        plan = ShardPlan("", count, shards)
        numbers = range(shards) if shards < 100 else (0, 1, 5000, shards - 2, shards - 1)
        for number in numbers:
            span = plan.span(number)
            assert count // shards <= len(span) <= -(-count // shards)
            assert number == 0 or plan.span(number - 1).stop == span.start
        assert plan.span(shards - 1).stop == count
