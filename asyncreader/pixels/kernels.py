"""The hot loops: one call, and one release of the GIL, for a whole batch.

Each kernel has a plain numpy twin in ``twins.py`` or another file of twins, which is the oracle of
its test, and a function in ``_compiled/`` that numba compiles. A kernel is loaded or compiled when
its name is first read (``kernels.gather_rows``); from then on the name is an ordinary global, so
that a call costs nothing more. Therefore write ``kernels.gather_rows(...)``: ``from .kernels import
gather_rows`` would load numba with the module. Without numba the twins do the work.

A new kernel is a function under ``@kernel`` in ``_compiled/``, its twin and a line of annotation
here.

Compiled code is kept on disk: in ``NUMBA_CACHE_DIR``, in ``_compiled/__pycache__`` or in
the user's cache folder, whichever can be written. Worker processes get what cannot be kept from a
folder that their parent makes. An image whose files cannot be written later is warmed by one line,
run while it is built, for machines with the processor of the one that builds it (or for all, where
NUMBA_CPU_NAME=generic is set at both times)::

    python -c "from asyncreader.pixels import kernels; kernels.compile_all()"

Addresses are integers: the caller guarantees that every row lies inside the memory it names
(sources check their offset tables against the file once, when they open it).
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

from ..system.notebooks import tell
from . import (
    augment_twins,
    box_twins,
    inflate_twins,
    numbers_twins,
    planes_twins,
    sparse_twins,
    twins,
)

feistel_rows: Callable[..., None]
permuted_rows: Callable[..., None]
alias_rows: Callable[..., None]
uniform_rows: Callable[..., None]
gather_rows: Callable[..., None]
pread_rows: Callable[..., None]
hash_rows: Callable[..., None]
copy_batches: Callable[..., None]
transpose_batches: Callable[..., None]
affine_batches: Callable[..., None]
affine_batches_half: Callable[..., None]
affine_row: Callable[..., None]
affine_row_half: Callable[..., None]
await_batch: Callable[..., None]
resize_u8: Callable[..., None]
resize_f4: Callable[..., None]
convert_420: Callable[..., None]
make_420: Callable[..., None]
resize_planned: Callable[..., None]
plan_crops: Callable[..., None]
plan_jpegs: Callable[..., None]
jpeg_header: Callable[..., None]
cut_jpeg: Callable[..., None]
add_restarts: Callable[..., None]
autocontrast: Callable[..., None]
equalize: Callable[..., None]
sum_of_grey: Callable[..., None]
blend_level: Callable[..., None]
saturate: Callable[..., None]
turn_hue: Callable[..., None]
sharpen: Callable[..., None]
blur: Callable[..., None]
affine_nearest: Callable[..., None]
warp: Callable[..., None]
cast_numbers: Callable[..., None]
copy_runs: Callable[..., None]
copy_boxes: Callable[..., None]
inflate_chunks: Callable[..., None]
add_rows_f4: Callable[..., None]
add_rows_f8: Callable[..., None]
add_rows_i8: Callable[..., None]

_TWINS: Final[dict[str, Callable[..., None]]] = {
    name.removesuffix("_numpy"): twin
    for module in (
        *(twins, planes_twins, augment_twins, numbers_twins),
        *(sparse_twins, box_twins, inflate_twins),
    )
    for name, twin in vars(module).items()
    if name.endswith("_numpy")
}

#: Those whose twins take so much longer that the user is told.
_SLOW: Final = frozenset({"affine_batches", "affine_batches_half", "affine_row", "affine_row_half"})

#: What is said before kernels are compiled. Seconds: see docs/performance.md, Start-up.
COMPILING: Final = (
    "asyncreader: compiling for this processor, once on this machine; it takes 7 to 17 s"
)

_NOT_INSTALLED: Final = "numba is not installed"


class _State:
    """What this process knows of numba and of compiled code."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: _compiled, once it has been tried; None where numba does not serve, and why.
        self.module: ModuleType | None = None
        self.reason: str | None = None
        self.tried = False
        #: A folder of the process that started this one, or of this one for those it starts.
        self.folder: str | None = None
        #: Whether the user has been told that twins do the work.
        self.told = False
        #: How many times loading a kernel was begun, and ended. Loading one may compile it.
        self.begun = self.ended = 0
        #: Called before a kernel is compiled, because no cache on disk has it.
        self.compiling: Callable[[], None] = self._announce
        self.announced = False

    def _announce(self) -> None:
        """Say once, to who looks on, what the first batch waits for."""
        if not self.announced:
            self.announced = True
            tell(COMPILING)


_state: Final = _State()


def __getattr__(name: str) -> Any:
    if name not in _TWINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kernel = _loaded(name)
    if kernel is _TWINS[name]:
        _tell(name)
    return kernel


def _loaded(name: str) -> Callable[..., None]:
    with _state.lock:
        if name not in globals():
            _state.begun += 1
            try:
                globals()[name] = _load(name)
            finally:
                _state.ended += 1
        kernel: Callable[..., None] = globals()[name]
        return kernel


def _load(name: str) -> Callable[..., None]:
    module = _module()
    if module is not None:
        try:
            kernel: Callable[..., None] = module.load(name, _state.folder, _state.compiling)
            return kernel
        except Exception as exc:
            _state.reason = f"numba cannot compile {name} ({type(exc).__name__}: {exc})"
    return _TWINS[name]


def _module() -> ModuleType | None:
    """numba's side of the kernels, or None where numba does not serve."""
    with _state.lock:
        if not _state.tried:
            try:
                from numba import config

                if config.DISABLE_JIT:
                    _state.reason = "NUMBA_DISABLE_JIT is set"
                else:
                    from . import _compiled

                    _state.module = _compiled
            except ModuleNotFoundError as exc:
                absent = exc.name == "numba"
                _state.reason = _NOT_INSTALLED if absent else f"numba cannot be imported ({exc})"
            except Exception as exc:
                _state.reason = f"numba cannot be imported ({type(exc).__name__}: {exc})"
            _state.tried = True
        return _state.module


def _tell(name: str) -> None:
    """Say once that the work is done without numba, where that is a surprise or slow."""
    if _state.told or (_state.reason == _NOT_INSTALLED and name not in _SLOW):
        return
    _state.told = True
    warnings.warn(
        f"{_state.reason}: numpy does the work of the compiled kernels, with the same results; "
        "float output takes about three times as long",
        RuntimeWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def compiling_told(tell: Callable[[], None]) -> Iterator[None]:
    """Inside, ``tell`` is called before a kernel is compiled, by the thread that needs it."""
    before, _state.compiling = _state.compiling, tell
    try:
        yield
    finally:
        _state.compiling = before


def loads() -> tuple[int, int]:
    """How many times loading a kernel was begun in this process, and how many times it ended."""
    return _state.begun, _state.ended


def compiled(name: str | None = None) -> bool:
    """Whether compiled kernels are in use (imports numba), the kernel ``name`` among them."""
    if name is None:
        return _module() is not None
    return _loaded(name) is not _TWINS[name]


def reason() -> str | None:
    """Why numpy does the work of a compiled kernel; None where that is not known to happen."""
    return _state.reason


def compile_all() -> None:
    """Compile every kernel and keep the code on disk; RuntimeError where that cannot be done."""
    module = _module()
    if module is None:
        raise RuntimeError(f"nothing to compile with: {_state.reason}")
    kernels = {name: __getattr__(name) for name in module.KERNELS}
    lost = [
        name
        for name, kernel in kernels.items()
        if kernel is _TWINS[name] or not module.is_kept(kernel)
    ]
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
    with _state.lock:
        module, found = _state.module, globals()
        loaded = [found[name] for name in _TWINS if found.get(name, _TWINS[name]) != _TWINS[name]]
        lost = [kernel for kernel in loaded if module is not None and not module.is_kept(kernel)]
        if lost and module is not None:
            with contextlib.suppress(Exception):  # they compile it themselves, then
                _state.folder = _state.folder or _own_folder()
                for kernel in lost:
                    module.keep_in(_state.folder, kernel)
        return _state.folder


def _own_folder() -> str:
    """A new folder that is removed when this process ends, not a fork of it."""
    import atexit
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="asyncreader-kernels-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def share_of(folder: str | None) -> None:
    """In a worker process: load kernels from that folder too; the parent has told the user."""
    _state.folder, _state.told, _state.announced = folder, True, True
