"""Hostile sharded sets: manifests that name other files or explode, shards that are no shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncreader.formats.manifest import NAME

from .corpus import SET, Scratch, Target, attack


def shards(name: str, change: Callable[[Path, Scratch], Any], says: str) -> None:
    """Register what ``change`` does to the folder of a set of three shards."""

    def make(scratch: Scratch) -> Target:
        folder = scratch.copy("shards")
        change(folder, scratch)
        return Target(folder)

    make.__doc__ = f"A sharded dataset: {name.replace('_', ' ')}."
    attack(SET, says, SET, name=f"shards_{name}")(make)


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
shards("out_of_the_folder", named("../../outside/secret.h5"), _NAME)
shards("absolute", named(lambda scratch: scratch.secret_h5), _NAME)
shards("name_with_escapes", named("\x1b[2Jx.h5"), _NAME)
shards("name_is_a_surrogate", named("\ud800.h5"), _NAME)
shards("name_is_a_list", named(["x"]), _NAME)
shards("name_is_another", named("x.h5"), "not as it was written|no such|not there")
shards("nested_manifest", written(lambda text: b"[" * 300_000), "not JSON|no table of shards")
shards(
    "manifest_of_numbers",
    written(lambda text: b"[" + b"0," * (60 << 20) + b"0]"),
    "no table of shards",
)
shards(
    "manifest_of_lists",
    written(lambda text: b"[" + b"[]," * (40 << 20) + b"0]"),
    "no table of shards",
)
shards(
    "count_of_400_digits",
    written(lambda text: text.replace(b'"count": 6', b'"count": ' + b"9" * 400)),
    "makes no sense|count|not as",
)
shards(
    "manifest_is_a_pipe",
    replaced(lambda path, scratch: os.mkfifo(path), NAME),
    "not a regular file",
)
shards(
    "manifest_is_endless",
    replaced(lambda path, scratch: path.symlink_to("/dev/zero"), NAME),
    "not a regular file",
)
shards(
    "manifest_is_another_file",
    replaced(lambda path, scratch: path.symlink_to(scratch.secret), NAME),
    "not JSON|no table",
)
shards("shard_is_a_pipe", replaced(lambda path, scratch: os.mkfifo(path)), "regular|size|shard")
shards(
    "shard_is_another_file",
    replaced(lambda path, scratch: path.symlink_to(scratch.secret_h5)),
    "shard|size",
)
shards("shard_is_a_folder", replaced(lambda path, scratch: path.mkdir()), "shard|regular|size")
