"""Training recipes: padded crops, mixed rows and smoothed labels, the same for all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import packed, write_hdf5

from asyncreader import AsyncReader, ParamsError

COUNT = 32
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 12, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None] % 5


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("mode", ["zero", "edge", "reflect"])
def test_a_padded_crop(encoding: str, mode: str, tmp_path: Path) -> None:
    """crop_padding puts pixels around a picture: each crop is a part of it, of the picture's own
    size, all places come up, and a label map is cut alike."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), encoding))
    numpy = "constant" if mode == "zero" else mode
    padded = np.pad(DATA, ((0, 0), (2, 2), (2, 2), (0, 0)), numpy)  # type: ignore[call-overload]
    params: dict[str, Any] = {"size": (16, 12), "crop": "random", "crop_padding": 2}
    places = set()
    with AsyncReader(
        path=path, batch_size=8, layout="NHWC", shuffle=True, padding_mode=mode, **params
    ) as reader:
        for _ in range(8):
            for batch in reader:
                for image, record in zip(batch.data, batch.indices, strict=True):
                    found = [
                        (top, left)
                        for top in range(5)
                        for left in range(5)
                        if (padded[record, top : top + 16, left : left + 12] == image).all()
                    ]
                    places.update(found)
                    assert found
    assert len(places) == 25
    both: Any = {"image": DATA, "mask": DATA[..., :1].astype(np.int32)}
    with AsyncReader(
        data=both, data_field=["image", "mask"], batch_size=8, padding_mode=mode, **params
    ) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.data[0][:, :1], batch.data[1])


def test_ranges_of_a_random_resized_crop() -> None:
    """crop_area and crop_aspect say which parts of a picture come up."""
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8), (COUNT, 64, 64))
    image = np.stack([ramp, ramp.transpose(0, 2, 1), ramp * 0], axis=3)
    with AsyncReader(
        data=image, batch_size=COUNT, size=(64, 64), layout="NHWC", crop="random-resized",
        crop_area=(0.2, 0.3), crop_aspect=(2, 2.5), interpolation="nearest",
    ) as reader:  # fmt: skip
        for _ in range(5):
            data = next(iter(reader)).data.astype(int)
            wide, high = (np.ptp(data[..., c], axis=(1, 2)) + 1 for c in (0, 1))
            assert ((wide / high > 1.8) & (wide / high < 2.7)).all()
            assert ((wide * high / 4096 > 0.17) & (wide * high / 4096 < 0.33)).all()


@pytest.mark.parametrize(
    "params",
    [
        {"crop_padding": 4},
        {"crop_padding": 4, "size": (16, 12), "crop": "random-resized"},
        {"crop_area": (0.5, 1), "size": (16, 12), "crop": "random"},
        {"crop_aspect": (1, 1), "size": (16, 12)},
        {"padding_mode": "edge", "size": (16, 12), "crop": "random"},
    ],
)
def test_crops_that_do_not_go_together(params: dict[str, Any]) -> None:
    """A parameter of another crop is a ParamsError that names it."""
    with pytest.raises(ParamsError, match=next(iter(params)) + " goes with"):
        AsyncReader(data=DATA, **params)
