"""Types of what a caller may pass: tests/support/page_tables.py writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from .. import sampling
from . import families, reader
from . import values as checked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ReaderKeywords(TypedDict, total=False):
    """Types of what a caller may pass; ReaderParams says what each means and what is kept."""

    path: reader.Paths | None
    hdf5_path: reader.Paths | None
    lmdb_path: reader.Paths | None
    data_field: str | Sequence[str] | Mapping[str, str]
    labels_field: str | Sequence[str] | None
    labels_path: str | os.PathLike[str] | None
    columns: Sequence[int] | Sequence[str] | Mapping[str, Sequence[int] | Sequence[str]] | None
    subset: slice | str | Sequence[int] | npt.NDArray[np.integer] | None
    episodes: str | None
    offsets_field: str | Literal[False] | Mapping[str, str] | None
    channel_order: reader.ChannelOrder
    sample_axis: int | None
    values: reader.Values
    missing: float | None
    axes: str | None
    num_dim: int | None
    h_dim: int | None
    w_dim: int | None
    cha_dim: int | None
    mix: families.Mix | reader.Ratios | None
    mix_until: families.MixUntil
    classes: families.Classes
    data: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    labels: npt.ArrayLike | None
    boxes_field: str | None
    keypoints_field: str | None
    episodes_subset: slice | str | Sequence[int] | Sequence[str] | npt.NDArray[np.integer] | None
    window: families.Window | checked.WindowRows | Mapping[str, checked.WindowRows] | None
    window_every: int | checked.EachEpisode
    window_edge: checked.Edge | Sequence[checked.Edge]
    window_outside: Sequence[int | None] | None
    patch: families.Patch | Sequence[int] | None
    patch_at: checked.PatchAt
    patch_axes: Sequence[int] | None
    patch_step: int | Sequence[int] | None
    verify: reader.Verify
    io: reader.Io
    shuffle: sampling.Shuffle | families.Block
    shuffle_window: int
    weights: Literal["balanced"] | npt.ArrayLike | None
    epoch_samples: int | None
    seed: int
    epochs: int | None
    last_batch: reader.LastBatch
    rank: int | reader.Auto
    world_size: int | reader.Auto
    layout: reader.Layout
    contiguous: bool
    members: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
    dtype: npt.DTypeLike | Mapping[str, npt.DTypeLike] | None
    scale: float | Mapping[str, float] | None
    mean: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    std: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    lengths: families.Lengths | int | Mapping[str, int] | None
    max_length: int | Mapping[str, int] | None
    overlong: families.Overlong | Mapping[str, families.Overlong]
    pad_value: float | Mapping[str, float]
    size: Sequence[int] | None
    crop: families.Crop | families.CropKind
    crop_ratio: float
    crop_area: Sequence[float]
    crop_aspect: Sequence[float]
    crop_padding: int
    padding_mode: families.PaddingMode
    interpolation: reader.Interpolation
    flip: bool
    augment: families.Augment | None
    views: int | Sequence[families.View] | None
    transform: Callable[..., object] | None
    batch_size: int
    nthread: int | reader.Auto
    njob: int
    workers: reader.Workers
    mixup: float | None
    cutmix: float | None
    label_smoothing: float
    num_classes: int | None
    postprocess: Callable[..., object] | None
    on_error: reader.OnError
    timeout: float | None
    cuda: bool | str
    trace: str | os.PathLike[str] | None
    copy: bool
    debug: bool
