"""``asyncreader bench`` and ``doctor``: how fast a set is served, and what would make it faster."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click

from ..errors import shown
from ..system.text import in_bytes, sides, some, times
from . import options
from .terminal import Progress, check_converters, folded, print_json, print_table

if TYPE_CHECKING:
    from ..tools.doctor import Candidate, Diagnosis
    from ..tools.trials import BenchReport


@click.command(
    epilog="\b\nExample:\n  asyncreader bench train.h5 --batch-size 256 --nthread 1,2,4,8"
)
@options.set_argument
@options.batch_size_option
@options.njob_option
@click.option(
    "--nthread",
    metavar="N,N...",
    default="1,2,4",
    show_default=True,
    callback=options.counts_of,
    help="Threads, one row of the table each.",
)
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="In random order.")
@options.number("--seconds", click.FloatRange(0.001), "Measured for each number of threads.", 2.0)
@options.number("--consumer-ms", click.FloatRange(0), "What training takes for a batch.", 0.0)
@options.reader_option("size", help="Crop and resize to this. [224x224 if sizes differ]")
@options.reader_option("dtype", help="Such as float32. [as stored]")
@options.param_option
@options.json_option
@options.brief_option
def bench(
    path: str | None,
    nthread: tuple[int, ...],
    seconds: float,
    consumer_ms: float,
    params: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **others: Any,
) -> None:
    """Measure how fast PATH, or the datasets of -p mix={...}, are loaded. Samples/s and MB/s by
    number of threads.

    The threads take turns, three each; figures are medians. "wait" is the share of time that the
    consumer waits for batches; without --consumer-ms there is nothing else for it to do.
    """
    from ..tools.trials import run_bench

    given = options.set_of(path, params, **others)
    index = options.size_for(given, quiet)
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


# -- doctor ----------------------------------------------------------------------------------------


@click.command(
    epilog="\b\nExamples:\n  asyncreader doctor train.h5\n"
    "  asyncreader doctor train.h5 --consumer-ms 35 -p size=[224,224] -p flip=true"
)
@options.set_argument
@options.batch_size_option
@options.reader_option("nthread", help="Threads. [usable cores]")
@options.njob_option
@options.number("--consumer-ms", click.FloatRange(0, min_open=True), "Duration of a training step.")
@options.reader_option("size", help="Size that training uses. [224x224 if sizes differ]")
@options.number(
    "--memory-gb",
    click.FloatRange(0, min_open=True),
    "Memory left to the file in training. [what is free now]",
)
@options.number("--seconds", click.FloatRange(1.0), "About how long the measurement takes.", 12.0)
@options.param_option
@options.json_option
@options.brief_option
def doctor(
    path: str | None,
    consumer_ms: float | None,
    memory_gb: float | None,
    seconds: float,
    params: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **others: Any,
) -> None:
    """Measure what limits training on PATH, and suggest a cure.

    Give training's parameters with -p, such as -p shuffle=false; the default is full shuffling. A
    few hundred samples are converted to other encodings in a temporary folder, and each is read as
    training would. PATH itself is not changed.
    """
    check_converters()
    from ..tools.doctor import diagnose

    with Progress("opening", quiet or as_json, plain=False) as progress:
        found = diagnose(
            options.set_of(path, params, **others),
            seconds=seconds,
            consumer_seconds=consumer_ms / 1000 if consumer_ms else None,
            memory=None if memory_gb is None else int(memory_gb * 1e9),
            progress=progress.tell,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found, quiet)


def _print(found: Diagnosis, quiet: bool) -> None:
    if not quiet:
        _print_facts(found)
        _heading("What limits it")
    for words in found.words:
        _say(words)
    if found.keeps_up_words is not None:
        _say(found.keeps_up_words)
    if not quiet:
        for note in found.notes:
            _say(f"Note: {note}.")
        _print_epochs(found)
        _print_tried(found)
    for change in found.tried:
        if change.failure is not None:
            _say(f"{change.words}: {change.failure}")
    _print_advice(found)


def _print_facts(found: Diagnosis) -> None:
    facts, tops, now = found.facts, found.ceilings, found.now
    shape = "different shapes" if facts.shape is None else times(facts.shape)
    if facts.shape is None and facts.picture is not None:
        shape = f"different sizes; about half are larger than {sides(*facts.picture)}"
    stored = f"{in_bytes(facts.sample_bytes)} as pixels, {in_bytes(facts.stored_bytes)} of file"
    if facts.chunk > 1:
        stored += f"; {facts.chunk} compressed together"
    file = f"{in_bytes(facts.size)} on {facts.file_system or 'an unknown file system'}"
    file += " (a network file system)" if facts.network else ""
    fit = "fits in" if facts.fits else "larger than"
    disk = [
        f"{in_bytes(rate)}/s {how}"
        for rate, how in ((tops.disk_in_order, "in order"), (tops.disk_random, "at random"))
        if rate is not None
    ]
    threads = some(now.nthread, "thread")
    decoding, reading = "", ""
    if tops.decode_one is not None and tops.decode_all is not None:
        decoding = (
            f"{tops.decode_one:,.0f} samples/s on one core, {tops.decode_all:,.0f} in {threads}"
        )
    if tops.disk_random is not None:
        rate = tops.disk_random / (facts.stored_bytes * facts.chunk)
        reading = f"{rate:,.0f} samples/s at random from the disk, without the page cache"
    params = found.params
    order = {True: "shuffled", False: "in order"}.get(
        params["shuffle"], f"shuffle={params['shuffle']}"
    )
    rows = {
        "set": f"{some(facts.count, 'sample')}, {shape}",
        "layout": f"{facts.container}: {shown(facts.layout)}",
        "sample": stored,
        "file": f"{file}; {facts.cached:.0%} of it in the page cache",
        "memory": f"{fit} the {in_bytes(facts.memory)} left for it",
        "disk": ", ".join(disk) or "cannot be measured past the page cache here",
        "decoding": decoding,
        "copying": f"{tops.copy:,.0f} samples/s in {threads}",
        "reading": reading,
        "loader": f"{found.samples_per_second:,.0f} samples/s ({_spread(found, now.nthread)}) "
        f"{order}, batch {params['batch_size']}, nthread {now.nthread}, njob {params['njob']}"
        + ("" if found.measured else " (from its rate out of the disk)"),
        "a sample takes": ", ".join(
            f"{name} {1e6 * spent:,.1f} us" for name, spent in now.seconds.items() if spent
        ),
        "by nthread": ", ".join(
            f"{rate:,.0f} with {count} ({_spread(found, count)})"
            for count, rate in found.by_nthread.items()
            if count != now.nthread
        ),
    }
    print_table((name, text) for name, text in rows.items() if text)


def _spread(found: Diagnosis, nthread: int) -> str:
    """The slowest and the fastest turn of a trial, in samples/s."""
    return "{:,.0f} to {:,.0f} in its turns".format(*found.spread[nthread])


def _print_epochs(found: Diagnosis) -> None:
    """What the chunks of a set cost, and what they would cost in another order or form."""
    if not found.epochs:
        return
    _heading("What its chunks cost")
    rows = (
        (one.words, in_bytes(one.read), in_bytes(one.inflated), f"{one.seconds:,.3g} s")
        for one in found.epochs
    )
    print_table(rows, ("", "read a sample", "inflated a sample", "an epoch"))
    _say("Bytes are those of a sample whose chunk is not remembered.")
    for one in found.epochs:
        if one.command is not None:
            _say(f"To {one.words}:")
            click.echo(f"\n  {one.command}\n")


def _print_tried(found: Diagnosis) -> None:
    if not found.tried:
        return
    _heading("What was tried")
    print_table(
        (
            (
                change.words,
                "-" if change.samples_per_second is None else f"{change.samples_per_second:,.0f}",
                "-" if change.factor is None else f"{change.factor:,.2f} x",
                in_bytes(change.size or 0) + ("" if change.fits else " (too large for memory)"),
            )
            for change in found.tried
        ),
        ("change", "samples/s", "factor", "size"),
    )


def _print_advice(found: Diagnosis) -> None:
    _heading("What to do")
    advised = found.advised
    if advised is None:
        suited = ", ".join(f"{name}={value!r}" for name, value in found.suited.items())
        _say(_nothing(found))
        _say(f"Parameters that suit it: {suited}")
        return
    _say(_gain(advised))
    _print_command(advised)
    if advised.costs:
        _say(f"Its cost: {advised.costs}.")
    # a new file was measured with these; how many threads suit it, its own diagnosis tells
    io = "auto" if advised.fits and not found.facts.network else "pread"
    anew = {"nthread": found.now.nthread, "njob": max(2, found.now.nthread), "io": io}
    changed = {**found.suited, **(anew if advised.command else advised.params)}
    _say("Parameters: " + ", ".join(f"{name}={value!r}" for name, value in changed.items()))
    for other in found.tried:
        if other is not advised and other.worth:
            _say(f"Or: {_gain(other)}" + (f" Its cost: {other.costs}." if other.costs else ""))
            _print_command(other)


def _print_command(change: Candidate) -> None:
    if change.command is not None:
        click.echo(f"\n  {change.command}\n")


def _gain(change: Candidate) -> str:
    how = "" if change.measured else " (worked out: the whole would not stay in memory)"
    words = change.words[0].upper() + change.words[1:] if change.command else change.words
    return (
        f"{words}: {change.factor:,.1f} times as fast, "
        f"{change.samples_per_second:,.0f} samples/s{how}."
    )


def _nothing(found: Diagnosis) -> str:
    """What to do where no change is advised."""
    if found.keeps_up:
        return "Keep the dataset as it is."
    if any(change.failure is not None for change in found.tried):
        return "Keep the dataset as it is. What might help could not be tried; the reason is above."
    tried = " Nothing that was tried gains a quarter or more." if found.tried else ""
    if found.limit == "disk":
        return f"Keep the dataset as it is.{tried} More memory or a faster disk would help."
    if found.keeps_up is None:
        return f"Keep the dataset as it is.{tried}"
    cores = "" if found.limit == "memory" else " More cores would help."
    return f"No change is advised, but training will wait.{tried}{cores}"


def _heading(text: str) -> None:
    click.echo(f"\n{text}")


def _say(text: str) -> None:
    columns = min(100, shutil.get_terminal_size((80, 24)).columns)
    click.echo(textwrap.indent(folded(shown(text), columns - 2), "  "))
