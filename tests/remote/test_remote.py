"""Sets in a store: the same bytes as on disk whatever the network does, and no secret told."""

import contextlib
import fcntl
import json
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fakes
import h5py
import numpy as np
import pytest
import xxhash
from child_processes import child, ended
from ctrl_c import every_moment, interrupted, moments
from fakes import class_folders, encoded, pictures
from observed import HANG, switching_often
from range_server import server_stats, serving

from asyncreader import AsyncReader, FormatError, ParamsError, SourceError, SourceNotFoundError
from asyncreader.formats.manifest import Manifest, Shard
from asyncreader.sources.remote import client as objects_module
from asyncreader.sources.remote import open
from asyncreader.sources.remote import open as open_module
from asyncreader.sources.remote.cache import ShardCache, parse_bytes
from asyncreader.sources.remote.client import merged
from asyncreader.sources.sniff import Location, location_of, without_secrets
from asyncreader.system.files import close_locked
from converters import convert

pytest.importorskip("obstore", reason="obstore is not installed")

KINDS: dict[str, dict[str, Any]] = {
    "raw": {"format": "hdf5", "size": (16, 16)},
    "gzip": {"format": "hdf5", "size": (16, 16), "compression": "gzip"},
    "original": {"format": "hdf5", "encoding": "original"},
    "lmdb": {"format": "lmdb", "encoding": "jpeg", "size": (16, 16)},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one sharded set of each kind, and one HDF5 file."""
    folder = tmp_path_factory.mktemp("store")
    photos = class_folders(folder / "photos", 37)
    (folder / "sets").mkdir()
    for name, options in KINDS.items():
        convert(photos, folder / "sets" / name, shards=4, **options)
    convert(photos, folder / "sets" / "one.h5", size=(16, 16))
    return folder / "sets"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, named by the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ASYNCREADER_CACHE_DIR", str(folder))
    return folder


def digest(path: str | Path, epochs: int = 1, **params: Any) -> str:
    """Of all that is served, and the state, which goes on from a disk in a store and back."""
    settings = {"batch_size": 8, "shuffle": True, "nthread": 2, "njob": 2, "last_batch": "pad"}
    with AsyncReader({"path": path, "size": (16, 16), **settings, **params}) as reader:
        return f"{fakes.digest(reader, epochs)} {json.dumps(reader.state_dict())}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name in KINDS if name != "lmdb"])
def test_ranges_give_the_same_bytes(root: Path, kind: str) -> None:
    """Byte ranges of shards in a store are served as the shards on disk are, block order too."""
    with serving(root) as url:
        assert digest(f"{url}/{kind}") == digest(root / kind)
        assert digest(f"{url}/{kind}/asyncreader.json") == digest(root / kind)
        assert digest(f"{url}/{kind}", shuffle="block") == digest(root / kind, shuffle="block")


@pytest.mark.parametrize("name", ["raw", "lmdb", "one.h5"])
def test_a_field_that_a_set_in_a_store_lacks(root: Path, name: str) -> None:
    """It is a ParamsError that lists what is there, as on disk."""
    with serving(root) as url:
        for option in ("data_field", "labels_field"):
            with pytest.raises(ParamsError, match=r"'nothing'.*found .*data.*labels"):
                AsyncReader({"path": f"{url}/{name}", option: "nothing"})


@pytest.mark.parametrize("kind", ["raw", "original"])
def test_failing_and_cut_answers_lose_nothing(root: Path, kind: str) -> None:
    """Errors and answers that break off, one in five each: the same bytes over three epochs."""
    with serving(root, errors=0.2, cuts=0.2) as url:
        assert digest(f"{url}/{kind}", epochs=3) == digest(root / kind, epochs=3)
        stats = server_stats(url)
        assert stats["errors"] > 0
        assert stats["cuts"] > 0


@pytest.mark.slow
def test_workers_in_processes(root: Path) -> None:
    """Worker processes open the set by its URL for themselves."""
    with serving(root) as url:
        assert digest(f"{url}/raw", workers="process") == digest(root / "raw")


def test_one_file(root: Path) -> None:
    """A packed HDF5 file in a store is a set, too."""
    with serving(root) as url:
        assert digest(f"{url}/one.h5") == digest(root / "one.h5")


def test_patches_of_volumes(tmp_path: Path) -> None:
    """Patches of a volume in a store are those of the file, in one piece or in chunks."""
    data = np.random.default_rng(0).integers(0, 999, (20, 30, 40), np.uint16)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["flat"] = data
        file.create_dataset("gzip", data=data, chunks=(8, 8, 16), compression="gzip")
        file.create_dataset("chunks", data=data, chunks=(8, 8, 16))
    given: dict[str, Any] = {"sample_axis": None, "patch": (5, 9, 11), "labels_field": None}
    given |= {"data_field": ["flat", "gzip", "chunks"], "epoch_samples": 12, "batch_size": 4}
    with serving(tmp_path) as url, AsyncReader(f"{url}/x.h5", **given) as reader:
        for batch in reader:
            assert batch.place is not None
            for k, (z, y, x) in enumerate(batch.place.tolist()):
                for part in batch.data:
                    expected = data[z : z + 5, y : y + 9, x : x + 11]
                    np.testing.assert_array_equal(part[k], expected)


@pytest.mark.slow
def test_chunks_that_are_not_in_the_store(tmp_path: Path) -> None:
    """Chunks that were never written are served as the file's fill value, and not asked for; also
    where a batch has no others."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset(
            "data", (40, 6), "f4", chunks=(4, 6), compression="gzip", fillvalue=7
        )
        data[20:32] = np.arange(72).reshape(12, 6)
    with h5py.File(tmp_path / "x.h5") as file:
        expected = file["data"][()]
    with serving(tmp_path) as url, AsyncReader(f"{url}/x.h5", batch_size=10) as reader:
        np.testing.assert_array_equal(np.concatenate([b.data.copy() for b in reader]), expected)
    given: dict[str, Any] = {"sample_axis": None, "patch": (4, 6), "patch_at": "grid"}
    with serving(tmp_path) as url, AsyncReader(f"{url}/x.h5", batch_size=2, **given) as reader:
        found = np.concatenate([batch.data.copy() for batch in reader])
        np.testing.assert_array_equal(found.reshape(40, 6), expected)


def test_a_set_of_variable_length(tmp_path: Path) -> None:
    """HDF5 data of variable length are not read from a store, and the error says so."""
    with h5py.File(tmp_path / "vlen.h5", "w") as file:
        file.create_dataset("images", (2,), h5py.vlen_dtype(np.uint8))[:] = [
            np.frombuffer(encoded(image, "JPEG"), np.uint8) for image in pictures(2)
        ]
    with serving(tmp_path) as url, pytest.raises(FormatError, match="not read from a store"):
        AsyncReader(f"{url}/vlen.h5", size=(8, 8))


def test_masks_in_a_store(tmp_path: Path) -> None:
    """robomimic's splits are read from a store, but for those of text of variable length: a warning
    names these, and the rest is served."""
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for number in range(3):
            file[f"data/demo_{number}/actions"] = np.full((4, 2), number, "f4")
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/varied"] = ["demo_1"]
    given: dict[str, Any] = {"data_field": "actions", "batch_size": 8}
    with (
        serving(tmp_path) as url,
        pytest.warns(UserWarning, match="split 'varied' is left out"),
        AsyncReader(f"{url}/demos.h5", subset="train", **given) as reader,
    ):
        assert next(iter(reader)).data[:, 0].tolist() == [0] * 4 + [2] * 4


def test_file_urls(root: Path) -> None:
    """file:// names what is on this machine."""
    assert digest(f"file://{root}/raw") == digest(root / "raw")


# -- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_gives_the_same_bytes(root: Path, cache: Path, kind: str) -> None:
    """Whole shards through the cache: the same bytes, and no request but for the manifest when
    the shards are there."""
    with serving(root) as url:
        assert digest(f"{url}/{kind}") == digest(root / kind)
        before = server_stats(url)["requests"]
        assert digest(f"{url}/{kind}", io="mmap") == digest(root / kind)
        assert server_stats(url)["requests"] - before == 2
    assert len(list(cache.glob("*.part"))) == 0
    assert len(list(cache.iterdir())) == 4


def shards(folder: Path) -> list[Shard]:
    """The rows of a set's manifest."""
    text = (folder / "asyncreader.json").read_bytes()
    manifest = Manifest.from_json(text, str(folder))
    return list(manifest.shards)


def held(cache: Path) -> int:
    """Bytes in the cache. Nothing grows while its lock is held: without it, a file that is removed
    and one that takes its space meanwhile would both be counted."""
    folder = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        total = 0
        for path in cache.iterdir():
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                total += path.stat().st_size
        return total
    finally:
        os.close(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "lmdb"])
def test_more_threads_than_shards_fit(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With room for two shards four threads that fetch at once wait for one another: epochs are
    whole, and the bound is kept."""
    limit = 2 * max(shard.bytes for shard in shards(root / kind)) + 100
    monkeypatch.setenv("ASYNCREADER_CACHE_BYTES", str(limit))
    params = {"batch_size": 2, "shuffle": True, "nthread": 4, "njob": 4, "size": (16, 16)}
    most = 0
    with serving(root, latency=0.02) as url:
        with pytest.warns(UserWarning, match="1 stay open"):
            reader = AsyncReader({"path": f"{url}/{kind}", "last_batch": "short", **params})
        with reader:
            for _ in range(2):
                found = []
                for batch in reader:
                    found += batch.indices.tolist()
                    most = max(most, held(cache))
                assert sorted(found) == list(range(37))
    assert 0 < most <= limit


PROGRAM = """
import json, sys
from asyncreader import AsyncReader
with AsyncReader(json.loads(sys.argv[2]), path=sys.argv[1]) as reader:
    print(len(list(reader)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limited", [True, False])
def test_two_processes_of_a_machine(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    """Processes of a machine share the cache: nothing is fetched twice, and where not all shards
    fit, they wait for one another."""
    limit = 2 * max(shard.bytes for shard in shards(root / "raw")) + 100
    if limited:
        monkeypatch.setenv("ASYNCREADER_CACHE_BYTES", str(limit))
    given = {"batch_size": 3, "shuffle": limited, "nthread": 2, "njob": 2}
    with serving(root, latency=0.02) as url, contextlib.ExitStack() as children:
        words = [[sys.executable, "-c", PROGRAM, f"{url}/raw"]] * 2
        words = [[*one, json.dumps(given | {"seed": seed})] for seed, one in enumerate(words)]
        both = [children.enter_context(child(one, stdout=-1)) for one in words]
        assert [ended(process)[0] for process in both] == [b"12\n"] * 2
        if not limited:  # manifest: size and text; each of four small shards is one range
            assert server_stats(url)["requests"] == 2 * 2 + 4
    assert not limited or held(cache) <= limit
    assert not list(cache.glob("*.part"))


class Store:
    """Shards of 100 bytes in a store. ``before`` is called with a shard's letter when its bytes are
    asked for, by which time the cache has given the file its size."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[[], object]] = {}

    @staticmethod
    def row(letter: str) -> Shard:
        data = letter.encode() * 100
        return Shard(f"{letter}.h5", 1, 100, xxhash.xxh3_64_hexdigest(data), "", None)

    def read_ranges(self, location: Location, ranges: list[tuple[int, int]]) -> list[memoryview]:
        self.before.get(location.key, lambda: None)()
        data = location.key.encode() * 100
        return [memoryview(data[lo:hi]) for lo, hi in ranges]

    def read(self, cache: ShardCache, letter: str) -> bytes:
        """The shard's bytes, through the cache."""
        objects: Any = self
        return cache.open(
            *(objects, Location("s3://x", letter), self.row(letter), "h5"),
            lambda path: Path(path).read_bytes(),
        )


@pytest.mark.parametrize("what", ["part", "folder"])
def test_a_cleaner_deletes_what_is_fetched(tmp_path: Path, what: str) -> None:
    """A part file that is deleted (rm, tmpwatch) while it is fetched, alone or with its folder, is
    fetched again."""
    folder = tmp_path / "cache"
    cache, store, asked = ShardCache(str(folder), 250), Store(), 0

    def clean() -> None:
        nonlocal asked
        asked += 1
        if asked == 1 and what == "folder":
            shutil.rmtree(folder)
        elif asked == 1:
            next(folder.glob("*.part")).unlink()

    store.before["x"] = clean
    assert store.read(cache, "x") == b"x" * 100
    assert asked == 2
    assert [path.name for path in folder.glob("*.part")] == []
    assert held(folder) == 100


def test_a_part_file_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose part file was deleted does not give the final name to the part file of
    another thread, which is not complete."""
    cache, store, read = ShardCache(str(tmp_path), 250), Store(), list[bytes]()
    asked, go, early = threading.Event(), threading.Event(), list[list[Path]]()
    main, flock = threading.get_ident(), fcntl.flock

    def first_asks() -> None:
        next(tmp_path.glob("*.part")).unlink()
        second.start()
        assert asked.wait(HANG)

    def second_asks() -> None:
        asked.set()
        assert go.wait(HANG)

    def locked(file: int, kind: int) -> None:
        waits = asked.is_set() and kind != fcntl.LOCK_UN and not os.path.isdir(f"/dev/fd/{file}")
        if threading.get_ident() == main and waits:  # the first is done; the second has the lock
            early.append(list(tmp_path.glob("*.h5")))
            go.set()
        flock(file, kind)

    hooks = [first_asks, second_asks]
    store.before["x"] = lambda: hooks.pop(0)()
    second = threading.Thread(target=lambda: read.append(store.read(cache, "x")))
    monkeypatch.setattr(fcntl, "flock", locked)
    read.append(store.read(cache, "x"))
    second.join(HANG)
    assert read == [b"x" * 100] * 2
    assert early[0] == []


def test_a_cleaner_deletes_a_shard_that_is_opened(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is deleted between its download and its opening is fetched again."""
    opened = open_module.open_shard
    expected = digest(root / "raw")
    lost = list[str]()

    def deleted(path: str, *rest: Any) -> Any:
        if path not in lost:
            lost.append(path)
            os.unlink(path)
        return opened(path, *rest)

    monkeypatch.setattr(open_module, "open_shard", deleted)
    with serving(root) as url:
        assert digest(f"{url}/raw") == expected
    assert len(lost) == 4


def test_a_cache_full_of_what_cannot_be_removed(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for files that stay: the error says how much they are."""
    limit = 2 * max(shard.bytes for shard in shards(root / "raw"))
    monkeypatch.setenv("ASYNCREADER_CACHE_BYTES", str(limit))
    cache.mkdir()
    (cache / f"{'0' * 16}-{limit}.h5").write_bytes(b"x" * limit)

    def refuse(self: ShardCache, path: str) -> None:
        raise PermissionError("another user's")

    monkeypatch.setattr(ShardCache, "_remove", refuse)
    with (
        serving(root) as url,
        AsyncReader(path=f"{url}/raw", batch_size=4) as reader,
        pytest.raises(SourceError, match=rf"cannot be removed.*found {limit} of {limit} bytes"),
    ):
        next(iter(reader))
    assert not list(cache.glob("*.part"))


def test_a_cache_that_is_too_small(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused when the set is opened, with the size that is needed."""
    monkeypatch.setenv("ASYNCREADER_CACHE_BYTES", "10kB")
    with serving(root) as url, pytest.raises(ParamsError, match=r"at least [0-9]+; raise ASYNC"):
        AsyncReader(path=f"{url}/raw")


@pytest.mark.slow
def test_what_a_killed_process_left(root: Path, cache: Path) -> None:
    """A part that nobody fetches any more is removed, and a cut shard fetched again."""
    cache.mkdir()
    stale = cache / f"{'0' * 16}-99.h5.part"
    stale.write_bytes(b"x" * 99)
    with serving(root) as url:
        assert digest(f"{url}/raw") == digest(root / "raw")
        assert not stale.exists()
        shard = next(iter(cache.glob("*.h5")))
        os.truncate(shard, 1000)
        assert digest(f"{url}/raw") == digest(root / "raw")
        assert shard.stat().st_size > 1000


def test_two_threads_find_one_truncated_shard(tmp_path: Path) -> None:
    """It is fetched once, in the place of what was cut, and both get whole bytes."""
    cache, store, read = ShardCache(str(tmp_path), 250), Store(), list[bytes]()
    (tmp_path / f"{store.row('x').xxh3}-100.h5").write_bytes(b"cut")
    other = threading.Thread(target=lambda: read.append(store.read(cache, "x")))
    asked = list[str]()

    def first_asks() -> None:
        asked.append("x")
        other.start()

    store.before["x"] = first_asks
    read.append(store.read(cache, "x"))
    other.join(HANG)
    assert read == [b"x" * 100] * 2
    assert asked == ["x"]


def test_a_shard_is_opened_before_another_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who needs the space of a shard that was fetched just now gets it when that one is open."""
    cache, store, read = ShardCache(str(tmp_path), 100), Store(), list[bytes]()
    waits, flock, main = threading.Event(), fcntl.flock, threading.get_ident()
    other = threading.Thread(target=lambda: read.append(store.read(cache, "y")))

    def locked(file: int, kind: int) -> None:
        if threading.get_ident() != main and os.path.isdir(f"/dev/fd/{file}"):
            waits.set()
        flock(file, kind)

    def opened(path: str) -> bytes:
        other.start()
        assert waits.wait(HANG)
        return Path(path).read_bytes()

    monkeypatch.setattr(fcntl, "flock", locked)
    objects: Any = store
    found = cache.open(objects, Location("s3://x", "x"), store.row("x"), "h5", opened)
    other.join(HANG)
    assert [found, *read] == [b"x" * 100, b"y" * 100]
    assert held(tmp_path) == 100


@pytest.mark.slow
def test_a_forked_process_keeps_no_lock(tmp_path: Path) -> None:
    """A process that is forked while a shard is opened does not keep others from fetching."""
    program = (
        "import fcntl, os, sys; from types import SimpleNamespace as Row\n"
        "from asyncreader.sources.remote.cache import ShardCache\n"
        "import xxhash\n"
        "data = memoryview(b'abc')\n"
        "row = Row(xxh3=xxhash.xxh3_64_hexdigest(data), bytes=3)\n"
        "store = Row(read_ranges=lambda location, ranges: [data])\n"
        "ours, theirs = os.pipe()\n"
        "def opened(path):\n"
        "    if os.fork() == 0:\n"
        "        os.close(theirs); os.read(ours, 1); os._exit(0)\n"
        "    return path\n"
        "path = ShardCache(sys.argv[1], 10).open(store, None, row, 'h5', opened)\n"
        "for each in (path, sys.argv[1]):\n"
        "    fcntl.flock(os.open(each, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "print('free')"
    )
    with child([sys.executable, "-c", program, str(tmp_path)], stdout=-1) as process:
        assert ended(process)[0] == b"free\n"


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:Exception ignored in")
@pytest.mark.parametrize("cached", [False, True])
def test_ctrl_c_at_every_moment_of_a_shard(cached: bool, tmp_path: Path) -> None:
    """After Ctrl-C at any moment of opening or fetching a shard nothing in the cache is locked (but
    for the first instruction of what unlocks)."""

    def counts(frame: Any, event: str, argument: Any) -> bool:
        return every_moment(frame, event, argument) and frame.f_code is not close_locked.__code__

    def stop(moment: int, act: Callable[[], Any]) -> bool:
        return interrupted(moment, act, counts)

    def case() -> Iterator[Callable[[], Any]]:
        cache, store = ShardCache(str(tmp_path), 250), Store()
        if cached:
            store.read(cache, "a")
        yield lambda: store.read(cache, "a")
        for path in tmp_path.iterdir():
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()

    moments(case, stop)


def test_a_shard_that_was_changed(root: Path, cache: Path, tmp_path: Path) -> None:
    """Bytes that are not the manifest's are refused before they are used, and not kept."""
    copy = tmp_path / "sets" / "raw"
    copy.mkdir(parents=True)
    for file in (root / "raw").iterdir():
        content = bytearray(file.read_bytes())
        if "00001" in file.name:
            content[5000] ^= 1
        (copy / file.name).write_bytes(content)
    with serving(copy.parent) as url, pytest.raises(FormatError, match=r"its bytes differ.*XXH3"):
        digest(f"{url}/raw")
    assert not [path for path in cache.iterdir() if path.suffix == ".part"]


def test_sizes_in_words() -> None:
    """ "200GB" is a size; anything else is refused."""
    assert parse_bytes("200GB") == 200 * 10**9
    assert parse_bytes("1.5 k") == 1500
    for text in ("", "many", "-3", "0"):
        with pytest.raises(ParamsError):
            parse_bytes(text)


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cache cannot be used"):
        ShardCache(str(tmp_path / "file"))


# -- errors --------------------------------------------------------------------------------------


def test_nothing_there(root: Path) -> None:
    """A missing set or shard is named."""
    with serving(root) as url:
        with pytest.raises(SourceNotFoundError, match=r"no manifest.*elsewhere"):
            AsyncReader(path=f"{url}/elsewhere")
        with pytest.raises(SourceNotFoundError, match=r"no such object.*two\.h5"):
            AsyncReader(path=f"{url}/two.h5")


@pytest.fixture
def damaged(root: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A copy of a set to be damaged, and its URL."""
    copy = tmp_path / "raw"
    copy.mkdir()
    for file in (root / "raw").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with serving(tmp_path) as url:
        yield copy, f"{url}/raw"


def test_a_missing_shard(damaged: tuple[Path, str]) -> None:
    """Training never goes on without it: on_error does not let it pass."""
    folder, url = damaged
    next(iter(folder.glob("*-00002-*"))).unlink()
    with pytest.raises(SourceNotFoundError, match="00002"):
        digest(url, on_error="skip")


def test_a_shard_of_another_size(damaged: tuple[Path, str]) -> None:
    """A shard that was cut or replaced is refused by its size."""
    folder, url = damaged
    os.truncate(next(iter(folder.glob("*-00002-*"))), 4000)
    with pytest.raises(FormatError, match="its size differs"):
        digest(url)


def test_no_network(impatient: None) -> None:
    """A server that is not there is a typed error that names it."""
    with pytest.raises(SourceError, match=r"cannot be reached.*127\.0\.0\.1:9"):
        AsyncReader(path="http://127.0.0.1:9/set")


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@host/set", "s3://key:secret@bucket/x", "https://h/set?sig=secret#x"],
)
def test_urls_with_secrets_are_refused(url: str) -> None:
    """They would stand in states and logs; the error does not repeat them."""
    with pytest.raises(ParamsError, match="user name, password or query") as caught:
        AsyncReader(path=url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(pickle.loads(pickle.dumps(caught.value)))
    assert "secret" not in without_secrets(f"error at {url}: failed")


@pytest.mark.parametrize("url", ["ftp://host/x", "http:///x", "http://host:port/x", "s3://b/../x"])
def test_urls_that_make_no_sense(url: str) -> None:
    """They are a ParamsError before a request is made."""
    with pytest.raises(ParamsError):
        AsyncReader(path=url)


def test_lmdb_needs_the_cache(root: Path) -> None:
    """Byte ranges of LMDB are not read; the error says what is."""
    with serving(root) as url, pytest.raises(ParamsError, match="through the cache"):
        AsyncReader(path=f"{url}/lmdb", io="pread")


def test_closing_ends_a_read_that_waits(root: Path) -> None:
    """close() does not wait for a slow store, ends what was asked of it, and leaves no thread of
    ours behind."""
    with serving(root) as url:
        reader = AsyncReader(path=f"{url}/raw", batch_size=8)
    reader.fetchData()  # the server has gone: this is asked for in vain
    while not objects_module.requests_loop().now:
        time.sleep(0.001)
    reader.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("asyncreader-")]


def test_a_request_that_begins_while_the_set_is_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that close() comes into, after it looked and before it asks, ends: nobody waits for
    an answer that nobody cancels."""
    with serving(root) as url:
        location = location_of(f"{url}/one.h5")
    objects = objects_module.Objects(location.base)  # the server has gone
    submit = objects._loop.submit

    def closing(work: Any) -> Any:
        objects.close()
        return submit(work)

    monkeypatch.setattr(objects._loop, "submit", closing)
    failed: list[str] = []

    def read() -> None:
        try:
            objects.read(location, 0, 8)
        except SourceError as exc:
            failed.append(exc.what)

    keeper = objects_module.Objects(location.base)  # whose loop goes on
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)  # well below the patience of a request
    keeper.close()
    assert failed == ["the dataset was closed while it was read"]


def requesting() -> int:
    """Threads of this process that wait for a store."""
    return sum(thread.name == "asyncreader-requests" for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "one.h5"])
def test_no_thread_is_left(name: str, root: Path) -> None:
    """One thread waits for the answers to all readers, and ends with the last of them; the next one
    starts it again."""
    with serving(root) as url:
        for _ in range(3):
            one = AsyncReader(path=f"{url}/{name}", batch_size=8)
            two = AsyncReader(path=f"{url}/{name}", batch_size=8)
            assert requesting() == 1
            one.close()
            assert len(list(two)) == 4
            assert requesting() == 1
            two.close()
            assert requesting() == 0
            with pytest.raises(SourceNotFoundError):
                AsyncReader(path=f"{url}/nothing", batch_size=8)
            assert requesting() == 0


# -- ranges --------------------------------------------------------------------------------------


def test_neighbours_are_one_request() -> None:
    """Extents with little between them are merged, in any order, up to a size."""
    offsets = np.array([900_000, 100, 0, 200, 9_000_000], np.int64)
    lengths = np.array([10, 100, 100, 50, 9_000_000], np.int64)
    ranges, number = merged(offsets, lengths)
    assert ranges == [(0, 250), (900_000, 900_010), (9_000_000, 18_000_000)]
    assert number.tolist() == [1, 0, 0, 0, 2]


class Blob:
    """An object of a store that answers at once."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _: Location, start: int, stop: int) -> memoryview:
        return memoryview(self.data[start:stop])

    def read_ranges(self, _: Location, ranges: list[tuple[int, int]]) -> list[memoryview]:
        return [memoryview(self.data[lo:hi]) for lo, hi in ranges]


def test_hdf5_and_others_read_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads slices of an object while HDF5 reads it moves nothing that HDF5 stands at, and
    threads that need more blocks than are kept get their bytes."""
    data = np.random.default_rng(0).bytes(5000)
    monkeypatch.setattr(open, "_BLOCK", 64)
    monkeypatch.setattr(open, "_BLOCKS", 2)
    blob: Any = Blob(data)
    file = open.RangeFile(blob, Location("s3://x", "y"), len(data))
    file.seek(100)
    assert bytes(file[3000:3009]) == data[3000:3009]
    assert file.read(20) == data[100:120]
    assert bytes(file[4990:5100]) == data[4990:]

    def read(seed: int) -> bool:
        starts = np.random.default_rng(seed).integers(0, 4900, 2000).tolist()
        return all(bytes(file[at : at + 60]) == data[at : at + 60] for at in starts)

    with switching_often(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))


def test_a_batch_is_one_round_trip(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples of a batch are asked for before the first is waited for."""
    monkeypatch.setattr(objects_module, "MERGE_GAP", 0)  # neighbours alone are one request
    with (
        serving(root, latency=0.1) as url,
        AsyncReader(path=f"{url}/original", batch_size=18, shuffle=True, size=(16, 16)) as reader,
    ):
        assert len(list(reader)) == 2  # shards are opened one by one, then read together
        loop = objects_module.requests_loop()
        loop.peak = 0
        assert len(list(reader)) == 2
        assert loop.peak >= 4
