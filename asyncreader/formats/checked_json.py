"""JSON objects that files hold, checked entry by entry: each entry has a rule."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..errors import FormatError

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
    """A text with one JSON object. ``owner``: what it is ("the manifest"), ``path``: of its file,
    ``hint``: what to do if it is damaged, all for messages."""

    owner: str
    path: str
    hint: str

    def parse(self, text: str | bytes, longest: int) -> dict[str, Any]:
        """The object, empty if the text is another JSON value. FormatError for a text that is not
        JSON, or longer than ``longest``."""
        if len(text) > longest:
            found, expected = f"{len(text)} bytes", f"at most {longest}"
            raise FormatError(
                f"{self.owner} is too long", path=self.path, found=found, expected=expected
            )
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise FormatError(f"{self.owner} is not JSON", path=self.path, hint=self.hint) from exc
        return raw if isinstance(raw, dict) else {}

    def check_version(self, raw: Mapping[str, Any], newest: int) -> int:
        """The version of the format; FormatError for one after ``newest``, the newest known."""
        version = raw.get("version")
        if type(version) is int and version > newest:
            raise FormatError(
                f"{self.owner} was written by a newer asyncreader",
                path=self.path,
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
            path=self.path,
            found=reprlib.repr(raw[name]) if raw.get(name) is not None else "none",
            expected=expected,
            hint=self.hint,
        )
