"""Opens a path of this machine once, and tells by content what it is."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from ..errors import FormatError, SourceNotFoundError
from ..formats.manifest import CONTAINERS, Manifest, manifest_path, read_manifest
from ..formats.manifest import NAME as MANIFEST
from .bytestore import OpenFile
from .hdf5.structure import signature_at
from .layouts.hdf5_list import is_list, listed_files
from .lmdb.file import bears_magic, data_file_in

#: Names of shards as convert gives them: the number, and how many there are.
FAMILY: Final = re.compile(r"-(\d{5,})-of-(\d{5,})(?=\.)")


@dataclass(frozen=True)
class Sniffed:
    """What a path is. ``container``: "HDF5" or "LMDB".

    It has one of these: ``file``, open; ``manifest``, with the file that it was read from;
    ``listed``, the files of a list.
    """

    path: str
    container: str
    file: OpenFile | None = None
    manifest: tuple[str, Manifest] | None = None
    listed: tuple[str, ...] = ()

    def files(self) -> list[str]:
        """The data files."""
        if self.manifest is not None:
            folder, shards = os.path.dirname(self.manifest[0]), self.manifest[1]
            return [os.path.join(folder, shards.name(number)) for number in range(len(shards))]
        return list(self.listed) if self.file is None else [self.file.path]

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def sniff(path: str, io: str = "auto") -> Sniffed:
    """Open and recognise ``path``. SourceNotFoundError, SourceError, or FormatError if it is
    neither HDF5 nor LMDB. ``io``: how samples will be read (bytestore.OpenFile)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as exc:
        if not os.path.lexists(path):
            raise SourceNotFoundError("no such file or folder", path=path) from exc
        raise SourceNotFoundError(f"cannot be reached: {exc.strerror}", path=path) from exc
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FormatError("not a regular file", path=path, hint="a pipe or device is never opened")
    named = manifest_path(path)
    if named is not None:
        manifest = read_manifest(named)
        container = CONTAINERS[manifest.common.container]
        return Sniffed(path, container, manifest=(named, manifest))
    if stat.S_ISDIR(mode):
        inside = data_file_in(path)
        if inside is None:
            raise _no_set_in(path)
        return Sniffed(path, "LMDB", OpenFile(inside, io))
    file = OpenFile(path, io)
    with contextlib.ExitStack() as failed:
        failed.callback(file.close)
        data = file.mapped.bytes
        if bears_magic(data):
            found = Sniffed(path, "LMDB", file)
        elif signature_at(data) is not None:
            found = Sniffed(path, "HDF5", file)
        elif is_list(path, data):
            return Sniffed(path, "HDF5", listed=tuple(listed_files(path)))
        else:
            raise FormatError(
                "neither HDF5 nor LMDB by its content",
                path=path,
                hint="is it complete? pack pictures with: asyncreader convert FOLDER out.h5",
            )
        failed.pop_all()
    return found


def container_of(path: str) -> str:
    """ "HDF5" or "LMDB", by content. The errors of :func:`sniff`."""
    with contextlib.closing(sniff(path)) as found:
        return found.container


def _no_set_in(path: str) -> FormatError:
    if any(FAMILY.search(name) for name in os.listdir(path)):
        return FormatError(
            f"a folder of shards without their manifest, {MANIFEST}: the set is not complete",
            path=path,
            hint="copy it again, or convert again (--resume goes on with a run that was cut)",
        )
    return FormatError(
        "a folder without an LMDB data file in it",
        path=path,
        hint="pack a folder of pictures with: asyncreader convert FOLDER out.h5",
    )
