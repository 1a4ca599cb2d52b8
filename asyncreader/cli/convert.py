"""``asyncreader convert`` and ``demo``: images, or a packed set, into HDF5 or LMDB; and training on
what was made of sample data."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import AsyncReaderError, SourceNotFoundError, shown
from ..system.text import in_bytes, sides, some, times
from . import terminal
from .options import PATH, described, json_option, number, quiet_option

if TYPE_CHECKING:
    from converters import ConvertReport

    from ..tools.doctor.folder import Survey


#: Bad pictures and classes that are listed; --json has them all.
_LISTED = 10


class _Convert(click.Command):
    """Takes its options from their declarations, when they are needed."""

    declared = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.declared:
            try:
                terminal.check_converters()
            except AsyncReaderError:
                if ctx.resilient_parsing:  # Tab shows no error: it offers what is declared here
                    return super().get_params(ctx)
                raise
            from converters.options import OPTIONS

            written = [one for one in OPTIONS.values() if one.check.form != "object"]
            made = [click.Option(names, **how) for names, how in map(described, written)]
            self.params[1:1] = made  # between SRC, DST and what all commands have
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
    "  asyncreader convert s3://bucket/photos/ train/ --size 224x224 --shards 64\n"
    "  asyncreader convert photos/ --dry-run",
)
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="SRC... DST")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Convert nothing. Print what is in folder SRC, the space and the speed of each encoding "
    "on this machine, and the command to use. DST may be left out.",
)
@number("--seconds", click.FloatRange(0.1), "About how long --dry-run takes. [15]")
@json_option
@quiet_option
def convert(
    paths: tuple[str, ...],
    dry_run: bool,
    seconds: float | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Convert the images in folder SRC to the dataset DST. SRC may also be a dataset, written by
    asyncreader or another program, or a URL of an object store. DST is on a disk.
    Several SRC become one dataset.

    DST ends in .h5, .hdf5 or .lmdb, or is a folder for shards, and appears when it is complete and
    verified. A class is a first-level folder, unless --labels or --no-labels is given.

    Exit codes: 0 all converted, 1 failed, 2 usage, 3 converted without the bad images.
    """
    if dry_run:
        if len(paths) > 2:
            raise click.UsageError("--dry-run takes one SRC")
        wanted = paths[1] if len(paths) > 1 else None
        return _dry_run(paths[0], wanted, seconds or 15.0, _given(options), as_json, quiet)
    if len(paths) < 2:
        raise click.UsageError("Missing argument 'DST'.")
    if seconds is not None:
        raise click.UsageError("--seconds has no effect here: it belongs to --dry-run")
    *src, dst = paths
    import converters

    from ..pixels import kernels

    given = _given(options)
    try:
        with (
            terminal.Progress("converting", quiet, resumed=bool(given.get("resume"))) as progress,
            kernels.compiling_told(progress.compiling),
        ):
            report = converters.convert(tuple(src), dst, progress=progress, **given)
    except KeyboardInterrupt as exc:
        for note in getattr(exc, "__notes__", ()):  # which finished shards are kept
            terminal.say(f"interrupted: {shown(note)}")
            return terminal.INTERRUPTED
        raise
    _print_report(report, as_json, quiet)
    return terminal.SOME_SKIPPED if report.skipped else terminal.OK


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand in the command."""
    return {name: value for name, value in options.items() if value not in (None, {}, ())}


def _print_report(report: ConvertReport, as_json: bool, quiet: bool) -> None:
    """Say what was packed; AsyncReaderError where that cannot be printed."""
    for note in report.notes:
        terminal.say(f"note: {shown(note)}")
    try:
        if as_json:
            terminal.print_json(report.to_dict())
        else:
            for path, reason in report.skipped:
                terminal.say(f"skipped {shown(path)}: {shown(reason)}")
            if not quiet:
                _print_packed(report)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise AsyncReaderError(
            "the dataset is written, but the report cannot be printed",
            path=report.target,
            found=exc.strerror,
        ) from exc


def _dry_run(
    src: str, dst: str | None, seconds: float, given: dict[str, Any], as_json: bool, quiet: bool
) -> int:
    """Say what packing the folder would make."""
    from ..tools.doctor.folder import survey

    with terminal.Progress("opening", quiet or as_json, plain=False) as progress:
        found = survey(src, dst, seconds=seconds, progress=progress.tell, **given)
    if as_json:
        terminal.print_json(asdict(found))
        return terminal.OK
    if not quiet:
        _print_pictures(found)
        _print_forms(found)
    if found.advised is not None:
        click.echo(f"\n  {found.advised.command}\n")
        if found.advised.costs:
            click.echo(f"Its cost: {found.advised.costs}.")
    return terminal.OK


def _print_pictures(survey: Survey) -> None:
    """What is in the folder."""
    from converters.inputs.origins import ignored_in_words

    found = survey.pictures
    exact = found.looked_at == found.count
    rows = {
        "images": f"{found.count:,}, {'' if exact else 'about '}{in_bytes(found.size)}",
        "looked at": "all of them" if exact else f"{found.looked_at:,}, drawn at random",
        "kinds": ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items()),
        "sizes": sides(*found.sizes[0]),
        "unusual": ", ".join(f"{count:,} {what}" for what, count in found.odd.items()),
        "left out": ignored_in_words(found.ignored),
        "bad": f"{len(found.bad):,}, listed above" if found.bad else "",
    }
    if found.different > 1:
        small, middle, large = (times(size) for size in found.sizes)
        rows["sizes"] = (
            f"{small} to {large} (height x width), half below {middle}; "
            f"{found.different:,} different"
        )
    for path, why in found.bad[:_LISTED]:
        terminal.say(f"bad: {shown(path)}: {shown(why)}")
    if len(found.bad) > _LISTED:
        terminal.say(f"and {len(found.bad) - _LISTED:,} more (--json lists all)")
    if found.classes is not None:
        most = ", ".join(f"{shown(str(c.name))} {c.samples:,}" for c in found.classes[:_LISTED])
        more = ", ..." if len(found.classes) > _LISTED else ""
        rows["classes"] = f"{len(found.classes):,}: {most}{more}"
    terminal.print_table((name, text) for name, text in rows.items() if text)
    for note in found.notes:
        terminal.say(f"note: {shown(note)}")


def _print_forms(survey: Survey) -> None:
    """What each encoding would take and give."""
    from ..tools.doctor.advice import option_words

    cut = "" if survey.cut == "center" else ", random crops"
    click.echo(
        f"\nSpace and speed of each encoding, from {some(survey.tried, 'image')}; served as "
        f"{times(survey.served)}{cut}, from memory ({in_bytes(survey.memory)} are free)"
    )
    terminal.print_table(
        (
            (
                form.words,
                " ".join(option_words(form.options or {})),
                "-" if form.size is None else in_bytes(form.size),
                "-" if form.samples_per_second is None else f"{form.samples_per_second:,.0f}",
            )
            for form in survey.forms
        ),
        ("encoding", "options", "space", "samples/s"),
    )
    for form in survey.forms:
        if form.failure is not None:
            terminal.say(f"{form.words}: {shown(form.failure)}")


def _print_packed(report: ConvertReport) -> None:
    from converters.inputs.origins import ignored_in_words

    classes = "" if report.classes is None else f" in {some(len(report.classes), 'class')}"
    packed = report.count - report.kept_samples
    rate = packed / max(report.seconds, 1e-9)
    click.echo(f"wrote {some(report.count, 'sample')}{classes} to {shown(report.target)}")
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
        click.echo(f"skipped: {some(len(report.skipped), 'bad image')}, listed above")


# -- demo ------------------------------------------------------------------------------------------


#: Held-out figure below which the demo has failed.
DEMO_BAR: Final = 0.9


@click.command(epilog="\b\nExamples:\n  asyncreader demo\n  asyncreader demo --kind robot")
@click.option(
    "--kind",
    type=click.Choice(["images", "robot", "cells", "volumes"]),
    default="images",
    show_default=True,
    help="What the dataset holds.",
)
@click.option("--sample-data", type=PATH, metavar="DIR", help="Images in train/ and test/.")
def demo(kind: str, sample_data: str | None) -> int:
    """Convert the sample images to HDF5 and LMDB, and train on them.

    A small numpy network is trained on each dataset until it converges; the last lines are its
    accuracy on held-out images. --kind makes a dataset of arrays instead, and trains on that:
    recordings of a robot (HDF5 as robomimic's, R^2 of the actions), cells (.h5ad, accuracy), or
    labelled volumes (Dice coefficient), in about 5 s each. The exit code is 1 if a result is below
    0.9.
    """
    if kind != "images":
        if sample_data is not None:
            raise click.UsageError("--sample-data goes with --kind images")
        from ..tools.demo import run_kind

        score, what = run_kind(kind, click.echo), f"figure of {kind}"
    else:
        folder = _sample_data() if sample_data is None else Path(sample_data)
        terminal.check_converters()
        from ..tools.demo import run_demo

        score, what = run_demo(folder, click.echo), "accuracy"
    if score < DEMO_BAR:
        terminal.say(f"error: held-out {what} {score:.3f}, expected at least {DEMO_BAR}")
        return terminal.FAILED
    if kind == "images":
        terminal.say("next: asyncreader convert YOUR_IMAGES/ train.h5 --size 224x224")
    return terminal.OK


def _sample_data() -> Path:
    """The sample pictures: inside the package (wheel) or next to it (checkout)."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sample_data", package.parent / "sample_data"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return folder
    raise SourceNotFoundError(
        "the sample images are not installed",
        path=str(package / "sample_data"),
        hint="name a folder with train/ and test/ in it: asyncreader demo --sample-data DIR",
    )
