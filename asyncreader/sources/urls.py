"""Which paths are URLs, which of their parts messages show, and which URLs are refused.

Credentials come from the environment, a profile or the instance, as the store's own tools find
them, never from the URL: so no state, pickle, log or error can hold them.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ..errors import ParamsError, shown
from ..system.checks import URL

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
