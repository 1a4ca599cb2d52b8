"""The child process that opens attacks: reads, describes, verifies, converts and shows them.

Its memory is limited to what it has when it is ready and 2 GiB; runner.py watches the time and
whether it dies. Nothing is caught that a
user would see: an exception of another type than AsyncReaderError is an outcome of its own.
"""

import gc
import io
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from child_processes import answer_requests
from PIL import Image

from asyncreader import AsyncReader
from asyncreader.cli import main as cli
from asyncreader.errors import AsyncReaderError
from asyncreader.sources import Inspector, open_source
from asyncreader.sources.remote import client

from .corpus import CANARY
from .pages import injected

#: Bytes that the child process may use beyond what it has at the start.
MEMORY = 2 << 30
_WORD = CANARY[:12]
#: The canary as it would be read in another phase.
_WORDS = [(_WORD * 2)[i : i + 12] for i in range(12)]


def holds_canary(data: bytes) -> bool:
    """Whether some bytes hold the secret."""
    return any(word in data for word in _WORDS)


def read(path: Any, params: dict[str, Any], workers: str = "thread") -> bytes:
    """Two epochs of batches, and all that a reader says of itself."""
    served = b""
    params = {name: value for name, value in params.items() if name != "pyxis"}
    given = {"path": path, "batch_size": 2, "nthread": 2, "timeout": 30, "workers": workers}
    with AsyncReader({**given, **params}) as r:
        for _ in range(2):
            for batch in itertools.islice(r, 8):
                fields = batch.data if isinstance(batch.data, tuple) else (batch.data,)
                served += b"".join(field.tobytes() for field in fields)
                served += b"" if batch.labels is None else batch.labels.tobytes()
        served += repr((r, r.classes, r.state_dict())).encode("utf-8", "backslashreplace")
    return served


def drop_in(path: Any, params: dict[str, Any]) -> bytes:
    """The same through a drop-in replacement."""
    if "pyxis" in params:
        from asyncreader.faces import pyxis

        with pyxis.Reader(path) as reader:
            return b"".join(repr(reader[i]).encode() for i in range(min(8, len(reader))))
    from asyncreader.faces import HDF5Matrix

    with HDF5Matrix(path, params.get("data_field", "data")) as matrix:
        return np.asarray(matrix[: min(8, len(matrix))]).tobytes()


def command(*words: str) -> bytes:
    """What the command prints; SystemExit with its code becomes an error where it is not 0."""
    held = io.BytesIO()
    code: Any = 0
    with (
        io.TextIOWrapper(held, encoding="utf-8", write_through=True) as stream,
        redirect_stdout(stream),
        redirect_stderr(stream),
    ):
        try:
            cli.main(list(words))
        except SystemExit as exc:
            code = exc.code
        stream.flush()
        said = held.getvalue()
    shown = said.decode("utf-8", "surrogateescape")
    if not shown.replace("\n", "").isprintable():
        raise AssertionError(f"control characters reach the terminal: {shown[:300]!r}")
    if code:
        raise Refused(shown.strip()[-2000:])
    return said


class Refused(Exception):
    """The command ended with a line that says why."""


def _given(params: dict[str, Any]) -> list[str]:
    names = [name for name in params if name not in ("size", "on_error", "pyxis")]
    return [word for name in names for word in ("-p", f"{name}={json.dumps(params[name])}")]


def open_in(way: str, path: Any, params: dict[str, Any], options: dict[str, Any]) -> bytes:
    """Open the attack in one way; what was served or said."""
    out = Path(options.pop("out"))
    if way == "drop_in":
        return drop_in(path, params)
    if way in ("read", "process"):
        return read(path, params, "thread" if way == "read" else "process")
    if way in ("preview", "batch", "page", "bench", "doctor"):
        return show(way, path, params, out)
    if way == "info":
        return command("info", str(path), *_given(params)) + command(
            "info", str(path), "--json", *_given(params)
        )
    if way == "verify":
        return command("verify", str(path), "--decode", "-q", "--jobs", "2")
    target = out / "out.h5"
    words = [word for name, value in options.items() for word in _option(name, value)]
    if "size" in params:
        words += ["--size", "{}x{}".format(*params["size"]), "--encoding", "raw"]
    said = command("convert", str(path), str(target), "--jobs", "2", *words, *_given(params))
    source = open_source(target)
    served = b"".join(Inspector(source.first).bytes(i) for i in range(min(64, source.facts.count)))
    served += repr(
        [Inspector(source.first).path(i) for i in range(min(64, source.facts.count))]
    ).encode()
    served += repr(source.facts.classes).encode("utf-8", "backslashreplace")
    served += b"" if source.labels is None else source.labels.tobytes()
    source.close()
    return said + served


def show(way: str, path: Any, params: dict[str, Any], out: Path) -> bytes:
    """What is shown of a set, or measured: the words, and what was drawn."""
    size = ["--size", "{}x{}".format(*params["size"])] if "size" in params else []
    given = [str(path), *_given(params)]
    if way == "bench":
        times = ("--nthread", "1", "--batch-size", "2", "--njob", "2", "--seconds", "0.05")
        return command("bench", *given, *times, *size)
    if way == "doctor":
        times = ("--nthread", "1", "--batch-size", "2", "--njob", "2", "--seconds", "1")
        return command("doctor", *given, *times, *size)
    if way == "page":
        page = out / "page.html"
        said = command("preview", *given, "--html", str(page), "--json")
        if found := injected(page.read_text(encoding="utf-8")):
            raise AssertionError(f"markup was injected: {found[:5]}")
        return said + page.read_bytes()
    sheet = out / "sheet.png"
    batch = ["--batch", "--count", "4", "--columns", "2", *size] if way == "batch" else []
    said = command("preview", *given, *batch, "--output", str(sheet), "--json")
    with Image.open(sheet) as drawn:
        return said + drawn.tobytes()


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, list):
        return [word for each in value for word in (flag, str(each))]
    return [flag] if value is True else [flag, str(value)]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The outcome of one request: served, refused, or what must not be."""
    began = time.perf_counter()
    try:
        served = open_in(
            request["way"], request["path"], request["params"], dict(request["options"])
        )
        outcome, said = "served", ""
        if holds_canary(served):
            outcome, said = "leaked", "the canary's bytes were handed out"
    except Refused as exc:
        outcome, said = "refused", str(exc)
        if holds_canary(said.encode()):
            outcome = "leaked"
    except AsyncReaderError as exc:
        outcome, said = "refused", f"{type(exc).__name__}: {exc}"
        if not str(exc).isprintable():
            outcome = "unprintable"
        if holds_canary(said.encode()):
            outcome = "leaked"
    except AssertionError as exc:
        outcome, said = "unprintable", str(exc)
    except BaseException as exc:
        outcome, said = "untyped", "".join(traceback.format_exception(exc)[-6:])
    if "unknown parameter" in said or "see 'asyncreader" in said:
        outcome = "wrong request"
    if "cannot be mapped" not in said and re.search("Unable to alloc|MemoryE|ate memory", said):
        outcome = "memory"
    gc.collect()  # of what this request has made: the rest is frozen
    return {"outcome": outcome, "said": said, "seconds": time.perf_counter() - began}


def settings() -> dict[str, Any]:
    """What belongs to the process and its libraries, and that asyncreader must not change."""
    import h5py
    from PIL import Image, ImageFile

    return {
        "pixels": Image.MAX_IMAGE_PIXELS,
        "truncated": ImageFile.LOAD_TRUNCATED_IMAGES,
        "plugins": [h5py.h5pl.get(i) for i in range(h5py.h5pl.size())],
        "order": h5py.get_config().track_order,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": os.umask(0o022),
        "recursion": sys.getrecursionlimit(),
    }


def main() -> None:
    """Answer until there are no more requests."""
    warnings.simplefilter("ignore")
    # a store that fails is asked again for 20 s, one that is silent waited for 30 s: not here
    client._PATIENCE = 0.05
    client._CLIENT["timeout"] = timedelta(seconds=1)
    before = settings()

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        if request["way"] == "limit":
            # the kernels are compiled and the libraries loaded: what comes now is the attack's
            gc.collect()
            gc.freeze()
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            return {"outcome": "limited"}
        if request["way"] == "settings":
            now = settings()
            changed = {name for name in now if now[name] != before[name]}
            return {"outcome": repr(sorted(changed)) if changed else "same"}
        if request["way"] == "die":  # for the test of the runner
            os.kill(os.getpid(), signal.SIGSEGV)
        return answer(request)

    answer_requests(reply)


if __name__ == "__main__":
    main()
