"""HTML that cannot be broken into: everything is escaped unless it was made here."""

from __future__ import annotations

import html as _html
from collections.abc import Iterable
from typing import Any, Final

from ...errors import shown

#: Letters of one value that a page shows: longer than any path, and what it says a thousand times.
LONGEST: Final = 4096


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Words as HTML text, also fit for a quoted attribute: controls and surrogates shown, and of
    what is longer than ``LONGEST`` the beginning. What a browser must have whole is Html."""
    if isinstance(value, Html):
        return value
    line = str(value)
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}..."
    return Html(_html.escape(shown(line), quote=True))


def markup(template: str, **values: Any) -> Html:
    """``template`` with its ``{names}`` filled in, each escaped unless it is Html."""
    return Html(template.format_map({name: text(value) for name, value in values.items()}))


def join(parts: Iterable[Html], between: str = "") -> Html:
    """Pieces of HTML, one after the other."""
    return Html(between.join(parts))
