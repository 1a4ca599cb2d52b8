"""Draws the figures of speed: speed.svg of README, threads.svg and jpeg.svg.

``python tests/benchmarks/speed_figure.py`` draws them from speed.json, which has the form that
run.py writes. ``python tests/benchmarks/speed_figure.py bench/results.json`` first takes the
medians of a new run into speed.json, rounded to three digits. Then RESULTS.md and the captions have
to be changed: tests/examples/test_docs.py compares them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NUMBERS = HERE / "speed.json"
IMAGES = HERE.parents[1] / "docs" / "images"

#: Labels of the bars, from top to bottom, and the contenders of which the fastest counts.
Labels = Mapping[str, Sequence[str]]
RAW: Labels = {
    "h5py in a Dataset, PyTorch DataLoader": ["DataLoader + h5py"],
    "lmdb in a Dataset, PyTorch DataLoader": ["DataLoader + lmdb"],
    "FFCV": ["FFCV"],
    "asyncreader, the same HDF5 file": ["ours HDF5"],
}
JPEG: Labels = {
    "torchvision, PyTorch DataLoader": ["DataLoader, v2 of tensor", "DataLoader, v2 of pillow"],
    "DALI, CPU": ["DALI, CPU"],
    "FFCV": ["FFCV"],
    "tf.data": ["tf.data"],
    "asyncreader": ["ours HDF5"],
    "asyncreader, with restart markers": ["ours HDF5, restart markers"],
}
JPEG_CASE = "JPEG, random-resized crop, flip, restart markers"
THREADS: Labels = {
    "copying memory": ["memcpy", "memcpy, past the caches"],
    "asyncreader": ["ours HDF5"],
    "FFCV": ["FFCV"],
    "lmdb, DataLoader": ["DataLoader + lmdb"],
}
#: Workers, and the ends of the names of their cases.
WORKERS = {1: ", 1 worker", 2: "", 4: ", 4 workers"}
SIDES = {"raw224": "224 x 224 x 3 bytes", "raw32": "32 x 32 x 3 bytes"}
#: The case of each bar figure, or of each point, and what is drawn of it.
CASES = {
    JPEG_CASE: JPEG,
    **{f"{raw}{end}": {**THREADS, **RAW} for raw in SIDES for end in WORKERS.values()},
}

_OURS, _OTHER, _LIMIT = "#4a6fa5", "#b8b8b8", "#888888"
_COLORS = {"asyncreader": _OURS, "FFCV": "#c07818", "lmdb, DataLoader": "#4f8f49"}
#: Narrow enough that words can be read on a phone.
_WIDTH, _LEFT, _TOP = 640, 20, 46


def rates_of(results: Mapping[str, Any], name: str, labels: Labels) -> dict[str, float]:
    """Samples per second of a case by label. KeyError if none of the contenders of one has run."""
    (case,) = [case for case in results["cases"] if case["case"] == name]
    found = {row["name"]: row["median"] for row in case["contenders"] if "median" in row}
    rates = {}
    for label, contenders in labels.items():
        if not any(one in found for one in contenders):
            raise KeyError(f"{name}: {label} has not run")
        rates[label] = max(found[one] for one in contenders if one in found)
    return rates


def _svg(height: int, title: str, lines: Sequence[str]) -> str:
    """A figure on white, which stands in a dark page as well; its title is for those who hear."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" font-family="sans-serif" font-size="14" role="img">',
        f"  <title>{escape(title)}</title>",
        f'  <rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        *(f"  {line}" for line in lines),
        "</svg>",
        "",
    ])  # fmt: skip


def _text(x: float, y: float, words: str, color: str = "#222222") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}">{escape(words)}</text>'


def bars(what: str, rates: Mapping[str, float]) -> str:
    """Samples per second as bars, ours in blue, each below its label."""
    told = "; ".join(f"{name}: {rate:,.0f}" for name, rate in rates.items())
    lines, top = [_text(_LEFT, 28, what)], _TOP
    for name, rate in rates.items():
        wide = (_WIDTH - 2 * _LEFT - 70) * rate / max(rates.values())
        color = _OURS if name.startswith("asyncreader") else _OTHER
        lines += [
            _text(_LEFT, top + 14, name, "#666666"),
            f'<rect x="{_LEFT}" y="{top + 20}" width="{wide:.1f}" height="18" rx="3" '
            f'fill="{color}"/>',
            _text(_LEFT + wide + 8, top + 34, f"{rate:,.0f}"),
        ]
        top += 44
    return _svg(top + 10, f"{what}. {told}", lines)


def apart(heights: Mapping[str, float], least: float = 17) -> dict[str, float]:
    """The heights from the top down, moved down as far as labels need to stand clear."""
    moved: dict[str, float] = {}
    below = -math.inf
    for name in sorted(heights, key=heights.__getitem__):
        below = moved[name] = max(heights[name], below + least)
    return moved


def panel(above: float, what: str, lines_of: Mapping[str, Sequence[float]]) -> list[str]:
    """Rates by workers as lines, each with its name and last rate at its right end."""
    top, bottom, right = above + 50, above + 230, 410
    highest = max(rate for rates in lines_of.values() for rate in rates)
    across = [_LEFT + (right - _LEFT) * at / (len(WORKERS) - 1) for at in range(len(WORKERS))]
    drawn = [_text(_LEFT, above + 28, what), _text(right + 14, bottom + 20, "workers", "#666666")]
    drawn.append(f'<path d="M{_LEFT} {bottom} H{right}" stroke="{_LIMIT}" fill="none"/>')
    drawn += [_text(x - 4, bottom + 20, str(n)) for x, n in zip(across, WORKERS, strict=True)]
    ends = {}
    for name, rates in lines_of.items():
        color = _COLORS.get(name, _LIMIT)
        dashes = "" if name in _COLORS else ' stroke-dasharray="5 4"'
        heights = [bottom - (bottom - top) * rate / highest for rate in rates]
        points = [f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True)]
        drawn.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" '
            f'stroke-width="2.5"{dashes}/>'
        )
        ends[name] = heights[-1] + 5
    for name, y in apart(ends).items():
        label = f"{name} {lines_of[name][-1]:,.0f}"
        drawn.append(_text(right + 14, y, label, _COLORS.get(name, "#666666")))
    return drawn


def threads(results: Mapping[str, Any]) -> str:
    """Rates by the number of workers, and of as many threads that only copy memory."""
    drawn, told = [], []
    for place, (raw, what) in enumerate(SIDES.items()):
        by_workers = [rates_of(results, raw + end, THREADS) for end in WORKERS.values()]
        lines_of = {name: [rates[name] for rates in by_workers] for name in THREADS}
        drawn += panel(264 * place, f"Random images of {what} per second, batch 128", lines_of)
        for name, rates in lines_of.items():
            told.append(f"{what}, {name}: {', '.join(f'{rate:,.0f}' for rate in rates)}")
    title = f"Images per second with {', '.join(map(str, WORKERS))} workers. {'; '.join(told)}"
    return _svg(264 * len(SIDES), title, drawn)


def figures(results: Mapping[str, Any]) -> dict[str, str]:
    """The figures as SVG, by file; titles and labels are text."""
    raw = "Random images of 224 x 224 x 3 bytes per second, batch 128, 2 workers"
    jpeg = "JPEGs of 500 x 375 per second: random-resized crops of 224 x 224, 2 workers"
    return {
        "speed.svg": bars(raw, rates_of(results, "raw224", RAW)),
        "jpeg.svg": bars(jpeg, rates_of(results, JPEG_CASE, JPEG)),
        "threads.svg": threads(results),
    }


def taken(results: Mapping[str, Any]) -> dict[str, Any]:
    """What speed.json keeps of a run: when, where, and the medians of what is drawn."""
    kept = {name: results[name] for name in ("date", "commit", "cpu", "cores")}
    cases = []
    for case in results["cases"]:
        names = {one for some in CASES.get(case["case"], {}).values() for one in some}
        rows = [
            {"name": row["name"], "median": int(float(f"{row['median']:.3g}"))}
            for row in case["contenders"]
            if row["name"] in names and "median" in row
        ]
        setting = {name: case[name] for name in ("case", "batch", "workers", "consumer")}
        cases += [{**setting, "contenders": rows}] if rows else []
    return {**kept, "cases": cases}


def main(arguments: list[str]) -> int:
    """0 when the figures are drawn."""
    if arguments:
        new = taken(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        NUMBERS.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    results = json.loads(NUMBERS.read_text(encoding="utf-8"))
    for name, svg in figures(results).items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        print(IMAGES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
