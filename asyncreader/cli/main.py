"""The ``asyncreader`` command: its commands, and the versions of what it uses.

Results go to stdout; progress, warnings and errors to stderr, each error in one line. Only click is
imported at once: each command imports what it needs, so that ``--help`` answers in 0.1 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import click

from .convert import convert, demo
from .look import info, preview, verify
from .measure import bench, doctor
from .terminal import USAGE, Cli, open_standard_streams, say


@click.group(
    cls=Cli,
    name="asyncreader",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  asyncreader convert photos/ train.h5 --size 224x224\n\n"
    "\b\nTab completion, in bash, zsh and fish:\n"
    '  eval "$(_ASYNCREADER_COMPLETE=bash_source asyncreader)"\n'
    '  eval "$(_ASYNCREADER_COMPLETE=zsh_source asyncreader)"\n'
    "  _ASYNCREADER_COMPLETE=fish_source asyncreader | source",
)
@click.option("--version", is_flag=True, help="Show the versions of asyncreader and its libraries.")
@click.option("--traceback", is_flag=True, help="Also show where in the code an error arose.")
@click.pass_context
def cli(ctx: click.Context, version: bool, traceback: bool) -> None:
    """Convert images to HDF5 or LMDB datasets, inspect them, and measure how fast they load."""
    if version:
        for name, found in _versions():
            click.echo(f"{name:<15}{found}")
        ctx.exit()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
        ctx.exit(USAGE)


def _versions() -> Iterable[tuple[str, str]]:
    import platform
    from importlib import import_module
    from importlib.metadata import version

    import h5py
    import lmdb

    from .. import __version__

    # simplejpeg has no call that tells, but the library linked into it carries its banner.
    binary = Path(str(import_module("simplejpeg._jpeg").__file__)).read_bytes()
    banner = re.search(rb"libjpeg-turbo version (\d[\d.]*)", binary)
    libraries = {
        "h5py": ("HDF5", h5py.version.hdf5_version),
        "lmdb": ("LMDB", ".".join(map(str, lmdb.version()))),
        "simplejpeg": ("libjpeg-turbo", banner[1].decode() if banner else "unknown"),
    }
    yield "asyncreader", __version__
    yield "Python", platform.python_version()
    for package in ("numpy", "h5py", "lmdb", "simplejpeg", "numba"):
        yield package, version(package)
        if package in libraries:
            yield libraries[package]


for command in (convert, info, preview, verify, bench, doctor, demo):
    cli.add_command(command)


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command with ``argv`` (this process's arguments) and exit with its code."""
    open_standard_streams()  # before any file is opened
    cli.main(args=argv, prog_name="asyncreader")


if __name__ == "__main__":
    main()
