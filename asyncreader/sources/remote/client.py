"""Requests to a store: many in flight, adjacent ranges merged, every answer's length checked.

obstore (https://developmentseed.org/obstore) speaks S3, Google Cloud Storage and HTTP, retries with
backoff and finds credentials by the usual means. Its own ``get_ranges`` keeps ten requests in
flight, too few: throughput is requests in flight divided by latency.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import random
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import numpy as np

from ...errors import FormatError, ParamsError, SourceError, SourceNotFoundError, shown
from ...system.array_types import Int64
from ...system.late import obstore
from ...system.signals import after_this, result_of
from ..sniff import Location, without_secrets

T = TypeVar("T")

#: Requests in flight at most, of all readers of this process.
IN_FLIGHT: Final = 256

#: Names that one answer to a listing has at most: what S3 gives.
LISTED: Final = 1000

#: Ranges with less between them are one request, of at most so many bytes: a round trip costs what
#: some hundred kilobytes cost.
MERGE_GAP: Final = 64 << 10
MERGED_BYTES: Final = 8 << 20

#: obstore does not always retry an answer that is cut short, so that all is retried here: for so
#: many seconds, with a wait that doubles each time.
_PATIENCE: Final = 20.0
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
_REFUSED: Final = ("PermissionDeniedError", "UnauthenticatedError")
_CLIENT: Final[dict[str, Any]] = {
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=30),
}


class _Loop:
    """The event loop of this process, in one thread that runs while an Objects is open.

    The loop is never closed: an answer that comes too late is then dropped without an error.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.gate = asyncio.Semaphore(IN_FLIGHT)
        self.peak = self.now = 0
        self.pid = os.getpid()
        self._users = 0
        self._thread: threading.Thread | None = None
        atexit.register(self._stop)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with after_this():
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def enter(self) -> None:
        """Add a user, until it calls :meth:`leave`."""
        with _lock:
            if self._users == 0:
                if self._thread is not None:  # it was told to end, but not joined
                    self._thread.join(_PATIENCE)
                    if self._thread.is_alive():
                        raise SourceError("earlier requests to a store have not ended")
                self._thread = threading.Thread(
                    target=self.loop.run_forever, name="asyncreader-requests", daemon=True
                )
                self._thread.start()
            self._users += 1

    def leave(self) -> None:
        """Remove a user; the thread ends with the last one."""
        if os.getpid() != self.pid:
            return  # a forked child: the thread is the parent's
        with _lock:
            self._users -= 1
            if self._users == 0:
                self._stop()

    def _stop(self) -> None:
        """Cancel all requests and end the thread; also at exit, since no answer may reach an
        interpreter that is shutting down."""
        thread = self._thread
        if thread is None or os.getpid() != self.pid:
            return

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self.loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self.loop)
        # garbage collected in that thread it ends after this
        if thread is not threading.current_thread():
            thread.join(2.0)
            self._thread = None if not thread.is_alive() else thread


_lock = threading.RLock()  # whoever holds it may be made to collect an Objects
_loops: dict[int, _Loop] = {}  # by process: a thread and its sockets do not cross a fork


def requests_loop() -> _Loop:
    """The loop of this process."""
    with _lock:
        found = _loops.get(os.getpid())
        if found is None:
            found = _loops[os.getpid()] = _Loop()
        return found


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one version of an object from another: bytes, ETag (None where the store has
    none) and the second of its last change."""

    size: int
    tag: str | None
    modified: int

    @classmethod
    def of(cls, facts: Any) -> Version:
        """The facts in obstore's ObjectMeta."""
        tag = facts["e_tag"]
        if tag is not None:  # a proxy that compresses marks it as weak (RFC 9110, 8.8.3)
            tag = tag.removeprefix("W/").strip('"')
        return cls(int(facts["size"]), tag or None, int(facts["last_modified"].timestamp()))

    @classmethod
    def from_bytes(cls, text: bytes) -> Version:
        """The facts in what :meth:`to_bytes` made."""
        size, modified, tag = text.decode("utf-8", "surrogateescape").split(" ", 2)
        return cls(int(size), tag or None, int(modified))

    def to_bytes(self) -> bytes:
        """The facts in a few words."""
        text = f"{self.size} {self.modified} {self.tag or ''}"
        return text.encode("utf-8", "surrogateescape")

    def same(self, other: Version) -> bool:
        """Whether both are one version: by the ETags where both have one, else by the time."""
        if self.size != other.size:
            return False
        if self.tag is not None and other.tag is not None:
            return self.tag == other.tag
        return self.modified == other.modified


class Objects:
    """The objects of one bucket or server. Opened in the process that uses it, and never pickled.

    ``base``: as :func:`sniff.location_of` gives it. Raises ParamsError without obstore.
    """

    def __init__(self, base: str) -> None:
        try:
            from obstore.store import from_url
        except ImportError as exc:
            raise ParamsError(
                "reading from a URL needs obstore",
                found=base,
                hint="pip install -e '.[store]' in asyncreader's checkout",
            ) from exc
        options = dict(_CLIENT)
        # options given here override those of the environment
        if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
            options["allow_http"] = True
        try:
            self._store = from_url(base, client_options=options, retry_config={"max_retries": 0})
        except Exception as exc:
            raise ParamsError(
                "the store cannot be set up",
                found=f"{base}: {_said(exc)}",
                hint="is its configuration (region, credentials, endpoint) in the environment?",
            ) from exc
        self._loop = requests_loop()
        self._loop.enter()
        self._leave = weakref.finalize(self, self._loop.leave)
        self._leave.atexit = False  # the loop ends then anyway
        self._pending: set[Future[Any]] = set()
        self._closed = False

    @property
    def lists(self) -> bool:
        """Whether the store can list its objects: plain HTTP cannot."""
        return type(self._store).__name__ != "HTTPStore"

    def listed(self, location: Location) -> Iterator[list[tuple[str, Version]]]:
        """(key, version) of all objects in the folder ``location``, some at a time.

        Keys are those of the bucket. If a request fails for good and the names came in order (as in
        S3 and Google Cloud Storage), the listing continues after the last one.
        """
        last: str | None = None
        ordered = True
        stream: Any = None
        key = location.key.strip("/")

        async def page() -> Any:
            nonlocal stream
            if stream is None:
                if not ordered:
                    raise SourceError(
                        "the store failed while it listed its objects", path=location.shown
                    )
                stream = obstore.list(self._store, key or None, offset=last, chunk_size=LISTED)
            try:
                return await anext(stream, None)
            except BaseException:
                stream = None
                raise

        while (found := self._wait(self._ask(page), location)) is not None:
            entries = [(str(each["path"]), Version.of(each)) for each in found]
            for name, _ in entries:
                ordered &= last is None or last.encode() < name.encode()
                last = name
            yield entries

    def version(self, location: Location) -> Version:
        """The current version of an object. SourceNotFoundError, SourceError."""
        return self._wait(self._version(location), location)

    def versions(self, folder: Location, locations: Sequence[Location]) -> list[Version | None]:
        """The same for many at once, None for those that do not exist."""

        async def all_of_them() -> list[Version | None]:
            return list(await asyncio.gather(*map(found, locations)))

        async def found(location: Location) -> Version | None:
            try:
                return await self._version(location)
            except FileNotFoundError:
                return None

        return self._wait(all_of_them(), folder)

    async def _version(self, location: Location) -> Version:
        return Version.of(await self._ask(lambda: obstore.head_async(self._store, location.key)))

    def begin_whole(self, location: Location) -> Callable[[], tuple[memoryview, Version]]:
        """Request a whole object without waiting. The function returned waits for its bytes and
        their version."""
        return self._begin(self._whole(location), location)

    async def _whole(self, location: Location) -> tuple[memoryview, Version]:
        async def ask() -> tuple[memoryview, Version]:
            answer = await obstore.get_async(self._store, location.key)
            version = Version.of(answer.meta)
            got = memoryview(await answer.bytes_async())
            if got.nbytes != version.size:
                raise ConnectionError(f"{got.nbytes} bytes instead of {version.size}")
            return got, version

        found: tuple[memoryview, Version] = await self._ask(ask)
        return found

    def read(self, location: Location, start: int, stop: int) -> memoryview:
        """Bytes ``start`` to ``stop`` of an object."""
        return self.read_ranges(location, [(start, stop)])[0]

    def read_ranges(
        self, location: Location, ranges: Sequence[tuple[int, int]]
    ) -> list[memoryview]:
        """These ranges, all requested at once (up to ``IN_FLIGHT``)."""
        return self.begin_ranges(location, ranges)()

    def begin_ranges(
        self, location: Location, ranges: Sequence[tuple[int, int]]
    ) -> Callable[[], list[memoryview]]:
        """Request ranges without waiting. The function returned waits for them."""
        return self._begin(self._ranges(location, ranges), location)

    async def _ranges(
        self, location: Location, ranges: Sequence[tuple[int, int]]
    ) -> list[memoryview]:
        return list(await asyncio.gather(*(self._range(location, *each) for each in ranges)))

    async def _range(self, location: Location, start: int, stop: int) -> memoryview:
        got = memoryview(
            await self._ask(
                lambda: obstore.get_range_async(self._store, location.key, start=start, end=stop)
            )
        )
        if got.nbytes != stop - start:  # a range past the end is shortened, without an error
            less = got.nbytes < stop - start
            raise FormatError(
                "the store returned less than requested: the object became shorter"
                if less
                else "the store returned more than requested",
                path=location.shown,
                found=f"{got.nbytes} bytes from byte {start}",
                expected=f"{stop - start} bytes",
                hint="never write to a dataset that is in use: convert to a new one"
                if less
                else "the server does not support HTTP range requests: copy the dataset elsewhere",
            )
        return got

    async def _ask(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to one request, one of ``IN_FLIGHT`` at a time."""
        loop = self._loop
        async with loop.gate:
            loop.now += 1
            loop.peak = max(loop.peak, loop.now)
            try:
                return await _patiently(ask)
            finally:
                loop.now -= 1

    def _wait(self, work: Coroutine[Any, Any, T], location: Location) -> T:
        return self._begin(work, location)()

    def _begin(self, work: Coroutine[Any, Any, T], location: Location) -> Callable[[], T]:
        if self._closed:
            work.close()
            raise SourceError("the dataset is closed", path=location.shown)
        future = self._loop.submit(work)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._closed:  # since it was looked at: close() may not have seen the future
            future.cancel()
        return functools.partial(_result, future, location)

    def close(self) -> None:
        """Cancel the requests under way: threads that wait for them get an error."""
        self._closed = True
        for future in list(self._pending):
            future.cancel()
        self._leave()


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, with retries for errors that may be temporary."""
    loop = asyncio.get_running_loop()
    until, wait = loop.time() + _PATIENCE, _FIRST_WAIT
    while True:
        try:
            return await ask()
        except (FileNotFoundError, SourceError):
            raise
        except Exception as exc:
            if type(exc).__name__ in _REFUSED or loop.time() + wait > until:
                raise
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # jitter: spread the retries
        wait = min(2 * wait, _LONGEST_WAIT)


def _result(future: Future[T], location: Location) -> T:
    try:
        return result_of(future)
    except (CancelledError, asyncio.CancelledError) as exc:
        raise SourceError("the dataset was closed while it was read", path=location.shown) from exc
    except SourceError:
        raise
    except FileNotFoundError as exc:
        raise SourceNotFoundError("no such object", path=location.shown) from exc
    except Exception as exc:
        raise _translated(exc, location) from exc
    finally:
        future.cancel()  # Ctrl-C must not leave it running


def _said(error: BaseException) -> str:
    return shown(without_secrets(str(error)).partition("\n")[0][:300])


def _translated(error: Exception, location: Location) -> SourceError:
    kind = type(error).__name__
    if kind in _REFUSED:
        return SourceError(
            "the store refused access",
            path=location.shown,
            found=kind,
            hint="check the credentials in the environment, and what they may read",
        )
    return SourceError(
        "the store cannot be reached or failed, also on retries",
        path=location.shown,
        found=f"{kind}: {_said(error)}",
    )


def merged(offsets: Int64, lengths: Int64) -> tuple[list[tuple[int, int]], Int64]:
    """Ranges that cover all extents, adjacent ones merged, and the range number of each extent."""
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], (offsets + lengths)[order]
    ranges: list[list[int]] = []
    number = np.empty(offsets.size, np.int64)
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and start - last[1] <= MERGE_GAP
            and max(end, last[1]) - last[0] <= max(MERGED_BYTES, end - start)
        ):
            last[1] = max(last[1], end)
        else:
            ranges.append([start, end])
        number[order[i]] = len(ranges) - 1
    return [(start, end) for start, end in ranges], number
