"""Text for people: numbers as they read them (sizes, times, shapes, counts), names as they mistype
them, and lines for who looks on, in a terminal or a notebook."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def in_bytes(size: float) -> str:
    """ "2.5 MB", "12 bytes"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def in_time(seconds: float) -> str:
    """ "45 s", "12 min", "3 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"


def times(shape: Iterable[int]) -> str:
    """ "224 x 224 x 3", "one number"."""
    return " x ".join(map(str, shape)) or "one number"


def sides(height: int, width: int) -> str:
    """ "40 x 56 (height x width)", "40 x 40"."""
    return f"{height} x {width}" + (" (height x width)" if height != width else "")


def some(count: int, noun: str) -> str:
    """ "1 class", "2,000 classes"."""
    plural = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{plural}"


#: Letters of a name that may have two slips of the keyboard, and of one so short that other words
#: are as near as a slip: there only letters may be swapped.
_LONG, _SHORT = 10, 3


def slip(typed: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``typed`` is but for a slip of the keyboard: a letter too many, too
    few or wrong, or two swapped; of long names two of these. Case and punctuation do not count."""
    found, least, near = plain_name(typed), 3, None
    for name in names:
        meant = plain_name(name)
        if abs(len(meant) - len(found)) < least:  # else there are at least as many slips
            slips = _slips(found, meant)
            if len(meant) <= _SHORT and sorted(found) != sorted(meant):
                continue
            if slips < least and slips <= 1 + (len(meant) >= _LONG):
                least, near = slips, name
    return near


def plain_name(name: str) -> str:
    """Letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def _slips(a: str, b: str) -> int:
    """Damerau and Levenshtein's distance, where no part is edited twice."""
    before, last, row = [0], [0], list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, last, row = last, row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other)))
            if i > 1 < j and letter == b[j - 2] and a[i - 2] == other:
                row[j] = min(row[j], before[j - 2] + 1)
    return row[-1]


def natural(name: str) -> str:
    """A key that sorts names by the numbers in them: one text, for a million names are sorted."""
    return re.sub("[0-9]+", _by_size, name)


def _by_size(number: re.Match[str]) -> str:
    digits = number[0].lstrip("0")
    return f"\0{chr(min(len(digits), sys.maxunicode))}{digits}\0"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """ "train 8,000, val 1,000"."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


# -- who looks on --------------------------------------------------------------------------------


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
