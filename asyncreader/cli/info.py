"""``asyncreader info``: what a set holds."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import shown
from ..system.text import counts_in_words, in_bytes, some, times
from .hints import hints_for
from .options import json_option, param_option, set_argument, set_of
from .terminal import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..dataset import Dataset
    from ..pixels.specs import SampleSpec
    from ..sampling.patches import Patches
    from ..sources import OpenSet, SetIndex, Source
    from ..sources.base import FieldIndex

#: Classes that are shown one by one; --json has them all.
CLASSES_SHOWN: Final = 20

#: Samples whose restart markers are looked at, and bytes after which no more are read.
_LOOKED_AT: Final = 200
_MOST_READ: Final = 64 << 20
#: Samples whose lengths are looked at.
_LENGTHS_READ: Final = 1 << 24


@click.command(epilog="\b\nExample:\n  asyncreader info train.h5")
@set_argument
@param_option
@json_option
def info(path: str | None, params: dict[str, Any], as_json: bool) -> None:
    """Describe the dataset PATH: a file, or a quoted glob of files; or those of -p mix={...}.
    A hint says what to pass with -p where volumes could be served in patches, values as samples of
    different length, or a column of cells as labels.
    Of a dataset of JPEGs on a disk up to 200 are looked at: how many have restart markers, so that
    a part can be decoded alone."""
    from ..dataset import look_into

    with look_into(set_of(path, params)) as ds:
        facts = _describe(ds)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


def _describe(ds: Dataset) -> dict[str, Any]:
    """Facts of the set; with a subset its labels are shown."""
    from ..sources.labels import label_names
    from ..sources.splits import split_counts
    from ..tools.hdf5_look import columns_of_cells

    source, whole = ds.source, ds.params.subset is None
    facts, spec = source.facts, source.spec
    columns = columns_of_cells(source.first)
    return {
        "path": facts.path,
        "container": facts.container,
        "layout": facts.layout,
        "format_version": None if facts.meta is None else facts.meta.version,
        "shards": None if facts.ends is None else len(facts.ends),
        "count": facts.count,
        "sets": _describe_sets(source),
        "subset": None if whole else len(ds),
        "field": source.names[0] if source.named else None,
        "shape": None if spec.shape is None else list(spec.shape),
        "axes": spec.axes,
        "dtype": _dtype(spec),
        "stored_values": _stored_values(source.index.first),
        "encoding": spec.encoding,
        "chunk": source.first.index.chunk,
        "compression": source.first.index.compression,
        "fields": _describe_fields(source),
        "columns": [one._asdict() for one in columns],
        "labels": _describe_labels(ds),
        "label_names": list(label_names(source, ds.params.labels_field)) or None,
        "classes": None if facts.classes is None else list(facts.classes),
        "splits": split_counts(source.splits, source.facts.count),
        "episodes": _describe_episodes(source),
        "patches": _describe_patches(ds),
        "lengths": _describe_lengths(source),
        "restarts": _describe_restarts(source.first),
        "checksums": bool(source.checked),
        "fingerprint": ds.fingerprint,
        "bytes_on_disk": facts.size_on_disk,
        "bytes_a_sample": _bytes_each(source.index),
        "hints": hints_for(ds, columns),
    }


def _describe_sets(source: OpenSet) -> list[dict[str, Any]] | None:
    """The sets of a mix."""
    from ..sources import MixedSet

    if not isinstance(source, MixedSet):
        return None
    return [
        {"path": one.facts.path, "ratio": ratio, "count": one.facts.count}
        for one, ratio in zip(source.sets, source.index.ratios, strict=True)
    ]


def _dtype(spec: SampleSpec) -> str:
    """The dtype of stored samples; the members of structured rows, or the one that is served."""
    from ..pixels.numbers import listed

    return str(spec.dtype) if spec.dtype.names is None else listed(spec.dtype, spec.members)


def _describe_episodes(source: OpenSet) -> dict[str, Any] | None:
    """What says where episodes end, how many and how long they are, and episodes in each split."""
    import numpy as np

    if source.windows is None:
        return None
    episodes = source.windows.episodes
    lengths = episodes.lengths
    return {
        "known_by": episodes.kind,
        "count": lengths.size,
        "empty": episodes.empty,
        "words": episodes.words,
        "rows": [int(lengths.min()), float(np.median(lengths)), int(lengths.max())],
        "splits": {name: numbers.size for name, numbers in episodes.splits.items()},
        "samples": source.windows.population,
    }


def _describe_lengths(source: OpenSet) -> dict[str, list[float]]:
    """Least, median and greatest length of the samples of fields where they differ: of all, or of
    the first so many."""
    import numpy as np

    found = {}
    for name, field in source.index.fields.items():
        if field.offsets is not None:
            lengths = np.diff(field.offsets[: _LENGTHS_READ + 1].astype(np.int64))
            found[name] = [int(lengths.min()), float(np.median(lengths)), int(lengths.max())]
    return found


def _episodes_in_words(found: dict[str, Any] | None) -> dict[str, str]:
    if found is None:
        return {}
    empty = f", {found['empty']:,} empty ones left out" if found["empty"] else ""
    return {
        "episodes": f"{found['words']}{empty} ({shown(found['known_by'])})",
        "episode splits": shown(counts_in_words(found["splits"])),
        "windows": some(found["samples"], "sample"),
    }


def _describe_patches(ds: Dataset) -> dict[str, Any] | None:
    """Of patches: how many, where, of which volumes, and how many chunks of each field one touches
    on average; None of fields that have no chunks."""
    found = ds.source.patches
    if found is None:
        return None
    return {
        "count": len(ds),
        "shape": list(found.volumes.patch),
        "at": found.at,
        "step": list(found.step) if found.at == "grid" else None,
        "volumes": found.volumes.count,
        "words": found.volumes.words,
        "chunks": {name: _touched(found, one) for name, one in ds.source.index.fields.items()},
    }


def _touched(patches: Patches, field: FieldIndex) -> float | None:
    """The mean number of chunks of a field that a patch touches."""
    import math

    import numpy as np

    from ..sources.hdf5.chunk_patches import ChunkVolumes
    from ..sources.sets.joined import Joined

    storage, found = field.storage, []
    parts = storage.files if isinstance(storage, Joined) else None
    files = [one.first.storage for one in parts] if isinstance(parts, tuple) else [storage]
    for run, one in enumerate(files):  # the volumes of a file are of one extent
        if not isinstance(one, ChunkVolumes):
            return None
        volumes, grid = one.stored.volumes, one.grid
        cut = (*volumes.axes, volumes.sample_axis)
        across = math.prod(n for axis, n in enumerate(grid.grid) if axis not in cut)
        found.append(across * patches.touched(run, [grid.chunk[axis] for axis in volumes.axes]))
    return float(np.average(found, weights=patches.shares))


def _patches_in_words(found: dict[str, Any] | None) -> dict[str, str]:
    if found is None:
        return {}
    where = {
        "random": "one at random of each volume and epoch, or epoch_samples",
        "grid": f"a grid, {times(found['step'] or ())} apart",
        "center": "the centre of each volume",
    }[found["at"]]
    touched = found["chunks"].items()
    return {
        "volumes": found["words"],
        "patches": f"{found['count']:,} of {times(found['shape'])}: {where}",
        **{
            f"chunks of {shown(name)}": f"{mean:,.4g} touched by a patch on average"
            for name, mean in touched
            if mean is not None
        },
    }


def _bytes_each(index: SetIndex) -> float | None:
    """Mean bytes of a sample of the first field as it is stored, whatever else the file holds.
    None where only opening each file would tell."""
    import numpy as np

    from ..sources.base import row_size
    from ..sources.extents import Extents
    from ..sources.hdf5.chunks import Chunks
    from ..sources.hdf5.sparse import SparseRows
    from ..sources.sets.joined import Joined

    facts, storage, spec = index.facts, index.first.storage, index.first.spec
    offsets = index.first.offsets
    if offsets is not None:
        return int(offsets[-1]) * row_size(spec.shape or (), spec.dtype) / facts.count
    if isinstance(storage, Extents):
        return float(np.mean(storage.sizes))
    if isinstance(storage, Chunks):
        return float(storage.grid.sizes.sum() / facts.count)
    if isinstance(storage, SparseRows):
        items = sum(one.dtype.itemsize for one in storage.numbers)
        return storage.count * items / facts.count
    if isinstance(storage, Joined):
        if not isinstance(storage.files, tuple):
            return None if facts.fields else facts.size_on_disk / facts.count
        parts = [(_bytes_each(one), one.facts.count) for one in storage.files]
        known = [size * count for size, count in parts if size is not None]
        return sum(known) / facts.count if len(known) == len(parts) else None
    return None if spec.shape is None else row_size(spec.shape, spec.dtype)


def _stored_values(field: FieldIndex) -> float | None:
    """The part of the values of sparse rows that is stored; None of others."""
    from ..sources.hdf5.sparse import SparseRows
    from ..sources.sets.joined import Joined

    storage = field.storage
    if isinstance(storage, SparseRows):
        return storage.count / ((storage.indptr.size - 1) * storage.width)
    if not isinstance(storage, Joined) or not isinstance(storage.files, tuple):
        return None
    parts = [(_stored_values(one.first), one.facts.count) for one in storage.files]
    known = [part * count for part, count in parts if part is not None]
    if len(known) < len(parts):
        return None
    return sum(known) / sum(count for _, count in parts)


def _describe_fields(source: OpenSet) -> list[dict[str, Any]]:
    """The other fields: those that were asked for, else those that the set lists."""
    if not source.named:
        return [asdict(field) for field in source.facts.fields]
    named = zip(source.names[1:], source.parts[1:], strict=True)
    return [
        {
            "name": name,
            "encoding": part.spec.encoding,
            "shape": part.spec.shape,
            "channels": part.spec.image_shape()[2],
            "dtype": _dtype(part.spec),
            "stored_values": _stored_values(part.index),
        }
        for name, part in named
    ]


def _describe_restarts(source: Source) -> dict[str, int] | None:
    """Of some samples, spread over the set: how many were looked at, are JPEGs, and can be cut
    (pixels/jpeg_cut.py). None where there is none to look at, or where that takes requests."""
    import numpy as np

    from ..errors import AsyncReaderError
    from ..pixels import codec
    from ..sources import Inspector

    facts, spec = source.facts, source.spec
    if not spec.encoded or spec.encoding == "png" or facts.remote:
        return None
    looked = Inspector(source)
    looked_at = jpegs = can_be_cut = size = 0
    for record in np.unique(np.linspace(0, facts.count - 1, _LOOKED_AT).astype(np.int64)).tolist():
        if size > _MOST_READ:
            break
        looked_at += 1
        with contextlib.suppress(AsyncReaderError):  # a damaged sample: verify names it
            data = looked.bytes(record)
            size += len(data)
            header = codec.read_plain_header(data) or codec.read_header(data)
            jpegs += header.kind == "jpeg"
            can_be_cut += header.facts is not None
    return {"looked_at": looked_at, "jpegs": jpegs, "can_be_cut": can_be_cut}


def _describe_labels(ds: Dataset) -> dict[str, Any] | list[dict[str, Any]] | None:
    """Of labels, or of each of several: shape, dtype and range; and samples by class or value where
    there is one whole number. With a subset its labels alone."""
    import numpy as np

    from ..sources.labels import apart

    table, classes = ds.source.table, ds.source.facts.classes
    if table is None:
        return None
    names, whole = table.dtype.names, ds.params.subset is None
    if names is None:
        return _describe_one(table if whole else ds.labels, classes)
    columns: Any = apart(np.asarray(table)) if whole else ds.labels
    # the classes are those of the first
    known = (classes, *(None for _ in names[1:]))
    found = zip(names, columns, known, strict=True)
    return [{"name": name, **_describe_one(one, of)} for name, one, of in found]


def _describe_one(labels: Any, classes: Sequence[str] | None) -> dict[str, Any]:
    from ..tools.label_stats import count_labels, ends

    low, high = ends(labels)
    counts = count_labels(labels, classes)
    return {
        "shape": list(labels.shape),
        "dtype": labels.dtype.name,
        "min": low,
        "max": high,
        "counts": None
        if counts is None
        else [{"label": c.label, "class": c.name, "samples": c.samples} for c in counts],
    }


def _labels_in_words(labels: dict[str, Any], classes: list[str] | None) -> str:
    ends, counts = (labels["min"], labels["max"]), labels["counts"]
    words = f"{times(labels['shape'])} {labels['dtype']}, "
    words += "some not finite" if None in ends else f"{ends[0]:.6g} to {ends[1]:.6g}"
    if classes:
        return f"{words}, {some(len(classes), 'class')}"
    return words if counts is None else f"{words}, {some(len(counts), 'different value')}"


def _restarts_in_words(found: dict[str, int] | None) -> str | None:
    if found is None or not found["jpegs"]:
        return None
    jpegs = some(found["jpegs"], "JPEG")
    return (
        f"{found['can_be_cut']} of {jpegs} can be decoded in part ({found['looked_at']} looked at)"
    )


def _sparsity(stored: float | None) -> str | None:
    return None if stored is None else f"{stored:.2%} of all (sparse rows)"


def _each_label(facts: dict[str, Any]) -> list[dict[str, Any]]:
    labels = facts["labels"]
    return labels if isinstance(labels, list) else [] if labels is None else [labels]


def _label_rows(facts: dict[str, Any]) -> dict[str, str]:
    words = {"labels": "read without labels"} if facts["labels"] is None else {}
    for number, one in enumerate(_each_label(facts)):
        name = f"labels {shown(one['name'])}" if "name" in one else "labels"
        words[name] = _labels_in_words(one, facts["classes"] if number == 0 else None)
    return words


def _print_facts(facts: dict[str, Any]) -> None:
    count, each, chosen = facts["count"], facts["bytes_a_sample"], facts["subset"]
    shape = "differs" if facts["shape"] is None else times(facts["shape"])
    if facts["shape"] is not None and facts["axes"]:
        shape += f" ({', '.join(facts['axes'])})"
    rows = {
        "path": shown(facts["path"]),
        "format": f"{facts['container']}: {shown(facts['layout'])}",
        "count": None
        if facts["patches"] is not None
        else some(count, "sample" if facts["episodes"] is None else "row"),
        **{
            f"set {number}": f"{shown(one['path'])}: {one['ratio']:.6g} of a batch, "
            f"{some(one['count'], 'sample')}"
            for number, one in enumerate(facts["sets"] or ())
        },
        **_episodes_in_words(facts["episodes"]),
        **_patches_in_words(facts["patches"]),
        **({} if chosen is None else {"subset": f"{some(chosen, 'sample')}: labels are of these"}),
        "field": facts["field"] and shown(facts["field"]),
        "shape": shape,
        "dtype": facts["dtype"],
        **{
            f"length of {shown(name)}": f"{low:,} to {high:,} values, median {middle:,.6g}"
            for name, (low, middle, high) in facts["lengths"].items()
        },
        "stored values": _sparsity(facts["stored_values"]),
        "encoding": facts["encoding"],
        "chunks": facts["chunk"]
        and facts["patches"] is None
        and f"{some(facts['chunk'], 'sample')} each",
        "compression": facts["compression"],
        **{
            f"field {shown(field['name'])}": (
                f"{'differs' if field['shape'] is None else times(field['shape'])} "
                f"{field['dtype']}, {_sparsity(field.get('stored_values')) or field['encoding']}"
            )
            for field in facts["fields"]
        },
        **_label_rows(facts),
        "label names": facts["label_names"] and shown(", ".join(facts["label_names"])),
        **{shown(one["name"]): one["words"] for one in facts["columns"]},
        "splits": shown(counts_in_words(facts["splits"])),
        "restart markers": _restarts_in_words(facts["restarts"]),
        "checksums": "XXH3-64 of each sample"
        if facts["checksums"]
        else "not recorded: served unverified",
        "fingerprint": facts["fingerprint"],
        "on disk": in_bytes(facts["bytes_on_disk"]),
        "a sample": each
        and f"{in_bytes(each)} {'as stored' if facts['patches'] is None else 'as served'}",
        "hint": "\n".join(facts["hints"]),
    }
    print_table((name, value) for name, value in rows.items() if value)
    several = _each_label(facts)
    if several and several[0]["counts"]:
        click.echo()
        _print_counts(several[0]["counts"], bool(facts["classes"]))


def _print_counts(counts: list[dict[str, Any]], named: bool) -> None:
    """The samples of each label; ``named``: labels have classes."""
    print_table(
        (
            (str(row["label"]), f"{row['samples']:,}", *([shown(row["class"] or "?")] * named))
            for row in counts[:CLASSES_SHOWN]
        ),
        ("label", "samples", *(["class"] * named)),
    )
    if len(counts) > CLASSES_SHOWN:
        click.echo(f"... and {len(counts) - CLASSES_SHOWN:,} more (--json lists all)")
