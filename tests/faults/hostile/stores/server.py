"""A store on this machine whose answers an attack chooses: HTTP by hand, a thread a request."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(rb"^range: *bytes=(\d+)-(\d+)", re.I | re.M)


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


class Store:
    """The server: each attack is a name at the top of its URLs."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def serve(self, name: str, answer: Answer) -> str:
        """The URL below which ``answer`` answers."""
        self._answers[name] = answer
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/{name}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.add(connection)
            self._begin(self._one, connection)

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            text = b""
            while b"\r\n\r\n" not in text:
                more = connection.recv(1 << 16)
                if not more:
                    return
                text += more
            method, target, _ = text.split(b" ", 2)
            name, _, key = unquote(target.decode("latin-1")).lstrip("/").partition("/")
            found = _RANGE.search(text)
            span = (int(found[1]), int(found[2]) + 1) if found else None
            answer = self._answers.get(name) or honest(Path("/nowhere"))
            for piece in answer(Asked(method.decode(), key, span)):
                connection.sendall(piece)
        self._open.discard(connection)

    def close(self) -> None:
        """Stop, whatever is still being sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
