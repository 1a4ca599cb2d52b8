"""``asyncreader info``, ``verify`` and ``preview``: what a set holds, whether it is whole, and how
it looks: a contact sheet, or a page about all of it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from ..errors import SourceError, shown
from ..system.text import counts_in_words, in_bytes, some, times
from . import options
from .terminal import FAILED, OK, Progress, print_json, print_table, say

if TYPE_CHECKING:
    from ..tools.sheet import Preview
    from ..tools.verify import VerifyReport


#: Classes that are shown one by one; --json has them all.
CLASSES_SHOWN: Final = 20
#: Data sets that are shown of a file without a layout; --json has all.
LISTED_SHOWN: Final = 50


@click.command(epilog="\b\nExample:\n  asyncreader info train.h5")
@options.set_argument
@options.param_option
@options.json_option
def info(path: str | None, params: dict[str, Any], as_json: bool) -> None:
    """Describe the dataset PATH: a file, or a quoted glob of files; or those of -p mix={...}.

    If nothing says what the samples of an HDF5 file are, info lists all that the file holds, the
    largest first, with what its attributes say, and prints the parameters that open it. A hint says
    what to pass with -p to serve patches of volumes, samples of different length, or a column of
    cells as labels. In a dataset of JPEGs on a disk, info looks at up to 200 images, and says how
    many have restart markers, so that a part can be decoded alone.
    """
    from ..tools.contents import facts_of

    facts, error = facts_of(options.set_of(path, params))
    if as_json:
        print_json(facts)
    elif "listed" in facts:
        _print_contents(path, facts)
    else:
        _print_facts(facts)
    if error is not None:
        raise error


def _print_contents(path: str | None, facts: dict[str, Any]) -> None:
    """What is in a file whose samples nothing names."""
    kind, opens, listed = facts["kind"], facts["opens"], facts["listed"]
    called = f" ({kind['name']})" if kind else ""
    words = ", ".join(f"{name}={value!r}" for name, value in (opens or {}).items())
    rows = {
        "path": shown(facts["path"]),
        "format": f"HDF5{called}: no layout says what its samples are",
        "samples": kind and kind["samples"],
        "opens": opens and shown(f"AsyncReader({path or facts['path']!r}, {words})"),
        "hint": shown("; ".join(facts["hints"])),
        "refused": None if opens else facts["refused"] and shown(facts["refused"]),
    }
    print_table((name, value) for name, value in rows.items() if value)
    click.echo()
    print_table(map(_listed_row, listed[:LISTED_SHOWN]), ("name", "shape", "stored", "values"))
    more = len(listed) - LISTED_SHOWN
    if more > 0:
        click.echo(f"... and {more:,} more (--json lists all)")
    if facts["unseen"]:
        click.echo(f"... and {facts['unseen']:,} members of groups that were not looked at")


def _listed_row(one: dict[str, Any]) -> tuple[str, str, str, str]:
    """A data set in words."""
    said = [f"{name} {value}" for name, value in one["says"].items()]
    said += [f"and others in {one['alike']}"] if one["alike"] else []
    size = "" if one["bytes_stored"] is None else in_bytes(one["bytes_stored"])
    words = shown(", ".join([one["dtype"], *said]))
    return shown(one["name"]), times(one["shape"]) if one["shape"] else "", size, words


def _episodes_in_words(found: dict[str, Any] | None) -> dict[str, str]:
    if found is None:
        return {}
    empty = f", {found['empty']:,} empty ones left out" if found["empty"] else ""
    return {
        "episodes": f"{found['words']}{empty} ({shown(found['known_by'])})",
        "episode splits": shown(counts_in_words(found["splits"])),
        "windows": some(found["samples"], "sample"),
    }


def _patches_in_words(found: dict[str, Any] | None) -> dict[str, str]:
    if found is None:
        return {}
    where = {
        "random": "one at random of each volume and epoch, or epoch_samples",
        "grid": f"a grid, {times(found['step'] or ())} apart",
        "center": "the centre of each volume",
    }[found["at"]]
    touched = found["chunks"].items()
    return {
        "volumes": found["words"],
        "patches": f"{found['count']:,} of {times(found['shape'])}: {where}",
        **{
            f"chunks of {shown(name)}": f"{mean:,.4g} touched by a patch on average"
            for name, mean in touched
            if mean is not None
        },
    }


def _labels_in_words(labels: dict[str, Any], classes: list[str] | None) -> str:
    ends, counts = (labels["min"], labels["max"]), labels["counts"]
    words = f"{times(labels['shape'])} {labels['dtype']}, "
    words += "some not finite" if None in ends else f"{ends[0]:.6g} to {ends[1]:.6g}"
    if classes:
        return f"{words}, {some(len(classes), 'class')}"
    return words if counts is None else f"{words}, {some(len(counts), 'different value')}"


def _restarts_in_words(found: dict[str, int] | None) -> str | None:
    if found is None or not found["jpegs"]:
        return None
    jpegs = some(found["jpegs"], "JPEG")
    return (
        f"{found['can_be_cut']} of {jpegs} can be decoded in part ({found['looked_at']} looked at)"
    )


def _sparsity(stored: float | None) -> str | None:
    return None if stored is None else f"{stored:.2%} of all (sparse rows)"


def _each_label(facts: dict[str, Any]) -> list[dict[str, Any]]:
    labels = facts["labels"]
    return labels if isinstance(labels, list) else [] if labels is None else [labels]


def _label_rows(facts: dict[str, Any]) -> dict[str, str]:
    words = {"labels": "read without labels"} if facts["labels"] is None else {}
    for number, one in enumerate(_each_label(facts)):
        name = f"labels {shown(one['name'])}" if "name" in one else "labels"
        words[name] = _labels_in_words(one, facts["classes"] if number == 0 else None)
    return words


def _print_facts(facts: dict[str, Any]) -> None:
    count, each, chosen = facts["count"], facts["bytes_a_sample"], facts["subset"]
    shape = "differs" if facts["shape"] is None else times(facts["shape"])
    if facts["shape"] is not None and facts["axes"]:
        shape += f" ({', '.join(facts['axes'])})"
    rows = {
        "path": shown(facts["path"]),
        "format": f"{facts['container']}: {shown(facts['layout'])}",
        "count": None
        if facts["patches"] is not None
        else some(count, "sample" if facts["episodes"] is None else "row"),
        **{
            f"set {number}": f"{shown(one['path'])}: {one['ratio']:.6g} of a batch, "
            f"{some(one['count'], 'sample')}"
            for number, one in enumerate(facts["sets"] or ())
        },
        **_episodes_in_words(facts["episodes"]),
        **_patches_in_words(facts["patches"]),
        **({} if chosen is None else {"subset": f"{some(chosen, 'sample')}: labels are of these"}),
        "field": facts["field"] and shown(facts["field"]),
        "shape": shape,
        "dtype": facts["dtype"],
        **{
            f"length of {shown(name)}": f"{low:,} to {high:,} values, median {middle:,.6g}"
            for name, (low, middle, high) in facts["lengths"].items()
        },
        "stored values": _sparsity(facts["stored_values"]),
        "encoding": facts["encoding"],
        "chunks": facts["chunk"]
        and facts["patches"] is None
        and f"{some(facts['chunk'], 'sample')} each",
        "compression": facts["compression"],
        **{
            f"field {shown(field['name'])}": (
                f"{'differs' if field['shape'] is None else times(field['shape'])} "
                f"{field['dtype']}, {_sparsity(field.get('stored_values')) or field['encoding']}"
            )
            for field in facts["fields"]
        },
        **_label_rows(facts),
        "label names": facts["label_names"] and shown(", ".join(facts["label_names"])),
        **{shown(one["name"]): one["words"] for one in facts["columns"]},
        "splits": shown(counts_in_words(facts["splits"])),
        "restart markers": _restarts_in_words(facts["restarts"]),
        "checksums": "XXH3-64 of each sample"
        if facts["checksums"]
        else "not recorded: served unverified",
        "fingerprint": facts["fingerprint"],
        "on disk": in_bytes(facts["bytes_on_disk"]),
        "a sample": each
        and f"{in_bytes(each)} {'as stored' if facts['patches'] is None else 'as served'}",
        "hint": "\n".join(facts["hints"]),
    }
    print_table((name, value) for name, value in rows.items() if value)
    several = _each_label(facts)
    if several and several[0]["counts"]:
        click.echo()
        _print_counts(several[0]["counts"], bool(facts["classes"]))


def _print_counts(counts: list[dict[str, Any]], named: bool) -> None:
    """The samples of each label; ``named``: labels have classes."""
    print_table(
        (
            (str(row["label"]), f"{row['samples']:,}", *([shown(row["class"] or "?")] * named))
            for row in counts[:CLASSES_SHOWN]
        ),
        ("label", "samples", *(["class"] * named)),
    )
    if len(counts) > CLASSES_SHOWN:
        click.echo(f"... and {len(counts) - CLASSES_SHOWN:,} more (--json lists all)")


# -- verify ----------------------------------------------------------------------------------------


@click.command(epilog="\b\nExample:\n  asyncreader verify train.h5 --decode")
@click.argument("path", type=options.PATH)
@click.option("--decode", is_flag=True, help="Also decode every image.")
@options.params_option("How a dataset that others wrote is read, such as data_field=images.")
@options.jobs_option
@options.json_option
@options.quiet_option
def verify(
    path: str, decode: bool, params: dict[str, Any], jobs: int | None, as_json: bool, quiet: bool
) -> int:
    """Check that PATH is whole: structure, count and every checksum.

    Prints a line for each problem. Exit codes: 0 nothing is wrong, 1 something is.
    """
    from ..tools.verify import verify_file

    with Progress("checking", quiet) as progress:
        report = verify_file(path, decode=decode, jobs=jobs, progress=progress, params=params)
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
        words += f"; {some(report.decoded, 'image')} decoded"
    if report.splits:
        words += f"; {shown(counts_in_words(report.splits))}"
    return f"{words} ({report.container}, {some(report.count, 'sample')}, {shown(report.path)})"


# -- preview ---------------------------------------------------------------------------------------


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
@options.set_argument
@click.option(
    "--output",
    type=options.PATH,
    metavar="FILE",
    callback=suffix_of(".png", ".jpg", ".webp"),
    help="The contact sheet. [PATH's name with -preview.png, here]",
)
@options.number("--count", click.IntRange(1, 1000), "Samples on the sheet.", 24)
@options.number("--columns", click.IntRange(1, 1000), "Images in a row. [as fits]")
@options.reader_option("seed", 0, "Seed of the random choice of samples.")
@click.option(
    "--indices", metavar="N,N-N...", callback=indices_of, help="Show these record numbers."
)
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Show only these classes.")
@click.option("--batch", is_flag=True, help="The first batch, as training gets it.")
@options.reader_option("size", help="Size of the images of --batch. [224x224 if sizes differ]")
@click.option(
    "--html",
    type=options.PATH,
    metavar="FILE",
    callback=suffix_of(".html", ".htm"),
    help="Write one page about the whole dataset instead of a sheet.",
)
@options.number("--limit", click.IntRange(1), "Most samples that --html reads.", 10_000)
@options.param_option
@options.json_option
@options.quiet_option
def preview(
    path: str | None,
    output: str | None,
    html: str | None,
    params: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **others: Any,
) -> None:
    """Show samples of the dataset PATH with their labels, on a sheet or a page.

    --batch shows what training gets with the parameters given: cropped, flipped, postprocessed
    (-p postprocess=module:function), and with its normalisation undone; of one dataset, or of those
    of -p mix={...}. Boxes are drawn (-p boxes_field=boxes), and keypoints; several images of a
    sample stand side by side. --html writes one self-contained page: samples by class, label
    counts, sizes, duplicates, damaged images.
    """
    given = options.set_of(path, params)
    told: dict[str, Any] = {"path": path}
    if html is None:
        _refuse("limit", vain=True, instead="it belongs to --html")
    else:
        _refuse("batch", "indices", "classes", "size", instead="--html shows all")
    if html is not None and output is None:
        where = "they belong to a sheet; --output adds one"
        _refuse("count", "columns", vain=True, instead=where)
    if html is None or output is not None:
        target = output or _default_target(path or "mix")
        made = _sheet_of_any(given, others)
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
        told["report"] = _report(given, html, others, as_json or quiet, as_json)
    if as_json:
        print_json(told)


def _default_target(path: str) -> str:
    """The sheet's default path: in the current folder, named after the set."""
    stem = re.sub(r"[*?\[\]]+", "", Path(path.rstrip("/")).name).split(".")[0]
    return f"{stem or 'set'}-preview.png"


def _refuse(*names: str, instead: str, vain: bool = False) -> None:
    """UsageError where one of these options was given; ``vain``: it would do nothing."""
    context, what = click.get_current_context(), "has no effect" if vain else "cannot be used"
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            word = "class" if name == "classes" else name
            raise click.UsageError(f"--{word} {what} here: {instead}")


def _sheet(given: dict[str, Any], others: dict[str, Any]) -> Preview:
    from ..tools.preview import preview, preview_batch

    if not others["batch"]:
        _refuse("size", instead="it goes with --batch")
        if others["indices"] is not None:
            _refuse("classes", instead="--indices names the samples")
        chosen = ("count", "seed", "indices", "classes", "columns")
        return preview(given, **{name: others[name] for name in chosen})
    _refuse("indices", "classes", instead="a batch has the samples that come first")
    size = {} if others["size"] is None else {"size": others["size"]}
    given = {"seed": others["seed"], **given, **size}
    options.size_for(given)
    return preview_batch(given, count=others["count"], columns=others["columns"])


def _sheet_of_any(given: dict[str, Any], others: dict[str, Any]) -> Preview:
    """The sheet of a set; of a file of which nothing says what its samples are, of those that
    ``info`` opens."""
    from ..sources.request import NoFieldError
    from ..tools.contents import facts_of

    try:
        return _sheet(given, others)
    except NoFieldError:
        opens = facts_of(given)[0].get("opens")
        if opens is None:
            raise
    words = ", ".join(f"{name}={value!r}" for name, value in opens.items())
    say(shown(f"no layout says what the samples are, shown is {words}; asyncreader info lists all"))
    return _sheet({**given, **opens}, others)


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
    given: dict[str, Any], html: str, others: dict[str, Any], quiet: bool, as_json: bool
) -> dict[str, Any]:
    from ..tools.report import gather, page

    how = {name: others[name] for name in ("limit", "seed")}
    with Progress("looking", quiet) as progress:
        facts = gather(given, **how, progress=progress)
    size = put_file(html, page(facts).encode("utf-8"))
    if not quiet:
        click.echo(f"{shown(facts.verdict)}; {in_bytes(size)} in {shown(html)}")
    return {"file": html, "page_bytes": size, **facts.to_dict()} if as_json else {}
