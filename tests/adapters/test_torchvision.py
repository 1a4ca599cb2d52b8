"""Pictures as torchvision makes them: what a model trained there sees here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torchvision_pixels import WAYS, differences, need_torchvision


def test_a_model_sees_what_torchvision_shows_it() -> None:
    """The same files, decoded and resized from the same boxes, are torchvision's pixels to a level
    (bicubic: two) and in the mean to 0.05. Where Pillow resizes, which may resize down first, the
    mean is 0.2, and a few pixels of bicubic are up to 8 levels off. Evaluation's centre crop,
    whose box is rounded to other pixels, is equal to 4 levels in the mean, and JPEGs that are
    decoded at a smaller scale to 1 level in the mean."""
    need_torchvision()
    found = differences()
    decoded, bilinear, bicubic, image, image_bicubic, centre, large = (found[way] for way in WAYS)
    assert decoded[2] == 0
    assert bilinear[0] < 0.05
    assert bilinear[2] <= 1
    assert bicubic[0] < 0.05
    assert bicubic[2] <= 2
    assert image[0] < 0.2
    assert image[2] <= 1
    assert image_bicubic[0] < 0.2
    assert image_bicubic[1] <= 1
    assert image_bicubic[2] <= 8
    assert centre[0] < 4
    assert large[0] < 1


def test_a_torchvision_for_another_torch_is_a_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises when it is imported is the reason of the skip, not the end of all tests."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(pytest.skip.Exception, match="RuntimeError: operator nms does not exist"):
        need_torchvision()
