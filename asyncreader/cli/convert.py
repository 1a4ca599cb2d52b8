"""``asyncreader convert``: a picture folder, or a packed set, into HDF5 or LMDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import shown
from ..text import in_bytes, some
from .options import (
    PATH,
    choice,
    folders_of,
    jobs_option,
    json_option,
    params_option,
    quiet_option,
    size_of,
)
from .terminal import INTERRUPTED, OK, SOME_SKIPPED, Progress, check_converters, print_json, say

if TYPE_CHECKING:
    from converters import ConvertReport


@click.command(
    epilog="\b\nExamples:\n  asyncreader convert photos/ train.h5 --size 224x224\n"
    "  asyncreader convert photos/ train.lmdb --encoding jpeg --size 256\n"
    "  asyncreader convert photos/ train.h5 --size 512x512 --field mask=masks/\n"
    "  asyncreader convert train.lmdb train.h5\n"
    "  asyncreader convert photos/ train/ --size 224x224 --shards 64\n"
    "  asyncreader convert s3://bucket/photos/ train/ --size 224x224 --shards 64"
)
@click.argument("src", type=PATH)
@click.argument("dst", type=PATH)
@choice("--encoding", "raw jpeg png original", "[raw; for a packed set: the one it has]")
@click.option("--size", metavar="HxW|N", callback=size_of, help="A shape, or the shorter side.")
@choice("--resize", "crop pad squeeze", "How HxW is reached. [crop: as much as fits, centred]")
@click.option(
    "--quality", type=click.IntRange(1, 100), metavar="N", help="For --encoding jpeg. [90]"
)
@click.option(
    "--labels", type=PATH, metavar="CSV", help="Lines of path,label[,label...]; text names classes."
)
@click.option("--no-labels", is_flag=True, help="Pack without labels.")
@choice("--channels", "1 3", "Grey or RGB. [3]")
@click.option("--shuffle", type=int, metavar="SEED", help="Pack in random order.")
@choice("--compression", "gzip", "For raw HDF5.")
@click.option(
    "--chunk", type=click.IntRange(1), metavar="N", help="Samples compressed together. [1]"
)
@click.option("--classes", type=PATH, metavar="SET_OR_FILE", help="Names, in label order.")
@click.option(
    "--classes-from-folders", is_flag=True, help="Folders called train or val are classes, too."
)
@click.option("--follow-links", is_flag=True, help="Follow links that lead out of the folder, too.")
@jobs_option
@click.option("--skip-bad", is_flag=True, help="Leave bad pictures out and list them (exit 3).")
@click.option("--overwrite", is_flag=True, help="Replace an existing set.")
@click.option("--check-decode", is_flag=True, help="Decode what is only copied, too.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=DIR",
    callback=folders_of,
    help="Also pack the pictures in DIR, such as mask=masks/.",
)
@choice("--format", "hdf5 lmdb", "[by the suffix of DST]")
@click.option(
    "--shards", type=click.IntRange(1), metavar="N", help="Write N files into folder DST."
)
@click.option("--shard-size", metavar="BYTES", help="Write files of about this size, such as 1GB.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run that writes shards.")
@choice("--engine", "local ray", "What packs the shards. [local]")
@click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster, such as auto.")
@click.option("--allow-pickle", is_flag=True, help="Unpickle SRC. Only if you trust who wrote it.")
@params_option("How a packed SRC is read, such as data_field=images.")
@json_option
@quiet_option
def convert(src: str, dst: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Pack the pictures in folder SRC into DST. SRC may also be a packed set, written by
    asyncreader or another program. SRC and DST may be URLs of an object store.

    DST ends in .h5, .hdf5 or .lmdb, or is a folder for shards, and appears when it is complete and
    verified. A class is a first-level folder, unless --labels or --no-labels is given.

    Exit codes: 0 all packed, 1 failed, 2 usage, 3 packed without the bad pictures.
    """
    check_converters()
    import converters

    given = {name: value for name, value in options.items() if value not in (None, {})}
    if "channels" in given:
        given["channels"] = int(given["channels"])
    try:
        with Progress("packing", quiet) as progress:
            report = converters.convert(src, dst, progress=progress, **given)
    except KeyboardInterrupt as exc:
        for note in getattr(exc, "__notes__", ()):  # which finished shards are kept
            say(f"interrupted: {shown(note)}")
            return INTERRUPTED
        raise
    for note in report.notes:
        say(f"note: {shown(note)}")
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
    files = "" if report.shards is None else f"{some(report.shards, 'shard')}, "
    if report.kept:
        files = f"{files[:-2]} ({report.kept:,} kept), "
    click.echo(
        f"{report.format.upper()}, {report.encoding}, {files}{in_bytes(report.bytes)}; "
        f"{report.seconds:.1f} s, {rate:,.0f} samples/s"
    )
    ignored = ", ".join(f"{n:,} {shown(kind)}" for kind, n in report.ignored.items() if n)
    if ignored:
        click.echo(f"ignored: {ignored}")
    if report.skipped:
        click.echo(f"skipped: {some(len(report.skipped), 'bad picture')}, listed above")
