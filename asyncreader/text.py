"""Numbers as people read them: sizes, times, shapes, counts."""

from __future__ import annotations

from collections.abc import Iterable


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
    """ "224 x 224 x 3"."""
    return " x ".join(map(str, shape))


def some(count: int, noun: str) -> str:
    """ "1 class", "2,000 classes"."""
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"
