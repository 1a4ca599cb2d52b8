"""``asyncreader demo``: pack the sample pictures and train on them, or on another field's set."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..errors import SourceNotFoundError
from .options import PATH
from .terminal import FAILED, OK, check_converters, say

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
    """Convert the sample images to HDF5 and LMDB, and train on them. Exit code 1 below 0.9.

    A small numpy network is trained on each dataset until it converges; the last lines are its
    accuracy on held-out images. --kind makes a dataset of arrays instead, and trains on that:
    recordings of a robot (HDF5 as robomimic's, R^2 of the actions), cells (.h5ad, accuracy), or
    labelled volumes (Dice coefficient), in about 5 s each.
    """
    if kind != "images":
        if sample_data is not None:
            raise click.UsageError("--sample-data goes with --kind images")
        from ..tools.demo_arrays import run_kind

        return _judge(run_kind(kind, click.echo), f"figure of {kind}")
    folder = _sample_data() if sample_data is None else Path(sample_data)
    check_converters()
    from ..tools.demo import run_demo

    code = _judge(run_demo(folder, click.echo), "accuracy")
    if code == OK:
        say("next: asyncreader convert YOUR_IMAGES/ train.h5 --size 224x224")
    return code


def _judge(score: float, what: str) -> int:
    """The exit code; what is wrong is said."""
    if score >= DEMO_BAR:
        return OK
    say(f"error: held-out {what} {score:.3f}, expected at least {DEMO_BAR}")
    return FAILED


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
