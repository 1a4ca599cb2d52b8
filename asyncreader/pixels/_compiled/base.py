"""How a kernel is entered, compiled and kept on disk, and what kernels share.

A kernel is a function under ``@kernel`` with the types of its arguments. Importing this package
compiles nothing: :func:`load` does, one kernel at a time, and keeps the code on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba import config, njit, types
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import intrinsic

from ...system import keyed_random
from .. import shared

#: The kernels by name: the function, and its signature.
KERNELS: dict[str, tuple[Callable[..., None], Any]] = {}
#: Compiles a function that only kernels call: without the wrappers by which Python and C would call
#: it, which would be compiled, too.
inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: An import of this package: the dots, the module, and the names that are taken from it.
_IMPORT = re.compile(rb"^ *from (\.+)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def kernel(*arguments: Any, name: str | None = None) -> Any:
    """Enter a function into the table, by its own name or another."""

    def decorate(function):
        KERNELS[name or function.__name__] = (function, types.void(*arguments))
        return function

    return decorate


def apart(name: str) -> Any:
    """Name a function that a factory makes several times, before it is compiled.

    Code that is kept has symbols made of a function's name and of a number in the process that
    compiled it. Two functions of one name, from two processes, would run as one of them.
    """

    def decorate(function):
        function.__name__ = function.__qualname__ = f"{function.__name__}_{name}"
        return function

    return decorate


# -- compiling and keeping -----------------------------------------------------------------------


@cache
def _sources(path: Path) -> bytes:
    """Digest of what a kernel's code follows from: its file, ``path``, and all that this imports
    of this package, for functions and numbers are compiled into it."""
    found, todo = set[Path](), {path}
    while todo:
        found |= todo
        todo = {one for path in todo for one in _read(path)[1]} - found
    return hashlib.sha256(b"".join(_read(path)[0] for path in sorted(found))).digest()


@cache
def _read(path: Path) -> tuple[bytes, list[Path]]:
    """A file of this package, and those that it imports."""
    source, imported = path.read_bytes(), list[Path]()
    for dots, module, names in _IMPORT.findall(source):
        folder = path.parents[len(dots) - 1].joinpath(*module.decode().split("."))
        if folder.with_suffix(".py").exists():
            imported.append(folder.with_suffix(".py"))
            continue
        for name in re.findall(rb"\w+", names):  # modules of a package, or what is in its own file
            of_name = folder / f"{name.decode()}.py"
            imported.append(of_name if of_name.exists() else folder / "__init__.py")
    return source, imported


class Cache:
    """The compiled code of one kernel: a file, in the first of several folders that has it whole.

    numba asks this object for code instead of its own cache (``cache=True``), which raises an error
    at a damaged file, at a full disk and where folders can only be read, does not notice a change
    of what a kernel inlines from another file, and imports all that compiling needs (0.45 s, and
    scipy) before it reads.
    """

    #: What numba's statistics name as the folder.
    cache_path = ""

    def __init__(
        self, file: str, sources: bytes, folders: Sequence[str], missing: Callable[[], None]
    ) -> None:
        self._file, self._sources = file, sources
        self._folders, self._missing = folders, missing
        #: Whether the code lies in one of the folders.
        self.kept = False

    def load_overload(self, signature, target):
        """The compiled function, or None: numba compiles it then, and ``missing`` is called before.

        What is damaged, or of other sources, is as if it were not there."""
        for folder in self._folders:
            with contextlib.suppress(Exception):
                rtsys.initialize(target)  # all that loaded code needs of numba
                data = Path(folder, self._file).read_bytes()
                if data == self._sealed(data[32:]):
                    found = CompileResult._rebuild(target, *pickle.loads(data[32:]))
                    self.kept = True
                    return found
        self._missing()
        return None

    def save_overload(self, signature, compiled):
        """Keep a compiled function in the first folder that takes it, if any does."""
        self.keep(compiled, self._folders)

    def keep(self, compiled: Any, folders: Sequence[str]) -> None:
        """Write a compiled function to the first of ``folders`` that takes it, if any does."""
        with contextlib.suppress(Exception):  # a numba that gives its code in another way
            data = self._sealed(dumps(compiled._reduce()))
            self.kept = any(_write(Path(folder, self._file), data) for folder in folders)

    def _sealed(self, code: bytes) -> bytes:
        return hashlib.sha256(self._sources + code).digest() + code


def _write(path: Path, data: bytes) -> bool:
    """Whether ``path`` could be written, as a whole: other processes may read and write it."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:  # read-only, full, over quota
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True


def _folders() -> list[str]:
    """Where code is kept: ``NUMBA_CACHE_DIR``, ``__pycache__`` here, the user's cache folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    own = "asyncreader-" + hashlib.sha256(here.encode()).hexdigest()[:16]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = [os.path.join(here, "__pycache__")]
    if config.CACHE_DIR:
        found.insert(0, os.path.join(config.CACHE_DIR, own))
    if os.path.isabs(user):  # there may be no home
        found.append(os.path.join(user, "numba", own))
    return found


def load(name: str, folder: str | None = None, missing: Callable[[], None] = lambda: None) -> Any:
    """Kernel ``name``, from a folder (see :class:`Cache`) or compiled and kept there.

    ``folder``: one more, which a parent process shares with its workers."""
    function, signature = KERNELS[name]
    dispatcher = njit(nogil=True, no_cfunc_wrapper=True)(function)
    machine = dispatcher.targetctx.codegen().magic_tuple()
    made_by = sys.version_info[:2], getattr(sys, "abiflags", ""), numba.__version__, machine
    file = f"{name}-{hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]}.nbc"
    folders = [*_folders(), *([folder] if folder else ())]
    sources = _sources(Path(function.__code__.co_filename))
    dispatcher._cache = Cache(file, sources, folders, missing)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def is_kept(kernel) -> bool:
    """Whether another process finds this kernel on disk."""
    return bool(kernel._cache.kept)


def keep_in(folder: str, kernel: Any) -> None:
    """Write a loaded kernel to ``folder``, which other processes are told of."""
    (compiled,) = kernel.overloads.values()
    kernel._cache.keep(compiled, [folder])


# -- what the kernels are made of ----------------------------------------------------------------


def instruction(signature):
    """Make a function of a numba builder and LLVM's values, which writes the code, a function of
    this signature that kernels call (numba's ``intrinsic``)."""

    def decorate(write):
        @wraps(write)  # its arguments, too
        def typed(typingctx, *_):
            def generate(context, builder, _, arguments):
                found = write(builder, *arguments)
                return context.get_dummy_value() if found is None else found

            return signature, generate

        return intrinsic(typed)

    return decorate


offsets_type = types.int64[::1]
#: What is planned of pictures, a line each: numbers (see tables.PLAN), and boxes.
plans_type = types.int64[:, ::1]
boxes_type = types.float64[:, ::1]
bytes_type = types.Array(types.uint8, 1, "C", readonly=True)
draws_type = types.Array(types.float64, 2, "C", readonly=True)
shares_type = types.Array(types.float64, 1, "C", readonly=True)
#: What kernels take that plan images: where these lie, their sizes or their one shape, what is
#: wanted, the shares, draws and flips of crops, and the rows of memory that they go to.
planning_types = (
    *(offsets_type, offsets_type, offsets_type, shares_type, draws_type, bytes_type),
    *(types.int64, types.int64, offsets_type),
)


#: Functions that Python runs, too, as numba compiles them, by name.
_SHARED: dict[str, Any] = {}


def _shared(function):
    """Such a function; those of ours that it calls are made before."""
    known = function.__globals__ | _SHARED
    own = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    _SHARED[function.__name__] = made = inner(own)
    return made


mixed, mixed_with = _shared(keyed_random.mixed), _shared(keyed_random.mixed_with)
unit, below = _shared(keyed_random.unit), _shared(keyed_random.below)
upper_half = _shared(keyed_random.upper_half)
choose_rect, erased_part = _shared(shared.choose_rect), _shared(shared.erased_part)
taps, looked_at = _shared(shared.taps), _shared(shared.looked_at)
exif_orientation, eighths = _shared(shared.exif_orientation), _shared(shared.eighths)
