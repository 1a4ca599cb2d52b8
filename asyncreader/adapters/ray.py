"""Ray: a datasource for Ray Data over a packed set. Ray Train needs no adapter: ``rank="auto"``.

In a Ray Train worker ``AsyncReader(..., rank="auto", world_size="auto")`` takes both from Ray's
context, and keeps its order and its resuming; Ray Data is for pipelines that need neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

import numpy as np

from ..batch import flat_labels
from ..errors import ParamsError
from ..params.declare import declared
from ..params.keywords import ReaderKeywords
from ..params.parse import given_params
from ..params.reader import Given, Order, ReaderParams
from ..reader import AsyncReader, Shape
from ..system.array_types import Array
from ..system.late import need
from .base import can_be_invalid, marked

if TYPE_CHECKING:
    from ray.data import Datasource

#: Parameters that say in which order samples come, or where they go: Ray Data says so itself.
_RAYS_OWN: Final = {
    *("subset", "mix", "data", "labels", "workers", "cuda", "copy"),
    *(name for name in declared(Order) if name != "seed"),
}


def packed_datasource(
    params: Given | None = None, /, **overrides: Unpack[ReaderKeywords]
) -> Datasource:
    """A ``ray.data.Datasource``: ``ray.data.read_datasource(packed_datasource(path="train/"))``.

    ``params``, ``overrides``: as AsyncReader takes them, without those of the order, which Ray Data
    decides; ``batch_size``: rows in a block (256). Each row has ``data`` (as ``layout`` says,
    "NHWC" by default), ``labels`` if there are any (single integers as scalars), and ``index``,
    int64, the record number. With ``on_error="zero"`` rows have ``mask``, False for a zeroed row,
    whose integer labels are -100 (unsigned labels come as int64). A read task serves a run of
    records; all machines must see the dataset under the same path. Rows come in record order only
    with ``ray.data.DataContext.get_current().execution_options.preserve_order = True``.

    Raises what AsyncReader raises, ParamsError for a parameter of the order, and ImportError
    without Ray. A bad sample fails its task, or is left to ``on_error``.
    """
    need("ray.data", "ray")
    given = {"batch_size": 256, "layout": "NHWC", **given_params(params, overrides)}
    own = [name for name in given if name in _RAYS_OWN]
    if own:
        raise ParamsError(
            f"{own[0]} is not for a datasource", hint="Ray Data decides order, shares and epochs"
        )
    with AsyncReader(given, last_batch="pad", world_size=1) as reader:
        _check_single(reader.params)
        # with absolute paths: a worker of Ray Data has a folder of its own
        given = reader.params.given
        shape, dtype = cast(Shape, reader.data_shape), cast(np.dtype[Any], reader.dtype)
        count, block = reader.count, shape[0]
        labels = reader.labels_shape or (block,)
        row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
        row_bytes += 8 * int(np.prod(labels[1:])) + 8
    return _datasource(given, count, block, row_bytes)


def _datasource(given: Mapping[str, object], count: int, block: int, row_bytes: int) -> Datasource:
    """The datasource of a set that is opened with ``given``: ``count`` rows of ``row_bytes``, in
    blocks of ``block``."""
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class PackedSet(Datasource):  # type: ignore[misc, unused-ignore]
        """The set; its tasks share it out in runs of whole blocks."""

        def get_name(self) -> str:
            return "asyncreader"

        def estimate_inmemory_data_size(self) -> int | None:
            return int(count * row_bytes)

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, *_: Any, **__: Any
        ) -> list[Any]:
            blocks = -(-count // block)
            tasks = max(1, min(parallelism, blocks))
            edges = [min(count, n * blocks // tasks * block) for n in range(tasks + 1)]
            return [
                ReadTask(
                    partial(_blocks, given, lo, hi),
                    BlockMetadata(
                        num_rows=hi - lo,
                        size_bytes=(hi - lo) * row_bytes,
                        exec_stats=None,
                        input_files=None,
                    ),
                    per_task_row_limit=per_task_row_limit,
                )
                for lo, hi in itertools.pairwise(edges)
            ]

    return PackedSet()


def _check_single(p: ReaderParams) -> None:
    """ParamsError where a row would have several arrays of data or of labels."""
    if p.field_names is not None:
        raise ParamsError("a datasource serves one field", found=p.data_field)
    if isinstance(p.labels_field, tuple):
        raise ParamsError("a datasource serves one array of labels", found="several")
    if p.views is not None:
        raise ParamsError("a datasource serves one array", found="views")


def _blocks(params: Mapping[str, Any], start: int, stop: int) -> Iterator[Any]:
    """Records ``start`` to ``stop`` as Ray's blocks; runs in a worker of Ray Data."""
    from ray.data.block import BlockAccessor

    with AsyncReader(
        params, subset=slice(start, stop), last_batch="short", epochs=1, copy=True, world_size=1
    ) as reader:
        for batch in reader:
            rows: dict[str, Array]
            rows = {"data": np.ascontiguousarray(batch.data), "index": batch.indices}
            labels = flat_labels(batch.labels)
            if can_be_invalid(reader.params):
                rows["mask"] = batch.mask
                labels = None if labels is None else marked(labels, batch.mask)
            if labels is not None:
                rows["labels"] = np.ascontiguousarray(labels)
            yield BlockAccessor.batch_to_block(rows)
