"""Hostile sharded sets: manifests that name other files or explode, shards that are no shards."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncreader.formats.manifest import NAME

from .corpus import SET, Scratch, Target, family


def changed(scratch: Scratch, change: Callable[[Path, Scratch], Any]) -> Target:
    """The folder of a set of three shards, changed."""
    folder = scratch.copy("shards")
    change(folder, scratch)
    return Target(folder)


def named(value: Any) -> Callable[[Path, Scratch], Any]:
    """Another name for the first shard."""

    def change(folder: Path, scratch: Scratch) -> None:
        manifest = json.loads((folder / NAME).read_text())
        manifest["shards"][0][0] = value(scratch) if callable(value) else value
        (folder / NAME).write_text(json.dumps(manifest))

    return change


def written(text: Callable[[bytes], bytes]) -> Callable[[Path, Scratch], Any]:
    """Another text of the manifest."""
    return lambda folder, scratch: (folder / NAME).write_bytes(text((folder / NAME).read_bytes()))


def replaced(
    how: Callable[[Path, Scratch], Any], what: str = "*.h5"
) -> Callable[[Path, Scratch], Any]:
    """Something else instead of the first shard, or of the manifest."""

    def change(folder: Path, scratch: Scratch) -> None:
        first = sorted(folder.glob(what))[0]
        first.unlink()
        how(first, scratch)

    return change


_NAME = "makes no sense: its name is not a plain name of a file next to the manifest"
TABLE, REGULAR = "no table of shards", "not a regular file"
family("A sharded dataset", "shards_", changed, {
    "out_of_the_folder": (_NAME, named("../../outside/secret.h5")),
    "absolute": (_NAME, named(lambda scratch: scratch.secret_h5)),
    "name_with_escapes": (_NAME, named("\x1b[2Jx.h5")),
    "name_is_a_surrogate": (_NAME, named("\ud800.h5")),
    "name_is_a_list": (_NAME, named(["x"])),
    "name_is_another": ("not as it was written|no such|not there", named("x.h5")),
    "nested_manifest": ("not JSON|no table of shards", written(lambda text: b"[" * 300_000)),
    "manifest_of_numbers": (TABLE, written(lambda text: b"[" + b"0," * (60 << 20) + b"0]")),
    "manifest_of_lists": (TABLE, written(lambda text: b"[" + b"[]," * (40 << 20) + b"0]")),
    "count_of_400_digits": (
        "makes no sense|count|not as",
        written(lambda text: text.replace(b'"count": 6', b'"count": ' + b"9" * 400)),
    ),
    "manifest_is_a_pipe": (REGULAR, replaced(lambda path, scratch: os.mkfifo(path), NAME)),
    "manifest_is_endless": (
        REGULAR, replaced(lambda path, scratch: path.symlink_to("/dev/zero"), NAME)
    ),
    "manifest_is_another_file": (
        "not JSON|no table", replaced(lambda path, scratch: path.symlink_to(scratch.secret), NAME)
    ),
    "shard_is_a_pipe": ("regular|size|shard", replaced(lambda path, scratch: os.mkfifo(path))),
    "shard_is_another_file": (
        "shard|size", replaced(lambda path, scratch: path.symlink_to(scratch.secret_h5))
    ),
    "shard_is_a_folder": ("shard|regular|size", replaced(lambda path, scratch: path.mkdir())),
}, SET, SET)  # fmt: skip
