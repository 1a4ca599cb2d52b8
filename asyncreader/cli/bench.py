"""``asyncreader bench``: how fast a set is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import shown
from ..system.text import in_bytes, some, times
from .options import (
    batch_size_option,
    brief_option,
    counts_of,
    json_option,
    njob_option,
    number,
    param_option,
    reader_option,
    set_argument,
    set_of,
    size_for,
)
from .terminal import Progress, print_json, print_table

if TYPE_CHECKING:
    from ..tools.bench import BenchReport


@click.command(
    epilog="\b\nExample:\n  asyncreader bench train.h5 --batch-size 256 --nthread 1,2,4,8"
)
@set_argument
@batch_size_option
@njob_option
@click.option(
    "--nthread",
    metavar="N,N...",
    default="1,2,4",
    show_default=True,
    callback=counts_of,
    help="Threads, one row of the table each.",
)
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="In random order.")
@number("--seconds", click.FloatRange(0.001), "Measured for each number of threads.", 2.0)
@number("--consumer-ms", click.FloatRange(0), "What training takes for a batch.", 0.0)
@reader_option("size", help="Crop and resize to this. [224x224 if sizes differ]")
@reader_option("dtype", help="Such as float32. [as stored]")
@param_option
@json_option
@brief_option
def bench(
    path: str | None,
    nthread: tuple[int, ...],
    seconds: float,
    consumer_ms: float,
    params: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure how fast PATH, or the datasets of -p mix={...}, are loaded. Samples/s and MB/s by
    number of threads.

    The threads take turns, three each; figures are medians. "wait" is the share of time that the
    consumer waits for batches; without --consumer-ms there is nothing else for it to do.
    """
    from ..tools.bench import run_bench

    given = {name: value for name, value in options.items() if value is not None}
    given |= set_of(path, params)
    index = size_for(given, quiet)
    with Progress("measuring", quiet or as_json, plain=False) as progress:
        report = run_bench(
            given,
            nthreads=nthread,
            seconds=seconds,
            consumer_seconds=consumer_ms / 1000,
            progress=progress,
            index=index,
        )
    if as_json:
        print_json(report.to_dict())
        return
    _print_bench(report)


def _print_bench(report: BenchReport) -> None:
    params = report.params
    order = "shuffled" if params["shuffle"] else "in order"
    if params.get("weights") is not None:
        order = "drawn by weights"
    samples = some(report.count, "sample")
    click.echo(f"{shown(report.path)}: {samples}, {order}, njob {params['njob']}")
    click.echo(f"batch {_shapes(report.data_shape)} {report.dtype}, {in_bytes(report.batch_bytes)}")
    print_table(
        (
            (
                str(row.nthread),
                f"{row.samples_per_second:,.0f}",
                f"{row.slowest:,.0f} - {row.fastest:,.0f}",
                f"{row.megabytes_per_second:,.0f}",
                f"{row.wait_share:.0%}",
            )
            for row in report.rows
        ),
        ("nthread", "samples/s", "slowest - fastest", "MB/s", "wait"),
    )
    steps = [f"{name} {part:.0%}" for name, part in report.rows[0].steps.items() if part >= 0.01]
    if len(steps) > 1:
        threads = some(report.rows[0].nthread, "thread")
        click.echo(f"time of {threads}: {', '.join(steps)}")


def _shapes(shape: Any) -> str:
    """A batch's shape, or those of its fields."""
    return ", ".join(map(times, shape)) if isinstance(shape[0], tuple) else times(shape)
