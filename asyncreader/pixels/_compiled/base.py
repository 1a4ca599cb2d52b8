"""How a kernel is entered, compiled and kept on disk, and what kernels share.

A kernel is a function under ``@kernel`` with the types of its arguments. Importing this package
compiles nothing: :func:`load` does, one kernel at a time, and keeps the code on disk. memcpy is
LLVM's own (``cgutils.raw_memcpy``): unlike a ctypes pointer it can be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numba import config, njit, types
from numba.core import caching, cgutils
from numba.core.runtime import rtsys
from numba.extending import intrinsic

#: The kernels by name: the function, and its signature.
KERNELS: dict[str, tuple[Callable[..., None], Any]] = {}


def kernel(*arguments: Any, name: str | None = None) -> Any:
    """Enter a function into the table, by its own name or another."""

    def decorate(function: Any) -> Any:
        KERNELS[name or function.__name__] = (function, types.void(*arguments))
        return function

    return decorate


# -- compiling and keeping -----------------------------------------------------------------------


#: Of this file, whose code is part of every kernel: numba looks at a kernel's own file alone.
_SHARED = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


class _Cache(caching.FunctionCache):
    """numba's cache, which also notices a change of this file."""

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return (*super()._index_key(signature, codegen), _SHARED)


class Caches:
    """What numba asks for kept code: several folders. What goes wrong with one stays in here.

    numba's own choice comes first (``NUMBA_CACHE_DIR``, ``__pycache__`` next to the kernel's file,
    the user's cache folder: the first that is writable), then the same folders where they can only
    be read, as in a container, then ``folder``, which a parent process shares with its workers.
    """

    def __init__(self, function: Any, folder: str | None, missing: Callable[[], None]) -> None:
        self._missing = missing
        #: Whether the code lies in one of the folders.
        self.kept = False
        self._caches: list[Any] = []
        with contextlib.suppress(Exception):
            self._caches.append(_Cache(function))
        for path in (*_readable_folders(), *([folder] if folder else ())):
            with contextlib.suppress(Exception):
                self._caches.append(_cache_in(path, function))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function from the first folder that has it whole, or None: numba compiles
        it then, and ``missing`` is called before."""
        with contextlib.suppress(Exception):
            # All that loaded code needs of numba. cache.load_overload() would first import all that
            # compiling needs: half a second, and scipy.
            rtsys.initialize(target)
        for cache in self._caches:
            with contextlib.suppress(Exception):  # truncated, or of another version
                found = cache._load_overload(signature, target)
                if found is not None:
                    self.kept = True
                    return found
        self._missing()
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled function in the first folder that takes it, if any does."""
        for cache in self._caches:
            for before in (lambda: None, cache.flush):  # a damaged index is written anew
                with contextlib.suppress(Exception):  # read-only, full, over quota
                    before()
                    cache.save_overload(signature, compiled)
                    self.kept = True
                    return

    @property
    def cache_path(self) -> str:
        """The folder that is asked first, for numba's statistics."""
        return str(self._caches[0].cache_path) if self._caches else ""


def _readable_folders() -> Sequence[str]:
    folders = [os.path.join(os.path.dirname(__file__), "__pycache__")]
    if config.CACHE_DIR:
        inner = caching._CacheLocator.get_suitable_cache_subpath(__file__)
        folders.insert(0, os.path.join(config.CACHE_DIR, inner))
    return folders


def _cache_in(folder: str, function: Any) -> Any:
    """numba's cache of a function, in a folder that need not be writable."""

    class Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
        def __init__(self, function: Any, file: str) -> None:
            self._py_file = file
            self._lineno = function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return folder

        @classmethod
        def from_function(cls, function: Any, file: str) -> Any:
            return cls(function, file)

    class Impl(caching.CompileResultCacheImpl):
        _locator_classes = (Locator,)

    class Cache(_Cache):
        _impl_class = Impl

    return Cache(function)


def load(name: str, folder: str | None = None, missing: Callable[[], None] = lambda: None) -> Any:
    """Kernel ``name``, from a cache on disk or compiled and kept there (see :class:`Caches`)."""
    function, signature = KERNELS[name]
    dispatcher = njit(nogil=True)(function)
    dispatcher._cache = Caches(function, folder, missing)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def is_kept(kernel: Any) -> bool:
    """Whether another process finds this kernel on disk."""
    return bool(kernel._cache.kept)


def keep_in(folder: str, name: str, kernel: Any) -> None:
    """Write a loaded kernel to ``folder``, which other processes are told of."""
    function, signature = KERNELS[name]
    _cache_in(folder, function).save_overload(signature, kernel.overloads[signature.args])
    kernel._cache.kept = True


# -- what the kernels are made of ----------------------------------------------------------------


@intrinsic
def memcpy(typingctx: Any, out: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_, source_, size_ = arguments
        pointer = cgutils.voidptr_t
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(out_, pointer),
            builder.inttoptr(source_, pointer),
            size_,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), generate


i8 = types.int64
offsets_type = types.int64[::1]


@intrinsic
def u8_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.CPointer(types.uint8)(types.uintp), generate


def load_any(builder: Any, address: Any, kind: Any) -> Any:
    """A load that need not be aligned."""
    found = builder.load(builder.inttoptr(address, kind.as_pointer()))
    found.align = 1
    return found


def store_any(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1
