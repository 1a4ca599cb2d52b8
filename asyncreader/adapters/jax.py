"""JaxReader: batches as jax arrays, the next one on its way to the device already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, Unpack, overload

import numpy as np

from ..batch import Array, Batch, Taken, flat_labels, of_each, taken
from ..errors import ParamsError
from ..params.keywords import ReaderKeywords
from ..params.reader import Given
from ..sampling.schedule import Cursor
from ..system.late import TypeVar, need
from .base import Loader, marked

if TYPE_CHECKING:
    import jax

    #: Where arrays go.
    Target: TypeAlias = jax.sharding.Sharding | jax.Device | None

D = TypeVar("D", default="jax.Array")
L = TypeVar("L", default="jax.Array")
S = TypeVar("S", default=tuple[D, L])

#: What jax makes of 64-bit numbers unless ``jax_enable_x64`` is set.
_NARROW: Final = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


class JaxReader(Loader[S], Generic[D, L, S]):
    """Shuffled minibatches as jax arrays: ``for data, labels in JaxReader(params)`` is one epoch.

    ``data``: (B, C, H, W) or as ``layout`` says; with several arrays a tuple; ``labels``: as
    stored, but (B, 1) integers as (B,); None if the dataset has none. ``sharding``: a jax Sharding
    or device for both, or a pair of them for (data, labels); None: jax's default device. With a
    sharding over several processes, each process's reader (``rank``, ``world_size``) gives its own
    part of the global batch.

    If rows can be padded or zeroed (``last_batch="pad"``, ``on_error="zero"``), integer labels of
    such rows are -100, and unsigned labels come as signed ones; other labels are 0 there.
    ``with_mask=True`` appends the mask to the tuple, bool (B,), False for such rows;
    ``with_indices=True`` (after it) the record numbers, (B,), -1 in padded rows. Both go where the
    labels do.

    Unless ``jax_enable_x64`` is set, this adapter turns 64-bit numbers into 32-bit ones (int64
    labels into int32), and raises ParamsError for a whole number that does not fit.

    While a batch is used, the next one is transferred. A slot is refilled only after its transfer
    is done; if the device is the CPU, whose jax arrays would share the slot's memory, it is copied.
    Raises what AsyncReader raises, and ImportError without jax.

    ``D`` and ``L`` are the types of data and labels: jax arrays, unless it is annotated otherwise,
    as ``JaxReader[tuple[jax.Array, jax.Array], None]``; ``S``, which follows from them, is the type
    of a step.
    """

    @overload
    def __init__(
        self: JaxReader[D, L, tuple[D, L]],
        params: Given | None = None,
        /,
        sharding: Target | tuple[Target, Target] = None,
        *,
        with_mask: Literal[False] = False,
        with_indices: Literal[False] = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: JaxReader[D, L, tuple[D, L, jax.Array, jax.Array]],
        params: Given | None = None,
        /,
        sharding: Target | tuple[Target, Target] = None,
        *,
        with_mask: Literal[True],
        with_indices: Literal[True],
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: JaxReader[D, L, tuple[D, L, jax.Array]],
        params: Given | None = None,
        /,
        sharding: Target | tuple[Target, Target] = None,
        *,
        with_mask: bool = False,
        with_indices: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None: ...
    def __init__(
        self,
        params: Given | None = None,
        /,
        sharding: Target | tuple[Target, Target] = None,
        *,
        with_mask: bool = False,
        with_indices: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None:
        self._jax = need("jax", "jax")
        self._pair = sharding if isinstance(sharding, tuple) else (sharding, sharding)
        if len(self._pair) != 2:
            raise ParamsError(
                "sharding is one for both, or a pair for (data, labels)", found=repr(sharding)
            )
        self._sent: Any = None
        super().__init__(params, overrides, with_mask=with_mask, with_indices=with_indices)
        self._options["sharding"] = sharding

    # -- loops -----------------------------------------------------------------------------

    def _batches(self, loop: int) -> Iterator[S]:
        batches = iter(self.reader)
        coming = self._send(batches)
        while coming is not None:
            arrays, last, cursor = coming
            coming = self._send(batches)
            self._note(last, cursor)
            yield arrays
            self._check_loop(loop)
        self._pass_end()

    def _send(self, batches: Iterator[Batch]) -> tuple[S, Taken, Cursor] | None:
        """Start the next batch's transfer; None at the epoch's end."""
        if self._sent is not None:
            self._wait(self._sent)  # the step below gives that slot back
            self._sent = None
        batch = next(batches, None)
        if batch is None:
            return None
        self._sent = arrays = self._convert(batch)
        return arrays, taken(batch), self.reader.cursor

    def _wait(self, arrays: Any) -> None:
        """Return when the transfers of ``arrays`` are done."""
        self._jax.block_until_ready(arrays)

    # -- arrays ----------------------------------------------------------------------------

    def _convert(self, batch: Batch[Any, Any]) -> Any:
        target = self._pair[1]
        labels = flat_labels(batch.labels)
        if labels is not None and self._invalid:
            labels = marked(labels, batch.mask)
        more = (self._placed(one, "indices", self._of_rows(target)) for one in self._more(batch))
        return (
            self._placed(batch.data, "data", self._pair[0]),
            None if labels is None else self._placed(labels, "labels", target),
            *more,
        )

    def _placed(self, arrays: Any, name: str, target: Any) -> Any:
        """An array, or each of several, as jax holds it at ``target``."""
        return of_each(arrays, lambda array: self._put(self._narrow(array, name), target))

    def _of_rows(self, target: Any) -> Any:
        """``target`` for one number a row; labels may have more axes."""
        sharding = self._jax.sharding
        if not isinstance(target, sharding.NamedSharding):
            return target
        spec = sharding.PartitionSpec(*target.spec[:1])
        return sharding.NamedSharding(target.mesh, spec, memory_kind=target.memory_kind)

    def _narrow(self, array: Array, name: str) -> Array:
        narrow = _NARROW.get(array.dtype.name)
        if narrow is None or self._jax.config.jax_enable_x64:
            return array
        if array.dtype.kind in "iu" and array.size:
            limits = np.iinfo(narrow)
            low, high = int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                raise ParamsError(
                    f"{name} do not fit the {narrow} that jax holds",
                    found=f"{low} to {high}",
                    hint='jax.config.update("jax_enable_x64", True) keeps 64 bits',
                )
        return array.astype(narrow)

    def _put(self, array: Array, sharding: Any) -> Any:
        jax = self._jax
        held: Any = array
        if self._on_cpu(sharding):
            held = jax.numpy.array(array, copy=True)
            if sharding is None:
                return held
        if not getattr(sharding, "is_fully_addressable", True):
            return jax.make_array_from_process_local_data(sharding, np.asarray(held))
        return jax.device_put(held, sharding)

    def _on_cpu(self, sharding: Any) -> bool:
        """Whether arrays there may alias numpy memory."""
        if sharding is None:
            devices = self._jax.numpy.zeros(()).devices()
        else:
            devices = getattr(sharding, "device_set", None) or {sharding}
        return any(device.platform == "cpu" for device in devices)
