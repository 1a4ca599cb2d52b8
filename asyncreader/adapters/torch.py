"""TorchReader: batches as torch tensors, where a DataLoader stands in a training loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack, overload

from ..batch import Batch, of_each
from ..errors import ParamsError
from ..params.keywords import ReaderKeywords
from ..params.reader import Given
from ..system.late import TypeVar, need
from .base import IGNORED, Loader, check_signed

if TYPE_CHECKING:
    from torch import Tensor

D = TypeVar("D", default="Tensor")
L = TypeVar("L", default="Tensor")
S = TypeVar("S", default=tuple[D, L])


class Samples:
    """What loops ask of ``loader.dataset``: how many samples there are, and their classes."""

    def __init__(self, count: int, classes: tuple[str, ...] | None) -> None:
        self._count = count
        self.classes = classes

    def __len__(self) -> int:
        return self._count


class TorchReader(Loader[S], Generic[D, L, S]):
    """Shuffled minibatches as tensors: ``for data, labels in TorchReader(params)`` is one epoch.

    ``data``: (B, C, H, W) or as ``layout`` says, in the memory order of the dataset: images stored
    (H, W, C) arrive as ``torch.channels_last``; with several arrays a tuple. ``labels``: as stored,
    but (B, 1) integers as (B,); None if the dataset has none. Tensors are private copies, which you
    may hold as long as you like; with ``zero_copy=True`` they are the reader's own memory, valid
    until the next step of the loop. With ``cuda`` they are on the device.

    If rows can be padded or zeroed (``last_batch="pad"``, ``on_error="zero"``), integer labels of
    such rows are -100, which ``cross_entropy`` ignores, and unsigned labels come as int64; other
    labels are 0 there. ``with_mask=True`` appends the mask to the tuple, bool (B,), False for such
    rows; ``with_indices=True`` (after it) the record numbers, int64 (B,), -1 in padded rows.
    ``loader.last`` has what else a Batch says of the step, as numpy arrays: ``present`` of windows,
    ``lengths``, ``place`` of patches, ``episode``, ``source``.

    A loop serves the current epoch to its end, or the rest of it after ``load_state_dict()`` or an
    early ``break``. ``set_epoch()`` begins an epoch from its start. Raises what AsyncReader raises,
    and ImportError without torch.

    ``D`` and ``L`` are the types of data and labels: tensors, unless it is annotated otherwise, as
    ``TorchReader[tuple[Tensor, Tensor], None]``; ``S``, which follows from them, is a step's type.
    """

    _host = False

    @overload
    def __init__(
        self: TorchReader[D, L, tuple[D, L]],
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        with_mask: Literal[False] = False,
        with_indices: Literal[False] = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: TorchReader[D, L, tuple[D, L, Tensor, Tensor]],
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        with_mask: Literal[True],
        with_indices: Literal[True],
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: TorchReader[D, L, tuple[D, L, Tensor]],
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        with_mask: bool = False,
        with_indices: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    def __init__(
        self,
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        with_mask: bool = False,
        with_indices: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None:
        self._torch = torch = need("torch", "torch")
        flags = {"with_mask": with_mask, "with_indices": with_indices, "zero_copy": zero_copy}
        super().__init__(params, overrides, **flags)
        # DataLoader(reader, batch_size=None), as Accelerate wants it, must see an iterable set;
        # inheriting would need torch where this module is imported
        torch.utils.data.IterableDataset.register(type(self))

    def __iter__(self) -> Iterator[S]:
        worker = self._torch.utils.data.get_worker_info()
        if worker is not None:  # each worker would serve every sample
            raise ParamsError(
                "TorchReader reads with threads of its own, not in a DataLoader's worker processes",
                found=f"worker {worker.id} of {worker.num_workers}",
                hint="pass num_workers=0 to DataLoader, and nthread= to the reader",
            )
        # only the DataLoader's part that asks knows whether it joins what it gets
        asks = sys._getframe(1)
        fetching = asks.f_globals.get("__name__") == "torch.utils.data._utils.fetch"
        if fetching and asks.f_locals["self"].auto_collation:
            raise ParamsError(
                "TorchReader serves whole batches, which DataLoader would join to batches of them",
                hint="pass batch_size=None to DataLoader, and batch_size= to the reader",
            )
        return super().__iter__()

    def _convert(self, batch: Batch[Any, Any]) -> Any:
        data = of_each(batch.data, self._tensor)
        labels = batch.labels
        if labels is not None:
            labels = of_each(labels, lambda one: self._labels(one, batch))
        device = (data[0] if isinstance(data, tuple) else data).device
        more = (self._torch.from_numpy(array).to(device) for array in self._more(batch))
        return data, labels, *more

    def _labels(self, given: Any, batch: Batch[Any, Any]) -> Any:
        torch, labels = self._torch, self._tensor(given)
        if labels.is_floating_point() or labels.dtype is torch.bool:
            return labels
        if self._invalid:
            if not labels.dtype.is_signed:
                wide = labels.to(torch.int64)
                check_signed(labels.dtype is torch.uint64 and bool((wide < 0).any()))
                labels = wide
            if not batch.mask.all() and len(labels) == batch.mask.size:
                labels[torch.from_numpy(~batch.mask)] = IGNORED
        return labels[:, 0] if labels.shape[1:] == (1,) else labels

    def _tensor(self, array: Any) -> Any:
        return array if isinstance(array, self._torch.Tensor) else self._torch.from_numpy(array)

    @property
    def dataset(self) -> Samples:
        """The samples of an epoch, as ``len(loader.dataset)``."""
        return Samples(self.reader.count, self.reader.classes)

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Where Lightning looks for what it calls ``set_epoch()`` on: ``batch_sampler.sampler``."""
        return SimpleNamespace(sampler=self)

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self.reader.params.last_batch == "drop"
