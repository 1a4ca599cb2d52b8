"""Sharded sets of several fields: packed, read, verified and resumed as one file of them is."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import fakes
import h5py
import numpy as np
import pytest
from command_sets import run
from converter_corpus import files, listed
from fake_ray import FakeRay
from fakes import damage
from PIL import Image
from range_server import serving
from shard_sets import edit

from asyncreader import (
    AsyncReader,
    ChecksumError,
    DecodeError,
    FormatError,
    SampleError,
)
from asyncreader.formats.manifest import NAME, read_manifest
from asyncreader.sources import Inspector, fingerprint, open_whole
from asyncreader.sources.sets.joined import open_limit
from asyncreader.tools.verify import verify_file
from converters import convert

COUNT, SHARDS = 23, 4
HIGH, WIDE = 20, 28


def mask_of(number: int) -> np.ndarray:
    """(H, W) uint8: blocks of classes, and the number in the corner."""
    rows, columns = np.mgrid[0:HIGH, 0:WIDE]
    mask = ((rows // 5 + columns // 7 * 3) % 9).astype(np.uint8)
    mask[0, 0] = number
    return mask


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """23 pictures in two classes, and their masks."""
    root = tmp_path_factory.mktemp("corpus")
    for number in range(COUNT):
        rows, columns = np.mgrid[0:HIGH, 0:WIDE]
        pixels = np.stack([rows * 9, columns * 8, rows * 0 + number], 2).astype(np.uint8)
        name = f"{'cat' if number < 9 else 'dog'}/{number:02d}.png"
        for kind, values in (("photos", pixels), ("masks", mask_of(number))):
            (root / kind / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(root / kind / name)
    return root / "photos", root / "masks"


OPTIONS: dict[str, dict[str, Any]] = {
    "raw": {},
    "gzip": {"compression": "gzip", "chunk": 3},
    "jpeg": {"encoding": "jpeg", "size": 16},
    "lmdb": {"format": "lmdb"},
    "lmdb original": {"format": "lmdb", "encoding": "original"},
}


@pytest.fixture(scope="module", params=OPTIONS)
def packed(
    request: pytest.FixtureRequest,
    folders: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """(one file, a folder of four shards) of the same samples; tests only read them."""
    root, options = tmp_path_factory.mktemp("sets"), OPTIONS[request.param]
    pictures, masks = folders
    one = root / ("one.lmdb" if "format" in options else "one.h5")
    convert(pictures, one, fields={"mask": masks}, **options)
    convert(pictures, root / "set", fields={"mask": masks}, shards=SHARDS, jobs=1, **options)
    return one, root / "set"


@pytest.fixture
def raw(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    """A set of this test alone."""
    convert(folders[0], tmp_path / "set", fields={"mask": folders[1]}, shards=SHARDS)
    return tmp_path / "set"


def digest(path: Any, **params: Any) -> str:
    """Of an epoch of pictures, masks, labels and record numbers, augmented."""
    given: dict[str, Any] = {
        "path": path,
        "data_field": ["data", "mask"],
        "shuffle": True,
        "size": (12, 12),
        "crop": "random-resized",
        "flip": True,
        "nthread": 2,
        **params,
    }
    with AsyncReader(given, batch_size=4, last_batch="pad", epochs=1) as reader:
        return fakes.digest(reader)


# -- packed and read -----------------------------------------------------------------------------


@pytest.mark.slow
def test_shards_serve_what_one_file_serves(packed: tuple[Path, Path]) -> None:
    """Folder, manifest, list, glob and file:// give the batches of one file, threads or processes,
    and are the same data set."""
    one, folder = packed
    whole = digest(one)
    shards = sorted(folder.glob("shard-*"))
    names = (folder, folder / NAME, shards, str(folder / "shard-*"), folder.as_uri())
    assert {digest(path) for path in names} == {whole}
    assert digest(folder, workers="process", nthread=1) == whole
    assert digest(folder, shuffle="block", shuffle_window=8) == digest(
        shards, shuffle="block", shuffle_window=8
    )
    sources = [open_whole(path) for path in (one, folder)]
    assert fingerprint(sources[0]) == fingerprint(sources[1])
    for source in sources:
        source.close()
    with AsyncReader(path=folder, data_field="mask", batch_size=COUNT, crop="none") as reader:
        corner = next(iter(reader)).data[:, 0, 0, 0].tolist()
    assert corner == list(range(COUNT)) or "jpeg" in str(read_manifest(str(folder / NAME)).common)


def test_verify_reads_all_fields(packed: tuple[Path, Path]) -> None:
    """verify holds every checksum of every field against the table, and decodes masks; info names
    the fields."""
    report = verify_file(str(packed[1]), decode=True)
    assert (report.ok, report.checked, report.problems) == (True, 2 * COUNT, ())
    facts = json.loads(run("info", packed[1], "--json").stdout)
    assert [field["name"] for field in facts["fields"]] == ["mask"]


@pytest.mark.slow
def test_tasks_of_a_cluster_write_the_same(
    folders: tuple[Path, Path], tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to a worker of Ray packs its shard to the byte, wherever the worker stands:
    from a folder with its masks, and from fields of a packed set."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.chdir(tmp_path)
    convert(raw, "one.h5")
    shutil.copytree(folders[0], "photos")
    shutil.copytree(folders[1], "masks")
    both: dict[str, Any] = {"params": {"data_field": ["data", "mask"]}}
    ways = {"photos": {"fields": {"mask": "masks"}}, "one.h5": both, "set": both}
    for source, way in ways.items():
        convert(source, f"of {source}s", shards=SHARDS, engine="ray", **way)
        assert files(tmp_path / f"of {source}s") == files(raw)


def test_bad_masks_shorten_their_shard(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """--skip-bad leaves picture and mask out; a mask of another kind is named, in any shard."""
    pictures, masks = folders[0], shutil.copytree(folders[1], tmp_path / "masks")
    (masks / "cat/03.png").unlink()
    how: dict[str, Any] = {"fields": {"mask": masks}, "shards": SHARDS}
    report = convert(pictures, tmp_path / "out", skip_bad=True, **how)
    assert (report.count, [name for name, _ in report.skipped]) == (COUNT - 1, ["cat/03.png"])
    assert read_manifest(str(tmp_path / "out" / NAME)).counts.tolist() == [4, 6, 6, 6]
    assert verify_file(str(tmp_path / "out")).ok
    shutil.copy(folders[1] / "cat/03.png", masks / "cat/03.png")
    Image.fromarray(mask_of(20).astype(np.uint16) * 300).save(masks / "dog/20.png")
    with pytest.raises(FormatError, match=r"another kind than the first.*uint16") as caught:
        convert(pictures, tmp_path / "kinds", **how)
    assert caught.value.source_path is not None
    assert caught.value.source_path.endswith("dog/20.png")


def test_space_for_masks_is_checked(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a raw set is packed there must be space for its masks, too."""
    needed: list[int] = []
    monkeypatch.setattr(
        "converters.outputs.shards.check_space", lambda *words: needed.append(words[-1])
    )
    convert(folders[0], tmp_path / "set", fields={"mask": folders[1]}, shards=SHARDS)
    assert needed == [COUNT * HIGH * WIDE * (3 + 1)]


# -- from a store --------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_a_store(
    packed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a URL, by ranges or through the cache: the same batches, and the same data set."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    one, folder = packed
    whole = digest(one)
    with serving(folder.parent) as url:
        if "lmdb" not in one.name:
            assert digest(f"{url}/set") == whole
        monkeypatch.setenv("ASYNCREADER_CACHE_DIR", str(tmp_path / "cache"))
        for _ in range(2):
            assert digest(f"{url}/set/{NAME}") == whole
    held = [name for name in listed(tmp_path / "cache") if name != "lock"]
    assert len(held) == SHARDS  # once for both fields


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["hdf5", "lmdb"])
def test_a_damaged_mask_names_its_file(
    folders: tuple[Path, Path], tmp_path: Path, container: str
) -> None:
    """Shard, record number in the whole set, and the mask's own path; in one file, too."""
    pictures, masks = folders
    mask = mask_of(12)[:, :, None].tobytes()
    how: dict[str, Any] = {"fields": {"mask": masks}, "shards": SHARDS, "format": container}
    convert(pictures, tmp_path / "set", **how)
    suffix = {"hdf5": "h5", "lmdb": "lmdb"}[container]
    convert(pictures, tmp_path / f"one.{suffix}", fields={"mask": masks})
    shard = tmp_path / "set" / f"shard-00002-of-00004.{suffix}"
    for path, file in ((tmp_path / "set", shard), (tmp_path / f"one.{suffix}", None)):
        damage(str(file or path), mask)
        given = {"path": path, "data_field": ["data", "mask"], "batch_size": COUNT}
        with (
            AsyncReader(given) as reader,
            pytest.raises(ChecksumError, match="field 'mask'") as caught,
        ):
            next(iter(reader))
        error = caught.value
        assert (error.index, error.source_path) == (12, "dog/12.png")
        assert error.path == str(file or path)
        report = verify_file(str(path))
        assert report.bad == 1
        assert "dog/12.png" in report.problems[0]


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_mask_paths_are_bound(folders: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    """A mask path that was altered is noticed by its digest; pictures' own are not mistaken."""
    path = tmp_path / f"set.{suffix}"
    masks = shutil.copytree(folders[1], tmp_path / "masks")
    for file in sorted(masks.rglob("*.png")):
        file.rename(file.with_suffix(".PNG"))
    convert(folders[0], path, fields={"mask": masks}, encoding="original")
    source = open_whole(path)
    first, mask = source.parts
    assert list(Inspector(first).paths())[10] == b"dog/10.png"
    assert list(Inspector(mask).paths())[10] == Inspector(mask).path(10) == b"dog/10.PNG"
    source.close()
    assert verify_file(str(path)).ok
    if suffix == "h5":
        with h5py.File(path, "r+") as file:
            rows = file["mask.paths"][:]
            rows[10] = b"dog/99.PNG"
            file["mask.paths"][:] = rows
    else:
        damage(str(path), b"dog/10.PNG")
    (problem,) = verify_file(str(path)).problems
    assert "its paths do not match their digest" in problem


def test_a_set_without_mask_paths_names_the_picture(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of sets packed before masks' paths were kept, an error names the picture's."""
    path = tmp_path / "set.h5"
    convert(folders[0], path, fields={"mask": folders[1]})
    with h5py.File(path, "r+") as file:
        del file["mask.paths"]
    damage(str(path), mask_of(7)[:, :, None].tobytes())
    with (
        AsyncReader(path=path, data_field=["data", "mask"], batch_size=COUNT) as reader,
        pytest.raises(SampleError) as caught,
    ):
        next(iter(reader))
    assert (caught.value.index, caught.value.source_path) == (7, "cat/07.png")


@pytest.mark.slow
def test_a_shard_with_other_masks(folders: tuple[Path, Path], tmp_path: Path, raw: Path) -> None:
    """A shard of the same pictures and other masks fails where masks are read; a manifest that
    names other fields than the shards have is refused."""
    masks = shutil.copytree(folders[1], tmp_path / "masks")
    Image.fromarray(mask_of(99)).save(masks / "cat/00.png")
    convert(folders[0], tmp_path / "other", fields={"mask": masks}, shards=SHARDS)
    name = "shard-00000-of-00004.h5"
    shutil.copy(tmp_path / "other" / name, raw / name)
    given: dict[str, Any] = {"path": raw, "data_field": ["data", "mask"], "batch_size": COUNT}
    with (
        AsyncReader(given) as reader,
        pytest.raises(FormatError, match="digest of checksums differs"),
    ):
        next(iter(reader))
    assert not verify_file(str(raw)).ok

    def without(facts: dict[str, Any]) -> None:
        facts["digests"].pop("mask.checksums")
        facts["columns"].pop()
        for row in facts["shards"]:
            row.pop()
        del facts["fields"], facts["field_bytes"]

    edit(tmp_path / "other", without)
    with (
        AsyncReader(path=tmp_path / "other", batch_size=COUNT) as reader,
        pytest.raises(FormatError, match="list of fields differs"),
    ):
        next(iter(reader))


def test_a_manifest_of_fields(raw: Path) -> None:
    """It is version 2, comes back as it was, and tells each shard's digest of masks."""
    text = (raw / NAME).read_text()
    manifest = read_manifest(str(raw / NAME))
    assert manifest.to_json() == text
    facts = json.loads(text)
    assert (facts["version"], facts["columns"][-1]) == (2, "mask.checksums")
    assert set(facts["digests"]) == {"checksums", "labels", "mask.checksums"}
    assert manifest.shards[2].fields == (facts["shards"][2][-1],)
    part = manifest.take([3, 1])
    assert part.shards[1] == manifest.shards[1]
    assert (part.digests, part.common.field_bytes) == ({}, (12 * HIGH * WIDE,))


def test_open_files_are_shared(raw: Path) -> None:
    """Fields of a set have no more shards open together than one field would have."""
    one, both = open_whole(raw, io="pread"), open_whole(raw, io="pread")
    limits = [part.open_files.limit for part in both.parts]  # type: ignore[attr-defined]
    assert len(set(limits)) == 1
    assert 2 * limits[0] <= max(2, open_limit())
    one.close()
    both.close()


@pytest.mark.slow
def test_resumed_after_a_bad_mask(folders: tuple[Path, Path], tmp_path: Path, raw: Path) -> None:
    """A run that ended at a bad mask goes on when that is mended, and gives the same files; other
    masks are another run."""
    pictures, masks = folders[0], shutil.copytree(folders[1], tmp_path / "masks")
    bad = masks / "dog/15.png"
    held = bad.read_bytes()
    bad.write_bytes(b"no picture")
    how: dict[str, Any] = {"fields": {"mask": masks}, "shards": SHARDS}
    with pytest.raises(DecodeError, match=r"finished shards are kept \(2\)") as caught:
        convert(pictures, tmp_path / "out", **how)
    assert caught.value.source_path == str(bad)
    bad.write_bytes(held)
    other = shutil.copytree(masks, tmp_path / "other")
    (other / "cat/00.png").rename(other / "cat/00.PNG")
    with pytest.raises(Exception, match="other sources or options"):
        convert(pictures, tmp_path / "out", resume=True, fields={"mask": other}, shards=SHARDS)
    report = convert(pictures, tmp_path / "out", resume=True, **how)
    assert report.kept == 2
    assert files(tmp_path / "out") == files(raw)
