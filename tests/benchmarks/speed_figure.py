"""Draws speed.svg, the figure of README, and jpeg.svg: ``python tests/benchmarks/speed_figure.py``.

The numbers are those of speed.json, in the form that run.py writes; RESULTS.md publishes
them. ``python tests/benchmarks/speed_figure.py bench/results.json`` first takes the medians of a
new run into speed.json, rounded to three digits. Then RESULTS.md and README have to be
changed: tests/examples/test_docs.py compares them.
"""

import json
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NUMBERS = HERE / "speed.json"
FIGURE = HERE.parents[1] / "docs" / "images" / "speed.svg"
#: The figure of JPEGs, whose numbers RESULTS.md publishes, too: command and conditions stand there.
JPEG_NUMBERS, JPEG = HERE / "jpeg.json", FIGURE.with_name("jpeg.svg")

#: The case that is drawn, and the words for its contenders, from top to bottom.
CASE = "raw224"
BARS = {
    "DataLoader + h5py": "h5py in a Dataset, PyTorch DataLoader",
    "DataLoader + lmdb": "lmdb in a Dataset, PyTorch DataLoader",
    "FFCV": "FFCV",
    "ours HDF5": "asyncreader, the same HDF5 file",
}
_OURS = "#4a6fa5"
_OTHER = "#b8b8b8"
_LEFT, _WIDEST, _STEP, _TOP = 300, 470, 36, 50


def medians(results: Mapping[str, Any]) -> dict[str, float]:
    """Samples per second of each contender of the figure. KeyError if one has not run."""
    (case,) = [case for case in results["cases"] if case["case"] == CASE]
    found = {row["name"]: row["median"] for row in case["contenders"] if "median" in row}
    return {name: found[name] for name in BARS}


def drawn(results: Mapping[str, Any]) -> str:
    """The figure as SVG; its title and its labels are text."""
    rates = {BARS[name]: rate for name, rate in medians(results).items()}
    return bars("Random images of 224 x 224 x 3 bytes per second, batch 128, 2 workers", rates)


def bars(what: str, rates: Mapping[str, float]) -> str:
    """Samples per second as bars, ours in blue."""
    told = "; ".join(f"{name}: {rate:,.0f}" for name, rate in rates.items())
    height = _TOP + _STEP * len(rates) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" '
        'font-family="sans-serif" font-size="14" role="img">',
        f"  <title>Images per second. {escape(told)}</title>",
        f'  <rect width="860" height="{height}" rx="8" fill="#ffffff"/>',
        f'  <text x="20" y="30" fill="#222222">{escape(what)}</text>',
    ]
    for row, (name, rate) in enumerate(rates.items()):
        top, wide = _TOP + _STEP * row, _WIDEST * rate / max(rates.values())
        middle = top + 18
        lines += [
            f'  <text x="{_LEFT - 12}" y="{middle}" text-anchor="end" fill="#222222">'
            f"{escape(name)}</text>",
            f'  <rect x="{_LEFT}" y="{top}" width="{wide:.1f}" height="26" rx="3" '
            f'fill="{_OURS if name.startswith("asyncreader") else _OTHER}"/>',
            f'  <text x="{_LEFT + wide + 8:.1f}" y="{middle}" fill="#222222">{rate:,.0f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def taken(results: Mapping[str, Any]) -> dict[str, Any]:
    """What speed.json keeps of a run: when, where, and the medians."""
    (case,) = [case for case in results["cases"] if case["case"] == CASE]
    kept = {name: results[name] for name in ("date", "cpu", "cores")}
    rows = [
        {"name": name, "median": int(float(f"{rate:.3g}"))}
        for name, rate in medians(results).items()
    ]
    setting = {name: case[name] for name in ("case", "batch", "workers", "consumer")}
    return {**kept, "cases": [{**setting, "contenders": rows}]}


def main(arguments: list[str]) -> int:
    """0 when the figure is drawn."""
    if arguments:
        new = taken(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        NUMBERS.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    FIGURE.write_text(drawn(json.loads(NUMBERS.read_text(encoding="utf-8"))), encoding="utf-8")
    JPEG.write_text(bars(**json.loads(JPEG_NUMBERS.read_text(encoding="utf-8"))), encoding="utf-8")
    print(FIGURE, JPEG)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
