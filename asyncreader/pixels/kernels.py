"""The hot loops: one call, and one release of the GIL, for a whole batch.

Each kernel is a function under ``@kernel`` in ``_compiled/``, which says what its arguments are and
which numba compiles. It is loaded or compiled when its name is first read (``kernels.copy_runs``);
from then on the name is an ordinary global, so that a call costs nothing more. Therefore write
``kernels.copy_runs(...)``: ``from .kernels import copy_runs`` would load numba with the module.

Compiled code is kept on disk: in ``NUMBA_CACHE_DIR``, in ``_compiled/__pycache__`` or in the user's
cache folder, whichever can be written; :func:`compile_all` fills it while an image is built
(docs/performance.md). Worker processes get what cannot be kept from a folder that their parent
makes.

Addresses are integers: the caller guarantees that every row lies inside the memory it names
(sources check their offset tables against the file once, when they open it).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Final

from ..errors import AsyncReaderError
from ..system.signals import fork_when_free
from ..system.text import tell

#: What is said before kernels are compiled. Seconds: see docs/performance.md, Start-up.
COMPILING: Final = (
    "asyncreader: compiling for this processor, once on this machine; it takes 7 to 17 s"
)


class _State:
    """What this process knows of numba and of compiled code."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: A folder of the process that started this one, or of this one for those it starts.
        self.folder: str | None = None
        #: Whether a kernel is being loaded, which may compile it, and whether one was.
        self.loading = self.loaded = False
        #: Called before a kernel is compiled, because no cache on disk has it.
        self.compiling: Callable[[], None] = self._announce
        self.announced = False

    def _announce(self) -> None:
        """Say once, to who looks on, what the first batch waits for."""
        if not self.announced:
            self.announced = True
            tell(COMPILING)


_state: Final = _State()
fork_when_free(_state.lock)  # numba's own locks, too, are held only with it


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _state.lock:
        if name not in globals():
            _state.loading = _state.loaded = True
            try:
                globals()[name] = _load(name)
            finally:
                _state.loading = False
        kernel: Callable[..., None] = globals()[name]
        return kernel


def _load(name: str) -> Callable[..., None]:
    try:
        with _compiled() as module:
            if name in module.KERNELS:
                kernel: Callable[..., None] = module.load(name, _state.folder, _state.compiling)
                return kernel
    except Exception as exc:
        raise AsyncReaderError(
            f"numba does not compile {name} here",
            found=f"{type(exc).__name__}: {exc}",
            hint="reinstall it: pip install --force-reinstall numba",
        ) from exc
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@contextlib.contextmanager
def _compiled() -> Iterator[ModuleType]:
    """The kernels as numba compiles them. Inside, NUMBA_DISABLE_JIT counts for nothing: it is for
    functions that users write."""
    from numba import config

    before, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        from . import _compiled as module

        yield module
    finally:
        config.DISABLE_JIT = before


@contextlib.contextmanager
def compiling_told(tell: Callable[[], None]) -> Iterator[None]:
    """Inside, ``tell`` is called before a kernel is compiled, by the thread that needs it."""
    before, _state.compiling = _state.compiling, tell
    try:
        yield
    finally:
        _state.compiling = before


def loading() -> bool:
    """Whether a thread of this process is loading a kernel, which may compile it."""
    return _state.loading


def compile_all() -> None:
    """Compile every kernel and keep the code on disk; RuntimeError where that cannot be done."""
    with _compiled() as module:
        lost = [name for name in module.KERNELS if not module.is_kept(__getattr__(name))]
    if lost:
        raise RuntimeError(
            f"not kept on disk: {', '.join(lost)}; set NUMBA_CACHE_DIR to a folder that can be "
            "written"
        )


def share(names: Iterable[str] = ()) -> str | None:
    """A folder with what no cache on disk holds, for processes to be started; None for nothing.

    ``names``: kernels that they will use, compiled here once and not in each of them. They hand
    the folder to :func:`share_of`; it is removed when this process ends.
    """
    for name in names:
        __getattr__(name)
    if not _state.loaded:
        return _state.folder
    with _state.lock, _compiled() as module:
        loaded = [globals()[name] for name in module.KERNELS if name in globals()]
        lost = [kernel for kernel in loaded if not module.is_kept(kernel)]
        if lost:
            with contextlib.suppress(Exception):  # they compile it themselves, then
                _state.folder = _state.folder or _own_folder()
                for kernel in lost:
                    module.keep_in(_state.folder, kernel)
        return _state.folder


def _own_folder() -> str:
    """A new folder that is removed when this process ends, not a fork of it."""
    folder = tempfile.mkdtemp(prefix="asyncreader-kernels-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def share_of(folder: str | None) -> None:
    """In a worker process: load kernels from that folder too; the parent has told the user."""
    _state.folder, _state.announced = folder, True
