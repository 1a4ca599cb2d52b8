"""Types of what a caller may pass: tests/support/page_tables.py writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from ..sampling import Shuffle
from .families import (
    Augment,
    Block,
    Classes,
    Crop,
    CropKind,
    Lengths,
    Mix,
    MixUntil,
    Overlong,
    PaddingMode,
    Patch,
    View,
    Window,
)
from .reader import (
    Auto,
    ChannelOrder,
    Interpolation,
    Io,
    LastBatch,
    Layout,
    OnError,
    Paths,
    Ratios,
    Values,
    Verify,
    Workers,
)
from .values import EachEpisode, Edge, PatchAt, WindowRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ReaderKeywords(TypedDict, total=False):
    """Types of what a caller may pass; ReaderParams says what each means and what is kept."""

    path: Paths | None
    hdf5_path: Paths | None
    lmdb_path: Paths | None
    data_field: str | Sequence[str] | Mapping[str, str]
    labels_field: str | Sequence[str] | None
    labels_path: str | os.PathLike[str] | None
    columns: Sequence[int] | Sequence[str] | Mapping[str, Sequence[int] | Sequence[str]] | None
    subset: slice | str | Sequence[int] | npt.NDArray[np.integer] | None
    episodes: str | None
    offsets_field: str | Literal[False] | Mapping[str, str] | None
    channel_order: ChannelOrder
    sample_axis: int | None
    values: Values
    missing: float | None
    axes: str | None
    num_dim: int | None
    h_dim: int | None
    w_dim: int | None
    cha_dim: int | None
    mix: Mix | Ratios | None
    mix_until: MixUntil
    classes: Classes
    data: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    labels: npt.ArrayLike | None
    boxes_field: str | None
    keypoints_field: str | None
    episodes_subset: slice | str | Sequence[int] | Sequence[str] | npt.NDArray[np.integer] | None
    window: Window | WindowRows | Mapping[str, WindowRows] | None
    window_every: int | EachEpisode
    window_edge: Edge | Sequence[Edge]
    window_outside: Sequence[int | None] | None
    patch: Patch | Sequence[int] | None
    patch_at: PatchAt
    patch_axes: Sequence[int] | None
    patch_step: int | Sequence[int] | None
    verify: Verify
    io: Io
    shuffle: Shuffle | Block
    shuffle_window: int
    weights: Literal["balanced"] | npt.ArrayLike | None
    epoch_samples: int | None
    seed: int
    epochs: int | None
    last_batch: LastBatch
    rank: int | Auto
    world_size: int | Auto
    layout: Layout
    contiguous: bool
    members: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
    dtype: npt.DTypeLike | Mapping[str, npt.DTypeLike] | None
    scale: float | Mapping[str, float] | None
    mean: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    std: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    lengths: Lengths | int | Mapping[str, int] | None
    max_length: int | Mapping[str, int] | None
    overlong: Overlong | Mapping[str, Overlong]
    pad_value: float | Mapping[str, float]
    size: Sequence[int] | None
    crop: Crop | CropKind
    crop_ratio: float
    crop_area: Sequence[float]
    crop_aspect: Sequence[float]
    crop_padding: int
    padding_mode: PaddingMode
    interpolation: Interpolation
    flip: bool
    augment: Augment | None
    views: int | Sequence[View] | None
    transform: Callable[..., object] | None
    batch_size: int
    nthread: int | Auto
    njob: int
    workers: Workers
    mixup: float | None
    cutmix: float | None
    label_smoothing: float
    num_classes: int | None
    postprocess: Callable[..., object] | None
    on_error: OnError
    timeout: float | None
    cuda: bool | str
    trace: str | os.PathLike[str] | None
    copy: bool
    debug: bool
