"""Small sharded sets for tests, written without the converter: shards of any size."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fakes import Packed, packed, write_hdf5, write_lmdb

from asyncreader import FormatError
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import NAME, Common, Manifest, Shard, file_digest

SIZES = (7, 1, 9, 4, 2)


def cut(content: Packed, sizes: Sequence[int]) -> list[Packed]:
    """``content`` in parts of so many samples."""
    parts, at = [], 0
    for size in sizes:
        rows = slice(at, at + size)
        labels = None if content.labels is None else content.labels[rows]
        parts.append(
            dataclasses.replace(
                content,
                samples=content.samples[rows],
                labels=labels,
                paths=content.paths[rows],
                fields={
                    name: dataclasses.replace(other, samples=other.samples[rows])
                    for name, other in content.fields.items()
                },
            )
        )
        at += size
    assert at == len(content.samples)
    return parts


def write_set(
    folder: Path,
    images: Sequence[np.ndarray],
    sizes: Sequence[int] = SIZES,
    *,
    container: str = "hdf5",
    encoding: str = "raw",
    chunk: int | None = None,
    content: Packed | None = None,
    **options: Any,
) -> Path:
    """A folder of shards of ``sizes`` samples; ``chunk``: gzip, so many samples to a chunk."""
    folder.mkdir()
    content = content or packed(images, encoding, **options)
    shards = []
    for number, part in enumerate(cut(content, sizes)):
        path = folder / f"shard-{number:05d}-of-{len(sizes):05d}.h5"
        if container == "lmdb":
            path = path.with_suffix(".lmdb")
            write_lmdb(folder / "one", part)
            shutil.move(folder / "one" / "data.mdb", path)
            shutil.rmtree(folder / "one")
        elif chunk is not None:
            assert part.shape is not None
            step = min(chunk, len(part.samples))
            write_hdf5(path, part, chunks=(step, *part.shape), compression="gzip")
        else:
            write_hdf5(path, part)
        digests = part.meta(offsets=False).digests
        size, xxh3 = file_digest(str(path))
        shards.append(
            Shard(
                path.name,
                len(part.samples),
                size,
                xxh3,
                digests[fmt.CHECKSUMS],
                digests.get(fmt.LABELS),
                tuple(digests[f"{name}.checksums"] for name in part.fields),
            )
        )
    meta = content.meta(offsets=False)
    common = Common(
        container=container,
        encoding=content.encoding,
        shape=content.shape,
        channels=content.channels,
        label_kind=meta.label_kind,
        label_dtype=meta.label_dtype,
        label_width=1 if content.labels is None else content.labels.shape[1],
        classes=content.classes,
        chunk=chunk,
        compression=None if chunk is None else "gzip",
        data_bytes=sum(map(len, content.samples)),
        fields=meta.fields,
        field_bytes=tuple(sum(map(len, other.samples)) for other in content.fields.values()),
    )
    tables = (fmt.CHECKSUMS, fmt.LABELS, *(f"{name}.checksums" for name in content.fields))
    digests = {name: meta.digests[name] for name in tables if name in meta.digests}
    whole = Manifest.of(common, shards, digests)
    (folder / NAME).write_text(whole.to_json())
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], mend: bool = True) -> Path:
    """Change the manifest's facts, and with ``mend`` give it the digest that they have now."""
    file = folder / NAME
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))
    if mend:
        try:
            Manifest.from_json(file.read_bytes(), "x")
        except FormatError as error:
            if "as it was written" in error.what:
                facts["digest"] = str(error.found).split()[-1]
                file.write_text(json.dumps(facts))
    return folder
