"""Drives a headless Chromium by its DevTools protocol, through a pair of pipes.

https://chromedevtools.github.io/devtools-protocol/: each message is one JSON object and a NUL; with
``--remote-debugging-pipe`` the browser reads from descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


#: A shell's redirection would do, if every shell knew descriptors above 9.
_AS_3_AND_4 = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, copy in zip((3, 4), high):
    os.dup2(copy, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """The browser's program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab, and all that its network, console and script engine reported."""

    def __init__(self, profile: Path) -> None:
        browser = find()
        assert browser is not None
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        words = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--disable-quic"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AS_3_AND_4, str(reads), str(writes), browser, *words],
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self) -> None:
        self._number = 0
        self._rest = b""
        self._messages: deque[dict[str, Any]] = deque()
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.terminate()
        self._process.wait()
        os.close(self._from)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come first are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, event: str) -> None:
        """Wait until an event of this name has come since the last call of open()."""
        while not any(entry.get("method") == event for entry in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while not self._messages:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            *whole, self._rest = (self._rest + part).split(b"\0")
            self._messages.extend(json.loads(message) for message in whole)
        return self._messages.popleft()

    # -- what tests do -----------------------------------------------------------------------

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Load a file into a window of that size, as a phone below 600 pixels."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real mouse click on the middle of the first element that matches."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def screenshot(self, target: Path, *, whole: bool = True) -> None:
        """What the window shows, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(shot["data"]))

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself and data: URIs left out."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [entry["request"]["url"] for entry in sent if entry.get("type") != "Document"]
        return [url for url in urls if not url.startswith("data:")]

    @property
    def complaints(self) -> list[Any]:
        """Console messages, log entries (broken policy, failed loads) and uncaught exceptions."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [e["params"] for e in self.events if e.get("method") in kinds]
