"""``bench --plot``: samples per second by number of threads, against what bare threads reach.

matplotlib (extra ``plot``) is imported here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..dataset import look_into
from ..errors import AsyncReaderError, ParamsError, SourceError
from ..sampling import at_random
from ..sources.lmdb.file import lmdb_data_file
from ..text import times
from .ceilings import copy_ceiling, decode_ceiling, read_ceiling
from .contact_sheet import font_files, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .bench import BenchReport

#: Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
_COLOURS: Final = {"loader": "#0072B2", "copy": "#009E73", "decode": "#D55E00", "disk": "#666666"}

#: A range wider than this many times is drawn on a logarithmic scale.
_WIDE: Final = 20


@dataclass(frozen=True)
class BenchCeilings:
    """Samples/s that bare threads reach, by number of threads."""

    copy: Mapping[int, float]
    """Copying batches as large as those handed out."""
    decode: Mapping[int, float]
    """Decoding images, or whole chunks, and nothing else; empty where nothing is decoded."""
    disk: float | None
    """Reading samples at random offsets past the page cache, 8 at a time."""


def check_plot(path: str) -> None:
    """ParamsError unless a figure can be drawn, its folder is there, and ``path`` says of which
    kind it is (svg, png, pdf)."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (".svg", ".png", ".pdf"):
        raise ParamsError(
            "the figure's suffix does not say what to draw",
            found=repr(suffix),
            expected=".svg, .png or .pdf",
        )
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):  # before anything is measured
        raise ParamsError("there is no folder for the figure", found=repr(folder))
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as exc:
        raise ParamsError(
            "--plot needs matplotlib",
            found=f"{type(exc).__name__}: {exc}",
            hint="pip install -e '.[plot]' in asyncreader's checkout",
        ) from exc


def bench_ceilings(
    params: Mapping[str, Any], nthreads: Sequence[int], batch_bytes: int, seconds: float = 0.3
) -> BenchCeilings:
    """Measure for ``seconds`` each what bare threads reach on the set of ``params`` (with a path).

    ``batch_bytes``: of a batch handed out. Raises what opening the set raises.
    """
    with look_into(params) as ds:
        p, source = ds.params, ds.source
        facts, spec, index = source.facts, source.spec, source.first.index
        fill = source.fills(p.wanted)[0]
        copy = {n: copy_ceiling(batch_bytes, n, seconds) * p.batch_size for n in nthreads}
        decode = {}
        chunk = (index.chunk or 1) if index.compression else 1
        records = ds.records(np.arange(len(ds), dtype=np.int64))
        if spec.encoded or index.compression:
            for n in nthreads:
                try:
                    found = decode_ceiling(source.first, fill, records, n, seconds, max(4, chunk))
                except AsyncReaderError:
                    continue  # a bad sample; the loader's own error says which
                if found.decoded_per_second is not None:
                    decode[n] = found.decoded_per_second
        file = lmdb_data_file(facts.path) or facts.path
        disk = None
        if os.path.isfile(file):
            piece = facts.size_on_disk / facts.count * chunk
            read = read_ceiling(file, int(piece), seconds)
            disk = None if read is None else read / piece
        return BenchCeilings(copy, decode, disk)


def above_disk(report: BenchReport, tops: BenchCeilings) -> str | None:
    """Where the set came from, if it came faster than reading the disk at random; else None."""
    if tops.disk is None or all(row.samples_per_second <= tops.disk for row in report.rows):
        return None
    weighted = report.params.get("weights") is not None
    if weighted or at_random(report.params.get("shuffle", False)):
        return "from memory, the page cache"
    return "from memory, the page cache, or in order from the disk"


def _families(text: str) -> list[str]:
    """Fonts that matplotlib draws ``text`` with: its own, then those with the other letters."""
    from matplotlib.font_manager import FontProperties, fontManager

    files = font_files(text)
    for file in files:
        fontManager.addfont(file)
    return ["DejaVu Sans", *(FontProperties(fname=file).get_name() for file in files)]


def draw_bench(report: BenchReport, tops: BenchCeilings, path: str) -> None:
    """Draw the figure into ``path`` (svg, png or pdf). SourceError where it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    threads = [row.nthread for row in report.rows]
    positions = range(len(threads))
    rates = [row.samples_per_second for row in report.rows]
    lines = [("loader", "AsyncReader", rates)]
    tried = (("copy", "copying memory", tops.copy), ("decode", "bare decoding", tops.decode))
    for name, words, top in tried:
        if top:
            lines.append((name, words, [top.get(n, float("nan")) for n in threads]))
    if tops.disk is not None:
        words = "reading from the disk, at random"
        why = above_disk(report, tops)
        words += "" if why is None else f"\n(the dataset came {why})"
        lines.append(("disk", words, [tops.disk] * len(threads)))
    for name, words, values in lines:
        style: dict[str, Any] = {"linestyle": ":" if name == "disk" else "--", "linewidth": 1.6}
        if name == "loader":
            style = {"linestyle": "-", "linewidth": 2.4, "marker": "o", "zorder": 3}
        axes.plot(positions, values, color=_COLOURS[name], label=words, **style)
    spread = [
        [row.samples_per_second - row.slowest for row in report.rows],
        [row.fastest - row.samples_per_second for row in report.rows],
    ]
    axes.errorbar(positions, rates, spread, fmt="none", color=_COLOURS["loader"], capsize=4)
    for position, value in zip(positions, rates, strict=True):
        axes.annotate(
            f"{value:,.0f}",
            (position, value),
            (9, 0),
            textcoords="offset points",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
            zorder=4,
        )
    known = [value for _, _, values in lines for value in values if value == value]
    known += [rate for row in report.rows for rate in (row.slowest, row.fastest)]
    if max(known) > _WIDE * min(known):
        axes.set_yscale("log")
        axes.set_ylim(min(known) / 2, max(known) * 3)
    else:
        axes.set_ylim(0, max(known) * 1.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xticks(list(positions), [str(n) for n in threads])
    axes.set_xlim(-0.3, len(threads) - 0.4)
    axes.set_xlabel("nthread")
    axes.set_ylabel("samples per second")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    title = _title(report)
    # a "$" would begin mathematics, and names may hold anything
    axes.set_title(title.replace("$", r"\$"), loc="left", family=_families(title))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    _write(figure, path)


def _title(report: BenchReport) -> str:
    """What was measured: the set, the batch and the order."""
    name = os.path.basename(report.path.rstrip(os.sep))
    order = "shuffled" if report.params.get("shuffle") else "in order"
    if report.params.get("weights") is not None:
        order = "drawn by weights"
    several = isinstance(report.data_shape[0], tuple)
    shapes = report.data_shape if several else (report.data_shape,)
    shape = ", ".join(times(shape) for shape in shapes)
    return in_words(f"{name}: {shape} {report.dtype}, {order}")


def _write(figure: Figure, path: str) -> None:
    """Write the figure whole, or not at all."""
    temporary = f"{path}.{os.getpid()}.part"
    kind = os.path.splitext(path)[1][1:].lower()
    try:
        figure.savefig(temporary, format=kind, dpi=150)
        os.replace(temporary, path)
    except OSError as exc:
        if os.path.exists(temporary):
            os.unlink(temporary)
        found = exc.strerror or str(exc)
        raise SourceError("the figure cannot be written", path=path, found=found) from exc
