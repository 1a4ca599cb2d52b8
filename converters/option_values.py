"""Checks of the values of ``convert``'s options, one by one: paths, sizes, bytes, folders."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from asyncreader import checks
from asyncreader.checks import Check, Wrong, whole
from asyncreader.errors import ParamsError
from asyncreader.params import ReaderParams, reading_params


def _path(value: Any) -> str:
    return checks.path_text(os.fsdecode(os.fspath(value)))  # bytes: a path need not be text


def _path_or_url(value: Any) -> str:
    """An absolute path, or a store's URL; file:// becomes a path. ParamsError for other URLs."""
    from asyncreader.sources.urls import absolute, is_url, local_path, location_of

    path = _path(value)
    local = local_path(path) if is_url(path) else path
    if local is None:
        location_of(path)  # ParamsError for a malformed URL or secrets in it
    return path if local is None else absolute(local)


def _target(value: Any) -> str:
    from asyncreader.sources.urls import absolute, is_url, local_path, without_secrets

    path = _path(value)
    local = local_path(path) if is_url(path) else path
    if local is None:
        raise ParamsError(
            "the target must be on a disk, not a URL",
            found=without_secrets(path),
            hint="pack to a folder, and upload that with the store's own tools",
        )
    return absolute(local)


def size_of(value: Any) -> tuple[int, int] | int:
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", value.strip())
        if text is None:
            raise ValueError
        value = (int(text[1]), int(text[2])) if text[2] else int(text[1])
    side = whole(1, checks.MAX_SIDE + 1)
    if not isinstance(value, tuple | list):
        return side.take(value)
    high, wide = value
    return side.take(high), side.take(wide)


def bytes_of(value: Any) -> int:
    """A number of bytes: 1000000, "1MB", "1MiB"."""
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,15})\s*([kMGTP]?)(i?)B?", value.strip(), re.IGNORECASE)
        if text is None or (text[3] and not text[2]):
            raise ValueError
        power = " kmgtp".index(text[2].lower() or " ")
        value = int(text[1]) * (1024 if text[3] else 1000) ** power
    return whole(1, (1 << 50) + 1).take(value)


def read_of(value: Any) -> ReaderParams | None:
    """The parameters of a packed source, checked as a reader checks them."""
    if not value:
        return None
    return reading_params(os.curdir, value)


def fields_of(value: Any) -> tuple[tuple[str, str], ...]:
    """The name and the folder of each field."""
    from asyncreader.formats.packed import is_field_name
    from asyncreader.sources.urls import absolute, is_url, without_secrets

    folders = []
    for name, given in value.items():
        if not isinstance(name, str) or not is_field_name(name):
            raise ParamsError(
                "not a valid name of a field",
                found=repr(name),
                expected="letters, digits, _ and -, and none of data, labels, paths, ...",
            )
        try:
            folder = _path(given)
        except (TypeError, ValueError):
            raise Wrong("a path", given, f"[{name!r}]") from None
        if is_url(folder):
            raise ParamsError(
                f"the folder of field {name!r} must be on this machine",
                found=without_secrets(folder),
                hint="copy it here",
            )
        folders.append((name, absolute(folder)))
    return tuple(folders)


SRC: Final = Check("a path or a URL", _path_or_url, "file")
DST: Final = Check("a path", _target, "file")
