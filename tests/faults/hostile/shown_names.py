"""Hostile names, shown by ``preview``: classes and paths that are markup, script or escapes."""

import itertools
import os

import h5py
import numpy as np

from .corpus import NONE, SET, Scratch, Target, attack, family, jpeg
from .hdf5.tools import N, with_classes

SHOWN = ("page", "preview", "batch", *SET)

#: What a page, a terminal or a font may choke on; none holds a slash, so that folders can have it.
NAMES = {
    "script": "<script>alert(1)<",
    "end_of_script": "<\u2044script><script>fetch('x')",
    "image": "\"><img src=x onerror='alert(1)'>",
    "handler": "' onmouseover=alert(1) x='",
    "comment": "--><!--",
    "style": "<style>*{display:none}",
    "frame": "<iframe srcdoc='<b onclick=alert(1)>'>",
    "entity": "&lt;script&gt;&#x3c;b&#62;&",
    "template": "{name}{0}{__class__}%s%n${x}{{7*7}}",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x1b[31m",
    "controls": "a\r\nb\tc\x7f\x9bd\x85e",
    "separators": "\u2028\u2029\ufeff\u200b",
    "right_to_left": "\u202egpj.exe\u2066",
    "long": "W" * 250,
    "combining": "a" + "\u0301" * 120,
    "emoji": "\U0001f9d1\u200d\U0001f4bb" * 12,
    "quotes": "`'\"\\",
    "formula": "=cmd|' calc'!A0",
    "dash": "--html=x",
}


def packed(scratch: Scratch, text: str, container: str) -> Target:
    """A packed set with this class, and with paths that hold it."""
    from converters import convert

    folder = scratch.folder / "pictures"
    for number in range(4):
        of_class = folder / (text if number % 2 else "plain")
        of_class.mkdir(parents=True, exist_ok=True)
        # some twice, so that the tables of duplicates name them, too
        path = of_class / f"{number}{text[:60]}.jpg"
        path.write_bytes(jpeg(number % 2))
    convert(folder, scratch.folder / f"set.{container}", encoding="jpeg", jobs=1)
    return Target(scratch.folder / f"set.{container}")


CONTAINERS = dict(zip(NAMES, itertools.cycle(("h5", "lmdb")), strict=False))
SETS = {f"{name}_{kind}": (None, NAMES[name], kind) for name, kind in CONTAINERS.items()}
family("Classes and paths of a dataset", "names_", packed, SETS, ways=SHOWN)


CLASSES = {
    "end_tags": b"</script></style></title><script src=//evil/x.js></script>",
    "markup_without_end": b"<a href='javascript:alert(1)",
    "no_utf_8": b"\xff\xfe<b>\xc0\xaf",
    "megabytes": b"<b>" * (1 << 18),
    "surrogates": "\ud83d".encode("utf-8", "surrogatepass"),
}
ROWS = {name: (None, text + b"0", text + b"1") for name, text in CLASSES.items()}
family("Classes that no folder could have", "classes_of_", with_classes, ROWS, ways=SHOWN)


@attack(NONE, "", SHOWN)
def file_of_markup(scratch: Scratch) -> Target:
    """The file's own name and the data set's are markup."""
    name = "<img src=x onerror=alert(1)>\x1b[2J.h5"
    with h5py.File(os.fsencode(scratch.folder / name), "w") as file:
        file["<b onclick=x>"] = np.zeros((N, 8, 8, 3), np.uint8)
    return Target(scratch.folder / name, {"data_field": "<b onclick=x>"})
