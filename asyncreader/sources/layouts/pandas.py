"""pandas' frames in HDF5 (to_hdf): their columns of numbers as rows, in both of its formats."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ParamsError
from ...pixels.numbers import is_number, members_of
from ...system.late import h5py
from ...system.text import times
from ..fields import SetIndex
from .hdf5_data import Hdf5Set, index_data
from .hdf5_sparse import index_named_columns, is_group

#: What says that a group is a frame or a series.
_TYPE = "pandas_type"
#: Blocks of a frame that are looked for.
_BLOCKS = 64


def is_pandas(found: Hdf5Set) -> bool:
    """Whether what is asked for is a frame; where nothing is, whether the file holds just one."""
    return _frame(found) is not None


def _frame(found: Hdf5Set) -> str | None:
    asked = found.fields.data
    if not found.unnamed:
        return asked if is_group(found, asked) and _is_frame(found, asked) else None
    frames = [name for name in found.groups() if _is_frame(found, name)]
    return frames[0] if len(frames) == 1 else None


def _is_frame(found: Hdf5Set, name: str) -> bool:
    return found.h5.plain_text(name, _TYPE) is not None


def index_pandas(found: Hdf5Set) -> SetIndex:
    """The columns of a frame that are of one dtype, which is how pandas stores them together; of
    several dtypes ParamsError names the parts."""
    frame = _frame(found)
    assert frame is not None
    parts = _parts(found, frame)
    if len(parts) != 1:
        listed = ", ".join(f"{name} ({words})" for name, words in parts.items())
        table = f"{frame}/table"
        hint = "name one with data_field, or several as a list"
        if any(name.startswith(f"{table}.") for name in parts):
            hint += f'; columns that are members by themselves come together as "{table}" with '
            hint += "members=[...]"
        raise ParamsError(
            f"the columns of {frame!r} are of several dtypes, which pandas stores apart",
            found=listed or "no columns of numbers",
            hint=hint,
        )
    (data,) = parts
    fields = replace(found.fields, data=data)
    if found.unnamed:
        named = found.named("pandas", fields)
    else:
        named = replace(found, layout=f"pandas ({data})", fields=fields)
    items = f"{data.removesuffix('_values')}_items"
    fixed = data.endswith("_values") and found.h5.reach(items) is not None
    index = index_named_columns(named, [items]) if fixed else index_data(named)
    (field,) = index.fields.values()
    return replace(index, fields={data if found.unnamed else found.fields.data: field})


def _parts(found: Hdf5Set, frame: str) -> dict[str, str]:
    """What the columns of numbers of a frame are stored in, with shape and dtype in words."""
    h5, parts = found.h5, dict[str, str]()
    for name in ("values", *(f"block{number}_values" for number in range(_BLOCKS))):
        held = h5.reach(f"{frame}/{name}")
        data = h5.find(f"{frame}/{name}") if isinstance(held, h5py.h5d.DatasetID) else None
        if data is not None and data.dtype.kind in "buif" and data.ndim:
            parts[data.name] = f"{times(data.shape)} {data.dtype}"
    if h5.reach(f"{frame}/table") is not None:
        table = found.dataset(f"{frame}/table", records=True)
        for one in members_of(table.values_dtype()):
            if one.name != "index" and is_number(one.dtype):
                shape = times((*table.shape, *one.shape))
                parts[f"{frame}/table.{one.name}"] = f"{shape} {one.dtype}"
    return parts
