"""Hostile stores: what is answered is not what was asked for; and hostile sets by URL.

obstore is the client. Not tried: a redirect to another server is followed, as stores and content
networks want it, so that a store says where a request goes; https, S3's signatures. A body of
gigabytes that nobody asked for ends the process: obstore holds it all before anybody can look.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncreader.formats.manifest import NAME

from ..corpus import ATTACKS, CANARY, NONE, Scratch, Target, attack
from .server import Answer, Asked, head, honest, whole

#: Ways that take a URL; convert and the drop-in replacements do not.
REMOTE = ("read", "info", "preview", "page", "bench")
OPENED = ("read", "info")


def store(
    name: str,
    change: Callable[[Answer, Scratch], Answer],
    says: str = "",
    refused: tuple[str, ...] = OPENED,
    base: str = "shards",
) -> None:
    """Register a store that serves a good set with its honest answers changed by ``change``."""

    def make(scratch: Scratch) -> Target:
        scratch.copy(base)
        answer = change(honest(scratch.folder), scratch)
        url = scratch.corpus.store.serve(scratch.folder.name, answer)
        return Target(f"{url}/{base}")

    make.__doc__ = f"A store: {name.replace('_', ' ')}."
    attack(refused, says, REMOTE, name=f"store_{name}")(make)


def of(part: str, instead: Callable[[Asked, bytes], Any]) -> Callable[[Answer, Scratch], Answer]:
    """Another answer where the key has ``part`` in it; ``instead`` gets the true object, too."""

    def change(good: Answer, scratch: Scratch) -> Answer:
        def answer(asked: Asked) -> Any:
            if part not in asked.key:
                return good(asked)
            return instead(asked, (scratch.folder / asked.key).read_bytes())

        return answer

    return change


def renamed(name: Callable[[Scratch], str]) -> Callable[[Answer, Scratch], Answer]:
    """Another name for the first shard, in the manifest."""

    def change(good: Answer, scratch: Scratch) -> Answer:
        path = scratch.folder / "shards" / NAME
        manifest = json.loads(path.read_text())
        manifest["shards"][0][0] = name(scratch)
        path.write_text(json.dumps(manifest))
        return good

    return change


_NAME = "makes no sense: its name is not a plain name of a file next to the manifest"
store("names_a_file_above", renamed(lambda scratch: "../../outside/secret.h5"), _NAME)
store("names_an_absolute_file", renamed(lambda scratch: scratch.secret_h5), _NAME)
store("names_a_url", renamed(lambda scratch: "file:///etc/passwd"), _NAME)
store("names_with_a_query", renamed(lambda scratch: "x.h5?y=../z"), _NAME)


# -- lengths -------------------------------------------------------------------------------------


def _length(stated: Any) -> Callable[[Asked, bytes], Iterator[bytes]]:
    """HEAD states that length; ranges are answered as asked for."""
    return lambda asked, data: (
        whole(asked, data, content_length=stated) if asked.method == "HEAD" else whole(asked, data)
    )


store("manifest_of_an_exabyte", of(NAME, _length(1 << 60)), "too long to be one")
store("manifest_of_128_mib", of(NAME, _length((128 << 20) - 1)))
store("manifest_of_no_bytes", of(NAME, _length(0)), "not JSON|no table|store")
store("manifest_of_minus_one", of(NAME, _length(-1)), "store")
store("manifest_of_words", of(NAME, _length("many")), "store")
store("shard_of_an_exabyte", of(".h5", _length(1 << 60)), "size differs")
store("shard_of_another_length", of(".h5", _length(100)), "size differs")


def _endless(asked: Asked) -> Iterator[bytes]:
    """Chunks for ever (RFC 9112, 7.1), as the range that was asked for."""
    lo, hi = asked.span or (0, 1000)
    yield head(
        "206 Partial Content" if asked.span else "200 OK",
        transfer_encoding="chunked",
        content_range=f"bytes {lo}-{hi - 1}/{hi}",
        last_modified="Sat, 21 Nov 2026 00:00:00 GMT",
    )
    piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    yield from itertools.repeat(piece)


def _ranged(
    send: Callable[[Asked, bytes], Iterator[bytes]],
) -> Callable[[Asked, bytes], Iterator[bytes]]:
    """That answer to ranges only; HEAD is honest."""
    return lambda asked, data: whole(asked, data) if asked.method == "HEAD" else send(asked, data)


def _body(
    change: Callable[[bytes], bytes], **fields: object
) -> Callable[[Asked, bytes], Iterator[bytes]]:
    """A range whose bytes ``change`` has changed, and the head says so."""

    def send(asked: Asked, data: bytes) -> Iterator[bytes]:
        lo, hi = asked.span or (0, len(data))
        part = change(data[lo:hi])
        given = {"content_length": len(part), "content_range": f"bytes {lo}-{hi - 1}/{len(data)}"}
        when = {"last_modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        yield head("206 Partial Content", **{**given, **when, **fields})
        yield part

    return _ranged(send)


def _statused(status: str, **fields: object) -> Callable[[Asked, bytes], Iterator[bytes]]:
    return lambda asked, data: iter([head(status, content_length=0, **fields)])


def _slowly(asked: Asked, data: bytes) -> Iterator[bytes]:
    yield head("206 Partial Content", content_length=1 << 20, content_range="bytes 0-9/10")
    for _ in range(100):
        yield b"x"
        time.sleep(0.1)


_FAILED = "the store"
for _what, _key in (("manifest", NAME), ("shard", ".h5")):
    for _name, _send, _says in (
        ("is_endless", _ranged(lambda asked, data: _endless(asked)), _FAILED),
        ("is_shorter_than_asked", _body(lambda part: part[: len(part) // 2]), "returned less"),
        ("is_longer_than_asked", _body(lambda part: part * 3), "returned more"),
        ("is_32_mib_longer", _body(lambda part: bytes(32 << 20)), "the store"),
        ("is_empty", _body(lambda part: b""), _FAILED),
        ("is_cut", _body(lambda part: part[:-1], content_length=1 << 20), _FAILED),
        ("states_an_exabyte", _body(lambda part: part, content_length=1 << 60), _FAILED),
        ("states_two_lengths", _body(lambda part: part, Content_Length=5), ""),
        ("is_another_range", _body(lambda part: part, content_range="bytes 5-9/100"), _FAILED),
        ("is_a_strange_range", _body(lambda part: part, content_range="bytes 9-5/-1"), _FAILED),
        ("is_all_of_it", _ranged(lambda asked, data: whole(Asked("GET", "", None), data)), _FAILED),
        ("is_gzipped", _body(lambda part: part, content_encoding="gzip"), ""),
        ("is_another_body", _body(lambda part: CANARY[:1] * len(part)), ""),
        ("is_silent", _ranged(_slowly), _FAILED),
        ("is_forbidden", _statused("403 Forbidden"), _FAILED),
        ("is_broken", _statused("500 No"), _FAILED),
        ("is_gone", _statused("404 Not Found"), "no such object|no manifest|not there"),
        ("goes_in_circles", _statused("302 Found", location="/nowhere/else"), ""),
        ("goes_to_a_file", _statused("302 Found", location="file:///etc/passwd"), _FAILED),
        (
            "has_a_head_without_end",
            _ranged(
                lambda asked, data: itertools.chain(
                    [b"HTTP/1.1 206 Partial Content\r\n"],
                    itertools.repeat(b"x: " + b"y" * 60000 + b"\r\n"),
                )
            ),
            _FAILED,
        ),
        ("speaks_no_http", lambda asked, data: iter([b"\x00\xff\x1b[2J\r\n\r\n" * 10]), _FAILED),
        (
            "has_escapes_in_its_words",
            lambda asked, data: iter([head("500 \x1b[2J", content_length=9), b"\x1b[2J\x1b]0;x"]),
            _FAILED,
        ),
    ):
        store(
            f"{_what}_{_name}",
            of(_key, _send),
            _says,
            # an encoding that was not asked for is not undone: the bytes are what they were
            NONE if _name == "is_gzipped" else OPENED,
        )


# -- hostile files by URL ------------------------------------------------------------------------


def _by_url(name: str, says: str) -> None:
    """The attack of that name, as an object of an honest store."""
    known = ATTACKS[name]

    def make(scratch: Scratch) -> Target:
        made = known.make(scratch)
        url = scratch.corpus.store.serve(scratch.folder.name, honest(scratch.folder))
        return Target(f"{url}/{Path(made.path).name}", made.params)

    make.__doc__ = f"By URL: {name.replace('_', ' ')}."
    attack(OPENED, says, REMOTE, name=f"store_{name}")(make)


def register() -> None:
    """Those whose other modules have registered theirs."""
    for name in (
        *("external_storage_data", "external_link_data", "external_link_to_a_pipe", "virtual"),
        *("virtual_to_a_pipe", "external_storage_labels", "external_link_labels", "plugin_data"),
        *("plugin_labels", "shape_bomb_chunked", "shape_bomb_contiguous", "soft_link_cycle"),
        *("field_external_link", "field_external_storage"),
        *("header_in_circles", "chunk_index_in_circles", "group_index_in_circles"),
    ):
        _by_url(name, "")
