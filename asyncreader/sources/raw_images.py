"""Raw images that are not one plain row each: of different shapes, or with reversed channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParamsError
from ..pixels.transform import Fill
from ..stats import Meter
from .base import Array, ExtentSource, RowError, RowPlan

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]


class RawImages(ExtentSource):
    """Byte ranges that hold pixels. Set after construction, before use:

    ``shapes``: int64 (N, 3), each sample's in stored axis order; None: all of spec.stored.shape.
    ``bgr``: the channels lie as blue, green, red, and are served as red, green, blue.
    """

    shapes: Int64 | None = None
    bgr: bool = False

    def values(self, data: UInt8, record: int) -> Array:
        """A sample's pixels in stored axis order, from its bytes."""
        stored = self.spec.stored
        shape = stored.shape if self.shapes is None else tuple(self.shapes[record].tolist())
        assert shape is not None
        pixels: Array = data.view(stored.dtype).reshape(shape)
        if self.bgr:
            assert stored.axes is not None
            pixels = np.flip(pixels, stored.axes.index("C"))
        # inside a value numbers may begin anywhere
        return pixels if pixels.flags.aligned else pixels.copy()

    def picture_size(self, index: int) -> tuple[int, int]:
        axes = self.spec.stored.axes
        if self.shapes is None or axes is None:
            return super().picture_size(index)
        shape = self.shapes[index].tolist()
        return shape[axes.index("H")], shape[axes.index("W")]

    def sample_pixels(self, index: int) -> Array:
        return self.values(np.frombuffer(self.sample_bytes(index), np.uint8), index)

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        if fill.mode == "copy" and self._planes() > 1:
            self._copy_planes(plan, out)
        else:
            self._put(plan, fill, out)
        return ()

    def in_memory(self, size: int) -> None:
        return None  # rows may be turned about

    def _planes(self) -> int:
        """Channels, where each lies in one piece and a row is all of them in reverse."""
        stored = self.spec.stored
        if not self.bgr or stored.axes != "CHW" or stored.shape is None:
            return 0
        return stored.shape[0]

    def _copy_planes(self, plan: RowPlan, out: Array) -> None:
        """Rows as they are but for the order of their channel planes: still one gather."""
        planes = self._planes()
        size = self._row_bytes() // planes
        steps = np.arange(planes, dtype=np.int64)
        offsets = self.offsets(plan.records)[:, None] + steps[::-1] * size
        rows = plan.rows[:, None] * planes + steps
        self.store.gather(offsets.reshape(-1), size, out.ctypes.data, rows.reshape(-1))

    def _put(self, plan: RowPlan, fill: Fill, out: Array) -> None:
        crops, flips = fill.draws(plan.keys)
        offsets = self.offsets(plan.records)
        sizes: Any = self._sizes
        if not isinstance(sizes, int):
            self.store.will_need(offsets, sizes[plan.records])
        for i, (offset, record, row) in enumerate(
            zip(offsets.tolist(), plan.records.tolist(), plan.rows.tolist(), strict=True)
        ):
            try:
                fill.put(
                    self.values(self.store.view(offset, self.length(record)), record),
                    None if crops is None else crops[i],
                    flips is not None and bool(flips[i]),
                    out[row, ...],
                )
            except ParamsError as exc:
                exc.index = record
                raise
