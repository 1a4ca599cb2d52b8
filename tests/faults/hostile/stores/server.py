"""A store on this machine whose answers an attack chooses: a thread a request."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(r" *bytes=(\d+)-(\d+)")


@dataclass(frozen=True)
class Asked:
    """One request: ``key`` after the attack's name; ``span``: first byte and end."""

    method: str
    key: str
    span: tuple[int, int] | None


#: What is sent, piece by piece; then the connection is closed.
Answer = Callable[[Asked], Iterable[bytes]]


def head(status: str, **fields: object) -> bytes:
    """The head of an answer; an underscore is a hyphen."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "connection: close", "", ""]).encode()


def whole(asked: Asked, data: bytes, **fields: object) -> Iterator[bytes]:
    """An honest answer whose object is ``data``."""
    lo, hi = asked.span or (0, len(data))
    part = data[lo:hi]
    given = {
        "content_length": len(part),
        "last_modified": "Sat, 21 Nov 2026 00:00:00 GMT",
        **({"content_range": f"bytes {lo}-{lo + len(part) - 1}/{len(data)}"} if asked.span else {}),
        **fields,
    }
    yield head("206 Partial Content" if asked.span else "200 OK", **given)
    if asked.method != "HEAD":
        yield part


def honest(folder: Path) -> Answer:
    """A store that serves the files of ``folder``."""

    def answer(asked: Asked) -> Iterator[bytes]:
        path = folder / asked.key
        if asked.key and path.is_file():
            return whole(asked, path.read_bytes())
        return iter([head("404 Not Found", content_length=0)])

    return answer


class _Handler(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        name, _, key = unquote(self.path).lstrip("/").partition("/")
        found = _RANGE.match(self.headers.get("range") or "")
        span = (int(found[1]), int(found[2]) + 1) if found else None
        answer = self.server.answers.get(name) or honest(Path("/nowhere"))
        with contextlib.suppress(OSError, ValueError):
            for piece in answer(Asked(self.command, key, span)):
                self.wfile.write(piece)
        self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        pass


class Store(ThreadingHTTPServer):
    """The server: each attack is a name at the top of its URLs."""

    block_on_close, request_queue_size = False, 64

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def serve(self, name: str, answer: Answer) -> str:
        """The URL below which ``answer`` answers."""
        self.answers[name] = answer
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def close(self) -> None:
        """Stop; what is still being sent ends with its connection."""
        self.shutdown()
        self.server_close()
