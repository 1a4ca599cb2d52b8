"""TorchReader: batches as torch tensors, where a DataLoader stands in a training loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from ..batch import Batch
from ..errors import ParamsError
from ..params import Given, ReaderKeywords
from .base import Loader, need, of_each

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeVar as _WithDefault

    D = _WithDefault("D", default=Tensor)
    L = _WithDefault("L", default=Tensor)
else:
    D = TypeVar("D")
    L = TypeVar("L")


class Samples:
    """What loops ask of ``loader.dataset``: how many samples there are, and their classes."""

    def __init__(self, count: int, classes: tuple[str, ...] | None) -> None:
        self._count = count
        self.classes = classes

    def __len__(self) -> int:
        return self._count


class TorchReader(Loader[tuple[D, L]], Generic[D, L]):
    """Shuffled minibatches as tensors: ``for data, labels in TorchReader(params)`` is one epoch.

    ``data``: (B, C, H, W) or as ``layout`` says, in the memory order of the set: images stored
    (H, W, C) arrive as ``torch.channels_last``; with several fields a tuple of tensors. ``labels``:
    as stored, but (B, 1) integers as (B,); None for a set without labels. Tensors are private
    copies, which a consumer may hold as long as it likes; with ``zero_copy=True`` they are the
    reader's own memory, valid until the next step of the loop. With ``cuda`` they are on the
    device.

    Every loop is a whole epoch, but for the one after ``load_state_dict()``, which is the rest of
    that epoch. Raises what AsyncReader raises, and ImportError without torch.

    ``D`` and ``L`` are the types of data and labels: tensors, unless it is annotated otherwise, as
    ``TorchReader[tuple[Tensor, Tensor], None]``.
    """

    _host = False

    def __init__(
        self,
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None:
        self._torch = torch = need("torch", "torch")
        if not zero_copy:
            overrides["copy"] = True
        super().__init__(params, overrides)
        self._zero_copy = zero_copy
        # DataLoader(reader, batch_size=None), as Accelerate wants it, must see an iterable set;
        # inheriting would need torch where this module is imported
        torch.utils.data.IterableDataset.register(type(self))

    def _options(self) -> dict[str, Any]:
        return {"zero_copy": self._zero_copy}

    def __iter__(self) -> Iterator[tuple[D, L]]:
        worker = self._torch.utils.data.get_worker_info()
        if worker is not None:  # each worker would serve every sample
            raise ParamsError(
                "TorchReader reads with threads of its own, not in a DataLoader's worker processes",
                found=f"worker {worker.id} of {worker.num_workers}",
                hint="pass num_workers=0 to DataLoader, and nthread= to the reader",
            )
        return super().__iter__()

    def _convert(self, batch: Batch[Any, Any]) -> tuple[Any, Any]:
        data = of_each(batch.data, self._tensor)
        if batch.labels is None:
            return data, None
        labels = self._tensor(batch.labels)
        floats = labels.is_floating_point() or labels.dtype is self._torch.bool
        if labels.shape[1:] == (1,) and not floats:
            labels = labels[:, 0]
        return data, labels

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
