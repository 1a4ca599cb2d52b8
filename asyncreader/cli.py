"""The ``asyncreader`` command: open, call the library, print.

Results go to stdout; progress, warnings and errors to stderr, each error in one line. Only click is
imported at once: what a command needs, it imports itself, so that ``--help`` answers in 0.1 s.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from .errors import SourceNotFoundError
from .terminal import (
    FAILED,
    OK,
    SOME_SKIPPED,
    USAGE,
    Cli,
    Progress,
    in_bytes,
    print_json,
    print_table,
    say,
    shown,
    some,
    times,
)

if TYPE_CHECKING:
    from converters import ConvertReport

    from .bench import BenchReport
    from .sources import Source
    from .verify import VerifyReport

F = TypeVar("F", bound=Callable[..., Any])

#: Held-out accuracy below which the demo has failed.
DEMO_BAR: Final = 0.9

#: What ``bench`` makes of pictures that differ in size: (H, W) that most ImageNet training uses.
BENCH_SIZE: Final = (224, 224)

#: Classes that ``info`` shows one by one; --json has them all.
CLASSES_SHOWN: Final = 20

#: Widest span of whole-number labels that are counted one by one rather than as a range.
LABEL_SPAN: Final = 65_536

# -- options ------------------------------------------------------------------------------------


def _size(_: click.Context, option: click.Parameter, value: str | None) -> Any:
    """ "224x224" -> (224, 224), and for ``convert`` "256" -> 256."""
    if value is None:
        return None
    sides = tuple(int(side) for side in re.findall(r"\d+", value))
    one = option.metavar != "HxW"
    if not re.fullmatch(r"\d{1,5}([xX]\d{1,5})?" if one else r"\d{1,5}[xX]\d{1,5}", value):
        raise click.BadParameter(f"{value!r} is not {option.metavar}, such as 224x224")
    return sides if len(sides) == 2 else sides[0]


def _counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4)."""
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", value):
        raise click.BadParameter(f"{value!r} is not a list of numbers, such as 1,2,4")
    return tuple(map(int, value.split(",")))


def _params(_: click.Context, __: click.Parameter, words: Iterable[str]) -> dict[str, Any]:
    """ "njob=2" -> {"njob": 2}: values are JSON, or else text."""
    params: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE, such as data_field=images")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params


_path = click.Path()
_param = click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_params,
    help="Any parameter of AsyncReader, such as data_field=images.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_quiet = click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
_jobs = click.option("--jobs", type=click.IntRange(1, 1024), help="Threads. [usable cores]")


def _choice(name: str, known: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=click.Choice(known.split()), help=text)


def _number(name: str, low: float, default: float, text: str) -> Callable[[F], F]:
    kind: Any = click.IntRange(int(low)) if isinstance(default, int) else click.FloatRange(low)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


# -- the commands --------------------------------------------------------------------------------


@click.group(
    cls=Cli,
    name="asyncreader",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  asyncreader convert photos/ train.h5 --size 224x224\n\n"
    "\b\nTab completion (bash; also zsh, fish):\n"
    '  eval "$(_ASYNCREADER_COMPLETE=bash_source asyncreader)"',
)
@click.option("--version", is_flag=True, help="Versions of asyncreader and what it stands on.")
@click.option("--traceback", is_flag=True, help="Show where an error arose, before its line.")
@click.pass_context
def cli(ctx: click.Context, version: bool, traceback: bool) -> None:
    """Pack picture folders into HDF5 or LMDB, and look at what was packed."""
    if version:
        for name, found in _versions():
            click.echo(f"{name:<15}{found}")
        ctx.exit()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
        ctx.exit(USAGE)


def _versions() -> Iterable[tuple[str, str]]:
    import importlib.util
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import h5py
    import lmdb

    from . import __version__

    # simplejpeg has no call that tells, but the library linked into it carries its banner.
    module = importlib.util.find_spec("simplejpeg._jpeg")
    binary = Path(module.origin).read_bytes() if module and module.origin else b""
    banner = re.search(rb"libjpeg-turbo version (\d[\d.]*)", binary)
    libraries = {
        "h5py": ("HDF5", h5py.version.hdf5_version),
        "lmdb": ("LMDB", ".".join(map(str, lmdb.version()))),
        "simplejpeg": ("libjpeg-turbo", banner[1].decode() if banner else "unknown"),
    }
    yield "asyncreader", __version__
    yield "Python", platform.python_version()
    for package in ("numpy", "h5py", "lmdb", "simplejpeg", "numba"):
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"
        if package in libraries:
            yield libraries[package]


@cli.command(
    epilog="\b\nExamples:\n  asyncreader convert photos/ train.h5 --size 224x224\n"
    "  asyncreader convert photos/ train.lmdb --encoding jpeg --size 256\n"
    "  asyncreader convert train.lmdb train.h5"
)
@click.argument("src", type=_path)
@click.argument("dst", type=_path)
@_choice("--encoding", "raw jpeg png original", "[raw; of a packed set: what it has]")
@click.option("--size", metavar="HxW|N", callback=_size, help="A shape, or the shorter side.")
@_choice("--resize", "crop pad squeeze", "How HxW is reached. [crop: as much as fits, centred]")
@click.option("--quality", type=click.IntRange(1, 100), help="Of --encoding jpeg. [90]")
@click.option("--labels", type=_path, metavar="CSV", help="Lines of path,label[,label...]")
@click.option("--no-labels", is_flag=True, help="Pack without labels.")
@_choice("--channels", "1 3", "Grey or RGB. [3]")
@click.option("--shuffle", type=int, metavar="SEED", help="Pack in random order.")
@_choice("--compression", "gzip", "Of raw HDF5.")
@click.option("--chunk", type=click.IntRange(1), help="Samples compressed together. [1]")
@click.option("--classes", type=_path, metavar="SET_OR_FILE", help="Names, in label order.")
@click.option("--follow-links", is_flag=True, help="Also links out of the folder.")
@_jobs
@click.option("--skip-bad", is_flag=True, help="Leave bad pictures out and list them (exit 3).")
@click.option("--overwrite", is_flag=True, help="Replace an existing set.")
@click.option("--check-decode", is_flag=True, help="Decode what is only copied, too.")
@_choice("--format", "hdf5 lmdb", "[by the suffix of DST]")
@click.option("--allow-pickle", is_flag=True, help="Unpickle SRC: only if you trust its writer.")
@click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_params,
    help="How a packed SRC is read, such as data_field=images.",
)
@_json
@_quiet
def convert(src: str, dst: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Pack the pictures in folder SRC into DST. SRC may be a packed set, too, ours or another's.

    DST ends in .h5, .hdf5 or .lmdb, and appears when it is complete and verified. A class is a
    first-level folder, unless --labels or --no-labels is given.

    Exit codes: 0 all packed, 1 failed, 2 usage, 3 packed but for bad pictures.
    """
    import converters

    given = {name: value for name, value in options.items() if value not in (None, {})}
    if "channels" in given:
        given["channels"] = int(given["channels"])
    with Progress("packing", quiet) as progress:
        report = converters.convert(src, dst, progress=progress, **given)
    if as_json:
        print_json(report.to_dict())
    else:
        for path, reason in report.skipped:
            say(f"skipped {shown(path)}: {shown(reason)}")
        if not quiet:
            _print_packed(report)
    return SOME_SKIPPED if report.skipped else OK


def _print_packed(report: ConvertReport) -> None:
    classes = "" if report.classes is None else f" in {some(len(report.classes), 'class')}"
    rate = report.count / max(report.seconds, 1e-9)
    click.echo(f"packed {some(report.count, 'sample')}{classes} into {shown(report.target)}")
    click.echo(
        f"{report.format.upper()}, {report.encoding}, {in_bytes(report.bytes)}; "
        f"{report.seconds:.1f} s, {rate:,.0f} samples/s"
    )
    ignored = ", ".join(f"{n:,} {shown(kind)}" for kind, n in report.ignored.items() if n)
    if ignored:
        click.echo(f"ignored: {ignored}")
    if report.skipped:
        click.echo(f"skipped: {some(len(report.skipped), 'bad picture')}, listed above")


@cli.command(epilog="\b\nExample:\n  asyncreader info train.h5")
@click.argument("path", type=_path)
@_param
@_json
def info(path: str, params: dict[str, Any], as_json: bool) -> None:
    """Tell what PATH holds: a packed file, or a quoted glob of them."""
    with contextlib.closing(_open({"path": path, **params})) as source:
        facts = _describe(source)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


def _open(params: dict[str, Any]) -> Source:
    """What a reader with these parameters would read."""
    from .params import parse_params
    from .sources import fields_of, open_source

    p = parse_params(params, {})
    return open_source(p.path, fields_of(p))


def _describe(source: Source) -> dict[str, Any]:
    from .order import subset_count
    from .sources import fingerprint

    spec = source.spec
    return {
        "path": spec.path,
        "container": spec.container,
        "layout": spec.layout,
        "format_version": None if spec.meta is None else spec.meta.version,
        "count": spec.count,
        "shape": None if spec.stored.shape is None else list(spec.stored.shape),
        "axes": spec.stored.axes,
        "dtype": str(spec.stored.dtype),
        "encoding": spec.encoding,
        "chunk": spec.chunk,
        "compression": spec.compression,
        "labels": _describe_labels(source),
        "classes": None if spec.classes is None else list(spec.classes),
        "splits": {name: subset_count(rows, spec.count) for name, rows in source.splits.items()},
        "checksums": spec.checksums,
        "fingerprint": fingerprint(source),
        "bytes_on_disk": spec.size_on_disk,
    }


def _describe_labels(source: Source) -> dict[str, Any] | None:
    """Shape, dtype and range; and samples by class or value where there is one whole number."""
    labels, names = source.labels, source.spec.classes or ()
    if labels is None:
        return None
    low, high = (+end.item() for end in (labels.min(), labels.max()))  # of bools, whole numbers
    counts = None
    whole = labels.dtype.kind in "bui" and labels.size == len(labels)
    if whole and high - low < LABEL_SPAN and high < 1 << 62:
        import numpy as np

        first = min(0, low) if names else low
        found = np.bincount(labels.reshape(-1).astype(np.int64) - first, minlength=len(names))
        counts = [
            {"label": n, "class": names[n] if 0 <= n < len(names) else None, "samples": samples}
            for n, samples in enumerate(found.tolist(), first)
            if samples or 0 <= n < len(names)
        ]
    return {
        "shape": list(labels.shape),
        "dtype": labels.dtype.name,
        "min": low if math.isfinite(low) else None,  # JSON has no NaN
        "max": high if math.isfinite(high) else None,
        "counts": counts,
    }


def _print_facts(facts: dict[str, Any]) -> None:
    labels, count, stored = facts["labels"], facts["count"], facts["bytes_on_disk"]
    counts = None if labels is None else labels["counts"]
    words = "none"
    if labels is not None:
        ends = ("?" if end is None else f"{end:.6g}" for end in (labels["min"], labels["max"]))
        words = f"{times(labels['shape'])} {labels['dtype']}, {' to '.join(ends)}"
        if facts["classes"]:
            words += f", {some(len(facts['classes']), 'class')}"
        elif counts is not None:
            words += f", {len(counts):,} different"
    shape = "differs" if facts["shape"] is None else times(facts["shape"])
    if facts["shape"] is not None and facts["axes"]:
        shape += f" ({', '.join(facts['axes'])})"
    rows = {
        "path": shown(facts["path"]),
        "format": f"{facts['container']}: {shown(facts['layout'])}",
        "count": some(count, "sample"),
        "shape": shape,
        "dtype": facts["dtype"],
        "encoding": facts["encoding"],
        "chunks": "none" if facts["chunk"] is None else f"{some(facts['chunk'], 'sample')} each",
        "compression": facts["compression"] or "none",
        "labels": words,
        "splits": ", ".join(f"{shown(name)} {n:,}" for name, n in facts["splits"].items())
        or "none",
        "checksums": "XXH3-64 of each sample" if facts["checksums"] else "none: unverified",
        "fingerprint": facts["fingerprint"],
        "on disk": f"{in_bytes(stored)}, {in_bytes(stored / count)} a sample",
    }
    print_table(rows.items())
    if not counts:
        return
    click.echo()
    named = bool(facts["classes"])
    print_table(
        (
            (str(row["label"]), f"{row['samples']:,}", *([shown(row["class"] or "?")] * named))
            for row in counts[:CLASSES_SHOWN]
        ),
        ("label", "samples", *(["class"] * named)),
    )
    if len(counts) > CLASSES_SHOWN:
        click.echo(f"... and {len(counts) - CLASSES_SHOWN:,} more (--json lists all)")


@cli.command(epilog="\b\nExample:\n  asyncreader verify train.h5 --decode")
@click.argument("path", type=_path)
@click.option("--decode", is_flag=True, help="Decode every picture, too.")
@_jobs
@_json
@_quiet
def verify(path: str, decode: bool, jobs: int | None, as_json: bool, quiet: bool) -> int:
    """Check that PATH is whole: structure, count and every checksum.

    Prints a line for each problem. Exit codes: 0 nothing is wrong, 1 something is.
    """
    from .verify import verify_file

    with Progress("checking", quiet) as progress:
        report = verify_file(path, decode=decode, jobs=jobs, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        for problem in report.problems:
            click.echo(shown(problem))
        if not quiet:
            click.echo(_verdict(report))
    return OK if report.ok else FAILED


def _verdict(report: VerifyReport) -> str:
    words = f"ok: {some(report.checked, 'checksum')} right"
    if not report.ok:
        words = f"damaged: {some(report.bad, 'bad sample') if report.bad else 'the set itself'}"
    elif report.unverified:
        words = "unverified: it has no checksums; structure and count are right"
    if report.decoded:
        words += f"; {some(report.decoded, 'picture')} decoded"
    return f"{words} ({report.container}, {some(report.count, 'sample')}, {shown(report.path)})"


@cli.command(epilog="\b\nExample:\n  asyncreader bench train.h5 --batch-size 256 --nthread 1,2,4,8")
@click.argument("path", type=_path)
@_number("--batch-size", 1, 128, "Samples in a batch.")
@_number("--njob", 1, 4, "Batches in flight.")
@click.option("--nthread", metavar="N,N...", default="1,2,4", show_default=True, callback=_counts)
@click.option("--shuffle/--no-shuffle", default=True, show_default=True)
@_number("--seconds", 0.001, 2.0, "Measured for each number of threads.")
@_number("--consumer-ms", 0, 0.0, "What training takes for a batch.")
@click.option(
    "--size",
    metavar="HxW",
    callback=_size,
    help="Crop and resize to this. [224x224 if sizes differ]",
)
@click.option("--dtype", help="Such as float32. [as stored]")
@_param
@_json
def bench(
    path: str,
    nthread: tuple[int, ...],
    seconds: float,
    consumer_ms: float,
    params: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast PATH is served. Samples/s and MB/s by number of threads.

    The threads take turns, three each; figures are medians. "wait" is the share of time that the
    consumer waits for batches; without --consumer-ms there is nothing else for it to do.
    """
    from .bench import run_bench

    given = {name: value for name, value in options.items() if value is not None}
    given |= {"path": path, **params}
    if "size" not in given:
        with contextlib.closing(_open(given)) as source:
            if source.spec.row_shape is None:
                given["size"] = BENCH_SIZE
                say("the pictures differ in size: cut to {}x{}; see --size".format(*BENCH_SIZE))
    with Progress("measuring", as_json, plain=False) as progress:
        report = run_bench(
            given,
            nthreads=nthread,
            seconds=seconds,
            consumer_seconds=consumer_ms / 1000,
            progress=progress,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _print_bench(report)


def _print_bench(report: BenchReport) -> None:
    params = report.params
    order = "shuffled" if params["shuffle"] else "in order"
    samples = some(report.count, "sample")
    click.echo(f"{shown(report.path)}: {samples}, {order}, njob {params['njob']}")
    click.echo(f"batch {times(report.data_shape)} {report.dtype}, {in_bytes(report.batch_bytes)}")
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


@cli.command(epilog="\b\nExample:\n  asyncreader demo")
@click.option("--sample-data", type=_path, metavar="DIR", help="Pictures in train/ and test/.")
def demo(sample_data: str | None) -> int:
    """Pack the sample pictures both ways and train on them. Exit code 1 below 0.9.

    A small network in numpy learns from an HDF5 and from an LMDB set; the last lines are its
    accuracy on held-out pictures.
    """
    folder = _sample_data() if sample_data is None else Path(sample_data)
    from .demo import run_demo

    return OK if run_demo(folder, click.echo) >= DEMO_BAR else FAILED


def _sample_data() -> Path:
    """The pictures that came along: inside the package (wheel) or beside it (checkout)."""
    package = Path(__file__).resolve().parent
    for folder in (package / "sample_data", package.parent / "sample_data"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return folder
    raise SourceNotFoundError(
        "the sample pictures are not installed",
        path=str(package / "sample_data"),
        hint="name a folder with train/ and test/ in it: asyncreader demo --sample-data DIR",
    )


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command with ``argv`` (this process's arguments) and exit with its code."""
    cli.main(args=argv, prog_name="asyncreader")


if __name__ == "__main__":
    main()
