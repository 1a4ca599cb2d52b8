"""Writes the figures of a long run into docs/reliability.md: ``publish.py FIGURES...``.

FIGURES is what ``run.py --long --json`` wrote: all cases, whole, in one file, or in several that
``--only`` made on the same machine. A sentence and a table replace
what is between the page's two marks. Figures with a broken promise are refused.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:  # run as a file: faults.* by the same name as in pytest
    sys.path.insert(0, str(ROOT / "tests"))

from faults.run import cases  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"

BEGIN, END = (f"<!-- figures of the long run: {word} -->\n" for word in ("begin", "end"))

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def between_marks(text: str, new: str) -> str:
    """``text`` with ``new`` between its marks. ValueError unless each mark is there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"no single pair of marks for the figures: {BEGIN!r} and {END!r}")
    before, rest = text.split(BEGIN)
    return before + BEGIN + new + END + rest.split(END)[1]


def joined(notes: Iterable[str]) -> list[str]:
    """Notes that differ in their first number, and in what stands in brackets, as one: the sum of
    those that begin with it ("72 attacks"), else the one with the largest."""
    found: dict[str, list[str]] = {}
    for note in filter(None, notes):
        words = _NUMBER.sub("#", re.sub(r" \(.*\)$", "", note), count=1)
        found.setdefault(words, []).append(note)
    return [
        words.replace("#", f"{sum(map(_first, alike)):,.0f}", 1)
        if words.startswith("#")
        else max(alike, key=_first)
        for words, alike in found.items()
    ]


def _first(note: str) -> float:
    number = _NUMBER.search(note)
    return 0.0 if number is None else float(number[0])


def things(lines: Sequence[Mapping[str, Any]]) -> str:
    """What a case was tried on, each once: "LMDB raw, thread workers, process workers". Where it is
    "HDF5 raw: disks of 4 KiB, 60 of 241 sizes" what follows
    the colon is named once, with ranges of numbers."""
    whats = [line["what"] for line in lines]
    if not all(": " in what for what in whats):
        return ", ".join(dict.fromkeys(part for what in whats for part in what.split(", ")))
    heads, ways = zip(*(what.split(": ", 1) for what in whats), strict=True)
    alike: dict[str, list[list[str]]] = {}
    for way in ways:
        alike.setdefault(_NUMBER.sub("#", way), []).append(_NUMBER.findall(way))
    shown = []
    for words, numbers in alike.items():
        for column in zip(*numbers, strict=True):
            low, high = min(column, key=float), max(column, key=float)
            words = words.replace("#", low if low == high else f"{low}-{high}", 1)
        shown.append(words)
    return f"{', '.join(dict.fromkeys(heads))}; {'; '.join(shown)}"


def row(case: Mapping[str, Any]) -> str:
    """A case as one line of the table."""
    lines = case["figures"]
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update({name: n for name, n in line["counts"].items() if n})
    said = [f"{n:,} {name}" for name, n in counts.most_common()]
    notes = joined(line["note"] for line in lines)
    cells = (
        f"{case['row']}: {case['promise']}",
        things(lines),
        f"{trials(case):,}",
        "; ".join([", ".join(said), *notes]),
        f"{sum(len(line['broken']) for line in lines)}",
    )
    return f"| {' | '.join(cells)} |\n"


def trials(case: Mapping[str, Any]) -> int:
    """Of all lines of a case."""
    total: int = sum(line["trials"] for line in case["figures"])
    return total


def table(record: Mapping[str, Any]) -> str:
    """A row for each case."""
    made = record["machine"]
    head = (
        f"It ran on {record['date']} on {made['cores']} cores, Python {made['python']}, h5py "
        f"{made['h5py']}, lmdb {made['lmdb']}:\n\n"
        "| case | tried on | trials | outcomes | broken promises |\n|---|---|--:|---|--:|\n"
    )
    return head + "".join(map(row, record["cases"]))


def sentence(record: Mapping[str, Any]) -> str:
    """The sums, in words."""
    of = {case["name"]: trials(case) for case in record["cases"]}
    damaged = of["flips"] + of["structure"] + of["live"]
    words = (
        f"{damaged:,} damaged files and {of['truncations']:,} truncated ones "
        "without a wrong sample, a signal or a hang; "
        f"{of['kill']:,} conversions killed and {of['full']:,} on full disks without a "
        f"half-written set; {of['attacks']:,} attempts with hostile files, none successful; "
        f"{of['stress']:,} batches under stress, none mixed; {of['exits']:,} exits and "
        f"{of['ctrl-c']:,} times Ctrl-C, each below 2 s, with nothing left behind."
    )
    lines = textwrap.wrap(words, 100, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in lines)


def together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The records of runs that had different cases, as one. ValueError if a case is there twice, or
    if they differ in anything else than their cases."""
    found = {case["name"]: case for record in records for case in record["cases"]}
    others = [{**record, "cases": []} for record in records]
    if len(found) < sum(len(record["cases"]) for record in records):
        raise ValueError("a case is in two records")
    if any(other != others[0] for other in others):
        raise ValueError("the records differ in their machine, versions, date, form or seed")
    order = [case.name for case in cases() if case.name in found]
    return {**others[0], "cases": [found[name] for name in order]}


def problems(record: Mapping[str, Any]) -> list[str]:
    """Why a record is not one of a whole long run that kept all promises."""
    found = [] if record["form"] == "long" else ["it is the short form"]
    if record["rounds"] is not None:
        found.append(f"it has {record['rounds']} rounds of each case")
    lacking = {case.name for case in cases()} - {case["name"] for case in record["cases"]}
    if lacking:
        found.append(f"cases are missing: {', '.join(sorted(lacking))}")
    for case in record["cases"]:
        for line in case["figures"]:
            found += [f"{case['name']}, {line['what']}: {promise}" for promise in line["broken"]]
    return found


def main(arguments: Sequence[str]) -> int:
    """0 when the figures stand where they are shown."""
    if not arguments:
        print(__doc__)
        return 2
    record = together([json.loads(Path(one).read_text(encoding="utf-8")) for one in arguments])
    wrong = problems(record)
    if wrong:
        print("not published:", *wrong, sep="\n  ")
        return 1
    new = f"{sentence(record)}\n{table(record)}"
    PAGE.write_text(between_marks(PAGE.read_text(encoding="utf-8"), new), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
