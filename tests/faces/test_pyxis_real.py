"""Files of the real ml-pyxis and ours: entry for entry the same bytes, which each reads.

ml-pyxis reads with numpy below 2 only, so it stands in an environment of its own, whose Python is
named by the variable ML_PYXIS_PYTHON; without it these tests are skipped:

    python -m venv px && px/bin/pip install ml-pyxis 'numpy<2'
    ML_PYXIS_PYTHON=px/bin/python pytest tests/faces/test_pyxis_real.py
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

px = pytest.importorskip("asyncreader.faces.pyxis", reason="needs msgpack")

PYTHON = os.environ.get("ML_PYXIS_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="ML_PYXIS_PYTHON names no Python with ml-pyxis (see the docstring)"
)

#: Plain dtypes of both byte orders, text, complex numbers and dates.
DTYPES = (
    *("?", "u1", "i1", "<u2", ">u2", "<i2", ">i4", "<u4", "<i8", ">u8", "<f2", ">f2", "<f4"),
    *(">f4", "<f8", ">f8", "<c8", ">c16", "S5", "<U3", ">U2", "<M8[s]", "<m8[us]"),
)
SHAPES = ((), (3,), (2, 0, 3), (2, 3, 4), (1, 300, 300))
COUNT = 5

#: What both writers do; ``px`` is either's module and ``sets`` the puts.
WRITE = """
with px.Writer({path!r}, map_size_limit=200) as writer:
    for number, put in enumerate(puts):
        if number % 2:
            writer.put_samples(*[part for item in put.items() for part in item])
        else:
            writer.put_samples(put)
    writer.set_meta_str("about", "W\\u00f6rter \\u4e2d")
    writer.set_meta_str("empty", "")
"""
#: What ml-pyxis reads, as a .npz: sample and key to array.
READ = """
with px.Reader({path!r}, lock=False) as reader:
    found = {{
        f"{{i}}/{{key}}": value for i in range(len(reader)) for key, value in reader[i].items()
    }}
np.savez({out!r}, **found)
"""


def plain_scalar(kind: np.dtype[Any]) -> bool:
    """Whether ml-pyxis keeps a number or text of its own as it was given.

    It takes it out of its array, which swaps the bytes of big-endian ones and shortens text.
    """
    return kind.isnative and kind.kind not in "SU"


def puts() -> list[dict[str, np.ndarray]]:
    """A put of samples for each shape: an array of every dtype, drawn at random."""
    rng = np.random.default_rng(8)
    made = []
    for shape in SHAPES:
        put: dict[str, np.ndarray] = {}
        for dtype in DTYPES:
            kind = np.dtype(dtype)
            if shape == () and not plain_scalar(kind):
                continue
            numbers = rng.integers(-100, 100, (COUNT, *shape))
            values = (numbers % 97 if kind.kind in "uSU" else numbers).astype(kind)
            put[f"kéy {dtype}"] = np.asfortranarray(values)
        made.append(put)
    return made


def real(program: str, folder: Path, **names: Any) -> None:
    """Run a program with the real ml-pyxis."""
    np.savez(
        folder / "puts.npz",
        **{f"{n}/{key}": value for n, put in enumerate(puts()) for key, value in put.items()},
    )
    head = (
        "import numpy as np, pyxis as px\n"
        "assert 'asyncreader' not in px.__file__\n"
        f"stored = np.load({str(folder / 'puts.npz')!r})\n"
        "puts = {}\n"
        "for name in stored.files:\n"
        "    number, key = name.split('/')\n"
        "    puts.setdefault(int(number), {})[key] = stored[name]\n"
        "puts = list(puts.values())\n"
    )
    text = head + program.format(**names)
    done = subprocess.run([PYTHON, "-c", text], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


def entries(path: str) -> dict[bytes, dict[bytes, bytes]]:
    """Every database's keys and values, with plain lmdb."""
    with lmdb.open(path, readonly=True, lock=False, max_dbs=3) as env, env.begin() as names:
        found = {}
        for name in [bytes(key) for key, _ in names.cursor()]:
            with env.begin(db=env.open_db(name, create=False)) as transaction:
                found[name] = {bytes(k): bytes(v) for k, v in transaction.cursor()}
        return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same puts written by ml-pyxis and by us."""
    folder = tmp_path_factory.mktemp("real")
    theirs, ours = str(folder / "theirs"), str(folder / "ours")
    real(WRITE, folder, path=theirs)
    exec(WRITE.format(path=ours), {"px": px, "puts": puts()})
    return theirs, ours


def test_both_write_the_same_bytes(both: tuple[str, str]) -> None:
    """The same puts make the same databases, keys and values, byte for byte."""
    theirs, ours = map(entries, both)
    assert set(theirs) == {b"data_db", b"meta_db"}
    assert theirs == ours
    assert len(theirs[b"data_db"]) == COUNT * len(SHAPES)


def test_theirs_is_added_to(tmp_path: Path) -> None:
    """A set begun by ml-pyxis is added to by us, and it reads both parts."""
    path = str(tmp_path / "set")
    real(WRITE, tmp_path, path=path)
    with px.Writer(path, 200) as writer:
        writer.put_samples(puts()[1])
    real(READ, tmp_path, path=path, out=str(tmp_path / "found.npz"))
    with np.load(tmp_path / "found.npz") as found:
        for key, values in puts()[1].items():
            array = found[f"{COUNT * len(SHAPES)}/{key}"]
            assert array.dtype == values.dtype
            np.testing.assert_array_equal(array, values[0])
