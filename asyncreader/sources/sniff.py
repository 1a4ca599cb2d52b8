"""Opens a path of this machine once, and tells by content what it is."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import stat
import zipfile
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..errors import FormatError, SourceNotFoundError
from ..formats.manifest import CONTAINERS, Manifest, manifest_path, read_manifest
from ..formats.manifest import NAME as MANIFEST
from ..pixels.codec import IMAGE_SUFFIXES
from .bytestore import OpenFile
from .extents import image_kind
from .fields import OpenSet, index_set, open_file
from .hdf5.structure import signature_at
from .layouts import npy
from .layouts.hdf5_layouts import index_hdf5
from .layouts.lmdb_layouts import index_lmdb
from .lmdb import bears_magic, data_file_in
from .request import Request

#: Folders and files in which an image is looked for.
_LOOKED_AT: Final = 10_000

#: Names of shards as convert gives them: the number, and how many there are.
FAMILY: Final = re.compile(r"-(\d{5,})-of-(\d{5,})(?=\.)")


@dataclass(frozen=True)
class Sniffed:
    """What a path is. ``container``: "HDF5", "LMDB" or "NPY".

    It has one of these: ``file``, open; ``manifest``, with the file that it was read from.
    """

    path: str
    container: str
    file: OpenFile | None = None
    manifest: tuple[str, Manifest] | None = None

    def open(self, fields: Request) -> OpenSet:
        """The set in its file, which is closed if that fails."""
        assert self.file is not None
        if self.container == "LMDB":
            return open_file(self.file, partial(index_lmdb, self.path, fields=fields))
        if self.container == "NPY":
            return open_file(self.file, lambda it: index_set(fields, partial(npy.index_npy, it)))
        return open_file(self.file, partial(index_hdf5, fields=fields))

    def files(self) -> list[str]:
        """The data files."""
        if self.manifest is not None:
            folder, shards = os.path.dirname(self.manifest[0]), self.manifest[1]
            return [os.path.join(folder, shards.name(number)) for number in range(len(shards))]
        return [] if self.file is None else [self.file.path]

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def sniff(path: str, io: str = "auto") -> Sniffed:
    """Open and recognise ``path``. SourceNotFoundError, SourceError, or FormatError if it is
    none of these. ``io``: how samples will be read (bytestore.OpenFile)."""
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
    try:  # each file of a set comes by here: without a call more
        data = file.mapped.bytes
        if bears_magic(data):
            return Sniffed(path, "LMDB", file)
        if signature_at(data) is not None:
            return Sniffed(path, "HDF5", file)
        if data[: len(npy.MAGIC)].tobytes() == npy.MAGIC:
            return Sniffed(path, "NPY", file)
        raise _no_set(path, data[:_HEAD].tobytes())
    except BaseException:
        file.close()
        raise


def container_of(path: str) -> str:
    """ "HDF5", "LMDB" or "NPY", by content. The errors of :func:`sniff`."""
    with contextlib.closing(sniff(path)) as found:
        return found.container


#: The part of a file by which it is told what it is instead of a set.
_HEAD: Final = 512

_UNPACK: Final = (
    "unpack it with {how} {path}, and convert its images with: asyncreader convert FOLDER out.h5"
)

#: What people point to that is no set: first bytes and where they lie, or suffixes; what it is; and
#: what to write. ``{path}`` is quoted for a shell, ``{name}`` for Python.
_OTHERS: Final[tuple[tuple[bytes, int, str, str, str], ...]] = (
    (b"ustar", 257, "", "a tar archive", _UNPACK.replace("{how}", "tar -xf")),
    (
        *(b"\x1f\x8b", 0, "", "a gzip file"),
        "unpack it first: gunzip -k {path}, or tar -xf {path} if it is a .tar.gz",
    ),
    (b"PAR1", 0, "", "a Parquet table", "data=pandas.read_parquet({name}).to_numpy()"),
    (
        *(b"MATLAB 5.0", 0, "", "a MAT-file of version 5"),
        "data=scipy.io.loadmat({name})[VARIABLE], or save it with '-v7.3', which is HDF5",
    ),
    *(
        (
            *(b"CDF" + version, 0, "", "a netCDF-3 file"),
            "nccopy -k netCDF-4 {path} out.nc, which makes it HDF5, or "
            "data=scipy.io.netcdf_file({name}).variables[VARIABLE].data",
        )
        for version in (b"\1", b"\2", b"\5")
    ),
    (
        *(b"\x0e\x03\x13\x01", 0, "", "an HDF4 file"),
        "h4toh5convert {path} out.h5, which makes it HDF5",
    ),
    (
        *(b"", 0, ".tfrecord .tfrecords", "a TFRecord file"),
        "save its images as files, in a folder for each class, with tf.data.TFRecordDataset, and "
        "convert them with: asyncreader convert FOLDER out.h5",
    ),
    (
        *(b"", 0, ".csv", "a table of text"),
        "asyncreader convert FOLDER out.h5 --labels {path} for the images that it lists, or "
        "data=np.loadtxt({name}, delimiter=',') for numbers, with skiprows=1 if names stand above "
        "them",
    ),
    (
        *(b"", 0, ".tsv", "a table of text"),
        "data=np.loadtxt({name}, delimiter='\\t') for numbers, with skiprows=1 if names stand "
        "above them",
    ),
    (
        *(b"", 0, ".pkl .pickle", "a pickle"),
        "data=pickle.load(open({name}, 'rb')), if you trust whoever wrote it",
    ),
)


def _no_set(path: str, head: bytes) -> FormatError:
    """The error for a file that is no set: what it is, and what to write instead."""
    suffix = os.path.splitext(path)[1].lower().split("-")[0]  # .tfrecord-00000-of-00010
    what, hint = None, "is it complete? convert images with: asyncreader convert FOLDER out.h5"
    if head.startswith(b"PK\3\4"):
        what, hint = _of_zip(path)
    elif suffix in (".pt", ".pth"):
        what, hint = _TORCH
    else:
        if image_kind(head) is not None:
            what = "an image"
            hint = "convert the folder that it lies in: asyncreader convert {folder} out.h5"
        for magic, at, suffixes, name, write in _OTHERS:
            if head[at:].startswith(magic) if magic else suffix in suffixes.split():
                what, hint = name, write
                break
    if hint.startswith(("data=", "asyncreader ", "nccopy ", "h4toh5convert ")):
        hint = "write " + hint
    folder = shlex.quote(os.path.dirname(path) or os.curdir)
    for word, text in (("{path}", shlex.quote(path)), ("{name}", repr(path)), ("{folder}", folder)):
        hint = hint.replace(word, text)
    return FormatError("neither HDF5 nor LMDB by its content", path=path, found=what, hint=hint)


_TORCH: Final = ("a file of torch.save", "data=torch.load({name}, weights_only=True)")


def _of_zip(path: str) -> tuple[str, str]:
    """What a zip file is: .npz, torch.save's, or an archive. Its names are shown, nothing more."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "a zip file that cannot be read", "copy it again"
    if any(name.endswith("/data.pkl") for name in names):
        return _TORCH
    arrays = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    if not arrays:
        return "a zip archive", _UNPACK.replace("{how}", "unzip")
    listed = ", ".join(arrays[:8]) + (", ..." if len(arrays) > 8 else "")
    data = next((name for name in arrays if name in ("data", "images", "x", "X")), arrays[0])
    return f"arrays (.npz): {listed}", f"data=np.load({{name}})[{data!r}]"


def _no_set_in(path: str) -> FormatError:
    if any(FAMILY.search(name) for name in os.listdir(path)):
        return FormatError(
            f"a folder of shards without their manifest, {MANIFEST}: the dataset is not complete",
            path=path,
            hint="copy it again, or convert again (--resume continues an interrupted run)",
        )
    convert = f"asyncreader convert {shlex.quote(path)}"
    hint = f"convert a folder of images with: {convert} out.h5"
    if any(os.path.lexists(os.path.join(path, name)) for name in (".zarray", "zarr.json")):
        hint = f"write data=zarr.open({path!r}, mode='r')"
    elif files := glob.glob("*.h5", root_dir=path) or glob.glob("*.hdf5", root_dir=path):
        pattern = os.path.join(path, "*" + os.path.splitext(files[0])[1])
        hint = f"write path={pattern!r} for all of its files as one dataset"
    elif (image := _image_in(path)) is not None:
        return FormatError(
            "a folder of images, and no dataset yet",
            path=path,
            found=f"such as {image!r}",
            hint=f"make one: {convert} out.h5; {convert} --dry-run says what is in the folder",
        )
    return FormatError("a folder without an LMDB data file in it", path=path, hint=hint)


def _image_in(path: str) -> str | None:
    """The name of an image file in a folder, by its suffix; None where the first entries that are
    looked at have none."""
    left = _LOOKED_AT
    for folder, inside, names in os.walk(path):
        inside.sort()
        for name in sorted(names)[:left]:
            if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                return os.path.relpath(os.path.join(folder, name), path)
        left -= 1 + len(names)
        if left <= 0:
            break
    return None
