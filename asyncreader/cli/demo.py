"""``asyncreader demo``: pack the sample pictures and train on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..errors import SourceNotFoundError
from .options import PATH
from .terminal import FAILED, OK, check_converters, say

#: Held-out accuracy below which the demo has failed.
DEMO_BAR: Final = 0.9


@click.command(epilog="\b\nExample:\n  asyncreader demo")
@click.option("--sample-data", type=PATH, metavar="DIR", help="Pictures in train/ and test/.")
def demo(sample_data: str | None) -> int:
    """Pack the sample pictures into HDF5 and LMDB, and train on them. Exit code 1 below 0.9.

    A small numpy network is trained on each set until it converges; the last lines are its accuracy
    on held-out pictures.
    """
    folder = _sample_data() if sample_data is None else Path(sample_data)
    check_converters()
    from ..tools.demo import run_demo

    score = run_demo(folder, click.echo)
    if score < DEMO_BAR:
        say(f"error: held-out accuracy {score:.3f}, expected at least {DEMO_BAR}")
        return FAILED
    say("next: asyncreader convert YOUR_PICTURES/ train.h5 --size 224x224")
    return OK


def _sample_data() -> Path:
    """The sample pictures: inside the package (wheel) or next to it (checkout)."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sample_data", package.parent / "sample_data"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return folder
    raise SourceNotFoundError(
        "the sample pictures are not installed",
        path=str(package / "sample_data"),
        hint="name a folder with train/ and test/ in it: asyncreader demo --sample-data DIR",
    )
