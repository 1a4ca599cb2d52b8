"""The description in a packed file: names, version, digests. Reader and converter import it.

HDF5: data sets ``data``, ``labels``, ``paths``, ``classes``, ``checksums`` (and ``offsets`` when
the samples are encoded) with the :class:`Meta` fields as root attributes, written last.
LMDB: named databases of the same names; ``data`` and ``paths`` have one value per record under its
zero-padded number, ``labels`` and ``checksums`` hold one array each under ``TABLE_KEY``, and
``meta`` holds the :class:`Meta` fields as JSON under ``META_KEY``, written last.

Another field, such as ``mask``, is stored as ``data`` is, under its own name. With it come
``mask.checksums``, ``mask.paths`` if it was packed from files, and in HDF5 ``mask.offsets`` if it
is encoded; ``fields`` of the :class:`Meta` describes it (in HDF5 as JSON text).

Digests are XXH3-64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): of a sample's
stored bytes in ``checksums``, and of each table in ``Meta.digests``, written as 16 hex digits; the
digest ``meta`` there is of the description itself (:func:`described_digest`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from ..errors import FormatError
from ..pixels.codec import MAX_PIXELS

FORMAT_NAME: Final = "asyncreader"
FORMAT_VERSION: Final = 1

#: Stored image bytes: pixels, one codec for all, or each file's own bytes.
ENCODINGS: Final = ("raw", "jpeg", "png", "original")

#: What a row of ``labels`` is: the number of a name in ``classes``, values, or there is none.
LABEL_KINDS: Final = ("class", "values", "none")

DATA: Final = "data"
OFFSETS: Final = "offsets"
LABELS: Final = "labels"
PATHS: Final = "paths"
CLASSES: Final = "classes"
CHECKSUMS: Final = "checksums"
META: Final = "meta"

#: LMDB: the key of the one array in ``labels`` and in ``checksums``, and of the JSON in ``meta``.
TABLE_KEY: Final = b"table"
META_KEY: Final = b"meta"

#: Tables whose digests a file carries, each computed over its little-endian C-order bytes
#: (``paths``: each path followed by a NUL; ``classes``: each name in UTF-8 followed by a NUL).
DIGESTED: Final = (LABELS, OFFSETS, CHECKSUMS, PATHS, CLASSES)

#: Fields of a description that its own digest covers.
DESCRIBED: Final = (
    *("count", "encoding", "shape", "channels", "label_kind", "classes", "digests"),
    *("axes", "dtype", "label_dtype", "fields", "format", "version"),
)


def record_key(number: int) -> bytes:
    """LMDB key of record ``number``: ten ASCII digits, so that byte order is numeric order."""
    return b"%010d" % number


def digest(data: npt.NDArray[Any] | bytes | memoryview) -> str:
    """XXH3-64 of the bytes of ``data`` (C-contiguous) as 16 hex digits."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return xxhash.xxh3_64_hexdigest(data)


def names_digest(names: Iterable[bytes]) -> str:
    """XXH3-64 of names, each followed by a NUL (which no path can contain)."""
    state = xxhash.xxh3_64()
    for name in names:
        state.update(name + b"\0")
    return state.hexdigest()


def described_digest(raw: Mapping[str, Any]) -> str:
    """XXH3-64 of a description: of the fields in DESCRIBED that are not null, without the digest
    ``meta``, as ASCII JSON with sorted keys and the separators ", " and ": "."""
    facts = {name: raw[name] for name in DESCRIBED if raw.get(name) is not None}
    facts["digests"] = {name: v for name, v in dict(raw["digests"]).items() if name != META}
    return digest(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode("ascii"))


#: What the name of another field may be: no dot, so that its tables cannot be a field themselves.
FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_TAKEN: Final = frozenset((DATA, OFFSETS, LABELS, PATHS, CLASSES, CHECKSUMS, META))

#: dtypes of another field's values (more than a byte: little-endian).
FIELD_DTYPES: Final = ("uint8", "uint16")


def is_field_name(name: str) -> bool:
    """Whether a field other than ``data`` can have this name."""
    return FIELD_NAME.fullmatch(name) is not None and name not in _TAKEN


def table_of(field: str | None, table: str) -> str:
    """Name of a field's table (``checksums``, ``offsets``, ``paths``); None: of ``data``."""
    return table if field is None else f"{field}.{table}"


@dataclass(frozen=True)
class FieldMeta:
    """Another field: "raw" values or "png" files, (H, W, C) if all have it, C, numpy's dtype."""

    name: str
    encoding: str
    shape: tuple[int, int, int] | None
    channels: int
    dtype: str

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> FieldMeta:
        """Check what was written; KeyError, TypeError or ValueError if it makes no sense."""
        shape = raw["shape"]
        field = cls(
            str(raw["name"]),
            str(raw["encoding"]),
            None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2])),
            int(raw["channels"]),
            str(raw["dtype"]),
        )
        sides = field.shape or (1, 1, field.channels)
        good = is_field_name(field.name) and field.encoding in ("raw", "png")
        good = good and field.channels in (1, 3) and field.dtype in FIELD_DTYPES
        good = good and sides[2] == field.channels and all(1 <= n < 1 << 31 for n in sides)
        if not good or (field.encoding == "raw" and field.shape is None):
            raise ValueError(f"field {field}")
        return field


@dataclass(frozen=True)
class Meta:
    """The facts a packed file states about itself, the same in both containers."""

    count: int
    encoding: str
    #: (H, W, C) when every sample has it, else None.
    shape: tuple[int, int, int] | None
    channels: int
    #: One of LABEL_KINDS.
    label_kind: str
    classes: tuple[str, ...] | None
    digests: Mapping[str, str] = field(default_factory=dict)
    axes: str = "NHWC"
    dtype: str = "uint8"
    #: numpy type string of ``labels``: "<i8" or "<f8".
    label_dtype: str = "<i8"
    #: The other fields, in the order in which they were packed.
    fields: tuple[FieldMeta, ...] = ()
    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """One line of JSON with sorted keys, so that equal sets are equal bytes."""
        return json.dumps(self.facts(), sort_keys=True, ensure_ascii=True)

    def facts(self) -> dict[str, Any]:
        """What is written; a set of one field says nothing of fields."""
        facts = asdict(self)
        if not self.fields:
            del facts["fields"]
        return facts

    def field(self, name: str) -> Meta | None:
        """This set's description as if the other field ``name`` were its data; None if it has
        no such field."""
        for one in self.fields:
            if one.name == name:
                own = {
                    table: self.digests[table_of(name, table)]
                    for table in (CHECKSUMS, OFFSETS, PATHS)
                    if table_of(name, table) in self.digests
                }
                shared = {k: v for k, v in self.digests.items() if k in (LABELS, CLASSES)}
                return replace(
                    self,
                    encoding=one.encoding,
                    shape=one.shape,
                    channels=one.channels,
                    dtype=one.dtype,
                    digests={**shared, **own},
                    fields=(),
                )
        return None

    def sealed(self) -> Meta:
        """The same with the digest of itself: what a writer stores."""
        facts = json.loads(self.to_json())
        return replace(self, digests={**self.digests, META: described_digest(facts)})

    @classmethod
    def from_json(cls, text: str | bytes, path: str) -> Meta:
        """Read and check what :meth:`to_json` wrote; anything else is a FormatError."""
        if len(text) > _LONGEST:
            raise FormatError(
                "its description is too long",
                path=path,
                found=f"{len(text)} bytes",
                expected=f"at most {_LONGEST}",
            )
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise FormatError("its description is not JSON", path=path, hint=REPACK) from exc
        if not isinstance(raw, dict) or raw.get("format") != FORMAT_NAME:
            raise FormatError("asyncreader did not write its description", path=path, hint=REPACK)
        version = raw.get("version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise FormatError(
                "written by a newer asyncreader",
                path=path,
                found=f"format version {version}",
                expected=f"at most {FORMAT_VERSION}",
                hint="update asyncreader",
            )
        try:
            shape = raw["shape"]
            classes = raw["classes"]
            meta = cls(
                count=int(raw["count"]),
                encoding=str(raw["encoding"]),
                shape=None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2])),
                channels=int(raw["channels"]),
                label_kind=str(raw["label_kind"]),
                classes=None if classes is None else tuple(str(name) for name in classes),
                digests={str(k): str(v) for k, v in dict(raw["digests"]).items()},
                axes=str(raw["axes"]),
                dtype=str(raw["dtype"]),
                label_dtype=str(raw.get("label_dtype", "<i8")),
                fields=tuple(FieldMeta.read(one) for one in raw.get("fields", ())),
                version=version,
            )
            for name in meta.classes or ():
                name.encode("utf-8", "surrogateescape")
            found = described_digest(raw)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as exc:
            raise FormatError(
                "its description lacks or garbles a field",
                path=path,
                found=repr(exc)[:200],
                hint=REPACK,
            ) from exc
        if META in meta.digests:  # sets that others wrote may have none
            check_named_digest("facts", found, meta, path, META)
        if not meta._sensible():
            raise FormatError(
                "its description makes no sense",
                path=path,
                found=f"count {meta.count}, encoding {meta.encoding[:20]!r}, shape {meta.shape}, "
                f"channels {meta.channels}, {meta.dtype[:20]!r}, axes {meta.axes[:20]!r}, "
                f"labels {meta.label_kind[:20]!r}",
                hint=REPACK,
            )
        _check_tables(meta, path)
        return meta

    def _sensible(self) -> bool:
        sides = self.shape or (1, 1, self.channels)
        return (
            self.encoding in ENCODINGS
            and self.label_dtype in ("<i8", "<f8")
            and self.label_kind in LABEL_KINDS
            and (self.axes, self.dtype) == ("NHWC", "uint8")
            and 1 <= self.count < 1 << 62
            and self.channels in (1, 3)
            and sides[2] == self.channels
            and all(1 <= side < 1 << 31 for side in sides)
            and (self.encoding == "raw" or sides[0] * sides[1] <= MAX_PIXELS)
        )


#: A description with a million class names is half as long.
_LONGEST: Final = 32 << 20

REPACK: Final = "the file is damaged or was not written to its end: convert it again"


def _check_tables(meta: Meta, path: str) -> None:
    """That classes and labels are there if, and only if, they were packed; and the classes' names.

    ``offsets`` and ``checksums`` cannot be read without; ``paths`` are for messages.
    """
    there = {CLASSES: meta.classes is not None, LABELS: meta.label_kind != "none"}
    for name, is_there in there.items():
        if is_there != (name in meta.digests):
            raise FormatError(
                f"its description and its {name} contradict each other", path=path, hint=REPACK
            )
    if meta.classes is not None:
        names = [name.encode("utf-8", "surrogateescape") for name in meta.classes]
        check_named_digest(CLASSES, names_digest(names), meta, path)


def check_digest(name: str, table: npt.NDArray[Any] | bytes, meta: Meta, path: str) -> None:
    """Raise FormatError unless ``table`` has the digest that ``meta`` states for ``name``."""
    check_named_digest(name, digest(table), meta, path)


def check_named_digest(
    name: str, found: str, meta: Meta, path: str, stated: str | None = None
) -> None:
    """Raise FormatError unless ``found`` is the digest that ``meta`` states for ``name``.

    ``stated``: the digest's own name, where that is another.
    """
    expected = meta.digests.get(stated or name)
    if found != expected:
        raise FormatError(
            f"its {name} are not the ones that were packed",
            path=path,
            found=f"digest {found}",
            expected=f"digest {expected}",
            hint=REPACK,
        )
