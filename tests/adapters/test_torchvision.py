"""Pictures as torchvision makes them: what a model trained there sees here."""

from __future__ import annotations

import pytest

pytest.importorskip("torchvision")
from torchvision_pixels import WAYS, differences


def test_a_model_sees_what_torchvision_shows_it() -> None:
    """The same files, decoded and resized from the same boxes, are torchvision's pixels to a level
    (bicubic: two) and in the mean to 0.05 (0.2 where Pillow resizes, which may take another order);
    evaluation's centre crop, whose box is rounded to other pixels, to 4 levels in the mean; JPEGs
    that are decoded at a smaller scale to 1 level in the mean."""
    found = differences()
    decoded, bilinear, bicubic, image, centre, large = (found[way] for way in WAYS)
    assert decoded[2] == 0
    assert bilinear[0] < 0.05
    assert bilinear[2] <= 1
    assert bicubic[0] < 0.05
    assert bicubic[2] <= 2
    assert image[0] < 0.2
    assert image[2] <= 1
    assert centre[0] < 4
    assert large[0] < 1
