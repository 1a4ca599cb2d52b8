"""``asyncreader verify``: is a set whole?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import shown
from ..system.text import counts_in_words, some
from .options import PATH, jobs_option, json_option, params_option, quiet_option
from .terminal import FAILED, OK, Progress, print_json

if TYPE_CHECKING:
    from ..tools.verify import VerifyReport


@click.command(epilog="\b\nExample:\n  asyncreader verify train.h5 --decode")
@click.argument("path", type=PATH)
@click.option("--decode", is_flag=True, help="Also decode every image.")
@params_option("How a dataset that others wrote is read, such as data_field=images.")
@jobs_option
@json_option
@quiet_option
def verify(
    path: str,
    decode: bool,
    params: dict[str, Any],
    jobs: int | None,
    as_json: bool,
    quiet: bool,
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
