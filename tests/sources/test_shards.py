"""Sharded sets: one data set, few files open, and never less of it than the manifest names."""

import json
import os
import shutil
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from ctrl_c import elsewhere, moments
from fakes import damage, first, packed, paint, pictures, write_hdf5
from observed import HANG
from shard_sets import SIZES, edit, write_set
from source_contract import Build, Built, each_of

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError, SourceError, SourceNotFoundError
from asyncreader.formats.manifest import MOST, NAME, Manifest, manifest_path, read_manifest
from asyncreader.params.parse import parse_params
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, Request, fingerprint, open_source
from asyncreader.sources.layouts.hdf5_groups import GroupSource
from asyncreader.sources.sets.joined import OpenFileCache
from asyncreader.sources.sets.shards import open_shards
from asyncreader.testing.contract import CheckedSourceContract, fill_rows
from asyncreader.tools.doctor.advice import _about_decoding
from asyncreader.tools.doctor.measure import look
from asyncreader.tools.verify import verify_file

COUNT = sum(SIZES)


def case(encoding: str = "raw", io: str = "auto", **options: Any) -> Build:
    def build(folder: Path) -> Built:
        images = np.stack(pictures(COUNT, (20, 23, 3)))
        quality = {"quality": 95} if encoding == "jpeg" else {}
        content = packed(images, encoding, **quality)
        path = write_set(folder / "set", images, content=content, **options)
        return Built(
            open=lambda: open_shards(str(path / NAME), Request(), io=io, limit=2),
            images=images,
            stored=content.samples,
            labels=content.labels,
            paths=content.paths,
            tolerance=40 if encoding == "jpeg" else 0,
            checked=True,
        )

    return build


CASES = {
    "raw hdf5": case(),
    "raw hdf5 pread": case(io="pread"),
    "gzip hdf5": case(chunk=3),
    "png hdf5": case("png"),
    "jpeg lmdb": case("jpeg", container="lmdb"),
}


@pytest.fixture(scope="class")
def built(case: Build, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A set of five shards, of which two may be open."""
    return case(tmp_path_factory.mktemp("set"))


@pytest.mark.some(2)
class TestShards(CheckedSourceContract):
    """What every source with checksums must do; but labels lie in the shards, and go with them."""

    case = each_of(CASES)

    def test_close(self, built: Built) -> None:
        """close() may be called twice, and pixels handed out before stay readable."""
        source = built.opened()
        found, _, _ = fill_rows(source, OutputSpec(layout="NHWC"), np.arange(4))
        before = found.copy()
        source.close()
        source.close()
        np.testing.assert_array_equal(found, before)
        with pytest.raises(SourceError, match="closed"):
            Inspector(source.first).bytes(0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set that tests only read."""
    return write_set(tmp_path_factory.mktemp("shared") / "set", pictures(COUNT))


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    """A set of this test alone."""
    return shutil.copytree(shared, tmp_path / "set")


def indices(path: Any, **params: Any) -> list[int]:
    with AsyncReader(path=path, epochs=2, last_batch="pad", batch_size=4, **params) as reader:
        return [int(n) for _ in range(2) for batch in reader for n in batch.indices]


# -- one data set --------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_folder_manifest_list_and_glob_are_one_set(folder: Path, shuffle: bool | str) -> None:
    """Folder, manifest, list and glob of the shards serve the same in the same order."""
    files = sorted(folder.glob("shard-*"))
    whole = indices(folder, shuffle=shuffle)
    assert sorted(whole[:COUNT]) == list(range(COUNT))
    for path in (folder / NAME, files, str(folder / "shard-*")):
        assert indices(path, shuffle=shuffle) == whole
        assert fingerprint(open_source(path)) == fingerprint(open_source(folder))
        assert len(open_source(path).first.open_files) == 0  # type: ignore[attr-defined]
    (folder / NAME).unlink()
    assert indices(files, shuffle=shuffle) == whole


def test_without_labels(tmp_path: Path) -> None:
    """A set packed without labels has none, and labels_field=None leaves them unread."""
    bare = write_set(tmp_path / "bare", pictures(COUNT), with_labels=False)
    full = write_set(tmp_path / "full", pictures(COUNT))
    with AsyncReader(path=bare) as reader:
        assert reader.labels_shape is None
    with AsyncReader(path=full, labels_field=None) as reader:
        assert reader.labels_shape is None


def test_fingerprint_is_of_content(folder: Path, tmp_path: Path) -> None:
    """Equal samples have one fingerprint, in one file or cut in any way; others have another."""
    found = fingerprint(open_source(folder))
    cut = write_set(tmp_path / "cut", pictures(COUNT), (5, 18))
    one = write_hdf5(tmp_path / "one.h5", packed(pictures(COUNT)))
    other = write_set(tmp_path / "other", pictures(COUNT + 1)[1:])
    assert {fingerprint(open_source(path)) for path in (cut, one)} == {found}
    assert fingerprint(open_source(other)) != found


def test_a_state_moves_between_one_file_and_shards(folder: Path, tmp_path: Path) -> None:
    """A state of a full shuffle goes on in one file, one of a block shuffle in the same cut alone;
    older states, which do not tell the files, are those of one."""
    one = write_hdf5(tmp_path / "one.h5", packed(pictures(COUNT)))
    cut = write_set(tmp_path / "cut", pictures(COUNT), (5, 18))

    def steps(path: Any, state: Any = None, **params: Any) -> tuple[Any, list[list[int]]]:
        with AsyncReader(path=path, batch_size=3, last_batch="pad", **params) as reader:
            if state is not None:
                reader.load_state_dict(state)
            else:
                for _ in range(2):
                    first(reader)
            state = json.loads(json.dumps(reader.state_dict()))
            return state, [batch.indices.tolist() for batch in reader]

    for shuffle, places in ((True, (one, cut)), ("block", (folder,))):
        state, rest = steps(folder, shuffle=shuffle)
        for place in places:
            assert steps(place, state, shuffle=shuffle)[1] == rest
    for place in (one, cut):
        with pytest.raises(ParamsError, match=r"files differs.*hold as many samples each"):
            steps(place, state, shuffle="block")
    state, rest = steps(one, shuffle="block")
    del state["files"]
    assert steps(one, state, shuffle="block")[1] == rest
    with pytest.raises(ParamsError, match="files differs"):
        steps(folder, state, shuffle="block")


def test_verify_knows_the_digests_of_all(folder: Path) -> None:
    """A manifest that states other digests of all samples than the shards have is a problem."""
    edit(folder, lambda facts: facts["digests"].update(checksums="0" * 16))
    (problem,) = verify_file(str(folder)).problems
    assert problem == f"{folder / NAME}: its digests are not those of its shards' samples"


# -- few open ------------------------------------------------------------------------------------


class _Opened:
    """Stands for a source: knows whether it was closed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False

    def close(self) -> None:
        self.closed = True


def cache_of(limit: int, opened: list[_Opened]) -> OpenFileCache:
    def open_one(number: int) -> Any:
        opened.append(_Opened(number))
        return opened[-1]

    return OpenFileCache(open_one, limit)


def test_a_shard_in_use_is_not_closed() -> None:
    """The longest unused shard goes first, one in use never; closing waits for its user."""
    opened: list[_Opened] = []
    open_files = cache_of(2, opened)
    with open_files.use(0) as first:
        for number in (1, 2, 3):
            with open_files.use(number):
                pass
        assert [one.closed for one in opened] == [False, True, True, False]
        with open_files.use(0) as again:
            assert again is first
        open_files.close()
        assert [one.closed for one in opened] == [False, True, True, True]
    assert opened[0].closed
    with pytest.raises(SourceError, match="closed"), open_files.use(0):
        pass


def test_ctrl_c_at_every_moment_of_a_use() -> None:
    """After Ctrl-C at any moment of a use the file can be used: no thread waits for one that nobody
    opens."""

    def case() -> Iterator[Callable[[], Any]]:
        opened: list[_Opened] = []
        open_files = cache_of(2, opened)

        def use() -> int:
            with open_files.use(7) as file:
                return int(file.number)

        yield use
        assert elsewhere(use) == 7
        elsewhere(open_files.close)

    moments(case)


@pytest.mark.parametrize("kind", ["files", "groups"])
def test_a_set_is_closed_by_the_thread_that_opens_a_part_of_it(kind: str, tmp_path: Path) -> None:
    """A reader that is garbage in a cycle may be collected, and so closed, by its own worker in the
    middle of opening a file: the worker does not wait for itself."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for n in range(2):
            data = np.arange(8) + 8 * n
            file.create_dataset(f"data/demo_{n}/x", data=data, chunks=(4,), compression="gzip")
    closed: list[bool] = []
    if kind == "files":
        opened: list[_Opened] = []

        def open_one(number: int) -> Any:
            opened.append(_Opened(number))
            with open_files._lock:
                open_files.close()
            return opened[-1]

        open_files = OpenFileCache(open_one, 4)

        def act() -> None:
            with open_files.use(0):
                pass
            closed.append(opened[0].closed)
    else:
        episodes = "groups:data/demo_*"
        source = asyncreader.open(tmp_path / "a.h5", data_field="x", episodes=episodes).source.first
        assert isinstance(source, GroupSource)

        def act() -> None:
            with source._lock:
                source.close()
            closed.append(True)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(HANG)
    assert closed == [True]


def test_many_shards_and_a_full_shuffle_warn(tmp_path: Path, monkeypatch: Any) -> None:
    """A full shuffle over more shards than can be open says what it costs and what to do."""
    path = write_set(tmp_path / "set", paint(40), [2] * 20)
    monkeypatch.setattr("asyncreader.sources.sets.shards.open_limit", lambda: 4)
    with pytest.warns(UserWarning, match="block"):
        AsyncReader(path=path, shuffle=True).close()
    AsyncReader(path=path, shuffle="block").close()


# -- never less than there should be -------------------------------------------------------------


def test_a_missing_or_changed_shard_is_found_when_opening(folder: Path) -> None:
    """A shard that is missing, cut, replaced by a folder or another size is named at once."""
    file = folder / "shard-00003-of-00005.h5"
    held = file.read_bytes()
    file.unlink()
    with pytest.raises(SourceNotFoundError, match="missing") as missing:
        open_source(folder)
    file.write_bytes(held[:-1])
    with pytest.raises(FormatError, match="size differs") as cut:
        open_source(folder)
    file.unlink()
    file.mkdir()
    with pytest.raises(FormatError, match="not a regular file") as kind:
        open_source(folder)
    assert {caught.value.path for caught in (missing, cut, kind)} == {str(file)}


def test_a_shard_of_another_set_is_found_when_read(folder: Path, tmp_path: Path) -> None:
    """A shard of equal size from another set fails the batch, whatever on_error says."""
    other = write_set(tmp_path / "other", pictures(COUNT + 1)[1:])
    name = "shard-00002-of-00005.h5"
    shutil.copy(other / name, folder / name)
    with AsyncReader(path=folder, batch_size=COUNT, on_error="skip") as reader:
        reader.fetchData()
        with pytest.raises(
            FormatError, match="not the one that the manifest lists: its digest"
        ) as caught:
            reader.getNextBatch()
    assert caught.value.path == str(folder / name)


def test_a_shard_that_goes_away_fails_its_batch(folder: Path) -> None:
    """Beyond the sizes looked at when opening, a missing shard is an error when it is wanted."""
    source = open_shards(str(folder / NAME), Request(), limit=1)
    (folder / "shard-00001-of-00005.h5").unlink()
    fill_rows(source, OutputSpec(), np.arange(7))
    with pytest.raises(SourceNotFoundError, match="shard 2 of 5"):
        fill_rows(source, OutputSpec(), np.arange(9))
    source.close()


def test_no_permission_names_the_shard(folder: Path, monkeypatch: Any) -> None:
    """A shard that may not be read is a SourceError that names it."""
    real = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("00002-of-00005.h5"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    with AsyncReader(path=folder, batch_size=COUNT) as reader:
        monkeypatch.setattr(os, "open", refuse)
        reader.fetchData()
        with pytest.raises(SourceError, match="Permission denied") as caught:
            reader.getNextBatch()
        assert caught.value.path == str(folder / "shard-00002-of-00005.h5")


def test_some_of_the_shards_warn(folder: Path) -> None:
    """A list or glob of some of the shards is served, with a warning that counts them."""
    for _ in range(2):
        with pytest.warns(UserWarning, match="4 of the 5 shards"):
            source = open_source(str(folder / "shard-0000[0-3]*"))
        assert source.facts.count == sum(SIZES[:4])
        (folder / NAME).write_text("damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source(str(folder / "shard-00002-of-00005.h5"))


def test_shards_named_twice_are_refused(folder: Path) -> None:
    """A glob that takes in the manifest and its shards does not serve them twice."""
    with pytest.raises(ParamsError, match="twice"):
        open_source(str(folder / "*"))


def test_shards_without_a_manifest(folder: Path) -> None:
    """A folder of shards whose manifest is missing is refused, not guessed."""
    (folder / NAME).unlink()
    with pytest.raises(FormatError, match="without their manifest"):
        open_source(folder)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"labels_path": "other.h5"}, "labels_path goes with one HDF5 file"),
        (
            {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3},
            "the axes of this dataset are known",
        ),
    ],
)
def test_what_only_foreign_files_have(shared: Path, params: Any, says: str) -> None:
    """Labels elsewhere and axes of other layouts are refused rather than ignored."""
    with pytest.raises(ParamsError, match=says):
        AsyncReader(path=shared, **params)


# -- verify --------------------------------------------------------------------------------------


def test_verify_goes_shard_by_shard(folder: Path) -> None:
    """A whole set is ok; missing, foreign, damaged and altered shards are each one problem."""
    report = verify_file(str(folder))
    assert (report.ok, report.count, report.checked, report.bad) == (True, COUNT, COUNT, 0)
    images = pictures(COUNT)
    damage(str(folder / "shard-00000-of-00005.h5"), images[3].tobytes())
    (folder / "shard-00001-of-00005.h5").unlink()
    with open(folder / "shard-00004-of-00005.h5", "ab") as file:
        file.write(b"x")
    seen: list[tuple[int, int]] = []
    report = verify_file(str(folder / NAME), progress=lambda *done: seen.append(done))
    for line, shard in zip(report.problems, ("00000-", "00001-", "00004-"), strict=True):
        assert shard in line
    assert (report.bad, report.checked) == (1, 7 + 9 + 4)
    assert seen[-1] == (COUNT, COUNT)


def test_verify_of_a_damaged_manifest(folder: Path) -> None:
    """A manifest that was altered is a report with one problem, not an exception."""
    text = (folder / NAME).read_text()
    (folder / NAME).write_text(text.replace('"shape": [24', '"shape": [25'))
    report = verify_file(str(folder))
    assert len(report.problems) == 1
    assert "not as it was written" in report.problems[0]


def test_doctor_knows_shards(tmp_path: Path) -> None:
    """doctor looks at the files of all shards, and advises one sample a chunk for several ranks."""
    path = write_set(tmp_path / "set", pictures(COUNT), chunk=3)
    source = open_source(path)
    facts = look(source, str(path))
    assert [Path(file).name for file in facts.files] == sorted(os.listdir(path))[1:]
    assert facts.size == source.facts.size_on_disk
    assert (facts.chunk, facts.count) == (3, COUNT)
    source.close()
    ranks = parse_params({"path": path, "rank": 0, "world_size": 8, "shuffle": "block"}, {})
    now, tops = SimpleNamespace(steps={"decode": 0.5}), SimpleNamespace(copy=2.0, decode_all=1.0)
    words: Any = _about_decoding(facts, ranks, now, tops)  # type: ignore[arg-type]
    assert "one sample a chunk" in " ".join(words)


# -- manifests -----------------------------------------------------------------------------------


def test_a_manifest_comes_back(shared: Path) -> None:
    """What is written is read; equal sets give equal text, a line for each shard."""
    text = (shared / NAME).read_text()
    manifest = Manifest.from_json(text.encode(), "x")
    assert manifest.to_json() == text
    assert (len(manifest), manifest.count) == (len(SIZES), COUNT)
    assert manifest.ends.tolist() == np.cumsum(SIZES).tolist()
    assert sum(line.lstrip().startswith('["shard-') for line in text.splitlines()) == len(SIZES)


def test_every_changed_byte_is_noticed(folder: Path) -> None:
    """No bit of the manifest can flip without an error, but for blanks between its words."""
    text = (folder / NAME).read_bytes()
    want = Manifest.from_json(text, "x")
    for at in range(0, len(text), 3):
        for bit in (1, 4):
            changed = bytearray(text)
            changed[at] ^= bit
            try:
                found = Manifest.from_json(bytes(changed), "x")
            except FormatError:
                continue
            assert found.to_json() == want.to_json()


def _row(column: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts["shards"][1].__setitem__(column, value)


FIELD = {"name": "mask", "encoding": "png", "shape": None, "channels": 1, "dtype": "uint8"}

HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"name {name[:20]!r}": _row(0, name)
        for name in (
            *("../secret.h5", "/etc/passwd", "a/b.h5", "..", ".", "", ".hidden", "a\\b", "c:d"),
            *("a\0b", "a\nb", "\ud800", 'a"b', "-rf", "x" * 300, NAME),
        )
    },
    "name that is no text": _row(0, 5),
    "name given twice": _row(0, "shard-00000-of-00005.h5"),
    "count of nothing": _row(1, 0),
    "count below nothing": _row(1, -1),
    "count that is true": _row(1, True),
    "count that is a fraction": _row(1, 2.5),
    "count that is huge": _row(1, 10**30),
    "counts that add up to too much": lambda facts: [
        row.__setitem__(1, MOST - 1) for row in facts["shards"]
    ],
    "bytes": _row(2, -4),
    "digest": _row(3, "xyz"),
    "digest of labels": _row(5, "-"),
    "row of other length": lambda facts: facts["shards"].append([1]),
    "row that is none": lambda facts: facts["shards"].append(None),
    "row too few": lambda facts: facts["shards"].pop(),
    "no rows": lambda facts: facts.update(shards=[]),
    "no table": lambda facts: facts.pop("shards"),
    "count of all": lambda facts: facts.update(count=10**12),
    "columns": lambda facts: facts.update(columns=["name"]),
    "container": lambda facts: facts.update(container=["hdf5"]),
    "encoding": lambda facts: facts.update(encoding={}),
    "shape": lambda facts: facts.update(shape=[10**12, 1, 3]),
    "no shape": lambda facts: facts.update(shape=None),
    "shape and channels": lambda facts: facts.update(channels=1),
    "label kind": lambda facts: facts.update(label_kind="x"),
    "label width": lambda facts: facts.update(label_width=0),
    "class name": lambda facts: facts.update(classes=["\ud800"]),
    "classes": lambda facts: facts.update(classes={"a": 1}),
    "chunk": lambda facts: facts.update(chunk=-1),
    "compression": lambda facts: facts.update(compression=["gzip"]),
    "data bytes": lambda facts: facts.update(data_bytes=None),
    "version": lambda facts: facts.update(version="1"),
    "version that says less": lambda facts: facts.update(version=1),
    "digests of all": lambda facts: facts.update(digests={"checksums": "x"}),
    "digests of some": lambda facts: facts["digests"].pop("labels"),
    "digests that are a list": lambda facts: facts.update(digests=["0" * 16]),
    "fields that are none": lambda facts: facts.update(fields=7),
    "fields without columns": lambda facts: facts.update(fields=[FIELD], field_bytes=[1]),
    "field without bytes": lambda facts: facts.update(fields=[FIELD]),
    "bytes of no field": lambda facts: facts.update(field_bytes=[1]),
    "fields of one name": lambda facts: facts.update(fields=[FIELD, FIELD], field_bytes=[1, 1]),
    "field that is none": lambda facts: facts.update(fields=[None], field_bytes=[1]),
    "digest of all": lambda facts: facts.update(digest=["0" * 16]),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_manifests_are_refused(folder: Path, attack: str) -> None:
    """Whatever a manifest claims, it is a FormatError: no other file is opened, nothing is huge."""
    edit(folder, HOSTILE[attack], mend=attack != "digest of all")
    with pytest.raises(FormatError):
        open_source(folder)


def test_pictures_too_large_for_any_are_refused(tmp_path: Path) -> None:
    """A manifest of encoded pictures larger than any that are decoded is refused before a slot of
    that size is allocated, as such a packed file is; the error names entry, found and expected."""
    path = write_set(tmp_path / "set", [], (1, 1), content=packed(pictures(2), "png"))
    edit(path, lambda facts: facts.update(shape=[60_000, 60_000, 3]))
    says = (
        r"the manifest has a wrong 'shape'.*found \[60000, 60000, 3\]; expected images of at most"
    )
    with pytest.raises(FormatError, match=says):
        open_source(path)


@pytest.mark.parametrize(
    "text",
    [b"", b"[" * 100_000, b"{", b"null", b'{"format": 3}', b"\xff\xfe", b"[" + b"1" * 5000 + b"]"],
    ids=["empty", "deep", "cut", "null", "other", "no text", "long number"],
)
def test_other_json_is_refused(folder: Path, text: bytes) -> None:
    """What is no manifest of ours is a FormatError that names the file."""
    (folder / NAME).write_bytes(text)
    with pytest.raises(FormatError) as caught:
        open_source(folder)
    assert caught.value.path == str(folder / NAME)


def test_a_manifest_of_crumbs_is_not_parsed(folder: Path) -> None:
    """Text that would take fifty times its length in memory is refused before it is parsed."""
    text = (folder / NAME).read_bytes().rstrip()
    (folder / NAME).write_bytes(text[:-1] + b', "x": [' + b"{}," * 300_000 + b"{}]}")
    with pytest.raises(FormatError, match="no table of shards"):
        open_source(folder)


def test_many_short_class_names(tmp_path: Path) -> None:
    """A manifest whose classes outnumber its shards by far is read: they may be numbers."""
    content = packed(pictures(2))
    content.classes = tuple(str(number) for number in range(20_000))
    path = write_set(tmp_path / "set", [], (1, 1), content=content)
    source = open_source(path)
    assert source.facts.classes == content.classes
    source.close()


def test_a_newer_manifest_says_so(folder: Path) -> None:
    """A manifest of a later version asks for an update."""
    edit(folder, lambda facts: facts.update(version=4))
    with pytest.raises(FormatError, match="newer asyncreader"):
        open_source(folder)


def test_a_manifest_too_long_is_not_parsed(folder: Path, monkeypatch: Any) -> None:
    """The text is bounded before it is read as JSON."""
    monkeypatch.setattr("asyncreader.formats.manifest.MOST_BYTES", 100)
    with pytest.raises(FormatError, match="too long"):
        open_source(folder)


def test_a_text_takes_the_memory_of_its_size(folder: Path) -> None:
    """A manifest of a few lines is read without the memory of the longest one allowed: where that
    is limited (ulimit -v), it could not be had."""
    tracemalloc.start()
    try:
        read_manifest(str(folder / NAME))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_set_has_no_manifest(tmp_path: Path) -> None:
    """Only a folder with a manifest in it, or a JSON file, names a sharded set."""
    assert manifest_path(str(tmp_path)) is None
    path = write_hdf5(tmp_path / "a.h5", packed(pictures(3)))
    assert manifest_path(path) is None
    assert not hasattr(open_source(path).first, "open_files")


@pytest.mark.slow
def test_open_files_are_bounded(tmp_path: Path) -> None:
    """However many shards there are, no more than the limit are open, whoever reads."""
    images = paint(60)
    path = write_set(tmp_path / "set", images, [2] * 30)
    source = open_shards(str(path / NAME), Request(), io="pread", limit=3)
    before = len(os.listdir("/proc/self/fd"))
    most = []

    def read(seed: int) -> None:
        for records in np.random.default_rng(seed).permutation(60).reshape(-1, 6):
            found, _, errors = fill_rows(source, OutputSpec(layout="NHWC"), records)
            assert errors == ()
            np.testing.assert_array_equal(found, images[records])
            most.append(len(os.listdir("/proc/self/fd")) - before)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    assert len(source.first.open_files) <= 3
    assert max(most) <= 3 + 4 + 4  # those kept, one in use by each thread, and listing them
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
