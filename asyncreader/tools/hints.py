"""What asyncreader info suggests: parameters that serve a dataset in another way."""

from __future__ import annotations

from typing import Final

from ..dataset import Dataset
from ..errors import shown
from ..sources.hdf5.sparse import SparseRows
from ..system.text import times
from .hdf5_look import Column, divided_fields

#: Sides of what may be a volume: the shortest one, how many times as long the longest may be, and
#: the patch that is suggested.
_SHORTEST, _RATIO, _PATCH = 8, 32, 32
#: Values of the smallest volume.
_VOLUME: Final = 32**3


def hints_for(ds: Dataset, columns: list[Column]) -> list[str]:
    """What could be passed besides what was, in words; [] where nothing suggests itself.
    ``columns``: those of cells."""
    source, most = ds.source, ds.params.lengths.most
    found: list[str] = []
    labels = sorted((one for one in columns if one.label), key=lambda one: "class" not in one.words)
    if labels and source.labels is None:
        found.append(f"-p labels_field={shown(labels[0].name)} serves a column as labels")
    plain = source.facts.meta is None and not source.rule.apart
    if plain and not columns and not isinstance(source.index.first.storage, SparseRows):
        found += _of_lengths(ds) or _of_volumes(ds)
    differ = any(one.offsets is not None for one in source.index.fields.values())
    if differ and ds.given.get("max_length") is None and not source.rule.apart:
        longest = max(most.values()) if isinstance(most, dict) else most
        found.append(
            f"samples differ in length: -p max_length={longest} serves all of them whole, "
            "a smaller one cuts the longer ones"
        )
    return found


def _of_lengths(ds: Dataset) -> list[str]:
    """Of values that a table beside them divides among samples."""
    index = ds.source.index
    if index.facts.container != "HDF5" or any(
        one.offsets is not None for one in index.fields.values()
    ):
        return []
    return [
        f"{shown(one.table)} may say where samples begin in {shown(one.values)}: "
        f"-p data_field={shown(one.values)} -p offsets_field={shown(one.table)} "
        f"-p max_length={one.longest} serves them"
        for one in divided_fields(ds.source.first)
    ]


def _of_volumes(ds: Dataset) -> list[str]:
    """Of data sets that are volumes, or one volume, by their shape."""
    spec, count = ds.source.spec, ds.source.facts.count
    shape = spec.shape
    if shape is None or spec.encoded or spec.axes is not None or spec.dtype.names is not None:
        return []
    if len(shape) == 2 and _is_volume((count, *shape)):
        patch = times(min(_PATCH, side) for side in (count, *shape)).replace(" ", "")
        whole = times((count, *shape))
        return [
            f"if it is one volume of {whole}: -p patch={patch} -p sample_axis=null serves patches"
        ]
    if len(shape) in (3, 4) and _is_volume(shape[-3:]):
        patch = times(min(_PATCH, side) for side in shape[-3:]).replace(" ", "")
        whole = ""
        if len(shape) == 3:
            channels = times((count, *shape))
            whole = f"; if it is one volume of {channels}, with -p sample_axis=null"
        return [f"if samples are volumes: -p patch={patch} serves patches of them{whole}"]
    return []


def _is_volume(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape may be a volume, and is large enough to be cut."""
    size = shape[0] * shape[1] * shape[2]
    return min(shape) >= _SHORTEST and max(shape) <= _RATIO * min(shape) and size >= _VOLUME
