"""The page: one self-contained HTML file, for a desktop, a phone and dark mode.

Its policy (``default-src 'none'``) names the hashes of the one style and the one script in it, so
that nothing else in it can run, and no browser asks any host for anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

import numpy as np

from ... import __version__
from ...text import in_bytes, some
from .charts import bar_table, histogram, ratios, sortable
from .facts import MEMBERS, Facts, Group, Row
from .html import Html, join, markup, text
from .pictures import Thumb

#: Rows of the tables of classes and of picture sizes.
CLASS_ROWS: Final = 5000
SIZE_ROWS: Final = 50

_STATES: Final = {"ok": ("ok", "\u2713"), "look": ("look", "!"), "bad": ("wrong", "\u2715")}


def page(facts: Facts) -> str:
    """The whole page as text, to be written as UTF-8."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    name = os.path.basename(facts.path.rstrip("/")) or facts.path
    body = join(
        [
            _head(facts, name),
            _checks(facts),
            _classes(facts),
            _pictures(facts),
            _distributions(facts),
            _copies(facts),
            _rows(facts.flat, facts.flat_count, "flat", "Of one colour", "Standard deviation"),
            _rows(facts.bad, facts.bad_count, "bad", "Bad samples", "What is wrong"),
            _foot(facts),
        ],
        "\n",
    )
    return markup(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        "<title>{name}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        "<script>{script}</script>\n</body>\n</html>\n",
        policy=Html(policy),
        name=name,
        style=Html(style),
        script=Html(script),
        body=body,
    )


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


# -- its parts -----------------------------------------------------------------------------------


def _head(facts: Facts, name: str) -> Html:
    sizes = facts.sizes
    size = "none read" if not sizes else "{} \u00d7 {}".format(*sizes[0][0])
    if len(sizes) > 1:
        size = f"{len(sizes):,} different"
    each = int(facts.bytes_each.mean()) if facts.bytes_each.size else 0
    tiles = [
        ("Samples", f"{facts.count:,}"),
        ("Classes", f"{len(facts.groups):,}" if facts.classed else "none"),
        ("Picture size", size),
        ("Bytes a sample", in_bytes(each)),
        ("On disk", in_bytes(facts.size_on_disk)),
    ]
    return markup(
        "<header><h1>{name}</h1>{path}<p class=quiet>{kind}</p>"
        "<dl class=tiles>{tiles}</dl></header>",
        name=name,
        path="" if facts.path == name else markup("<p class=quiet>{path}</p>", path=facts.path),
        kind=f"{facts.container}: {facts.layout}; {facts.encoding}, {facts.dtype}; "
        f"labels: {facts.labels}",
        tiles=join(markup("<div><dt>{t}</dt><dd>{v}</dd></div>", t=t, v=v) for t, v in tiles),
    )


def _checks(facts: Facts) -> Html:
    items = []
    for check in facts.checks:
        word, mark = _STATES[check.state]
        words = text(check.words)
        if check.place:
            words = markup('<a href="#{place}">{words}</a>', place=check.place, words=words)
        items.append(
            markup(
                '<li class="{state}"><span class=mark aria-hidden="true">{mark}</span>'
                "<span class=unseen>{word}: </span><b>{name}</b> <span>{words}</span></li>",
                state=check.state,
                mark=mark,
                word=word,
                name=check.name,
                words=words,
            )
        )
    return markup(
        '<section id="checks"><h2>Checks</h2><ul class=checks>{items}</ul>{scope}</section>',
        items=join(items),
        scope=_scope(facts),
    )


def _scope(facts: Facts) -> Html:
    if facts.looked == facts.count:
        words = f"All {facts.count:,} samples were looked at."
    else:
        words = (
            f"{facts.looked:,} of {facts.count:,} samples were looked at, those shown and others "
            "drawn at random: sizes, contents and bad samples are theirs. Labels were counted in "
            "full."
        )
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in facts.notes)
    return markup("<p class=quiet>{words}</p>", words=words + notes)


def _classes(facts: Facts) -> Html:
    if not facts.classed:
        charts = [
            markup(
                "<div><h3>{name}</h3>{chart}</div>",
                name=name,
                chart=histogram(values, "value", sizes=False),
            )
            for name, values in facts.label_values
        ]
        if not charts:
            return Html("")
        return markup(
            '<section id="classes"><h2>Labels</h2><div class=charts>{charts}</div></section>',
            charts=join(charts),
        )
    shown = facts.groups[:CLASS_ROWS]
    rows = [(group.tally.label, group.tally.samples, _class_button(group)) for group in shown]
    more = len(facts.groups) - len(shown)
    return markup(
        '<section id="classes"><h2>Classes</h2><p class=quiet>Press a class to see its samples '
        "only, a column to sort by it.</p>{find}{table}{more}</section>",
        find=Html(
            "<p><input type=search id=find placeholder='Find a class' "
            "aria-label='Find a class'></p>"
        )
        if len(shown) > 20
        else Html(""),
        table=bar_table(
            ("Class", "Samples", "Share"), rows, sum(g.tally.samples for g in facts.groups)
        ),
        more=_more(more, "classes"),
    )


def _class_button(group: Group) -> Html:
    count = group.tally
    return markup(
        '<button type=button class=pick data-class="{label}" aria-pressed="false">{name}</button>'
        " <span class=quiet>{number}</span>",
        label=count.label,
        name=_class_name(group),
        number="" if count.name is None else count.label,
    )


def _class_name(group: Group) -> str:
    count = group.tally
    return f"label {count.label}" if count.name is None else count.name


def _pictures(facts: Facts) -> Html:
    sheets = []
    for group in facts.groups:
        if not group.thumbs:
            continue
        title = markup(
            "<h3>{name} <span class=quiet>{shown} of {samples}</span></h3>",
            name=_class_name(group) if facts.classed else "Drawn at random",
            shown=len(group.thumbs),
            samples=f"{group.tally.samples:,}",
        )
        sheets.append(
            markup(
                '<div class=sheet data-class="{label}">{title}'
                "<div class=grid>{figures}</div></div>",
                label=group.tally.label if facts.classed else "",
                title=title,
                figures=join(_figure(thumb) for thumb in group.thumbs),
            )
        )
    few = len(sheets) > 1 and max(len(group.thumbs) for group in facts.groups) <= 2
    without = sum(not group.thumbs and group.tally.samples > 0 for group in facts.groups)
    more = ""
    if without:
        has = "has" if without == 1 else "have"
        more = f"{some(without, 'class')} {has} no picture here."
    return markup(
        '<section id="pictures"><h2>Samples</h2><p id=chosen hidden><button type=button id=all>'
        '</button></p><div class="{kind}">{sheets}</div><p class=quiet>{more}</p></section>',
        kind="few" if few else "sheets",
        sheets=join(sheets),
        more=more,
    )


def _figure(thumb: Thumb) -> Html:
    title = f"record {thumb.record}" + (f", {thumb.words}" if thumb.words else "")
    return markup(
        "<figure>{image}<figcaption>#{record}</figcaption></figure>",
        image=_image(thumb, f"{title}, {thumb.path}" if thumb.path else title),
        record=thumb.record,
    )


def _image(thumb: Thumb, title: str) -> Html:
    return markup(
        '<img src="{uri}" width="{w}" height="{h}" alt="{title}" title="{title}" '
        'decoding="async"{tiny}>',
        uri=thumb.uri,
        w=thumb.width,
        h=thumb.height,
        title=title,
        tiny=Html(" class=tiny") if thumb.tiny else Html(""),
    )


def _distributions(facts: Facts) -> Html:
    if not facts.widths.size:
        return Html("")
    sizes = facts.sizes
    charts = []
    if len(sizes) > 1:
        shorter = [min(size) for size, count in sizes for _ in range(count)]
        charts.append(("Shorter side", histogram(np.array(shorter), "pixels")))
        charts.append(("Longer side", histogram(np.maximum(facts.widths, facts.heights), "pixels")))
    if facts.bytes_each.min() != facts.bytes_each.max():
        charts.append(("Bytes a sample", histogram(facts.bytes_each, "bytes")))
    parts = [markup("<div><h3>{n}</h3>{c}</div>", n=name, c=chart) for name, chart in charts]
    if len(sizes) > 1:
        named = ratios(facts.widths, facts.heights)
        rows = [(position, count, text(name)) for position, (name, count) in enumerate(named)]
        parts.append(
            markup(
                "<div><h3>Width : height, nearest</h3>{table}</div>",
                table=bar_table(("Ratio", "Samples", "Share"), rows, facts.widths.size),
            )
        )
    listed = [
        (w * h, count, Html(f"<span class=one>{w:,} &times; {h:,}</span>"))
        for (w, h), count in sizes[:SIZE_ROWS]
    ]
    parts.append(
        markup(
            "<div><h3>Width \u00d7 height</h3>{table}{more}</div>",
            table=bar_table(("Size", "Samples", "Share"), listed, facts.widths.size),
            more=_more(len(sizes) - len(listed), "sizes"),
        )
    )
    words = ""
    if facts.bytes_each.min() == facts.bytes_each.max():
        words = f"Each sample takes {in_bytes(int(facts.bytes_each[0]))}."
    return markup(
        '<section id="sizes"><h2>Sizes</h2><p class=quiet>{words}</p>'
        "<div class=charts>{parts}</div></section>",
        words=words,
        parts=join(parts),
    )


def _copies(facts: Facts) -> Html:
    if not facts.copies:
        return Html("")
    rows = join(
        markup(
            '<tr data-classes="{classes}"><td>{image}</td><td class=n data-v="{n}">{n}</td>'
            '<td class=n data-v="{kinds}">{kinds}</td><td>{members}</td></tr>',
            classes=_classes_of(group.rows),
            image="" if group.rows[0].thumb is None else _image(group.rows[0].thumb, "copies"),
            n=group.samples,
            kinds=group.labels,
            members=join(
                [_member(row) for row in group.rows]
                + ([markup("<li>and more</li>")] if group.samples > MEMBERS else [])
            ),
        )
        for group in facts.copies
    )
    head = [Html("<th></th>"), sortable("Samples", True), sortable("Labels", True)]
    listed, groups, more = len(facts.copies), facts.copy_groups, ""
    if listed < groups:
        more = f" {listed} of {groups:,} groups, those whose labels differ first:"
    return markup(
        '<section id="copies"><h2>Duplicates</h2><p class=quiet>Samples with the same stored bytes '
        "(by their XXH3-64). {extra} could go.{more}</p><div class=scroll><table class=records>"
        "<thead><tr>{head}<th>Records</th></tr></thead><tbody>{rows}</tbody></table></div>"
        "</section>",
        extra=f"{facts.extra_copies:,}",
        more=more,
        head=join(head),
        rows=rows,
    )


def _classes_of(rows: Iterable[Row]) -> str:
    return " ".join(sorted({str(row.label) for row in rows if row.label is not None}))


def _member(row: Row) -> Html:
    return markup(
        "<li>#{record} {words} <span class=path>{path}</span></li>",
        record=row.record,
        words=row.words,
        path=row.path,
    )


def _rows(rows: tuple[Row, ...], total: int, anchor: str, title: str, why: str) -> Html:
    if not rows:
        return Html("")
    body = join(
        markup(
            '<tr data-classes="{classes}"><td>{image}</td><td class=n data-v="{record}">{record}'
            '</td><td data-v="{words}">{words}</td><td data-v="{why}">{why}</td>'
            '<td class=path data-v="{path}">{path}</td></tr>',
            classes=_classes_of([row]),
            image="" if row.thumb is None else _image(row.thumb, f"record {row.record}"),
            record=row.record,
            words=row.words,
            why=row.why,
            path=row.path,
        )
        for row in rows
    )
    return markup(
        '<section id="{anchor}"><h2>{title}</h2><div class=scroll><table class=records><thead><tr>'
        "<th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}</section>",
        anchor=anchor,
        title=title,
        head=join(
            sortable(name, name == "Record") for name in ("Record", "Label", why, "Packed from")
        ),
        body=body,
        more=_more(total - len(rows), "samples"),
    )


def _more(count: int, what: str) -> Html:
    if count <= 0:
        return Html("")
    return markup("<p class=quiet>and {n} more {what}</p>", n=f"{count:,}", what=what)


def _foot(facts: Facts) -> Html:
    return markup(
        "<footer class=quiet><p>Fingerprint {print}. Made by asyncreader {version}: "
        "<code>asyncreader preview PATH --html FILE</code></p></footer>",
        print=facts.fingerprint,
        version=__version__,
    )
