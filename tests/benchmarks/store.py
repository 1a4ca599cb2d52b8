"""Byte ranges from a store far away: throughput, and requests in flight.

``python tests/benchmarks/store.py`` packs pictures into shards and reads them from the range server
of the tests (another process of this machine): with 1,000 requests a second allowed, without and
with 50 ms of latency; then without that cap, by requests in flight.
"""

import contextlib
import os
import sys
from typing import Any

import harness
from harness import Case, Contender, Goal, Setting
from inputs import Input, Value, write_converted, write_pictures
from ours import Ours
from player import Result, Spec

LATENCY = 0.05
PICTURES = Input(
    "pictures{count}", write_pictures, count=Value(2000, 200, "pictures"), times=1
)  # fmt: skip
#: 64 x 64 pixels, raw: 12 kB a sample, less than what two of them are merged across.
SHARDS = Input(
    "store", write_converted, source=PICTURES, format="hdf5", shards=8, size=(64, 64)
)  # fmt: skip


class Far(Ours):
    """A reader of shards that a server hands out, and the requests that it saw at once."""

    def __init__(self, spec: Spec) -> None:
        sys.path.insert(0, str(harness.ROOT / "tests" / "support"))
        from range_server import server_stats, serving

        from asyncreader.sources.remote import client

        client.MERGE_GAP = 0
        if spec["flight"]:
            client.requests_loop().gate = client.asyncio.Semaphore(spec["flight"])
        folder, name = os.path.split(spec["path"])
        self.server = contextlib.ExitStack()
        self.url = self.server.enter_context(serving(folder, **spec["store"]))
        self.stats = server_stats
        params = {"path": f"{self.url}/{name}", "njob": spec["workers"], "verify": "never"}
        super().__init__({**spec, "params": params})

    def figures(self) -> Result:
        return {"in flight": self.stats(self.url)["peak"]}


def far(name: str, about: str = "", flight: int = 0, **store: float) -> Contender:
    spec: dict[str, Any] = {"path": SHARDS, "flight": flight, "store": store}
    return Contender(name, "store.Far", spec, about=about, ours=True)


CASES = [
    Case(
        "1,000 requests a second", "cap",
        [far("near", cap=1000), far("50 ms away", cap=1000, latency=LATENCY)],
        [Goal("50 ms away", "near")], Setting(batch=32, workers=8), rounds=3, seconds=4.0,
    ),
    Case(
        "requests in flight", "flight",
        [
            far(str(flight), f"{flight / LATENCY:,.0f} possible", flight, latency=LATENCY)
            for flight in (16, 32, 64, 128, 256, 512)
        ],
        (), Setting(batch=64, workers=8), rounds=3, seconds=4.0,
    ),
]  # fmt: skip

if __name__ == "__main__":
    sys.exit(harness.main("store", __doc__, CASES))
