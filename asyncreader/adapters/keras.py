"""ReaderDataset: batches for Keras 3's ``model.fit``, ``evaluate`` and ``predict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, Unpack

import numpy as np

from ..batch import Array, Batch, flat_labels, taken
from ..errors import FinishedError
from ..params.keywords import ReaderKeywords
from ..params.reader import Given
from ..reader import next_batch
from ..sampling.schedule import Cursor
from ..system.late import need
from .base import Loader

if TYPE_CHECKING:
    from keras.utils import PyDataset
else:
    PyDataset = need("keras", "keras").utils.PyDataset

#: ``(data,)``, ``(data, labels)`` or ``(data, labels, weights)``.
Step: TypeAlias = tuple[Array | tuple[Array, ...], ...]

#: Batches drawn outside an epoch that are a look (at shapes, to build a model), not a use.
LOOK: Final = 2


class ReaderDataset(Loader[Step], PyDataset):
    """Shuffled minibatches for ``model.fit(ReaderDataset(params), epochs=10)``, on any backend.

    Gives ``(data, labels)``, or ``(data,)`` if the dataset has no labels: numpy arrays, private
    copies unless ``zero_copy=True``. ``data``: (B, H, W, C), unless ``layout="NCHW"``; with several
    arrays a tuple, for a model with as many inputs (to learn masks from images, let ``postprocess``
    return the two as data and labels: (images, masks)). ``labels``: as stored, but (B, 1) integers
    as (B,). If rows can be padded or zeroed (``last_batch="pad"``, ``on_error="zero"``), the mask
    comes third, as float32 sample weights.

    Keras asks for batches by shuffled index; the index is ignored, and the reader's own order kept:
    every epoch serves each sample once. What Keras only peeked at (to build a model it draws a
    batch and begins the epoch again) is served again, and so is an epoch that was interrupted. With
    ``steps_per_epoch`` below ``len()`` the next epoch continues where the last one stopped; so does
    the first epoch after ``load_state_dict()``. Then, and only then, Keras may drop a batch or two
    at the end of ``fit()``: those that it fetched ahead with jax on a GPU (before Keras 3.15 with
    jax anywhere). Raises what AsyncReader raises.
    """

    _usual: ClassVar[Mapping[str, object]] = {"layout": "NHWC"}
    _inside: bool

    def __init__(
        self,
        params: Given | None = None,
        /,
        *,
        zero_copy: bool = False,
        **overrides: Unpack[ReaderKeywords],
    ) -> None:
        # One worker and no processes: Keras then draws batches itself, one after the other. The
        # reader has its own threads.
        PyDataset.__init__(self, workers=1, use_multiprocessing=False)
        Loader.__init__(self, params, overrides, zero_copy=zero_copy)
        self._steps: int | None = None  # batches in the first epoch of this fit, 0: none ended yet
        self._count_from_here()

    def _convert(self, batch: Batch) -> Step:
        labels = flat_labels(batch.labels)
        if labels is None:
            return (batch.data,)
        if self._invalid:
            return batch.data, labels, batch.mask.astype(np.float32)
        return batch.data, labels

    def __getitem__(self, index: int) -> Step:
        """The next batch in the reader's order, whatever ``index`` is; FinishedError past it."""
        batch = next_batch(self.reader)
        if batch is None:
            raise FinishedError(
                f"all {self.reader.params.epochs} epochs have been served",
                hint="leave epochs out: fit(epochs=) says how many",
            )
        self._drawn += 1
        self._note(taken(batch), self.reader.cursor)
        self._pass_end()  # Keras has no loop with nothing in it
        return self._convert(batch)

    # -- what was only peeked at -------------------------------------------------------------
    #
    # Keras says when an epoch begins and ends, not which batches it used. Seen in Keras 3.15 of
    # fit(), evaluate() and, where it must build the model, predict():
    #
    #   all built    end          begin ... end  begin ... end
    #   unbuilt      begin k end  begin ... end  begin ... end
    #
    # unbuilt: the model, or what compile() gave it; so every first fit. k batches are drawn to
    # build it: 1, or 2 with jax on a GPU, which fetches one ahead, or in later versions as many as
    # steps_per_execution; those draw with jax outside any epoch, 1 end begin ...

    def on_epoch_begin(self) -> None:
        """Keras begins an epoch, or only looks into one."""
        if self._inside:
            self._go(self._start)  # older versions do not end what they only looked into
        self._forget_a_look()
        self._count_from_here()
        self._inside = True

    def on_epoch_end(self) -> None:
        """Keras ended an epoch, or starts a run, or has looked enough."""
        whole = len(self)
        if not self._inside:
            self._forget_a_look()
            self._steps = 0
        elif self._drawn < whole and self._steps in (None, whole):
            # the first epoch of all, or one in a run of whole ones: peeked at, or interrupted
            self._go(self._start)
            self._steps = 0
        elif not self._steps:
            self._steps = self._drawn
        self._count_from_here()

    def _forget_a_look(self) -> None:
        if not self._inside and 0 < self._drawn <= LOOK:
            self._go(self._start)

    def _count_from_here(self) -> None:
        self._start, self._drawn, self._inside = self._cursor, 0, False

    def _moved(self, to: Cursor | None = None) -> None:
        # Keras has no loop with nothing in it: an epoch's end is the next one's head
        super()._moved()
        self._steps = None
        self._count_from_here()
