"""Whether a person looks on in a notebook, and how something is shown in its cell."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, whose cells show HTML: JupyterLab, Colab, VS Code.
    IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def show(bundle: Mapping[str, str], key: str = "", update: bool = False) -> None:
    """Show ``bundle`` in the cell that runs: its text by media type, such as ``text/html``. With a
    ``key`` it can be replaced later (``update``). Only where ``in_notebook()``."""
    # as Jupyter's messaging protocol has it: display_data, update_display_data
    transient = {"display_id": key} if key else {}
    publish: Any = sys.modules["IPython"].display.publish_display_data
    publish(dict(bundle), transient=transient, update=update)


def tell(text: str) -> None:
    """Write one line for a person who looks on: in the cell of a notebook that runs, or on the
    terminal of stderr. Nothing where stderr is a file or a pipe."""
    if in_notebook():
        show({"text/plain": text})
    elif sys.stderr is not None and sys.stderr.isatty():
        clear = "" if os.environ.get("TERM") == "dumb" else "\r\x1b[K"  # a line of progress
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{clear}{text}\n")
            sys.stderr.flush()
