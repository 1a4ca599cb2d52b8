"""Rates that tests give to the doctor and the dry run, which then measure nothing."""

from typing import Any

from asyncreader.tools.trials import Rate, Trials, Turn


def rate(
    *samples: float, nthread: int = 2, decode: float = 0.0, read: float = 1e-5, **steps: float
) -> Rate:
    """Turns with so many samples/s, and what a worker takes for one sample in each step."""
    turns = tuple(Turn(int(one * 1000), 0, 1000.0, 1000.0) for one in samples)
    seconds = {**steps, "read": read, "decode": decode}
    return Rate(nthread, turns, seconds, 128, 1 << 24)


class Told(Trials):
    """Trials that open no reader: each reaches the rate that it is given, or 1,000 samples/s."""

    def __init__(self, **rates: Rate) -> None:
        super().__init__()
        self.rates = rates
        self.opened: dict[str, Any] = {}

    def add(self, name: str, params: Any, warm_up: float = 0.0, needed: bool = False) -> None:
        self.opened[name] = params

    def run(self, seconds: float, progress: object = None) -> dict[str, Rate]:
        usual = {name: rate(1000.0, nthread=p["nthread"]) for name, p in self.opened.items()}
        return {name: self.rates.get(name, usual[name]) for name in self.opened}
