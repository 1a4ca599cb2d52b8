"""An HDF5 file as h5py shows it: opened, its links and description checked, its kind told.

Kinds are files whose samples depend on what is to be learned: how they are known, and how their
users get samples.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import (
    AsyncReaderError,
    Closing,
    FormatError,
    ParamsError,
    SourceError,
    closed_on_error,
)
from ...formats import packed as fmt
from ...system.array_types import UInt8
from ...system.late import h5py
from ...system.signals import after_this
from ..base import Names
from ..bytestore import ByteFile, OpenFile, check_descriptors
from .checks import attribute, is_compound, virtual_dataset
from .chunk_cache import ChunkGrid, LibraryChunks
from .listing import MEMBERS, all_names, list_fields, missing, some_names
from .stored import Stored
from .structure import DatasetHeader, Structure, signature_at

#: Bytes of paths read at a time.
_PATH_BYTES: Final = 4 << 20

#: Bytes of metadata that HDF5 keeps of a file of many objects, each of which is opened once.
_METADATA: Final = 1 << 20

#: Soft links that are followed on the way to one object.
_SOFT: Final = 16


def is_hdf5(path: str) -> bool:
    """Whether the file bears HDF5's signature."""
    try:
        file = OpenFile(path, "mmap")
    except SourceError:
        return False
    file.close()
    return signature_at(file.mapped.bytes) is not None


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn h5py's errors into asyncreader's, and have all of them name the file."""
    try:
        yield
    except AsyncReaderError as exc:
        exc.path = exc.path or path
        raise
    except (KeyboardInterrupt, ImportError, MemoryError):
        raise  # what cannot be loaded, and memory that runs out, say nothing of the file
    except Exception as exc:
        if isinstance(exc.__cause__ or exc.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None  # h5py's lock makes a SystemError of Ctrl-C
        check_descriptors(exc, path)
        raise FormatError(f"HDF5 cannot read it: {exc}", hint="copy or convert it again") from exc


#: What HDF5 says of a file whose locking is refused.
_LOCKED: Final = ("flag values don't match", "unable to lock file")


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    """Have HDF5 load no plugins inside: it tries all that are on its path to open a file that it
    cannot open itself. Its global lock keeps other threads out meanwhile."""
    plugins = h5py.h5pl
    with h5py._objects.phil:
        paths = [plugins.get(number) for number in range(plugins.size())]
        try:
            for _ in paths:
                plugins.remove(0)
            yield
        finally:
            while plugins.size():
                plugins.remove(0)
            for path in paths:
                plugins.append(path)


def open_library(path: str) -> Any:
    """h5py's File of ``path``, read-only.

    With the locking that h5py.File has by itself, since HDF5 refuses a file that this process has
    open with other flags: a program may look into the set while a reader has it. We need no lock,
    so where that one is refused it goes without.
    """
    refused: OSError | None = None
    for locking in (None, False, True, "best-effort"):
        try:
            # interrupted inside, HDF5 would keep the file open
            with after_this(), _without_plugins():
                return h5py.File(path, "r", locking=locking)
        except OSError as exc:
            if "already open for write" in str(exc):
                raise FormatError(
                    "a program has it open for writing, or was killed while it had",
                    hint="close that program; after a crash, h5clear -s clears the mark it left",
                ) from exc
            if not any(reason in str(exc) for reason in _LOCKED):
                raise
            refused = exc
    assert refused is not None
    raise refused


class Hdf5(Closing):
    """An HDF5 file that the library has open, read-only, and what is known of its structure.

    Each object's structure is walked before the library sees it. FormatError if the path names
    another file than ``file`` by now.
    """

    def __init__(self, file: ByteFile) -> None:
        self.path, self._file = file.path, file
        self._structure = Structure(file.mapped.bytes)
        named = file.handle
        if isinstance(named, str):
            self.file = open_library(named)
        else:
            with _without_plugins():
                self.file = h5py.File(named, "r")
        with closed_on_error([self]):
            file.check_same()  # the library opened it by its name

    def close(self) -> None:
        """Close it: of a damaged file even that may fail."""
        with contextlib.suppress(Exception):
            self.file.close()

    def many_objects(self) -> None:
        """Prepare to open thousands of objects, each once.

        By default HDF5 keeps up to 32 MB of what it read of them, which take 150 MB of memory, and
        gives them back to nobody.
        """
        config = self.file.id.get_mdc_config()
        config.set_initial_size = True
        config.initial_size = config.min_size = config.max_size = _METADATA
        self.file.id.set_mdc_config(config)

    @cached_property
    def names(self) -> Set[str]:
        """Names in the root group."""
        return all_names(self._root)

    @cached_property
    def _root(self) -> Any:
        return h5py.h5g.open(self.file.id, b"/")

    def reach(self, name: str, start: object | None = None) -> object | None:
        """h5py's low-level object ``name``, by hard and soft links of this file only; None if not
        there. ``start``: the group where the name begins, instead of the root.

        FormatError at a link that leads out of the file, or round in circles.
        """
        here: Any = self._root if start is None else start
        left = deque(name.encode("utf-8", "surrogateescape").split(b"/"))
        followed = 0
        while left:
            part = left.popleft()
            if part in (b"", b"."):
                continue
            if not isinstance(here, h5py.h5g.GroupID) or b"\0" in part:
                return None
            links = here.links
            if not links.exists(part):
                return None
            link = links.get_info(part)
            if link.type == h5py.h5l.TYPE_SOFT:
                followed += 1
                if followed > _SOFT:
                    raise FormatError(
                        f"{name!r} is a soft link that leads in circles, or over many others",
                        expected=f"at most {_SOFT} links to follow",
                    )
                target = links.get_val(part)
                here = self._root if target.startswith(b"/") else here
                left.extendleft(reversed(target.split(b"/")))
                continue
            if link.type != h5py.h5l.TYPE_HARD:
                raise _leads_out(here, part, link.type, name)
            here = self._opened(here, part, link.u)
            if here is None:
                raise virtual_dataset(name)
        reached: object = here
        return reached

    def header(self, name: str, group: Any) -> DatasetHeader | None:
        """What the header of the data set ``name`` of ``group`` says of its rows, in a quarter of
        the time that h5py needs; None where the library has to be asked, or nothing is there."""
        part, links = name.encode("utf-8", "surrogateescape"), group.links
        if not part or b"\0" in part or not links.exists(part):
            return None
        link = links.get_info(part)
        return self._structure.data_set(link.u) if link.type == h5py.h5l.TYPE_HARD else None

    def referenced(self, reference: Any, address: int, name: str) -> Stored | None:
        """The data set that a ``reference`` to ``address`` means; ``name``: of it, for messages;
        None for one to anything else, and to a region."""
        if type(reference) is not h5py.h5r.Reference:
            return None
        if self._structure.virtual(address):
            raise virtual_dataset(name)
        found = h5py.h5r.dereference(reference, self.file.id)
        return self.stored(found, name) if isinstance(found, h5py.h5d.DatasetID) else None

    def text(self, name: str, attribute: str) -> str | None:
        """The attribute of an object, one text; None if it has none of that name. FormatError for
        one that is anything else, or lies where it is not looked for."""
        found: Any = self.reach(name)
        if found is None:
            return None
        value = self._structure.text(h5py.h5o.get_info(found).addr, attribute.encode())
        if value is not None:
            return value.decode("utf-8", "replace")
        if h5py.h5a.exists(found, attribute.encode()):
            raise FormatError(
                f"attribute {attribute!r} of {name!r} is not one text in the object's header",
                hint="write the file again without libver='latest', or with fewer attributes",
            )
        return None

    def plain_text(self, name: str, attribute: str) -> str | None:
        """The attribute of an object, if it is one text; None if it is anything else."""
        with contextlib.suppress(FormatError):
            return self.text(name, attribute)
        return None

    def find(self, name: str, records: bool = False) -> Stored | None:
        """A data set by name; None if there is none of that name. Refused if its bytes are in
        another file, and without ``records`` if its rows are structured."""
        found = self.reach(name)
        return self.stored(found, name, records) if isinstance(found, h5py.h5d.DatasetID) else None

    def stored(self, data: Any, name: str, records: bool = False) -> Stored:
        """A data set (h5py.h5d.DatasetID) that was reached."""
        return Stored(h5py.Dataset(data), name, self._file, records)

    def member_of(self, name: str, start: object | None = None) -> tuple[str, str | None]:
        """(data set, member) that ``name`` means: ``jets.pt`` where ``jets`` are structured rows
        and nothing has the whole name; else (name, None). ``start``: as of :meth:`reach`."""
        if "." in name and self.reach(name, start) is None:
            for at in (i for i, letter in enumerate(name) if letter == "." and i):
                found = self.reach(name[:at], start)
                if isinstance(found, h5py.h5d.DatasetID) and is_compound(found):
                    return name[:at], name[at + 1 :]
        return name, None

    def holder(self, name: str) -> Any:
        """h5py's low-level data set that ``name`` means, or that it is a member of; None where that
        is none."""
        found = self.reach(self.member_of(name)[0])
        return found if isinstance(found, h5py.h5d.DatasetID) else None

    def dataset(self, name: str, records: bool = False) -> Stored:
        """A data set that must be there, reached as :meth:`find` does."""
        found = self.find(name, records)
        if found is None and self.reach(name) is not None:
            raise FormatError(f"{name!r} is not a dataset")
        if found is None:
            raise self.no_field(name)
        return found

    def no_field(self, name: str, group: Any = None) -> ParamsError:
        """The error for a missing data set: it lists those that are there, or in a ``group``."""
        inside, _ = list_fields(self.members, self._root if group is None else group)
        error = missing(name, inside)
        kind = kind_of(self) if group is None else None
        if kind is not None:
            error.hint = "; ".join(filter(None, (f"{kind.name}: {kind.samples}", error.hint)))
        return error

    def member(self, name: str) -> Stored | None:
        """A data set whose bytes are in this file; None for anything else.

        For detecting layouts: objects that fail a check are skipped.
        """
        with contextlib.suppress(FormatError):
            return self.find(name)
        return None

    def _opened(self, group: Any, part: bytes, address: int) -> object | None:
        """The object at ``address`` that a hard link of ``group`` leads to; None for a virtual data
        set.

        HDF5 looks for a virtual data set's sources, and believes how many it is told of, when it
        opens it.
        """
        if self._structure.virtual(address):
            return None
        opened: object = h5py.h5o.open(group, part)
        return opened

    def members(self, group: Any) -> Iterator[tuple[bytes, Any]]:
        """Some of a group's data sets and groups, by hard links; None for a virtual data set."""
        for name in some_names(group, MEMBERS):
            link = group.links.get_info(name)
            if link.type == h5py.h5l.TYPE_HARD:
                found = self._opened(group, name, link.u)
                if found is None or isinstance(found, h5py.h5d.DatasetID | h5py.h5g.GroupID):
                    yield name, found


def _leads_out(group: Any, part: bytes, kind: int, name: str) -> FormatError:
    found = f"a link of type {kind}"
    if kind == h5py.h5l.TYPE_EXTERNAL:
        file, _ = group.links.get_val(part)
        found = f"external link to {file.decode('utf-8', 'backslashreplace')[:200]}"
    return FormatError(
        f"{name!r} is a link into another file", found=found, hint="pass that file itself"
    )


@dataclass(frozen=True)
class TablePaths(Names):
    """Source paths in the data set ``name``, one for each of ``count`` samples; None: missing."""

    name: str | None
    count: int

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """The path of one sample."""
        with Hdf5(file) as h5:
            return bytes(self._table(h5).data[index])

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """All paths, read piece by piece."""
        with translated(file.path), Hdf5(file) as h5:
            paths = self._table(h5)
            step = max(1, _PATH_BYTES // paths.dtype.itemsize)
            for lo in range(0, paths.shape[0], step):
                yield from (bytes(name) for name in paths.data[lo : lo + step])

    def _table(self, h5: Hdf5) -> Stored:
        if self.name is None:
            raise FormatError("its paths are missing", hint=fmt.REPACK)
        paths = h5.dataset(self.name)
        paths.check_library_filters()
        if paths.dtype.kind != "S" or paths.shape != (self.count,):
            raise FormatError(
                "its paths have the wrong shape or type",
                found=f"{paths.shape} {paths.dtype}",
                hint=fmt.REPACK,
            )
        if paths.chunks is not None:
            paths.grid()
        return paths


@dataclass(frozen=True)
class ThroughLibrary:
    """Decoded chunks of the data set ``name`` through HDF5 itself, one caller at a time."""

    name: str

    def __call__(self, file: ByteFile, grid: ChunkGrid) -> LibraryChunks:
        """Open the library."""
        with translated(file.path):
            h5 = Hdf5(file)
            return _LibraryReader(h5, h5.dataset(self.name, records=True), grid)


class _LibraryReader:
    def __init__(self, h5: Hdf5, data: Stored, grid: ChunkGrid) -> None:
        self._h5 = h5
        self._data = data
        self._grid = grid
        self._lock = threading.Lock()

    def read(self, number: int) -> UInt8:
        grid = self._grid
        at = np.unravel_index(number, grid.grid)
        corner = tuple(int(a) * c for a, c in zip(at, grid.chunk, strict=True))
        extent = tuple(
            min(c, n - lo) for lo, c, n in zip(corner, grid.chunk, grid.shape, strict=True)
        )
        part, data = np.empty(extent, grid.dtype), self._data.id
        with self._lock, translated(self._h5.path):
            space = data.get_space()
            # the grid of a data set that is one sample has an axis more
            stored = slice(len(corner) - len(self._data.shape), None)
            space.select_hyperslab(corner[stored], extent[stored])
            # as the file's own type: nothing is converted
            data.read(h5py.h5s.create_simple(extent), space, part, data.get_type())
        full = np.zeros(grid.chunk, grid.dtype)
        full[tuple(slice(0, n) for n in part.shape)] = part
        return full.reshape(-1).view(np.uint8)

    def close(self) -> None:
        self._h5.close()


def _class_names(h5: Hdf5) -> list[str] | None:
    table = h5.find(fmt.CLASSES)
    if table is None:
        return None
    if table.dtype.kind != "S" or table.ndim != 1:
        raise FormatError(
            "its class names are no list of text",
            found=f"{table.shape} {table.dtype}",
            hint=fmt.REPACK,
        )
    raw = table.read()
    # a folder's name may be no UTF-8; it comes as os.fsdecode would give it
    return [bytes(name).decode("utf-8", "surrogateescape") for name in raw]


def _has_checksums(h5: Hdf5) -> bool:
    """Whether the file has a table that only asyncreader writes."""
    table = h5.reach(fmt.CHECKSUMS)
    if not isinstance(table, h5py.h5d.DatasetID):
        return False
    return bool(table.rank == 1 and table.get_type().equal(h5py.h5t.STD_U64LE))


def read_meta(h5: Hdf5) -> fmt.Meta | None:
    """asyncreader's description in the root attributes; None if another program wrote the file."""
    # asyncreader writes no text of variable length, and HDF5 2.0 may hang on a damaged one
    name = attribute(h5.file, "format")
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    if not isinstance(name, str) or name != fmt.FORMAT_NAME:
        if _has_checksums(h5):
            raise FormatError("its description is damaged or missing", hint=fmt.REPACK)
        return None
    classes = _class_names(h5)
    text = attribute(h5.file, fmt.DESCRIPTION, fmt.LONGEST)
    if not isinstance(text, bytes):
        raise FormatError("its description is missing, or no text", hint=fmt.REPACK)
    meta = fmt.Meta.from_json(text, h5.path, classes)
    for key in fmt.SHOWN:
        found, expected = attribute(h5.file, key), getattr(meta, key)
        plain = found.item() if isinstance(found, np.generic) else None
        if plain != (expected.encode() if isinstance(expected, str) else expected):
            raise FormatError(
                f"its attribute {key!r} contradicts its description",
                found=plain,
                expected=expected,
                hint=fmt.REPACK,
            )
    return meta


# -- kinds of files --------------------------------------------------------------------------------


#: Names in the root group that are looked at.
_LOOKED_AT: Final = 64


class Kind(NamedTuple):
    """``known``: whether a file is one; ``samples``: how users get samples."""

    name: str
    known: Callable[[Hdf5], bool]
    samples: str


def _is_nexus(h5: Hdf5) -> bool:
    names = some_names(h5.reach("/"), _LOOKED_AT)
    texts = (h5.plain_text(os.fsdecode(name), "NX_class") for name in names)
    return "NXentry" in texts


#: Each kind; the first that knows a file names it.
KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "cooler",
        lambda h5: (h5.plain_text("/", "format") or "").startswith("HDF5::"),
        "contacts are stored as rows of pixels/bin1_id, bin2_id and count; for squares of the "
        "matrix save it once, as in numpy.save('hic.npy', "
        "cooler.Cooler(path).matrix(balance=False)[:]), and pass patch=(Y, X), sample_axis=None",
    ),
    Kind(
        "NWB",
        lambda h5: h5.plain_text("/", "nwb_version") is not None,
        "a series is data_field='acquisition/NAME/data', its rows are time: with "
        "episodes='whole', window=N a sample is N rows of it; trials begin at "
        "intervals/trials/start_time, in seconds, which subset= takes as rows",
    ),
    Kind(
        "NeXus",
        _is_nexus,
        "the signal of an NXdata group is data_field='ENTRY/DATA/SIGNAL'; frames of a detector are "
        "its first axis",
    ),
    Kind(
        "SNIRF",
        lambda h5: {"formatVersion", "nirs"} <= h5.names,
        "data_field='nirs/data1/dataTimeSeries', its rows are time: with episodes='whole', "
        "window=N a sample is N rows; in a list of files each is an episode: episodes='files'",
    ),
    Kind(
        "Keras",
        lambda h5: "model_weights" in h5.names or h5.plain_text("/", "keras_version") is not None,
        "these are the weights of a model, which are no samples",
    ),
)


def kind_of(h5: Hdf5) -> Kind | None:
    """The kind of a file; None of any other."""
    return next((kind for kind in KINDS if kind.known(h5)), None)
