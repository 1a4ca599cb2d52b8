"""An HDF5 file as h5py shows it: opened, its links and description checked; and sources over it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .. import format as fmt
from ..errors import AsyncReaderError, FormatError, SourceNotFoundError
from .arrays import ArraySource
from .base import BaseSource, ExtentSource
from .chunks import ChunkSource, Filter
from .raw_images import RawImages
from .store import OpenFile

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: str) -> bool:
    """Whether the file bears HDF5's signature at 0, 512, 1024, ... (format specification, II.A)."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while at + 8 <= size:
                file.seek(at)
                if file.read(8) == SIGNATURE:
                    return True
                at = max(512, at * 2)
    except OSError:
        pass
    return False


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """h5py's errors never reach the user bare."""
    try:
        yield
    except (AsyncReaderError, KeyboardInterrupt):
        raise
    except Exception as exc:
        raise FormatError(
            f"HDF5 cannot read it: {exc}", path=path, hint="copy or convert it again"
        ) from exc


def open_library(path: str) -> Any:
    """h5py's File of ``path``, read-only.

    We need no lock, but HDF5 refuses a file that this process has open with other locking flags.
    """
    import h5py

    refused: OSError | None = None
    for locking in (False, None, True, "best-effort"):
        try:
            return h5py.File(path, "r", locking=locking)
        except OSError as exc:
            if "flag values don't match" not in str(exc):
                raise
            refused = exc
    assert refused is not None
    raise refused


class Hdf5Files:
    """The descriptor that samples are read from, and h5py's where HDF5 must help."""

    def __init__(self, file: OpenFile, h5: Any) -> None:
        self.file = file
        self.h5 = h5

    def close(self) -> None:
        self.file.close()
        if self.h5 is not None:
            self.h5.close()
            self.h5 = None


class Hdf5Common(BaseSource):
    """What all HDF5 sources add: the path a sample was packed from, and closing."""

    files: Hdf5Files
    paths_name: str | None = None

    def source_path(self, index: int) -> bytes | None:
        if self.paths_name is None:
            return None
        try:
            with open_library(self.spec.path) as h5:
                return bytes(h5[self.paths_name][index])
        except (OSError, KeyError, ValueError, RuntimeError):
            return None  # this is for a message about something worse

    def all_paths(self) -> Iterator[bytes | None]:
        with translated(self.spec.path), open_library(self.spec.path) as h5:
            if self.paths_name is None:
                raise FormatError("its paths are missing", path=self.spec.path, hint=fmt.REPACK)
            paths = h5[self.paths_name]
            for lo in range(0, paths.shape[0], 4096):
                yield from (bytes(name) for name in paths[lo : lo + 4096])

    def close(self) -> None:
        self.files.close()


class Hdf5Extents(Hdf5Common, ExtentSource):
    """Contiguous rows, unfiltered chunks, or a blob of encoded images with offsets."""


class Hdf5Images(Hdf5Common, RawImages):
    """Raw images of different shapes, of variable length on disk (Fuel)."""


class Hdf5Chunks(Hdf5Common, ChunkSource):
    """Compressed or oddly cut chunks."""


class Hdf5Array(Hdf5Common, ArraySource):
    """Contiguous data whose sample axis is not the first."""


def find_dataset(h5: Any, name: str, path: str) -> Any:
    """A data set of an open file; refused where its bytes would come from anywhere else."""
    import h5py

    at = h5
    for part in [piece for piece in name.split("/") if piece]:
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise FormatError(
                f"{name!r} is a link into another file",
                path=path,
                found=f"external link to {link.filename}",
                hint="pass that file itself",
            )
        at = at.get(part) if link is not None else None
        if at is None or at.file.filename != h5.filename:
            held = sorted(_dataset_names(h5))
            raise SourceNotFoundError(
                f"no data set {name!r} in the file",
                path=path,
                found=", ".join(held[:20]) or "no data sets",
                hint="name it with data_field / labels_field",
            )
    return check_stored(at, name, path)


def check_stored(at: Any, name: str, path: str) -> Any:
    """``at`` itself, if it is a data set whose bytes are in this file."""
    import h5py

    if not isinstance(at, h5py.Dataset):
        raise FormatError(f"{name!r} is not a data set", path=path)
    if at.is_virtual:
        raise FormatError(
            f"{name!r} is a virtual data set: its bytes lie in other files",
            path=path,
            hint="pass those files as a list",
        )
    if at.external:
        raise FormatError(
            f"{name!r} keeps its bytes outside the file",
            path=path,
            found=f"external storage {at.external[0][0]!r}",
            hint="h5repack moves them into the file",
        )
    return at


def _dataset_names(h5: Any) -> Iterator[str]:
    import h5py

    found: list[str] = []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(name)

    h5.visititems(note)
    yield from found


def read_meta(h5: Any, path: str) -> fmt.Meta | None:
    """Our description in the root attributes; None for a file that is not ours."""
    # text of variable length is never ours, and HDF5 2.0 may hang on reading it when damaged
    attributes = {key: h5.attrs[key] for key in h5.attrs if h5.attrs.get_id(key).dtype.kind != "O"}
    name = attributes.get("format")
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    if not isinstance(name, str) or name != fmt.FORMAT_NAME:
        return None
    fields: dict[str, Any] = {"format": name, "digests": {}, "shape": None, "classes": None}
    for key, value in attributes.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bytes):
            plain = plain.decode()
        if key.startswith("digest_"):
            fields["digests"][key[7:]] = plain
        else:
            fields[key] = plain.tolist() if isinstance(plain, np.ndarray) else plain
    if fmt.CLASSES in h5:
        raw = find_dataset(h5, fmt.CLASSES, path)[()]
        # a folder's name may be no UTF-8; it comes as os.fsdecode would give it
        fields["classes"] = [bytes(name).decode("utf-8", "surrogateescape") for name in raw]
    try:
        text = json.dumps(fields)
    except TypeError as exc:
        raise FormatError("its description is damaged", path=path, hint=fmt.REPACK) from exc
    meta = fmt.Meta.from_json(text, path)
    if meta.classes is not None:
        found = fmt.names_digest(name.encode("utf-8", "surrogateescape") for name in meta.classes)
        fmt.check_named_digest(fmt.CLASSES, found, meta, path)
    return meta


def pipeline(plist: Any) -> tuple[Filter, ...]:
    """The filters of a data set, by its creation properties."""
    found = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return tuple(
        Filter(int(code), tuple(int(v) for v in values)) for code, _flags, values, _name in found
    )
