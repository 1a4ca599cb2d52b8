"""Packing from an object store: the same files as from the same folder on disk, or an error."""

import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_sets import save_images
from converter_corpus import listed, put, stop_at
from converter_trees import scan
from fake_ray import FakeRay
from fakes import encoded, first_batch, pictures, s3_environment
from PIL import Image
from range_server import server_stats, serving

from asyncreader import (
    DecodeError,
    FormatError,
    ParamsError,
    SourceError,
    SourceNotFoundError,
)
from asyncreader.sources.remote.client import Version
from converters import convert
from converters.inputs.origins import StoreFolder

pytest.importorskip("obstore", reason="obstore is not installed")

COUNT = 41


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A bucket ``b`` with a tree of pictures whose order by name is not that by component, and all
    that a walk passes over."""
    kinds, none = ("cat", "cat-2", "dög 1%", "eel/deep"), b"no picture"
    hidden = ("cat/.hidden/a.jpg", "cat/.hidden/b.jpg", ".git/x.jpg", "cat/.x.jpg", "readme.txt")
    files = {
        f"{kinds[number % 4]}/{number}.jpg": encoded(image, "JPEG")
        for number, image in enumerate(pictures(COUNT))
    }
    files |= {**dict.fromkeys(hidden, none), "notes/a.txt": b"a class without pictures"}
    return put(tmp_path / "served" / "b" / "photos", files)


@pytest.fixture
def bucket(
    photos: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """An S3 of this machine, with 7 names in each answer to a listing: the server's own URL."""
    settings = {"page": 7, **getattr(request, "param", {})}
    with serving(photos.parent.parent, **settings) as url:
        s3_environment(monkeypatch, url)
        yield url


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a set."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock.mdb"}


WAYS: dict[str, dict[str, Any]] = {
    "one.h5": {"size": (16, 16)},
    "one.lmdb": {"encoding": "original"},
    "shuffled": {"encoding": "original", "shards": 4, "shuffle": 5},
    "sized": {"encoding": "jpeg", "size": 16, "shard_size": 4000, "format": "lmdb"},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bucket", [{}, {"errors": 0.2, "cuts": 0.2}], indirect=True)
def test_the_same_bytes_as_from_disk(photos: Path, bucket: str, tmp_path: Path, way: str) -> None:
    """A bucket's pictures are packed into the files that the same folder on disk gives, with the
    same count of what was ignored, also where answers fail and break off; no secret is in them."""
    (tmp_path / "disk").mkdir()
    expected = convert(photos, tmp_path / "disk" / way, **WAYS[way])
    report = convert("s3://b/photos/", tmp_path / way, **WAYS[way])
    assert contents(tmp_path / way) == contents(tmp_path / "disk" / way)
    assert (report.count, report.ignored) == (COUNT, expected.ignored)
    assert report.classes == ("cat", "cat-2", "dög 1%", "eel", "notes")
    assert not any(b"secret" in content for content in contents(tmp_path / way).values())


def test_file_urls_are_folders(photos: Path, tmp_path: Path) -> None:
    """file:// names a folder on this machine: as source, target, labels and names."""
    (tmp_path / "l.csv").write_text("cat/0.jpg,1\n")
    (tmp_path / "names.txt").write_text("a\nb\n")
    options: dict[str, Any] = {
        "labels": f"file://{tmp_path}/l.csv",
        "classes": f"file://{tmp_path}/names.txt",
        "encoding": "original",
    }
    convert(f"file://{photos}", f"file://{tmp_path}/a.h5", **options)
    options |= {"labels": tmp_path / "l.csv", "classes": tmp_path / "names.txt"}
    convert(photos, tmp_path / "b.h5", **options)
    assert contents(tmp_path / "a.h5") == contents(tmp_path / "b.h5")


def write_csv(photos: Path, *more: str) -> Path:
    """Labels of some pictures, not in order, and one that a walk passes over."""
    rows = ["name,kind", "eel/deep/3.jpg,fish", "cat/0.jpg,pet", "dög 1%/2.jpg,pet", *more]
    (photos / "cat" / ".x.jpg").write_bytes((photos / "cat" / "0.jpg").read_bytes())
    path = photos.parent / "labels.csv"
    path.write_text("\n".join([*rows, "cat/.x.jpg,pet"]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("bucket", [{"errors": 0.1, "cuts": 0.1}], indirect=True)
def test_labels_by_csv(photos: Path, bucket: str, tmp_path: Path, scheme: str) -> None:
    """A CSV, here or at a URL, names the set: also where the server cannot be listed."""
    csv = write_csv(photos)
    top = "s3://b" if scheme == "s3" else f"{bucket}/b"
    convert(photos, tmp_path / "disk.h5", labels=csv, encoding="original")
    for number, labels in enumerate((csv, f"{top}/labels.csv")):
        convert(f"{top}/photos", tmp_path / f"{number}.h5", labels=labels, encoding="original")
        assert contents(tmp_path / f"{number}.h5") == contents(tmp_path / "disk.h5")
    csv.write_text(f"{top}/photos/cat/0.jpg,7\n")  # whole URLs, as absolute paths on disk
    convert(f"{top}/photos", tmp_path / "whole.h5", labels=csv, encoding="original")
    assert first_batch(path=tmp_path / "whole.h5", size=(8, 8)).labels.tolist() == [[7]]


@pytest.mark.slow
def test_classes_at_a_url(photos: Path, bucket: str, tmp_path: Path) -> None:
    """Names of classes come from a packed set or a text file in a store."""
    names = ("notes", "eel", "dög 1%", "cat-2", "cat")
    (photos.parent / "names.txt").write_text("\n".join(names))
    report = convert(
        "s3://b/photos", tmp_path / "a.h5", encoding="original", classes="s3://b/names.txt"
    )
    assert report.classes == names
    (photos.parent / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes())
    report = convert(photos, tmp_path / "b.h5", encoding="original", classes="s3://b/a.h5")
    assert contents(tmp_path / "a.h5") == contents(tmp_path / "b.h5")


def test_missing_rows(photos: Path, bucket: str, tmp_path: Path) -> None:
    """Pictures that the CSV names and the store has not are counted and named with their lines. A
    web server, which cannot list what it has, needs a CSV, and the error says so."""
    csv = write_csv(photos, "cat/none.jpg,pet", "cat/nor.jpg,pet")
    for top in ("s3://b", f"{bucket}/b"):
        with pytest.raises(SourceNotFoundError, match=r"^2 of the files.*'cat/none.jpg' \(line 5"):
            convert(f"{top}/photos", tmp_path / "out.h5", labels=csv)
    with pytest.raises(ParamsError, match=r"does not list.*--labels.*local folder"):
        convert(f"{bucket}/b/photos", tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.slow
def test_masks_beside_a_store(photos: Path, bucket: str, tmp_path: Path) -> None:
    """Pictures in a bucket and their masks in a folder go together; an edited mask counts, too."""
    names = [str(one.relative_to(photos).with_suffix(".png")) for one in photos.rglob("*.jpg")]
    save_images(tmp_path / "masks", dict.fromkeys(names, Image.new("L", (20, 24), 3)))
    options: dict[str, Any] = {"size": 16, "fields": {"mask": tmp_path / "masks"}, "shards": 3}
    stop_at(2 * COUNT // 3 + 1, "s3://b/photos", tmp_path / "store", **options)
    Image.new("L", (20, 24), 4).save(tmp_path / "masks" / "cat" / "0.png")
    assert convert("s3://b/photos", tmp_path / "store", resume=True, **options).kept == 1
    convert(photos, tmp_path / "disk", **options)
    assert contents(tmp_path / "store") == contents(tmp_path / "disk")


@pytest.mark.parametrize("change", ["written again", "removed", "cut"])
def test_an_object_that_changes(photos: Path, bucket: str, change: str) -> None:
    """What is not the version that was listed is an error that names it, never packed."""
    found = scan("s3://b/photos")
    path, stamp = found.files[3], found.stamps[3]
    file = photos / os.fsdecode(path)
    data = file.read_bytes()
    assert found.tree.read(path, lambda _: None, stamp) == data
    assert found.tree.will_need(path, stamp)
    assert found.tree.read(path, lambda _: None, stamp) == data
    if change == "removed":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if change == "cut" else data)
        os.utime(file, ns=(1, 1))
    kind = SourceNotFoundError if change == "removed" else SourceError
    with pytest.raises(kind, match=r"no such object|changed while it was converted") as caught:
        found.tree.read(path, lambda _: None, stamp)
    assert caught.value.source_path == f"s3://b/photos/{os.fsdecode(path)}"
    found.tree.close()


def test_versions() -> None:
    """ETags decide where both sides have one, strong or weak; else size and second do."""
    one = Version(3, "a b", 5)
    assert Version.from_bytes(one.to_bytes()) == one
    assert one.same(replace(one, modified=6))
    assert not one.same(replace(one, tag="c"))
    assert not one.same(replace(one, size=4))
    bare = replace(one, tag=None)
    assert Version.from_bytes(bare.to_bytes()) == bare
    assert bare.same(one)
    assert not bare.same(replace(one, modified=6))


def test_a_flat_bucket_and_an_empty_one(photos: Path, bucket: str, tmp_path: Path) -> None:
    """The errors are those of folders on disk."""
    with pytest.raises(FormatError, match=r"folder is flat.*s3://b/photos/cat/0\.jpg"):
        convert("s3://b/photos/cat", tmp_path / "out.h5")
    (photos / "loose.jpg").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"next to the class folders.*loose"):
        convert("s3://b/photos", tmp_path / "out.h5")
    with pytest.raises(SourceNotFoundError, match="there are no files below this URL"):
        convert("s3://b/photo", tmp_path / "out.h5")  # a prefix of names is no folder
    with pytest.raises(SourceError, match="no images in the folder"):
        convert("s3://b/photos/notes", tmp_path / "out.h5")
    assert not list(tmp_path.glob("*out*"))


def test_without_obstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, the error names the command that installs it."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ParamsError, match=r"pip install -e '\.\[store\]'"):
        convert("s3://b/photos", tmp_path / "out.h5")
    assert listed(tmp_path) == []


def test_no_network(monkeypatch: pytest.MonkeyPatch, impatient: None, tmp_path: Path) -> None:
    """A server that is not there is a typed error without credentials; nothing is left behind."""
    s3_environment(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"cannot be reached.*s3://b/photos") as caught:
        convert("s3://b/photos", tmp_path / "out.h5")
    assert "secret" not in str(caught.value)
    assert listed(tmp_path) == []


# -- many requests, bounded memory ---------------------------------------------------------------


@pytest.mark.parametrize("bucket", [{"latency": 0.05, "page": 1000}], indirect=True)
def test_requests_are_in_flight_together(photos: Path, bucket: str, tmp_path: Path) -> None:
    """One thread that packs has many pictures under way, and never more bytes than it may."""
    size = max(path.stat().st_size for path in photos.rglob("*.jpg"))
    convert("s3://b/photos", tmp_path / "a.h5", encoding="original", jobs=1)
    assert server_stats(bucket)["peak"] >= COUNT // 2
    folder = StoreFolder("s3://b/photos", ahead_bytes=4 * size)
    found = list(folder)
    taken = [folder.will_need(each.path, each.stamp) for each in found]
    assert 4 <= taken.count(True) < COUNT
    first = found[0]
    folder.read(first.path, lambda _: None, first.stamp)
    assert folder.will_need(found[taken.index(False)].path, first.stamp)
    folder.close()


def test_what_is_given_up_does_not_wait(tmp_path: Path) -> None:
    """A picture that a server never sends is not waited for once packing has failed elsewhere."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        folder = StoreFolder(f"http://127.0.0.1:{silent.getsockname()[1]}/photos")
        stamp = Version(10, None, 0).to_bytes()
        assert folder.will_need(b"cat/1.jpg", stamp)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(folder.read, b"cat/1.jpg", lambda _: None, stamp)
            silent.accept()[0].close()
            folder.close()
            with pytest.raises(SourceError, match=r"closed while it was read|is closed"):
                reading.result()


def test_an_error_gives_up(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends packing gives up what is under way before it waits for its threads."""
    closed: list[bool] = []
    close = StoreFolder.close

    def note(self: StoreFolder) -> None:
        closed.append(any("convert" in thread.name for thread in threading.enumerate()))
        close(self)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreFolder, "close", note)
    with pytest.raises(KeyboardInterrupt):
        convert("s3://b/photos", tmp_path / "a.h5", size=(8, 8), jobs=1, progress=stop)
    assert closed[0]
    assert not (tmp_path / "a.h5").exists()


# -- packed sets, and other machines -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_cut_and_resumed(
    photos: Path, bucket: str, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both engines go on with a run that was cut; what was uploaded anew is packed anew."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    bad, edited = photos / "eel" / "deep" / "3.jpg", photos / "cat" / "0.jpg"
    good = bad.read_bytes()
    bad.write_bytes(b"bad")
    options: dict[str, Any] = {"shards": 4, "encoding": "original", "engine": engine}
    with pytest.raises(DecodeError, match=r"finished shards are kept \(3\)"):
        convert("s3://b/photos", tmp_path / "set", **options)
    bad.write_bytes(good)
    edited.write_bytes(encoded(pictures(99)[98], "JPEG"))
    assert convert("s3://b/photos", tmp_path / "set", resume=True, **options).kept == 2
    convert(photos, tmp_path / "disk", shards=4, encoding="original")
    assert contents(tmp_path / "set") == contents(tmp_path / "disk")
    convert("s3://b/photos", photos.parent / "set", **options)
    convert("s3://b/set", tmp_path / "again", shards=3, engine=engine)
    convert(tmp_path / "disk", tmp_path / "same", shards=3)
    assert contents(tmp_path / "again") == contents(tmp_path / "same")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "original", "lmdb"])
def test_a_packed_set_at_a_url(
    photos: Path, bucket: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is converted as the same set on disk is: sharded or one file, of HDF5 or LMDB."""
    monkeypatch.setenv("ASYNCREADER_CACHE_DIR", str(tmp_path / "cache"))
    if kind != "lmdb":
        monkeypatch.delenv("ASYNCREADER_CACHE_DIR")
    options: dict[str, Any] = {"encoding": "original"}
    if kind == "raw":
        options = {"size": (16, 16)}
    convert(
        photos, photos.parent / "set", shards=3, format=kind if kind == "lmdb" else None, **options
    )
    convert(photos.parent / "set", tmp_path / "disk.h5")
    convert("s3://b/set", tmp_path / "a.h5")
    convert("s3://b/set/asyncreader.json", tmp_path / "b.h5")
    for name in ("a.h5", "b.h5"):
        assert contents(tmp_path / name) == contents(tmp_path / "disk.h5")
    (photos.parent / "one.h5").write_bytes((tmp_path / "a.h5").read_bytes())
    convert(f"{bucket}/b/one.h5", tmp_path / "c", shards=2)
    convert(tmp_path / "a.h5", tmp_path / "d", shards=2)
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    with pytest.raises(SourceNotFoundError, match="no manifest"):
        convert("s3://b/other.lmdb", tmp_path / "e.h5")


def test_a_task_opens_its_own_store(
    photos: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to a worker of Ray is the URL and what was listed, no credential and no store;
    what comes of it there is what is packed here."""
    sent: list[bytes] = []
    seen = SimpleNamespace(
        dumps=lambda value: sent.append(pickle.dumps(value)) or sent[-1], loads=pickle.loads
    )
    monkeypatch.setattr("fake_ray.pickle", seen)
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    given: Any = {"shards": 2, "encoding": "original"}
    convert("s3://b/photos", tmp_path / "ray", engine="ray", **given)
    assert len(sent) == 2
    for task in sent:
        assert b"s3://b/photos" in task
        assert b"secret" not in task
    convert("s3://b/photos", tmp_path / "here", **given)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


@pytest.mark.slow
def test_bad_pictures(photos: Path, bucket: str, tmp_path: Path) -> None:
    """A bad one is named by its URL; skipped, the files are those from disk."""
    bad = photos / "dög 1%" / "10.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(DecodeError) as caught:
        convert("s3://b/photos", tmp_path / "out", size=16, encoding="jpeg", shards=3)
    assert caught.value.source_path == "s3://b/photos/dög 1%/10.jpg"
    options: dict[str, Any] = {"size": 16, "encoding": "jpeg", "shards": 3, "skip_bad": True}
    report = convert("s3://b/photos", tmp_path / "store", resume=True, **options)
    assert [name for name, _ in report.skipped] == ["dög 1%/10.jpg"]
    convert(photos, tmp_path / "disk", **options)
    assert contents(tmp_path / "store") == contents(tmp_path / "disk")
