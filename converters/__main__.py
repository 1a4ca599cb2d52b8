"""``python -m converters ...``: the same command as ``asyncreader convert ...``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``asyncreader convert`` with this process's arguments, and exit with its code."""
    from asyncreader.cli.main import main as cli

    cli(["convert", *sys.argv[1:]])


if __name__ == "__main__":
    main()
