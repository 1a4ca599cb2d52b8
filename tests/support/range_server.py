"""A server of byte ranges for tests and benchmarks: latency, a cap on requests, and faults.

``python tests/support/range_server.py FOLDER [--latency S] [--cap N] [--errors P] [--cuts P]``
serves the files below FOLDER on a free port of this machine, prints the port, and ends with its
stdin. With ``--upstream PORT`` it hands requests on to another local server (moto).
``GET /?stats`` tells how many requests came, failed on purpose, and were in flight at most. It also
lists a folder as S3 does a bucket (ListObjectsV2, ``--page`` names in an answer), so that
``AWS_ENDPOINT_URL`` may name it; signatures are not looked at.
"""

import argparse
import asyncio
import html
import json
import mmap
import os
import random
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child_processes import child

RANGE = re.compile(rb"^range: *bytes=(\d+)-(\d*)", re.I | re.M)


class Server:
    """Files below ``folder``; every answer takes ``latency`` seconds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.page: int = options.page
        self.folder: Path = options.folder.resolve()
        self.upstream: int = options.upstream
        self.latency: float = options.latency
        self.cap: float = options.cap
        self.errors: float = options.errors
        self.cuts: float = options.cuts
        self.random = random.Random(0)
        self.stats = {"requests": 0, "errors": 0, "cuts": 0, "now": 0, "peak": 0}
        self.next = 0.0
        self.maps: dict[str, Any] = {}

    def content(self, path: Path) -> tuple[Any, str]:
        """Bytes and ETag of a file as it is now."""
        facts = path.stat()
        tag = f"{path}-{facts.st_size}-{facts.st_mtime_ns}"
        if tag not in self.maps:
            with open(path, "rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.maps[tag] = memoryview(whole)
        return self.maps[tag], etag(facts)

    def listing(self, target: str) -> bytes:
        """ListObjectsV2 of a bucket, a folder below ours."""
        bucket, _, query = target.partition("?")
        asked = urllib.parse.parse_qs(query)
        prefix, after = asked.get("prefix", [""])[0], asked.get("start-after", [""])[0]
        after = asked.get("continuation-token", [after])[0]
        top = self.folder / urllib.parse.unquote(bucket).strip("/")
        files = {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()}
        names = sorted(name for name in files if name.startswith(prefix) and name > after)
        rows = "".join(
            f"<Contents><Key>{html.escape(name)}</Key><Size>{facts.st_size}</Size>"
            f"<ETag>{html.escape(etag(facts))}</ETag>"
            "<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
            for name in names[: self.page]
            for facts in [files[name].stat()]
        )
        more = len(names) > self.page
        token = html.escape(names[self.page - 1]) if more else ""
        token = f"<NextContinuationToken>{token}</NextContinuationToken>" if more else ""
        cut = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{cut}{rows}{token}</ListBucketResult>".encode()

    async def turn(self) -> None:
        """Wait until the cap lets one more request begin."""
        if self.cap:
            now = asyncio.get_running_loop().time()
            self.next = max(self.next, now) + 1 / self.cap
            await asyncio.sleep(self.next - now)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not await self.answer(head, writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        method, target, _ = head.split(b" ", 2)
        name = urllib.parse.unquote(target.decode()).lstrip("/")
        if name == "?stats":
            body = json.dumps(self.stats).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            return True
        stats = self.stats
        stats["requests"] += 1
        stats["now"] += 1
        stats["peak"] = max(stats["peak"], stats["now"])
        try:
            await self.turn()
            if self.latency:
                await asyncio.sleep(self.latency)
        finally:
            stats["now"] -= 1
        if self.random.random() < self.errors:
            stats["errors"] += 1
            writer.write(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n")
            return True
        if self.upstream:
            return await self.hand_on(method, head, writer)
        if b"list-type=2" in target:
            body = self.listing(target.decode())
            cut = self.random.random() < self.cuts
            stats["cuts"] += cut
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
            writer.write(body[: len(body) // 2] if cut else body)
            await writer.drain()
            return not cut
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder) or not path.is_file():
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return True
        data, tag = self.content(path)
        wanted = RANGE.search(head)
        lo = int(wanted[1]) if wanted else 0
        hi = min(int(wanted[2]) + 1 if wanted and wanted[2] else len(data), len(data))
        status = b"206 Partial Content" if wanted else b"200 OK"
        more = b"content-range: bytes %d-%d/%d\r\n" % (lo, hi - 1, len(data)) if wanted else b""
        writer.write(
            b"HTTP/1.1 %s\r\n%scontent-length: %d\r\naccept-ranges: bytes\r\n"
            b"last-modified: Sat, 21 Nov 2026 00:00:00 GMT\r\netag: %s\r\n\r\n"
            % (status, more, hi - lo, tag.encode())
        )
        if method == b"HEAD":
            return True
        if self.random.random() < self.cuts:
            stats["cuts"] += 1
            writer.write(data[lo : lo + (hi - lo) // 2])
            await writer.drain()
            return False
        writer.write(data[lo:hi])
        await writer.drain()
        return True

    async def hand_on(self, method: bytes, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """The upstream's answer, cut off halfway where it is that one's turn."""
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            ours.write(re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head))
            answer = await theirs.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", answer)
            size = int(length[1]) if length and method != b"HEAD" else 0
            body = await theirs.readexactly(size)
        finally:
            ours.close()
        cut = size > 1 and self.random.random() < self.cuts
        self.stats["cuts"] += cut
        writer.write(answer + (body[: size // 2] if cut else body))
        await writer.drain()
        return not cut


def etag(facts: os.stat_result) -> str:
    """Another one when a file is written again."""
    return f'"{facts.st_size}-{facts.st_mtime_ns}"'


async def run(options: argparse.Namespace) -> None:
    """Serve until stdin ends."""
    server = Server(options)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listening.close()


@contextmanager
def serving(folder: Path, **options: float) -> Iterator[str]:
    """A server of ``folder`` in a process of its own: its URL."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, __file__, str(folder), *words]
    pipe = subprocess.PIPE
    with child(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


def server_stats(url: str) -> dict[str, int]:
    """What the server at ``url`` counted."""
    with urllib.request.urlopen(f"{url}/?stats") as answer:
        found: dict[str, int] = json.load(answer)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--cap", type=float, default=0.0)
    parser.add_argument("--errors", type=float, default=0.0)
    parser.add_argument("--cuts", type=float, default=0.0)
    parser.add_argument("--upstream", type=int, default=0)
    parser.add_argument("--page", type=int, default=1000)
    asyncio.run(run(parser.parse_args()))
