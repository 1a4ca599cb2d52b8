"""The description in a packed file: names, version, digests. Reader and converter import it.

HDF5: data sets ``data``, ``labels``, ``paths``, ``classes``, ``checksums`` (``offsets`` when the
samples are encoded, and ``splits`` where the set has some); written last, the :class:`Meta` fields
but for ``classes`` as JSON in the root attribute ``DESCRIPTION``; ``format`` and those in ``SHOWN``
are attributes, too.
LMDB: named databases of the same names; ``data`` and ``paths`` have one value per record under its
zero-padded number, ``labels``, ``splits`` and ``checksums`` hold one array each under
``TABLE_KEY``, and ``meta`` holds the :class:`Meta` fields as JSON under ``META_KEY``, written last.

Another field, such as ``mask``, is stored as ``data`` is, under its own name. With it come
``mask.checksums``, ``mask.paths`` if it was packed from files, and in HDF5 ``mask.offsets`` if it
is encoded; ``fields`` of the :class:`Meta` describes it.

Rows of numbers that are no images have ``channels`` 0: they are stored "raw", with any ``shape``
and any of ``NUMBER_DTYPES``; ``axes`` is "N" then. How they are served follows from their shape, as
of a file that another program wrote.

Rows of numbers of different length are stored "ragged": ``shape`` is that of one value. In HDF5
``data`` has the values of all samples, one after the other, and ``offsets`` says where those of
each begin; in LMDB a sample's values are its value. The description has version 2 then.

``splits`` is int64 (N,): of each record the number of a name in the description's ``splits``, -1
where it is in none.

Digests are XXH3-64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): of a sample's
stored bytes in ``checksums``, and of each table in ``Meta.digests``, written as 16 hex digits. That
of a table is computed over its little-endian bytes in C order (``paths``: each path followed by a
NUL; ``classes``: each name in UTF-8 followed by a NUL). The digest ``meta`` is of the description
itself (:func:`described_digest`).
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, TypeGuard, get_args

import numpy as np
import xxhash

from ..errors import FormatError, located
from ..pixels import kernels
from ..pixels.codec import MAX_PIXELS
from ..system.array_types import Array, UInt64
from ..system.memory import SCRATCH

# -- JSON, entry by entry --------------------------------------------------------------------------


_HEX: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Rule:
    """What an entry may be: ``expected``, for messages, and a test for it. A missing entry is
    tested as None."""

    expected: str
    allows: Callable[[Any], bool]


Rules: TypeAlias = Mapping[str, Rule]


def whole(limit: int = 1 << 31, least: int = 1) -> Rule:
    """A whole number from ``least`` to ``limit - 1``; true is none."""
    return Rule(
        f"a whole number from {least} to {limit - 1}",
        lambda value: type(value) is int and least <= value < limit,
    )


def one_of(*choices: str | int | None) -> Rule:
    """One of ``choices``; of the same type, for true is no 1."""
    typed = [(type(one), one) for one in choices]
    return Rule(
        " or ".join("none" if one is None else repr(one) for one in choices),
        lambda value: (type(value), value) in typed,
    )


def optional(rule: Rule) -> Rule:
    """None, or what ``rule`` allows."""
    return Rule(f"{rule.expected}, or none", lambda value: value is None or rule.allows(value))


def each(rule: Rule, least: int = 0, most: int | None = None) -> Rule:
    """A list of ``least`` to ``most`` of what ``rule`` allows."""
    return Rule(
        f"a list, each {rule.expected}",
        lambda value: (
            isinstance(value, list)
            and least <= len(value) <= (len(value) if most is None else most)
            and all(map(rule.allows, value))
        ),
    )


def is_digest(value: object) -> bool:
    """Whether ``value`` is a digest: text of 16 hex digits."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def _are_names(value: object) -> bool:
    """Whether ``value`` is a list of text, all of which can be written: there may be thousands."""
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        return False
    try:  # bytes of a folder's name that are not UTF-8 come as os.fsdecode gives them
        "\0".join(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


NAMES: Final = Rule("a list, each text", _are_names)
OBJECT: Final = Rule("an object", lambda value: isinstance(value, dict))
DIGESTS: Final = Rule(
    "digests of 16 hex digits, by name",
    lambda value: isinstance(value, dict) and all(map(is_digest, value.values())),
)


@dataclass(frozen=True)
class JsonText:
    """A text with one JSON object. ``owner``: what it is ("the manifest"), ``hint``: what to do if
    it is damaged, both for messages."""

    owner: str
    hint: str

    def parse(self, text: str | bytes, longest: int) -> dict[str, Any]:
        """The object, empty if the text is another JSON value. FormatError for a text that is not
        JSON, or longer than ``longest``."""
        if len(text) > longest:
            found, expected = f"{len(text)} bytes", f"at most {longest}"
            raise FormatError(f"{self.owner} is too long", found=found, expected=expected)
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise FormatError(f"{self.owner} is not JSON", hint=self.hint) from exc
        return raw if isinstance(raw, dict) else {}

    def check_version(self, raw: Mapping[str, Any], newest: int) -> int:
        """The version of the format; FormatError for one after ``newest``, the newest known."""
        version = raw.get("version")
        if type(version) is int and version > newest:
            raise FormatError(
                f"{self.owner} was written by a newer asyncreader",
                found=f"version {version}",
                expected=f"at most {newest}",
                hint="update asyncreader",
            )
        return int(self.read(raw, {"version": whole(newest + 1)})["version"])

    def read(self, raw: Mapping[str, Any], rules: Rules, inside: str = "") -> dict[str, Any]:
        """The entries of ``raw`` that have rules, lists as tuples. FormatError for one that its
        rule does not allow. ``inside``: where ``raw`` is in the text ("fields[0].")."""
        entries: dict[str, Any] = {}
        for name, rule in rules.items():
            value = raw.get(name)
            if not rule.allows(value):
                raise self.wrong(raw, name, rule.expected, inside)
            entries[name] = tuple(value) if isinstance(value, list) else value
        return entries

    def wrong(
        self, raw: Mapping[str, Any], name: str, expected: str, inside: str = ""
    ) -> FormatError:
        """The error for an entry that is not what is ``expected``."""
        return FormatError(
            f"{self.owner} has a wrong {inside + name!r}",
            found=reprlib.repr(raw[name]) if raw.get(name) is not None else "none",
            expected=expected,
            hint=self.hint,
        )


# -- the description -------------------------------------------------------------------------------


Shape: TypeAlias = tuple[int, ...]

FORMAT_NAME: Final = "asyncreader"
FORMAT_VERSION: Final = 1
#: Of sets with samples of different length, which readers of version 1 do not know.
RAGGED_VERSION: Final = 2

#: Stored image bytes: pixels, one codec for all, 4:2:0 planes, or each file's own bytes.
Encoding: TypeAlias = Literal["raw", "jpeg", "png", "yuv420", "original"]
ENCODINGS: Final[tuple[str, ...]] = get_args(Encoding)
#: How rows of numbers of different length are stored; and all that is stored as it is.
RAGGED: Final = "ragged"
PLAIN: Final = ("raw", RAGGED)

#: What a row of ``labels`` is: the number of a name in ``classes``, values, or there is none.
LABEL_KINDS: Final = ("class", "values", "none")

DATA: Final = "data"
OFFSETS: Final = "offsets"
LABELS: Final = "labels"
PATHS: Final = "paths"
CLASSES: Final = "classes"
CHECKSUMS: Final = "checksums"
SPLITS: Final = "splits"
LABEL_NAMES: Final = "label_names"
META: Final = "meta"

#: LMDB: the key of the one array in ``labels`` and in ``checksums``, and of the JSON in ``meta``.
TABLE_KEY: Final = b"table"
META_KEY: Final = b"meta"

#: HDF5: the root attribute that holds the description as JSON, and the facts of it that, like
#: ``format``, are attributes of their own, too, for people and other programs. All together are
#: fewer than nine: HDF5 keeps more in a tree and a heap, which are slow to check.
DESCRIPTION: Final = "description"
SHOWN: Final = ("version", "count", "encoding", "axes")

#: Fields of a description that its own digest covers.
DESCRIBED: Final = (
    *("count", "encoding", "shape", "channels", "label_kind", "classes", "digests"),
    *("axes", "dtype", "label_dtype", "fields", "format", "version", "splits"),
)


def record_key(number: int) -> bytes:
    """LMDB key of record ``number``: ten ASCII digits, so that byte order is numeric order."""
    return b"%010d" % number


def digest(data: Array | bytes | memoryview) -> str:
    """XXH3-64 of the bytes of ``data`` (C-contiguous) as 16 hex digits."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return xxhash.xxh3_64_hexdigest(data)


def row_checksums(rows: Array) -> UInt64:
    """XXH3-64 of each row of bytes, (n, size) uint8, which follow each other in memory."""
    count, size = rows.shape
    sums, first = np.empty(count, np.uint64), rows.ctypes.data
    at = np.arange(first, first + rows.size, size, dtype=np.int64)
    kernels.hash_rows(at, size, SCRATCH.take("hashed", size).ctypes.data, sums)
    return sums


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
_TAKEN: Final = frozenset((DATA, OFFSETS, LABELS, PATHS, CLASSES, CHECKSUMS, META, SPLITS))

#: dtypes of a field's values (more than a byte: little-endian). Images are uint16 where they are
#: grey and keep 16 bits.
FIELD_DTYPES: Final = ("uint8", "uint16")
#: dtypes of rows of numbers; more than a byte: little-endian.
NUMBER_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
#: Axes of a row: at most as many as numpy has had since its first version, with that of the number.
MOST_AXES: Final = 31


def is_field_name(name: object) -> TypeGuard[str]:
    """Whether a field after ``data`` can have this name."""
    return isinstance(name, str) and FIELD_NAME.fullmatch(name) is not None and name not in _TAKEN


def table_of(field: str | None, table: str) -> str:
    """Name of a field's table (``checksums``, ``offsets``, ``paths``); None: of ``data``."""
    return table if field in (None, DATA) else f"{field}.{table}"


_SHAPE: Final = optional(each(whole(), most=MOST_AXES))
_CHANNELS: Final = one_of(0, 1, 3)
_DTYPE: Final = one_of(*NUMBER_DTYPES)

#: The rules of a description's entry for another field.
_FIELD_RULES: Final[Rules] = {
    "name": Rule(f"a name like {FIELD_NAME.pattern}", is_field_name),
    "encoding": one_of("raw", "png", RAGGED),
    "shape": _SHAPE,
    "channels": _CHANNELS,
    "dtype": _DTYPE,
}

#: The rules of what a description and a manifest both say of their samples.
_RULES: Final[Rules] = {
    "encoding": one_of(*ENCODINGS, RAGGED),
    "shape": _SHAPE,
    "channels": _CHANNELS,
    "label_kind": one_of(*LABEL_KINDS),
    "label_dtype": one_of("<i8", "<f8"),
    "classes": optional(NAMES),
    "splits": optional(NAMES),
    "fields": optional(each(OBJECT, most=256)),
    "dtype": _DTYPE,
}


#: Channels and encodings of images that may have 16 bits.
_DEEP: Final = ((1, "raw"), (1, "png"), (1, "original"))


@dataclass(frozen=True)
class FieldMeta:
    """Another field: "raw" values or "png" files, (H, W, C) if all have it, C, numpy's dtype; of
    rows of numbers their shape, and 0; of "ragged" ones the shape of a value."""

    name: str
    encoding: str
    shape: Shape | None
    channels: int
    dtype: str

    @classmethod
    def read(cls, raw: Mapping[str, Any], text: JsonText, inside: str = "") -> FieldMeta:
        """Check what was written; FormatError if it makes no sense."""
        return cls(**_samples(raw, _FIELD_RULES, text, inside))


def _samples(
    raw: Mapping[str, Any], rules: Rules, text: JsonText, inside: str = ""
) -> dict[str, Any]:
    """Entries that describe samples, among them their encoding, shape and channels."""
    entries = text.read(raw, rules, inside)
    shape, images = entries["shape"], entries["channels"] > 0
    if shape is None and entries["encoding"] in PLAIN:
        raise text.wrong(raw, "shape", "that of raw samples", inside)
    if not images:
        if entries["encoding"] not in PLAIN:
            raise text.wrong(raw, "encoding", "'raw', as of all rows of numbers", inside)
        return entries
    if entries["encoding"] == RAGGED:
        raise text.wrong(raw, "channels", "0, as of all rows of different length", inside)
    if entries["dtype"] not in FIELD_DTYPES:
        raise text.wrong(raw, "dtype", f"one of {', '.join(FIELD_DTYPES)} of images", inside)
    if shape is None:
        return entries
    if len(shape) != 3:
        raise text.wrong(raw, "shape", "(H, W, C) of images", inside)
    if shape[2] != entries["channels"]:
        raise text.wrong(raw, "shape", f"{entries['channels']} channels", inside)
    if entries["encoding"] != "raw" and shape[0] * shape[1] > MAX_PIXELS:
        raise text.wrong(raw, "shape", f"images of at most {MAX_PIXELS} pixels", inside)
    return entries


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a description and a manifest both say of their samples."""

    encoding: str
    #: When every sample has it, else None: (H, W, C) of images; that of a value of ragged ones.
    shape: Shape | None
    #: 1 or 3; 0 of rows of numbers that are no images.
    channels: int
    #: One of LABEL_KINDS.
    label_kind: str
    #: numpy type string of ``labels``: "<i8" or "<f8".
    label_dtype: str = "<i8"
    classes: tuple[str, ...] | None
    #: Names of the splits; None where the set has none.
    splits: tuple[str, ...] | None = None
    #: The other fields, in the order in which they were packed.
    fields: tuple[FieldMeta, ...] = ()
    #: One of NUMBER_DTYPES; of images one of FIELD_DTYPES, and of those that are stored encoded
    #: what they are served as.
    dtype: str = "uint8"

    @property
    def ragged(self) -> bool:
        """Whether the samples of a field differ in length."""
        return RAGGED in (self.encoding, *(one.encoding for one in self.fields))

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of all fields, the data first."""
        return (DATA, *(one.name for one in self.fields))

    def facts(self) -> dict[str, Any]:
        """What is written; a set of one field has no entry for fields, one without splits none for
        them."""
        facts = asdict(self)
        for name in ("fields", "splits"):
            if not facts[name]:
                del facts[name]
        return facts


def read_samples(raw: Mapping[str, Any], rules: Rules, text: JsonText) -> dict[str, Any]:
    """The entries of a :class:`Described`, and others by ``rules``; FormatError."""
    entries = _samples({"label_dtype": "<i8", **raw}, {**_RULES, **rules}, text)
    deep = entries["channels"] and entries["dtype"] != "uint8"
    if deep and (entries["channels"], entries["encoding"]) not in _DEEP:
        raise text.wrong(raw, "dtype", "uint8, but of grey images that are no JPEGs")
    if entries["encoding"] == "yuv420" and entries["channels"] != 3:
        raise text.wrong(raw, "channels", "3, as all images of encoding yuv420 have")
    entries["fields"] = tuple(
        FieldMeta.read(one, text, f"fields[{number}].")
        for number, one in enumerate(entries["fields"] or ())
    )
    if len({one.name for one in entries["fields"]}) < len(entries["fields"]):
        raise text.wrong(raw, "fields", "fields of different names")
    return entries


@dataclass(frozen=True, kw_only=True)
class Meta(Described):
    """The facts a packed file states about itself, the same in both containers."""

    count: int
    digests: Mapping[str, str] = field(default_factory=dict)
    #: Of the columns of ``labels``, where they have names. They are beside the facts that DESCRIBED
    #: lists, which older versions compare with their digest.
    label_names: tuple[str, ...] | None = field(default=None, compare=False)
    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION

    @property
    def axes(self) -> str:
        """The order of axes of raw samples: that of images, or "N", the number of a row alone."""
        return "NHWC" if self.channels else "N"

    def facts(self) -> dict[str, Any]:
        facts = {**super().facts(), "axes": self.axes}
        if not self.label_names:
            del facts[LABEL_NAMES]
        return facts

    def to_json(self) -> str:
        """One line of JSON with sorted keys, so that equal sets are equal bytes."""
        return json.dumps(self.facts(), sort_keys=True, ensure_ascii=True)

    def field(self, name: str) -> Meta | None:
        """This set's description as if the other field ``name`` were its data; None if it has
        no such field."""
        one = next((one for one in self.fields if one.name == name), None)
        if one is None:
            return None
        tables = {table: table for table in (LABELS, CLASSES, SPLITS)}
        tables |= {table: table_of(name, table) for table in (CHECKSUMS, OFFSETS, PATHS)}
        own = {table: self.digests[key] for table, key in tables.items() if key in self.digests}
        samples = {key: value for key, value in asdict(one).items() if key != "name"}
        return replace(self, **samples, digests=own, fields=())

    def sealed(self) -> Meta:
        """The same with the oldest version that reads it, and the digest of itself: what a writer
        stores."""
        made = replace(self, version=RAGGED_VERSION if self.ragged else FORMAT_VERSION)
        facts = json.loads(made.to_json())
        return replace(made, digests={**self.digests, META: described_digest(facts)})

    @classmethod
    def from_json(cls, text: str | bytes, path: str, classes: Sequence[str] | None = None) -> Meta:
        """Read and check what :meth:`to_json` wrote; anything else is a FormatError. ``classes``:
        their names, where they are not in the text."""
        with located(path=path):
            source = JsonText("its description", REPACK)
            raw = source.parse(text, LONGEST)
            if classes is not None:
                raw[CLASSES] = classes
            if raw.get("format") != FORMAT_NAME:
                raise FormatError("asyncreader did not write its description", hint=REPACK)
            version = source.check_version(raw, RAGGED_VERSION)
            meta = cls(version=version, **read_samples(raw, _META_RULES, source))
            if raw.get("axes") != meta.axes:
                raise source.wrong(raw, "axes", repr(meta.axes))
            if META in meta.digests:  # sets that others wrote may have none
                check_named_digest("facts", described_digest(raw), meta, META)
            _check_tables(meta)
            return meta


#: The rules of a description's own entries.
_META_RULES: Final[Rules] = {
    "count": whole(1 << 62),
    "digests": DIGESTS,
    LABEL_NAMES: optional(NAMES),
}

#: A description with a million class names is half as long.
LONGEST: Final = 32 << 20

REPACK: Final = "the file is damaged or was not written to its end: convert it again"


def _check_tables(meta: Meta) -> None:
    """That classes, labels, splits and the names of labels are there if, and only if, they were
    packed; and the names of classes and labels.

    ``offsets`` and ``checksums`` cannot be read without; ``paths`` are for messages.
    """
    there = {CLASSES: meta.classes is not None, LABELS: meta.label_kind != "none"}
    there |= {SPLITS: bool(meta.splits), LABEL_NAMES: bool(meta.label_names)}
    for name, is_there in there.items():
        if is_there != (name in meta.digests):
            raise FormatError(f"its description and its {name} contradict each other", hint=REPACK)
    for table, names in ((CLASSES, meta.classes), (LABEL_NAMES, meta.label_names)):
        if table in meta.digests:
            encoded = [name.encode("utf-8", "surrogateescape") for name in names or ()]
            check_named_digest(table, names_digest(encoded), meta)


def check_digest(name: str, table: Array | bytes, meta: Meta) -> None:
    """Raise FormatError unless ``table`` has the digest that ``meta`` states for ``name``."""
    check_named_digest(name, digest(table), meta)


def check_named_digest(name: str, found: str, meta: Meta, stated: str | None = None) -> None:
    """Raise FormatError unless ``found`` is the digest that ``meta`` states for ``name``.

    ``stated``: the digest's own name, where that is another.
    """
    expected = meta.digests.get(stated or name)
    if found != expected:
        raise FormatError(
            f"its {name} do not match their digest",
            found=f"digest {found}",
            expected=f"digest {expected}",
            hint=REPACK,
        )
