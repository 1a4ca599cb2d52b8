"""What a path names: a URL, or a file or folder of this machine, which is told by its content.

Credentials come from the environment, a profile or the instance, as the store's own tools find
them, never from the URL: so no state, pickle, log or error can hold them.
"""

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
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ..errors import FormatError, ParamsError, SourceNotFoundError, closed_on_error, shown
from ..formats.manifest import CONTAINERS, Manifest, manifest_path, read_manifest
from ..formats.manifest import NAME as MANIFEST
from ..pixels.codec import IMAGE_SUFFIXES
from ..system.checks import URL
from .bytestore import OpenFile
from .extents import image_kind
from .fields import OpenSet, open_file
from .hdf5.structure import signature_at
from .layouts import npy
from .layouts.known import index_hdf5, index_lmdb
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
        index = {"HDF5": index_hdf5, "LMDB": index_lmdb, "NPY": npy.index_npy}[self.container]
        return open_file(self.file, partial(index, fields=fields))

    def files(self) -> list[str]:
        """The data files."""
        if self.manifest is not None:
            folder, shards = os.path.dirname(self.manifest[0]), self.manifest[1]
            return [os.path.join(folder, shards.name(number)) for number in range(len(shards))]
        return [] if self.file is None else [self.file.handle]

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
        return Sniffed(path, "LMDB", OpenFile(inside, io, path))
    file = OpenFile(path, io)
    with closed_on_error([file]):
        data = file.mapped.bytes
        if bears_magic(data):
            return Sniffed(path, "LMDB", file)
        if signature_at(data) is not None:
            return Sniffed(path, "HDF5", file)
        if data[: len(npy.MAGIC)].tobytes() == npy.MAGIC:
            return Sniffed(path, "NPY", file)
        raise _no_set(path, data[:_HEAD].tobytes())


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
    (b"PAR1", 0, "", "a Parquet table", "write data=pandas.read_parquet({name}).to_numpy()"),
    (
        *(b"MATLAB 5.0", 0, "", "a MAT-file of version 5"),
        "write data=scipy.io.loadmat({name})[VARIABLE], or save it with '-v7.3', which is HDF5",
    ),
    *(
        (
            *(b"CDF" + version, 0, "", "a netCDF-3 file"),
            "write nccopy -k netCDF-4 {path} out.nc, which makes it HDF5, or "
            "data=scipy.io.netcdf_file({name}).variables[VARIABLE].data",
        )
        for version in (b"\1", b"\2", b"\5")
    ),
    (
        *(b"\x0e\x03\x13\x01", 0, "", "an HDF4 file"),
        "write h4toh5convert {path} out.h5, which makes it HDF5",
    ),
    (
        *(b"", 0, ".tfrecord .tfrecords", "a TFRecord file"),
        "save its images as files, in a folder for each class, with tf.data.TFRecordDataset, and "
        "convert them with: asyncreader convert FOLDER out.h5",
    ),
    (
        *(b"", 0, ".csv", "a table of text"),
        "write asyncreader convert FOLDER out.h5 --labels {path} for the images that it lists, or "
        "data=np.loadtxt({name}, delimiter=',') for numbers, with skiprows=1 if names stand above "
        "them",
    ),
    (
        *(b"", 0, ".tsv", "a table of text"),
        "write data=np.loadtxt({name}, delimiter='\\t') for numbers, with skiprows=1 if names "
        "stand above them",
    ),
    (
        *(b"", 0, ".pkl .pickle", "a pickle"),
        "write data=pickle.load(open({name}, 'rb')), if you trust whoever wrote it",
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
    folder = shlex.quote(os.path.dirname(path) or os.curdir)
    for word, text in (("{path}", shlex.quote(path)), ("{name}", repr(path)), ("{folder}", folder)):
        hint = hint.replace(word, text)
    return FormatError("neither HDF5 nor LMDB by its content", path=path, found=what, hint=hint)


_TORCH: Final = ("a file of torch.save", "write data=torch.load({name}, weights_only=True)")


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
    return f"arrays (.npz): {listed}", f"write data=np.load({{name}})[{data!r}]"


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


# -- URLs ------------------------------------------------------------------------------------------


SCHEMES: Final = ("s3", "gs", "https", "http", "file")
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY: Final = re.compile(r"\?[^\s)\"']*")


@dataclass(frozen=True)
class Location:
    """An object or a prefix: ``base`` is the bucket or server, ``key`` the key in it."""

    base: str
    key: str

    @property
    def shown(self) -> str:
        """The URL for messages; URLs with secrets were refused."""
        return f"{self.base}/{self.key}"

    def sibling(self, name: str) -> Location:
        """``name`` in the same folder."""
        folder, slash, _ = self.key.rpartition("/")
        return Location(self.base, f"{folder}{slash}{name}")

    def inside(self, name: str) -> Location:
        """``name`` in this folder."""
        return Location(self.base, f"{self.key.rstrip('/')}/{name}".lstrip("/"))


def is_url(path: str) -> bool:
    """Whether a path is a URL rather than the name of a file."""
    return URL.match(path) is not None


def absolute(path: str) -> str:
    """``path`` made absolute: os.chdir() must not affect a set that is open.

    URLs stay as they are. So does ``..``: after a symbolic link it means another folder.
    """
    return path if is_url(path) else absolute_file(path)


def absolute_file(path: str) -> str:
    """The same for the name of a file."""
    if os.path.isabs(path):
        return path
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the current folder was removed: no relative path can be found
        return path
    return os.path.join(here, re.sub(r"^(\./+)+", "", path))


def absolute_pattern(path: str) -> str:
    """The same for a path that may be a glob pattern; the current folder's name is escaped.

    A path that is neither a file nor a pattern stays as it is, for the error message.
    """
    if os.path.isabs(path) or is_url(path):
        return path
    if os.path.lexists(path):
        return absolute_file(path)
    if not glob.has_magic(path):
        return path
    return glob.escape(absolute_file("./")) + path


def without_secrets(text: str) -> str:
    """``text`` with user names, passwords and queries of the URLs in it cut out."""
    return _QUERY.sub("", _USERINFO.sub("", text))


def _split(url: str) -> SplitResult:
    cut = shown(without_secrets(url))
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise ParamsError("not a URL", found=cut) from exc
    if parts.scheme.lower() not in SCHEMES:
        raise ParamsError(
            "unknown URL scheme",
            found=cut,
            expected=", ".join(f"{scheme}://" for scheme in SCHEMES),
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ParamsError(
            "a URL with a user name, password or query is refused: saved states, pickles and logs "
            "would show it",
            found=cut,
            hint="give credentials in the store's own way, such as AWS_ACCESS_KEY_ID or an "
            "instance profile",
        )
    if any(not c.isprintable() for c in unquote(url)):
        raise ParamsError("the URL has control characters", found=cut)
    return parts


def local_path(url: str) -> str | None:
    """The file or folder that a file:// URL names; None for URLs of stores. ParamsError."""
    parts = _split(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise ParamsError(
            "the file:// URL names another machine", found=url, expected="file:///folder"
        )
    return unquote(parts.path)


def location_of(url: str) -> Location:
    """Bucket or server, and key, of a store's URL. ParamsError if it is not valid."""
    parts = _split(url)
    if not parts.netloc:
        raise ParamsError("the URL has no bucket or server", found=url)
    base = urlunsplit((parts.scheme.lower(), parts.netloc, "", "", ""))
    pieces = parts.path.strip("/").split("/")
    if ".." in pieces or "." in pieces:
        raise ParamsError("the URL has . or .. in its path", found=url)
    return Location(base, unquote(parts.path.lstrip("/")))
