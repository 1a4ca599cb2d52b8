"""Draws the figures of the documentation: ``python tests/support/figures.py``. Needs Chromium.

docs/images gets report.png (the page of preview --html) and trace.png (workers, slots and the
consumer in time), both of the sample pictures. The command of the contact sheet, batch.png, is in
README.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import chromium
from project import ROOT

from asyncreader import AsyncReader

IMAGES = ROOT / "docs" / "images"
WIDTH = 1000
#: Colours of what a lane shows; anything else is grey.
COLOURS = {"fill": "#4c78a8", "wait": "#e45756", "use": "#54a24b", "FREE": "#eeeeee"}
COLOURS |= {"FILLING": "#4c78a8", "READY": "#f2cf5b", "HELD": "#54a24b"}


def command(*words: str) -> None:
    """Run a command of asyncreader."""
    subprocess.run([sys.executable, "-m", "asyncreader", *words, "--quiet"], cwd=ROOT, check=True)


def trace_of(packed: Path, target: Path) -> str:
    """The second epoch of a reader's trace as SVG, a lane for each thread and slot."""
    augment = {"size": (96, 96), "crop": "random-resized", "dtype": "float32", "scale": 1 / 255}
    with AsyncReader(
        path=packed, batch_size=32, shuffle=True, nthread=2, njob=3, trace=target, **augment
    ) as reader:
        for _ in range(2):  # kernels are loaded in the first
            for data, _ in reader:
                data.mean()
    events = json.loads(target.read_text(encoding="utf-8"))["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    begin = min(e["ts"] for e in spans if e.get("args", {}).get("epoch") == 1)
    end = max(e["ts"] + e["dur"] for e in spans)
    scale = (WIDTH - 140) / (end - begin)
    drawn = []
    for row, (lane, name) in enumerate(sorted(lanes.items())):
        drawn.append(f'<text x="0" y="{row * 28 + 18}">{html.escape(name)}</text>')
        for e in (e for e in spans if e["tid"] == lane and e["ts"] + e["dur"] > begin):
            left = max(e["ts"], begin)
            wide = max((e["ts"] + e["dur"] - left) * scale, 0.5)
            drawn.append(
                f'<rect x="{130 + (left - begin) * scale:.2f}" y="{row * 28}" height="24" '
                f'width="{wide:.2f}" fill="{COLOURS.get(e["name"], "#999999")}" stroke="white"/>'
            )
    words = ("FILLING", "READY", "HELD", "FREE", "wait")
    for column, name in enumerate(words):
        y, x = len(lanes) * 28 + 16, 130 + column * 130
        drawn.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[name]}"/>')
        label = {"FILLING": "fill, FILLING", "HELD": "use, HELD"}.get(name, name)
        drawn.append(f'<text x="{x + 20}" y="{y + 12}">{label}</text>')
    return f'<svg width="{WIDTH}" height="{len(lanes) * 28 + 40}">{"".join(drawn)}</svg>'


def main() -> int:
    """0 when all figures are drawn; 1 without a browser."""
    if chromium.find() is None:
        print(f"none of {', '.join(chromium.NAMES)} is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch, chromium.Page(Path(scratch, "p")) as browser:
        packed = Path(scratch, "train.h5")
        command("convert", "sample_data/train", str(packed), "--size", "224x224")
        command("preview", str(packed), "--html", f"{scratch}/report.html")
        svg = trace_of(packed, Path(scratch, "trace.json"))
        style = "<style>body{font:14px sans-serif;margin:16px}</style>"
        page = f"<!doctype html><meta charset=utf-8>{style}{svg}"
        Path(scratch, "trace.html").write_text(page, encoding="utf-8")
        for name, height in (("report", 900), ("trace", 290)):
            browser.open(Path(scratch, f"{name}.html"), WIDTH + 40, height)
            browser.screenshot(IMAGES / f"{name}.png", whole=False)
            print(IMAGES / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
