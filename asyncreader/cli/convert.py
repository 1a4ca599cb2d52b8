"""``asyncreader convert``: a picture folder, or a packed set, into HDF5 or LMDB."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import AsyncReaderError, shown
from ..text import in_bytes, some
from .options import PATH, described, json_option, quiet_option
from .terminal import INTERRUPTED, OK, SOME_SKIPPED, Progress, check_converters, print_json, say

if TYPE_CHECKING:
    from converters import ConvertReport


class _Convert(click.Command):
    """Takes its options from their declarations, when they are needed."""

    declared = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.declared:
            try:
                check_converters()
            except AsyncReaderError:
                if ctx.resilient_parsing:  # Tab shows no error: it offers what is declared here
                    return super().get_params(ctx)
                raise
            from converters.options import OPTIONS

            written = [one for one in OPTIONS.values() if one.check.form != "object"]
            made = [click.Option(names, **how) for names, how in map(described, written)]
            self.params[2:2] = made  # between SRC, DST and what all commands have
            self.declared = True
        return super().get_params(ctx)


@click.command(
    cls=_Convert,
    epilog="\b\nExamples:\n  asyncreader convert photos/ train.h5 --size 224x224\n"
    "  asyncreader convert photos/ train.lmdb --encoding jpeg --size 256\n"
    "  asyncreader convert photos/ train.h5 --size 512x512 --field mask=masks/\n"
    "  asyncreader convert train.lmdb train.h5\n"
    "  asyncreader convert photos/ train/ --size 224x224 --shards 64\n"
    "  asyncreader convert photos/ all.h5 --size 64x64 --split train=0.9,val=0.1\n"
    "  asyncreader convert all.h5 some.h5 --select split=train --sample 1000\n"
    "  asyncreader convert more/ train/ --size 224x224 --append\n"
    "  asyncreader convert s3://bucket/photos/ train/ --size 224x224 --shards 64",
)
@click.argument("src", type=PATH, nargs=-1, required=True)
@click.argument("dst", type=PATH)
@json_option
@quiet_option
def convert(src: tuple[str, ...], dst: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Pack the pictures in folder SRC into DST. SRC may also be a packed set, written by
    asyncreader or another program. SRC may be a URL of an object store. DST is on a disk.
    Several SRC become one set.

    DST ends in .h5, .hdf5 or .lmdb, or is a folder for shards, and appears when it is complete and
    verified. A class is a first-level folder, unless --labels or --no-labels is given.

    Exit codes: 0 all packed, 1 failed, 2 usage, 3 packed without the bad pictures.
    """
    import converters

    from ..pixels import kernels

    given = {name: value for name, value in options.items() if value not in (None, {}, ())}
    try:
        with (
            Progress("packing", quiet, resumed=bool(given.get("resume"))) as progress,
            kernels.compiling_told(progress.compiling),
        ):
            report = converters.convert(src, dst, progress=progress, **given)
    except KeyboardInterrupt as exc:
        for note in getattr(exc, "__notes__", ()):  # which finished shards are kept
            say(f"interrupted: {shown(note)}")
            return INTERRUPTED
        raise
    for note in report.notes:
        say(f"note: {shown(note)}")
    try:
        if as_json:
            print_json(report.to_dict())
        else:
            for path, reason in report.skipped:
                say(f"skipped {shown(path)}: {shown(reason)}")
            if not quiet:
                _print_packed(report)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise AsyncReaderError(
            "the set is packed, but the report cannot be printed",
            path=report.target,
            found=exc.strerror,
        ) from exc
    return SOME_SKIPPED if report.skipped else OK


def _print_packed(report: ConvertReport) -> None:
    from converters.inputs.local_tree import ignored_in_words

    classes = "" if report.classes is None else f" in {some(len(report.classes), 'class')}"
    packed = report.count - report.kept_samples
    rate = packed / max(report.seconds, 1e-9)
    click.echo(f"packed {some(report.count, 'sample')}{classes} into {shown(report.target)}")
    files = "" if report.shards is None else f"{some(report.shards, 'shard')}, "
    if report.kept:
        files = f"{files[:-2]} ({report.kept:,} kept, with {some(report.kept_samples, 'sample')}), "
    click.echo(
        f"{report.format.upper()}, {report.encoding}, {files}{in_bytes(report.bytes)}; "
        f"{report.seconds:.1f} s" + (f", {rate:,.0f} samples/s" if packed else "")
    )
    if report.rewritten is not None:
        click.echo(f"restart markers: in {report.rewritten:,} of {some(report.count, 'sample')}")
    if report.narrowed:
        click.echo(f"16 bits became 8: in {report.narrowed:,} of {some(report.count, 'sample')}")
    ignored = ignored_in_words(report.ignored)
    if ignored:
        click.echo(f"ignored: {shown(ignored)}")
    if report.skipped:
        click.echo(f"skipped: {some(len(report.skipped), 'bad picture')}, listed above")
