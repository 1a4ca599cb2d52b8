"""The compiled kernels against plain numpy."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from child_processes import run
from guard_pages import address
from hypothesis import given, settings
from hypothesis import strategies as st
from observed import Terminal
from project import tree_of
from xxhash import xxh3_64_intdigest

from asyncreader.pixels import kernels
from asyncreader.pixels.row_maker import RowFiller, RowTables
from asyncreader.pixels.shared import ERASURE_DRAWS, erased_part
from asyncreader.pixels.tables import (
    ALWAYS,
    MIRROR_DRAW,
    NEVER,
    STEP_DRAWS,
    UNSEEN,
    Erasure,
    RowsInMemory,
    file_table,
)
from asyncreader.system.keyed_random import Draws, key_of, mix_rows, uniforms
from asyncreader.system.memory import SCRATCH, aligned_empty

sides = st.integers(1, 40)


def picks(data: st.DataObject, count: int, size: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Byte offsets of some of ``count`` rows, repeats allowed, and distinct slot rows for them."""
    records = data.draw(st.lists(st.integers(0, count - 1), max_size=slots))
    rows = data.draw(st.permutations(range(slots)))[: len(records)]
    return np.array(records, np.int64) * size, np.array(rows, np.int64)


def some_keys(data: st.DataObject, count: int) -> np.ndarray:
    """Keys of rows."""
    return mix_rows(data.draw(st.integers(0, 1 << 60)), np.arange(count))


def part_of_padded(image: np.ndarray, key: np.ndarray, padding: int, around: int) -> np.ndarray:
    """The part that a key draws of a picture with pixels around it, as numpy pads it."""
    mode = ("constant", "edge", "reflect")[around]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode)  # type: ignore[call-overload]
    top, left = (int(uniforms(key, k)[0] * (2 * padding + 1)) for k in (0, 1))
    part: np.ndarray = padded[top : top + image.shape[0], left : left + image.shape[1]]
    return part


def test_rows_are_hashed_as_xxhash_does() -> None:
    """hash_rows gives XXH3-64 for each way that its specification has by length."""
    rng = np.random.default_rng(11)
    for size in (*range(260), 511, 512, 513, 1024, 1025, 3072, 5000):
        rows, scratch = rng.integers(0, 256, (3, size), np.uint8), np.empty(size + 1, np.uint8)
        at, found = rows.ctypes.data + np.arange(3) * size, np.empty(3, np.uint64)
        kernels.hash_rows(at, size, address(scratch), found)
        assert found.tolist() == [xxh3_64_intdigest(row.tobytes()) for row in rows], size


def test_pread_rows(tmp_path: Path) -> None:
    """pread_rows reads each row to its place, neighbours or not, and ends before one that the file
    does not have, and at a descriptor that cannot be read."""
    stored = np.random.default_rng(3).integers(0, 256, (50, 100), dtype=np.uint8)
    (tmp_path / "file").write_bytes(stored.tobytes())
    numbers, rows = np.array([7, 3, 4, 5, 20, 6, 49]), np.array([6, 0, 1, 2, 5, 4, 3])
    offsets, order, done = numbers * 100, np.argsort(numbers), np.zeros(1, np.int64)
    out = np.zeros((8, 100), np.uint8)
    with open(tmp_path / "file", "rb") as file:
        kernels.pread_rows(file.fileno(), offsets, 100, address(out), rows, order, done)
        assert done[0] == 7
        np.testing.assert_array_equal(out[rows], stored[numbers])
        assert not out[7].any()
        out[:] = 0
        kernels.pread_rows(file.fileno(), offsets + 30, 100, address(out), rows, order, done)
        assert done[0] == 6  # the last one ends behind the file
        shifted = stored.reshape(-1)[30:-70].reshape(49, 100)
        np.testing.assert_array_equal(out[rows[:6]], shifted[numbers[:6]])
    with open(tmp_path / "file", "ab") as file:
        kernels.pread_rows(file.fileno(), offsets, 100, address(out), rows, order, done)
        assert done[0] == 0


def filler(name: str, **terms: int) -> RowFiller:
    """A filler; scale and shift for as many channels."""
    channels = max(1, terms["channels"])
    rng = np.random.default_rng(channels)
    scale = rng.normal(0, 0.1, channels).astype(np.float32)
    shift = rng.normal(0, 3, channels).astype(np.float32)
    return RowFiller.of(name, scale, shift, **terms)


#: What each kernel makes of an image (H, W, C) of bytes; scale and shift for those that cast.
MADE: dict[str, Callable[..., np.ndarray]] = {
    "copy_batches": lambda image, *_: image,
    "transpose_batches": lambda image, *_: image.transpose(2, 0, 1),
    "affine_batches": lambda image, scale, shift: image.astype(np.float32) * scale + shift,
}
MADE["affine_batches_half"] = lambda *given: MADE["affine_batches"](*given).astype(np.float16)

#: The dtype of what a kernel writes.
DTYPES = {"affine_batches": np.float32, "affine_batches_half": np.float16}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_rows_are_filled(name: str, data: st.DataObject) -> None:
    """Each kernel writes the rows that it is told, bit for bit as numpy makes them, from any
    address, past the caches, too: mirrored, cut out of what numpy pads and painted over as their
    keys draw, values of several bytes whole; and the XXH3-64 of the stored bytes is that of the
    xxhash library, for those that are asked for."""
    height, width = data.draw(sides), data.draw(sides)
    channels, offset = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 63))
    item = 1 if name in DTYPES else data.draw(st.sampled_from([1, 1, 2, 4, 8]))
    size, dtype = height * width * channels * item, np.dtype(DTYPES.get(name, f"u{item}"))
    planar = name == "transpose_batches" or (name in DTYPES and data.draw(st.booleans()))
    memory = np.random.default_rng(size).integers(0, 256, 4 * size + offset, np.uint8)
    source = memory[offset:].view(f"u{item}").reshape(4, height, width, channels)
    offsets, rows = picks(data, 4, size, 5)
    if not rows.size:
        return
    wanted = data.draw(st.lists(st.booleans(), min_size=rows.size, max_size=rows.size))
    keys, wanted = some_keys(data, rows.size), np.array(wanted)
    flips = uniforms(keys, MIRROR_DRAW) < 0.5
    padding, around = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 2))
    erasure = Erasure(data.draw(st.sampled_from([0.0, 0.5, 1.0])), 0.02, 0.9, -1.5, 1.5)
    sizes = {
        "row_bytes": size,
        "out_bytes": size // item * dtype.itemsize,
        "height": height,
        "width": width,
        "channels": channels,
        "item": item,
        "planar": planar,
        "mirrored": True,
        "stream": data.draw(st.booleans()),
        "padding": padding,
        "around": around,
    }
    paint = np.arange(1, channels + 1).astype(dtype)
    out = aligned_empty((5, sizes["out_bytes"]), np.dtype(np.uint8))
    out[:] = 9
    one = filler(name, **sizes)
    one = one.erasing(erasure, paint) if erasure.chance else one
    sums = one.fill(offsets + address(source), rows, out, keys, wanted)
    assert sums is not None
    assert (np.delete(out, rows, axis=0) == 9).all()
    for i, (at, row) in enumerate(zip(offsets // size, rows, strict=True)):
        image = part_of_padded(source[at], keys[i : i + 1], padding, around)
        made = MADE[name](image[:, ::-1] if flips[i] else image, one.scale, one.shift)
        if planar and name != "transpose_batches":
            made = made.transpose(2, 0, 1)
        made = made.copy()
        draws = Draws(key_of(int(keys[i]), STEP_DRAWS))
        if erasure.chance:
            top, left, high, wide, _ = erased_part(
                draws.ahead(ERASURE_DRAWS), erasure, height, width
            )
            hwc = made.transpose(1, 2, 0) if planar else made
            hwc[top : top + high, left : left + wide] = paint
        np.testing.assert_array_equal(out[row].view(dtype), made.reshape(-1))
        if wanted[i]:
            assert int(sums[i]) == xxh3_64_intdigest(source[at].tobytes())


class Set:
    """Rows in several files, some found by a table, some by a stride and some in runs, with labels
    and checksums of some of them."""

    def __init__(self, counts: tuple[int, ...], size: int, label_bytes: int) -> None:
        rng = np.random.default_rng(size)
        total = sum(counts)
        self.rows = rng.integers(0, 256, (total, size), np.uint8)
        self.labels = rng.integers(0, 256, (total, max(1, label_bytes)), np.uint8)
        self.sums = np.array([xxh3_64_intdigest(row.tobytes()) for row in self.rows], np.uint64)
        files, first = [], 0
        for number, count in enumerate(counts):
            at = address(self.rows) + first * size
            starts = (
                np.arange(count, dtype=np.int64) * size if number % 2 else np.empty(0, np.int64)
            )
            sums = None if number % 3 == 2 else self.sums[first : first + count]
            stride, ends = 0 if number % 2 else size, None
            if number % 4 == 3:  # two rows each
                ends, stride = np.append(np.arange(2, count, 2), count), size
                starts = (ends - np.diff(ends, prepend=0)) * size
            files.append(RowsInMemory(count, at - 8, starts + 8, 8, stride, sums, ends=ends))
            first += count
        self.alive = files
        self.ends = np.cumsum(counts)
        # the labels of the first file alone, and those of all others together
        tables = [self.labels[: counts[0]], self.labels[counts[0] :]] if label_bytes else []
        self.files = file_table(files, [one for one in tables if one.size])


@pytest.mark.parametrize("counts", [(9,), (5, 1, 8, 3), (1,) * 40])
@pytest.mark.parametrize("label_bytes", [0, 1, 8, 20])
@pytest.mark.parametrize("mode", [NEVER, UNSEEN, ALWAYS])
def test_records_are_found_and_checked(
    counts: tuple[int, ...], label_bytes: int, mode: int
) -> None:
    """Records are found in the file that holds them, with their labels; mirrored by the draw of
    their positions; a wrong checksum refuses the batch, as often as the mode says."""
    wide, size = 100, 300
    held, count = Set(counts, size, label_bytes), sum(counts)
    seen = np.zeros(count, np.uint8)
    one = filler(
        "copy_batches", row_bytes=size, out_bytes=size, height=1, width=wide, channels=3,
        item=1, mirrored=True, check=mode, seen=address(seen), label_bytes=label_bytes,
    )  # fmt: skip
    tables = RowTables.of([one], [held.files])
    rng = np.random.default_rng(1)
    records, position, key = rng.integers(0, count, 30), 77, -(1 << 62)
    out, labels = np.zeros((30, size), np.uint8), np.zeros((30, max(1, label_bytes)), np.uint8)
    assert tables.fill(records, [out], labels, key, position)
    keys = mix_rows(key & ((1 << 64) - 1), np.arange(position, position + 30))
    flips = uniforms(keys, MIRROR_DRAW) < 0.5
    assert 5 < flips.sum() < 25
    for i, record in enumerate(records):
        image = held.rows[record].reshape(wide, 3)
        np.testing.assert_array_equal(out[i].reshape(wide, 3), image[::-1] if flips[i] else image)
        if label_bytes:
            np.testing.assert_array_equal(labels[i], held.labels[record])
    has_sums = np.searchsorted(held.ends, np.arange(count), side="right") % 3 != 2
    checked = np.isin(np.arange(count), records) & has_sums & (mode == UNSEEN)
    np.testing.assert_array_equal(seen, checked)
    damaged = records[np.flatnonzero(has_sums[records])[0]]
    held.rows[damaged, 13] ^= 1
    good = tables.fill(records, [out], labels, key, position)
    assert good == (mode != ALWAYS)  # it was seen
    seen[:] = 0
    good = tables.fill(records, [out], labels, key, position)
    assert good == (mode == NEVER)
    assert not seen[damaged]


def test_windows_of_several_fields() -> None:
    """Fields of other sizes are found in files of their own. The pictures of a window are mirrored
    alike, by the draw of its position; records below 0 are zeros."""
    held = [Set((7, 6, 5, 8), size, 0) for size in (300, 5)]
    picture = {"height": 1, "width": 100, "channels": 3, "item": 1, "mirrored": 1, "window": 3}
    one, other = (
        filler("copy_batches", row_bytes=size, out_bytes=size, **more)
        for size, more in ((300, picture), (5, {"channels": 0}))
    )
    rng = np.random.default_rng(2)
    records = rng.integers(-5, 26, 30), rng.integers(-5, 26, 20)
    files = [each.files for each in held]
    tables = RowTables.of([one, other], files, lambda given: (given, records[1]))
    outs = [np.ones((30, 300), np.uint8), np.ones((20, 5), np.uint8)]
    assert tables.fill(records[0], outs, None, 9, 77)
    flips = uniforms(mix_rows(9, np.arange(77, 87)), MIRROR_DRAW) < 0.5
    assert 2 < flips.sum() < 8
    for of, rows, found in zip(held, records, outs, strict=True):
        expected = np.where(rows[:, None] < 0, 0, of.rows[rows])
        if of is held[0]:
            images = expected.reshape(10, 3, 100, 3)
            images[flips] = images[flips][:, :, ::-1].copy()
        np.testing.assert_array_equal(found, expected)


def child(
    code: str, folder: Path | None = None, well: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the package that lies in ``folder``."""
    done = run([sys.executable, "-c", code], cwd=folder, env=os.environ | environment)
    assert (done.returncode == 0) == well, done.stderr
    return done


def test_every_kernel_has_a_name_and_says_what_it_does() -> None:
    """The product calls the kernels that there are, and each has a docstring."""
    from asyncreader.pixels import _compiled

    folder, named = Path(kernels.__file__).parents[1], set[str]()
    for path in (*folder.rglob("*.py"), *folder.with_name("converters").rglob("*.py")):
        named |= set(re.findall(r"\bkernels\.([a-z]\w+)\b(?!\.)", path.read_text("utf-8")))
    known = set(_compiled.KERNELS)
    assert named & known
    assert named - known - set(vars(kernels)) <= {"py"}
    assert all(function.__doc__ for function, _ in _compiled.KERNELS.values())
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kernels.nonsense


def test_kernels_have_names_of_their_own() -> None:
    """No two functions of compiled code have one name: kept code would run as one of them."""
    from numba.core.dispatcher import Dispatcher

    from asyncreader.pixels import _compiled

    found: dict[str, object] = {}
    todo = [function for function, _ in _compiled.KERNELS.values()]
    while todo:
        function = todo.pop()
        if found.setdefault(function.__qualname__, function) is not function:
            raise AssertionError(f"two functions are called {function.__qualname__}")
        cells = (cell.cell_contents for cell in function.__closure__ or ())
        used = [function.__globals__.get(name) for name in function.__code__.co_names]
        known = [one.py_func for one in (*used, *cells) if isinstance(one, Dispatcher)]
        todo += [one for one in known if one not in found.values()]
    assert len(found) > 40
    assert not any("<locals>" in name for name in found)


@pytest.mark.slow
def test_a_kernel_is_compiled_when_it_is_first_used() -> None:
    """Opening kernels.py loads no numba; using one loads that one, once for many threads."""
    found = child("""
import sys, threading
from asyncreader.pixels import kernels
assert "numba" not in sys.modules and "copy_runs" not in vars(kernels)
start, found = threading.Barrier(8), []
def use():
    start.wait()
    found.append(kernels.copy_runs)
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(set(map(id, found))) == 1 and vars(kernels)["copy_runs"] is found[0]
from asyncreader.pixels import _compiled
print(sorted(set(_compiled.KERNELS) & set(vars(kernels))))
""")
    assert found.stdout == "['copy_runs']\n"


#: copy_runs of a kernel that was just loaded, to see that it works.
GATHER = """
import sys
import numpy as np
from asyncreader.pixels import kernels
source, out = np.arange(12, dtype=np.uint8), np.zeros(12, np.uint8)
at, sizes = np.arange(0, 12, 4), np.full(3, 4)
kernels.copy_runs(source.ctypes.data + at, sizes, out.ctypes.data + at)
assert (out == source).all()
"""

#: Before anything else in a process: no folder can be written but what a parent shares.
READ_ONLY = """
import errno, os
from pathlib import Path
def refuse(path, data):
    if "asyncreader-kernels-" not in str(path):
        raise OSError(errno.EROFS, "read-only", path)
    return whole(path, data)
whole, Path.write_bytes = Path.write_bytes, refuse
"""

HITS = "print(sum(kernels.copy_runs.stats.cache_hits.values()))"


def hits(package: Path, folder: Path, *acts: str) -> list[int]:
    """After each of ``acts``, a line of Python, how often a new process that loads a kernel found
    its code in ``folder``. The processes are forks of one that has imported numba and no kernel."""
    forked = "".join(
        f"{act}\nif (pid := os.fork()) == 0:\n    load()\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        for act in acts
    )
    load = (
        "import os, sys, numba\n"
        f"def load():\n    exec({GATHER + HITS!r}, {{}})\n    sys.stdout.flush()\n"
    )
    said = child(load + forked, package, NUMBA_CACHE_DIR=str(folder)).stdout
    return [int(line) for line in said.split()]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that has no compiled code, in a folder of its own."""
    own = Path(kernels.__file__).parents[1]
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(own, tmp_path / "package" / "asyncreader", ignore=skip)
    return tmp_path / "package"


@pytest.mark.slow
def test_damaged_compiled_code_is_compiled_anew(package: Path, tmp_path: Path) -> None:
    """A cache file that is cut short, at any point, or that has another byte anywhere, stops
    nothing; a whole one replaces it."""
    folder = tmp_path / "cache"
    assert hits(package, folder, "") == [0]
    (path,) = folder.rglob("*.nbc")
    size = path.stat().st_size
    damages: list[str] = []
    for cut in (0, 20, size // 2, size - 1):
        damages += (f"os.truncate({str(path)!r}, {cut})", "")
    for at in (0, 100, size // 2, size - 1):
        change = f"open({str(path)!r}, 'rb+')"
        flip = f"b = file.read(1)[0]; file.seek({at}); file.write(bytes([b ^ 1]))"
        damages += (f"with {change} as file: file.seek({at}); {flip}", "")
    assert hits(package, folder, *damages) == [0, 1] * 8


@pytest.mark.slow
def test_kept_code_is_of_the_sources(package: Path, tmp_path: Path) -> None:
    """A change of the file that kernels share is a change of every kernel, and so is another numba:
    no old code is used. A change of another kernel's file is none."""
    changes = []
    for name in ("base.py", "copying.py"):
        path = package / "asyncreader/pixels/_compiled" / name
        changes += [f"open({str(path)!r}, 'a').write('# changed')", ""]
    changes += ["numba.__version__ = '99.0'", ""]  # forks have it, too
    path = package / "asyncreader/pixels/_compiled/order.py"
    changes.append(f"open({str(path)!r}, 'a').write('# changed')")
    assert hits(package, tmp_path / "cache", "", "", *changes) == [*[0, 1] * 4, 1]


#: Files without kernels.
INNER = ("base", "memory", "vectors", "hashing")


def test_kept_code_sees_all_files_that_it_is_made_of() -> None:
    """What a file with kernels takes from another one of its folder is in the digest of its kept
    code, and so is what that file takes."""
    from asyncreader.pixels import _compiled
    from asyncreader.pixels._compiled import base

    files = {Path(function.__code__.co_filename) for function, _ in _compiled.KERNELS.values()}
    for path in {*files, *(path.with_name(f"{name}.py") for path in files for name in INNER)}:
        nodes = [node for node in tree_of(path).body if isinstance(node, ast.ImportFrom)]
        taken = {path.with_name(f"{node.module}.py") for node in nodes if node.level == 1}
        assert taken <= set(base._read(path)[1])
        assert taken or path not in files


@pytest.mark.slow
@pytest.mark.parametrize("home", ["", "/dev/null", "~", "home"])
def test_a_package_that_cannot_be_written(package: Path, tmp_path: Path, home: str) -> None:
    """Where the package's folder cannot be written, code is kept in the user's cache folder, and
    kernels work without a home as well."""
    (package / "asyncreader/pixels/_compiled/__pycache__").write_text("no folder")
    there, runs = (str(tmp_path / home), 2) if home == "home" else (home, 1)
    for found in ("0\n", "1\n")[:runs]:
        assert child(GATHER + HITS, package, HOME=there, XDG_CACHE_HOME="").stdout == found


def test_who_looks_on_is_told_of_compiling_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal one line says what the first batch waits for, however many kernels it needs;
    nothing is written to a file."""
    assert kernels._state.compiling == kernels._state._announce
    for stderr, lines in ((Terminal(), 1), (io.StringIO(), 0)):
        monkeypatch.setattr(sys, "stderr", stderr)
        state = kernels._State()
        state.compiling()
        state.compiling()
        assert stderr.getvalue().count(kernels.COMPILING + "\n") == lines
        assert stderr.getvalue().count("\n") == lines


@pytest.mark.slow
def test_compiled_code_is_read_where_it_cannot_be_written(package: Path) -> None:
    """compile_all() in an image warms it: without a writable folder the code is loaded all the
    same, and where there is none compile_all says so."""
    warm = """
from asyncreader.pixels import _compiled, kernels
for name in set(_compiled.KERNELS) - {"copy_runs"}:
    del _compiled.KERNELS[name]  # compiling all of them takes seconds
kernels.compile_all()
"""
    assert child(READ_ONLY + GATHER + HITS, package).stdout == "0\n"
    refused = child(READ_ONLY + warm, package, well=False)
    assert "RuntimeError: not kept on disk: copy_runs" in refused.stderr
    child(warm, package)
    assert child(READ_ONLY + GATHER + HITS, package).stdout == "1\n"


@pytest.mark.slow
def test_worker_processes_compile_nothing(package: Path, tmp_path: Path) -> None:
    """Without any folder for compiled code the parent compiles once, its workers load that, and
    nothing of it is left when the parent has ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        READ_ONLY
        + """
import multiprocessing
import numpy as np
from asyncreader import AsyncReader
from asyncreader.pixels import kernels

def look(data, labels):
    if multiprocessing.parent_process() is not None:
        for name in ("copy_batches", "feistel_rows"):
            assert not getattr(kernels, name).stats.cache_misses, name

if __name__ == "__main__":
    data = np.zeros((300, 9, 8, 3), np.uint8)
    with AsyncReader(
        data=data, batch_size=30, shuffle=True, workers="process", nthread=2, postprocess=look
    ) as reader:
        print(sum(len(batch) for batch in reader))
    print(kernels.feistel_rows.stats.cache_misses != {})
"""
    )
    env = os.environ | {"PYTHONPATH": str(package), "TMPDIR": str(temporary)}
    done = run([sys.executable, script], env=env)
    assert (done.stdout, done.stderr) == ("300\nTrue\n", "")
    assert list(temporary.iterdir()) == []


SERVE = """
import hashlib
import numpy as np
from asyncreader import AsyncReader
data = np.random.default_rng(0).integers(0, 256, (300, 9, 8, 3), dtype=np.uint8)
digest = hashlib.sha256()
for dtype in (None, "float32", "float16"):
    with AsyncReader(data=data, batch_size=30, shuffle=True, dtype=dtype, flip=True) as reader:
        for batch in reader:
            digest.update(batch.data.tobytes() + batch.indices.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_disabled_jit_is_not_for_kernels() -> None:
    """NUMBA_DISABLE_JIT, by which users debug functions of their own, changes no batch and says
    nothing."""
    plain, disabled = child(SERVE), child(SERVE, NUMBA_DISABLE_JIT="1")
    assert (disabled.stdout, disabled.stderr) == (plain.stdout, plain.stderr)
    own = "import numba\ndef own():\n    pass\nassert numba.njit(own) is own\n"
    child(own + SERVE + own, NUMBA_DISABLE_JIT="1")


@pytest.mark.slow
def test_a_numba_that_fails_is_one_error() -> None:
    """Where numba cannot be imported, or compiles nothing, an error says so, and what to do."""
    broken = "import sys, types\nsys.modules['numba'] = types.ModuleType('numba')\n"
    found = child(broken + SERVE, well=False).stderr
    assert "AsyncReaderError: numba does not compile" in found
    assert "pip install --force-reinstall numba" in found


#: What kernels with instructions of one processor make, each printed.
ANY_PROCESSOR = """
import hashlib, os
import numpy as np
from asyncreader.pixels import geometry, kernels
from asyncreader.pixels.codec import planes
from asyncreader.pixels.tables import PLAN, numbers
from asyncreader.pixels.row_maker import RowFiller
def show(name, out):
    print(name, hashlib.sha256(out.tobytes()).hexdigest())
rng, resize = np.random.default_rng(3), kernels.resize_planned
if "NUMBA_CPU_NAME" in os.environ:
    from asyncreader.pixels import _compiled
    resize = _compiled.load("resize_planned")
    assert not any(".avx2." in code for code in resize.inspect_llvm().values())
scale, halves = np.float32([0.3, 2, 1]), np.zeros((1, 12), np.uint16)
source = rng.integers(0, 256, 12, np.uint8)
RowFiller.of(
    "affine_batches_half", scale, scale, row_bytes=12, out_bytes=24, height=2, width=2, channels=3,
    item=1, planar=1,
).fill(np.array([source.ctypes.data]), np.zeros(1, np.int64), halves)
show("half", halves)
for height, width in ((61, 47), (64, 96)):
    stored = rng.integers(0, 256, planes.planes_bytes(height, width), np.uint8)
    rgb, again = np.empty((height, width, 3), np.uint8), np.empty_like(stored)
    kernels.convert_420(stored.ctypes.data, height, width, 0, 0, rgb.ctypes.data, height, width)
    kernels.make_420(rgb.ctypes.data, height, width, again.ctypes.data)
    show("rgb", rgb)
    show("planes", again)
box, plan = np.array([[3.5, 2.25, 50.5, 44.0]]), np.zeros(1, PLAN)
for channels in (1, 2, 3, 4):
    lines = rng.integers(0, 256, (61, 47 * channels), np.uint8)
    for method in geometry.METHODS.values():
        for size in ((9, 11), (80, 70)):
            out = np.empty(size[0] * size[1] * channels, np.uint8)
            plan[0] = lines.ctypes.data, 61, 47, channels == 3, out.ctypes.data, 0, 0, 0, 0
            resize(numbers(plan), box, 0, 1, channels, method, *size, False)
            show(f"resized {channels} {method} {size}", out)
"""


@pytest.mark.slow
def test_code_for_any_processor(tmp_path: Path) -> None:
    """NUMBA_CPU_NAME=generic, for an image that runs anywhere, gives the same bytes without the
    instructions of one processor: halves, planes, and pictures of any channels, resized in any
    way, mirrored too."""
    generic = child(ANY_PROCESSOR, NUMBA_CPU_NAME="generic", NUMBA_CACHE_DIR=str(tmp_path))
    assert generic.stdout == child(ANY_PROCESSOR).stdout
    assert generic.stdout.count("resized") == 24


def test_kernels_release_the_gil() -> None:
    """A kernel lets other threads run: it is compiled without holding the GIL."""
    from asyncreader.pixels import _compiled

    for name in _compiled.KERNELS:
        assert getattr(kernels, name).targetoptions["nogil"]


@pytest.mark.slow
def test_a_fork_while_a_thread_compiles(tmp_path: Path) -> None:
    """A process that is forked while a thread of it loads a kernel can load kernels: the fork waits
    until the locks are free."""
    program = (
        "import os, threading, warnings\n"
        "from asyncreader.pixels import kernels\n"
        "warnings.simplefilter('ignore')\n"
        "inside, go, load = threading.Event(), threading.Event(), kernels._load\n"
        "def slow(name):\n"
        "    inside.set(); go.wait(1); return load(name)\n"
        "kernels._load = slow\n"
        "thread = threading.Thread(target=lambda: kernels.copy_runs); thread.start()\n"
        "inside.wait(); pid = os.fork()\n"
        "kernels._load = load\n"
        "if pid == 0:\n"
        "    kernels.copy_rows if hasattr(kernels, 'copy_rows') else kernels.hash_rows\n"
        "    os._exit(0)\n"
        "thread.join(); print(os.waitpid(pid, 0)[1])\n"
    )
    assert run([sys.executable, "-c", program]).stdout == "0\n"


def test_scratch_memory_is_the_takers() -> None:
    """A read inside another of the same thread, as in a signal handler or in a function of the
    user, gets other memory than what is in use, also where it needs more, and so does another
    thread; later it is used again.
    """
    taken = SCRATCH.take("test", 100).reshape(5, 20)
    taken[:] = 7
    inner = SCRATCH.take("test", 5000)
    inner[:] = 1
    assert (taken == 7).all()
    address = inner.ctypes.data
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: SCRATCH.take("test", 100).ctypes.data).result()
    assert other not in (address, taken.ctypes.data)
    del inner
    assert SCRATCH.take("test", 3000).ctypes.data == address
    numbers = SCRATCH.array("test", (2, 3), np.dtype("f4"))
    assert (numbers.shape, numbers.dtype) == ((2, 3), "f4")
