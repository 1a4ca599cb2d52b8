"""Checks of the values of ``convert``'s options, one by one: paths, sizes, bytes, folders."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncreader.errors import ParamsError
from asyncreader.params.parse import reading_params
from asyncreader.params.reader import ReaderParams
from asyncreader.system import checks
from asyncreader.system.checks import Check, Wrong, whole


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
            hint="convert to a folder, and upload that with the store's own tools",
        )
    return absolute(local)


def size_of(value: Any) -> tuple[int, int] | int:
    """(H, W), or a length: "224x224", "256", or numbers."""
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


def check_field(name: object) -> None:
    """ParamsError for a name that no field can have."""
    from asyncreader.formats.packed import is_field_name

    if not isinstance(name, str) or not is_field_name(name):
        raise ParamsError(
            "not a valid name of a field",
            found=repr(name),
            expected="letters, digits, _ and -, and none of data, labels, paths, ...",
        )


def fields_of(value: Any) -> tuple[tuple[str, str], ...]:
    """The name and the folder of each field."""
    from asyncreader.sources.urls import absolute, is_url, without_secrets

    folders = []
    for name, given in value.items():
        check_field(name)
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


def names_of(value: Any) -> tuple[str, ...] | bool:
    """True, False, a name, or several."""
    if isinstance(value, bool):
        return value
    return tuple(map(checks.TEXT.take, [value] if isinstance(value, str) else value))


def columns_of(value: Any) -> tuple[str, ...]:
    """Names of columns: "age,weight", or several."""
    names = value.split(",") if isinstance(value, str) else value
    found = tuple(checks.TEXT.take(name).strip() for name in names)
    if not all(found) or len(set(found)) < len(found):
        raise Wrong("each name once", value)
    return found


def split_of(value: Any) -> tuple[tuple[str, float], ...]:
    """Names and shares: "train=0.8,val=0.2", or {"train": 0.8, "val": 0.2}."""
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")]
        found = [(name.strip(), float(share)) for name, _, share in parts]
    else:
        found = [(checks.TEXT.take(name), float(share)) for name, share in value.items()]
    if len({name for name, _ in found}) < len(found):
        raise Wrong("each name once", value)
    if not all(name and 0 < share <= 1 for name, share in found):
        raise Wrong("names, and shares above 0", value)
    if abs(math.fsum(share for _, share in found) - 1) > 1e-6:
        raise Wrong("shares that add up to 1", value)
    return tuple(found)


class Condition(NamedTuple):
    """What is chosen of a source. ``kind``: "split" or "classes" (``names``), "slice" (``rows``),
    "paths" (``names`` has that of a CSV), or "" where a bare name may be that of a split or a
    class."""

    kind: str
    names: tuple[str, ...] = ()
    rows: slice = slice(None)


def select_of(value: Any) -> tuple[Condition, ...]:
    """A slice, or text as --select takes it, or several."""
    if isinstance(value, list | tuple):
        return tuple(one for each in value for one in select_of(each))
    if isinstance(value, Mapping):
        return tuple(
            Condition(kind, (one,) if isinstance(one, str) else tuple(one))
            for kind, one in value.items()
            if _of_kind(kind)
        )
    if isinstance(value, slice):
        value.indices(0)
        return (Condition("slice", rows=value),)
    text: str = checks.TEXT.take(os.fspath(value))
    if re.fullmatch(r"(-?\d{1,18})?(:(-?\d{1,18})?){1,2}", text):
        ends = [int(end) if end else None for end in text.split(":")]
        return (Condition("slice", rows=slice(*ends)),)
    kind, equals, rest = text.partition("=")
    if not equals:
        listed = os.path.splitext(text)[1].lower() in (".csv", ".txt")
        return (Condition("paths", (os.path.abspath(text),)) if listed else Condition("", (text,)),)
    kind = {"class": "classes", "splits": "split"}.get(kind.strip(), kind.strip())
    _of_kind(kind)
    return (Condition(kind, (os.path.abspath(rest) if kind == "paths" else rest,)),)


def _of_kind(kind: str) -> bool:
    if kind not in ("split", "classes", "paths"):
        raise Wrong("split=NAME, classes=NAME,NAME, paths=CSV or a slice such as 0:100", kind)
    return True


SRC: Final = Check("a path or a URL", _path_or_url, "file")
DST: Final = Check("a path", _target, "file")
