"""``asyncreader preview``: look at a set: a contact sheet, or a page about all of it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import SourceError, shown
from ..system.text import in_bytes, some, times
from .options import (
    PATH,
    json_option,
    number,
    param_option,
    quiet_option,
    reader_option,
    set_argument,
    set_of,
    size_for,
)
from .terminal import Progress, print_json, say

if TYPE_CHECKING:
    from ..tools.sheet import Preview


def indices_of(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """ "1,5,9-11" -> (1, 5, 9, 10, 11)."""
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}(-\d{1,18})?(,\d{1,18}(-\d{1,18})?)*", value):
        raise click.BadParameter(f"{value!r} is not a list of record numbers, such as 1,5,9-12")
    found: list[int] = []
    for part in value.split(","):
        first, dash, last = part.partition("-")
        run = range(int(first), int(last if dash else first) + 1)
        if not run or len(found) + len(run) > 1000:
            raise click.BadParameter(
                f"{value!r} names {'more than 1,000' if run else 'no'} samples"
            )
        found += run
    return tuple(found)


def suffix_of(*allowed: str) -> Any:
    """A check that a file to be written is named as what it will be, not as a set."""

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is not None and Path(value).suffix.lower() not in allowed:
            raise click.BadParameter(f"{value!r} does not end in {' or '.join(allowed)}")
        folder = os.path.dirname(value or "") or "."
        if not os.path.isdir(folder):  # reported now, not when all is made
            raise click.BadParameter(f"there is no folder {folder!r}")
        return value

    return check


@click.command(
    epilog="\b\nExamples:\n  asyncreader preview train.h5 --count 40\n"
    "  asyncreader preview train.h5 --class cat --class dog --output pets.png\n"
    "  asyncreader preview train.h5 --batch --size 224x224 -p crop=random-resized\n"
    "  asyncreader preview train.h5 --html train.html"
)
@set_argument
@click.option(
    "--output",
    type=PATH,
    metavar="FILE",
    callback=suffix_of(".png", ".jpg", ".webp"),
    help="The contact sheet. [PATH's name with -preview.png, here]",
)
@number("--count", click.IntRange(1, 1000), "Samples on the sheet.", 24)
@number("--columns", click.IntRange(1, 1000), "Images in a row. [as fits]")
@reader_option("seed", 0, "Seed of the random choice of samples.")
@click.option(
    "--indices", metavar="N,N-N...", callback=indices_of, help="Show these record numbers."
)
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Show only these classes.")
@click.option("--batch", is_flag=True, help="The first batch, as training gets it.")
@reader_option("size", help="Size of the images of --batch. [224x224 if sizes differ]")
@click.option(
    "--html",
    type=PATH,
    metavar="FILE",
    callback=suffix_of(".html", ".htm"),
    help="Write one page about the whole dataset instead of a sheet.",
)
@number("--limit", click.IntRange(1), "Most samples that --html reads.", 10_000)
@param_option
@json_option
@quiet_option
def preview(
    path: str | None,
    output: str | None,
    html: str | None,
    params: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Show samples of the dataset PATH with their labels, on a sheet or a page.

    --batch shows what training gets with the parameters given: cropped, flipped, postprocessed
    (-p postprocess=module:function), and with its normalisation undone; of one dataset, or of those
    of -p mix={...}. Boxes are drawn (-p boxes_field=boxes), and keypoints; several images of a
    sample stand side by side. --html writes one self-contained page: samples by class, label
    counts, sizes, duplicates, damaged images.
    """
    given = set_of(path, params)
    told: dict[str, Any] = {"path": path}
    if html is None:
        _without_effect("limit", instead="it belongs to --html")
    elif output is None:
        _without_effect("count", "columns", instead="they belong to a sheet; --output adds one")
    if html is None or output is not None:
        target = output or _default_target(path or "mix")
        made = _sheet_of_any(given, options)
        size = _write_sheet(made, target)
        for record, why in made.bad:
            say(f"warning: record {record}: {shown(why)}")
        told["sheet"] = {
            "file": target,
            "records": list(made.records),
            "labels": list(made.labels),
            "bad": [{"record": record, "why": why} for record, why in made.bad],
            "notes": list(made.notes),
        }
        if not as_json and not quiet:
            wide, high = made.sheet.size
            click.echo(
                f"{some(len(made.records), 'sample')} in {shown(target)}: "
                f"{times((high, wide))} pixels (height x width), {in_bytes(size)}"
            )
    if html is not None:
        _refuse(options, "batch", "indices", "classes", "size", instead="--html shows all")
        told["report"] = _report(given, html, options, as_json or quiet, as_json)
    if as_json:
        print_json(told)


def _default_target(path: str) -> str:
    """The sheet's default path: in the current folder, named after the set."""
    stem = re.sub(r"[*?\[\]]+", "", Path(path.rstrip("/")).name).split(".")[0]
    return f"{stem or 'set'}-preview.png"


def _without_effect(*names: str, instead: str) -> None:
    """Refuse options that were given and would do nothing."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect here: {instead}")


def _refuse(options: dict[str, Any], *names: str, instead: str) -> None:
    for name in names:
        if options[name] not in (None, False, ()):
            word = "class" if name == "classes" else name
            raise click.UsageError(f"--{word} cannot be used here: {instead}")


def _sheet(given: dict[str, Any], options: dict[str, Any]) -> Preview:
    from ..tools.preview import preview, preview_batch

    if not options["batch"]:
        _refuse(options, "size", instead="it goes with --batch")
        if options["indices"] is not None:
            _refuse(options, "classes", instead="--indices names the samples")
        chosen = ("count", "seed", "indices", "classes", "columns")
        return preview(given, **{name: options[name] for name in chosen})
    _refuse(options, "indices", "classes", instead="a batch has the samples that come first")
    size = {} if options["size"] is None else {"size": options["size"]}
    given = {"seed": options["seed"], **given, **size}
    size_for(given)
    return preview_batch(given, count=options["count"], columns=options["columns"])


def _sheet_of_any(given: dict[str, Any], options: dict[str, Any]) -> Preview:
    """The sheet of a set; of a file of which nothing says what its samples are, of those that
    ``info`` opens."""
    from ..sources.request import NoFieldError
    from ..tools.contents import facts_of

    try:
        return _sheet(given, options)
    except NoFieldError:
        opens = facts_of(given)[0].get("opens")
        if opens is None:
            raise
    words = ", ".join(f"{name}={value!r}" for name, value in opens.items())
    say(shown(f"no layout says what the samples are, shown is {words}; asyncreader info lists all"))
    return _sheet({**given, **opens}, options)


def _write_sheet(made: Preview, target: str) -> int:
    """Write the sheet's file, whole or not at all; its size."""
    import io

    held = io.BytesIO()
    kind = {".jpg": "JPEG", ".webp": "WEBP"}.get(Path(target).suffix.lower(), "PNG")
    made.sheet.save(held, kind, **({"optimize": True} if kind == "PNG" else {"quality": 90}))
    return put_file(target, held.getvalue())


def put_file(target: str, data: bytes) -> int:
    """``data`` under the name ``target``, whole or not at all; its size."""
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, target)
    except OSError as exc:
        raise SourceError(
            "the file cannot be written",
            path=target,
            found=exc.strerror,
            hint="name another with --output or --html",
        ) from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return len(data)


def _report(
    given: dict[str, Any],
    html: str,
    options: dict[str, Any],
    quiet: bool,
    as_json: bool,
) -> dict[str, Any]:
    from ..tools.report import gather, page

    with Progress("looking", quiet) as progress:
        facts = gather(
            given,
            limit=options["limit"],
            seed=options["seed"],
            progress=progress,
        )
    size = put_file(html, page(facts).encode("utf-8"))
    if not quiet:
        click.echo(f"{shown(facts.verdict)}; {in_bytes(size)} in {shown(html)}")
    return {"file": html, "page_bytes": size, **facts.to_dict()} if as_json else {}
