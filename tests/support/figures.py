"""Draws the figures of the documentation: ``python tests/support/figures.py``. Needs Chromium.

docs/images gets report.png (the page of preview --html), trace.png (workers, slots and the consumer
in time), batch.png (the contact sheet; its command is in docs/commands.md) and strips.png (crops,
flips and operations, as AsyncReader serves them), all of the sample pictures; report.png of those
with some faults. Diagrams that show no measurement are edited by hand.
"""

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import chromium
import h5py
from PIL import Image, ImageDraw, ImageFont
from project import ROOT

from asyncreader import AsyncReader

IMAGES = ROOT / "docs" / "images"
WIDTH = 1000
#: Width and height of the window, and whether the whole page is drawn.
DRAWN = {"report": (WIDTH + 40, 900, False), "trace": (WIDTH + 40, 100, True)}
#: Colours of what a lane shows; anything else is grey.
COLOURS = {"fill": "#4c78a8", "wait": "#e45756", "use": "#54a24b", "FREE": "#eeeeee"}
COLOURS |= {"FILLING": "#4c78a8", "READY": "#f2cf5b", "HELD": "#54a24b"}


def command(words: str, folder: Path) -> str:
    """What a command of asyncreader prints, run in ``folder``."""
    program = [sys.executable, "-m", *shlex.split(words)]
    found = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(program, cwd=folder, check=True, stdout=subprocess.PIPE, env=found)
    return run.stdout.decode()


def contact_sheet() -> str:
    """The command of docs/commands.md that draws one."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^asyncreader preview .* --output batch\.png$", page, re.MULTILINE)
    return str(line)


def spoiled(folder: Path) -> str:
    """A dataset in which the report finds something: an image of two classes, one of one colour, a
    rare class and a sample that has changed on the disk."""
    photos = shutil.copytree(ROOT / "sample_data" / "train", folder / "photos")
    shutil.copyfile(next((photos / "circle").glob("*.png")), photos / "cross" / "again.png")
    Image.new("RGB", (224, 224), "black").save(photos / "square" / "black.png")
    for rare in sorted((photos / "triangle").iterdir())[20:]:
        rare.unlink()
    command("asyncreader convert photos photos.h5 --size 224x224 -q", folder)
    with h5py.File(folder / "photos.h5", "r+") as file:
        file["data"][7, 0, 0, 0] ^= 1
    return "photos.h5"


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


#: The rows of strips.png: what they show, and the parameters.
STRIPS: dict[str, dict[str, Any]] = {
    'crop="center"': {},
    'crop="random"': {"crop": "random", "crop_ratio": 0.7},
    'crop="random-resized"': {"crop": "random-resized", "crop_area": (0.2, 1.0)},
    "flip=True": {"flip": True},
    'augment="trivial-augment-wide"': {"augment": "trivial-augment-wide"},
    'augment="random-erasing", p=1': {"augment": [("random-erasing", {"p": 1.0})]},
}


def strips(packed: Path) -> Image.Image:
    """One image in seven epochs, a row for each set of parameters."""
    side, epochs, left = 88, 7, 250
    sheet = Image.new("RGB", (left + epochs * (side + 4), len(STRIPS) * (side + 4) + 4), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row, (name, given) in enumerate(STRIPS.items()):
        y = 4 + row * (side + 4)
        pen.text((8, y + side / 2 - 8), name, "#222222", font)
        known = {"path": packed, "subset": [100], "size": (side, side), "layout": "NHWC"}
        with AsyncReader(known | given, batch_size=1, seed=3) as reader:
            for column in range(epochs):
                image = next(iter(reader)).data[0]
                sheet.paste(Image.fromarray(image.copy()), (left + column * (side + 4), y))
    return sheet


def main() -> int:
    """0 when all figures are drawn; 1 without a browser."""
    if chromium.find() is None:
        print(f"none of {', '.join(chromium.NAMES)} is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch, chromium.Page(Path(scratch, "p")) as browser:
        folder = Path(scratch)
        photos = shlex.quote(str(ROOT / "sample_data" / "train"))
        command(f"asyncreader convert {photos} train.h5 --size 224x224 -q", folder)
        command(f"asyncreader preview {spoiled(folder)} --html report.html -q", folder)
        command(f"{contact_sheet()} -q", folder)
        shutil.copyfile(folder / "batch.png", IMAGES / "batch.png")
        command(f"asyncreader convert {photos} strips.h5 --size 128x128 -q", folder)
        strips(folder / "strips.h5").save(IMAGES / "strips.png", optimize=True)
        trace = trace_of(folder / "train.h5", folder / "trace.json")
        style = "<style>html{scrollbar-width:none}body{font:14px sans-serif;margin:16px}</style>"
        page = f"<!doctype html><meta charset=utf-8>{style}{trace}"
        (folder / "trace.html").write_text(page, encoding="utf-8")
        for name, (width, height, whole) in DRAWN.items():
            browser.open(folder / f"{name}.html", width, height)
            browser.screenshot(IMAGES / f"{name}.png", whole=whole)
        for path in sorted(IMAGES.glob("*.png")):
            print(path, path.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
