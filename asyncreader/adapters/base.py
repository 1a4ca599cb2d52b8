"""What the adapters share: a loop an epoch, and a cursor that counts what the consumer took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np

from ..batch import Array, Batch, Taken, of_each, taken
from ..errors import Closing, NothingQueuedError, ParamsError
from ..params.parse import apart_from
from ..params.reader import Given, ReaderParams
from ..reader import AsyncReader
from ..sampling.schedule import Cursor
from ..sampling.state import State, cursor_of
from ..system.array_types import Bools

#: What one step of a loop gives.
Item = TypeVar("Item")

#: The integer label of rows that are not valid: torch's cross_entropy ignores it.
IGNORED: Final = -100


def can_be_invalid(p: ReaderParams) -> bool:
    """Whether a batch can have rows that are not valid: padded or zeroed ones."""
    return p.last_batch == "pad" or p.on_error == "zero"


def marked(labels: Any, mask: Bools) -> Any:
    """Labels with IGNORED in the rows that are not valid; unsigned ones, which have no room for
    it, as int64. Of several labels each.

    The rows are written in place. Labels that are no integers stay as they are, and so do those
    that a postprocess made without a row for each sample.
    """
    return of_each(labels, lambda one: _marked(one, mask))


def _marked(labels: Array, mask: Bools) -> Array:
    if labels.dtype.kind == "u":
        labels = labels.astype(np.int64)
        check_signed(bool((labels < 0).any()))
    if labels.dtype.kind == "i" and len(labels) == mask.size:
        labels[~mask] = IGNORED
    return labels


def check_signed(wrapped: bool) -> None:
    """ParamsError if a label does not fit in int64."""
    if wrapped:
        raise ParamsError(
            f"uint64 labels do not fit in int64, which has room for {IGNORED}, the label of rows "
            "that are not valid",
            found=f"a label of {1 << 63} or more",
            hint='leave out last_batch="pad" and on_error="zero", or store smaller labels',
        )


class Loader(Closing, Generic[Item]):
    """An AsyncReader as a framework sees it: a loop over it serves the current epoch to its end.

    ``params``, ``overrides``: as AsyncReader takes them, and with its errors. ``flags``: keywords
    of the adapter itself, which ``params`` may hold as well: ``with_mask`` and ``with_indices`` say
    what a step gives in addition to data and labels, ``zero_copy`` that batches are not private
    copies. ``reader`` is the AsyncReader inside; taking batches from it directly makes the cursor
    wrong. ``last``: what a Batch says of the step, without its memory; None before the first.
    Pickles and copies as its parameters and its cursor.
    """

    #: whether this adapter takes numpy arrays, and so no ``cuda``
    _host = True
    #: parameters that have another default here
    _usual: ClassVar[Mapping[str, object]] = {}

    if not TYPE_CHECKING:

        def __class_getitem__(cls, kinds: Any) -> Any:
            """Kinds with a default may be left out: before Python 3.13 a TypeVar has none."""
            given = kinds if isinstance(kinds, tuple) else (kinds,)
            return super().__class_getitem__((*given, *cls.__parameters__[len(given) :]))

    def __init__(
        self, params: Given | None, overrides: Mapping[str, object], **flags: bool
    ) -> None:
        given, flags = apart_from(params, overrides, **flags)
        #: keywords of the adapter itself
        self._options: dict[str, Any] = dict(flags)
        if flags.get("zero_copy") is False:
            given["copy"] = True
        self.reader = AsyncReader({**self._usual, **given})
        self._invalid = can_be_invalid(self.reader.params)
        if self._host and self.reader.params.cuda is not False:
            self.reader.close()
            raise ParamsError(
                "this adapter copies batches to the device itself", hint="leave cuda out"
            )
        self.last: Taken | None = None
        self._cursor = self.reader.cursor
        self._ended = False  # the cursor is its epoch's end
        self._chosen = False  # the cursor was chosen: a loaded state or seek()
        self._loop = 0

    # -- loops -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item]:
        """The current epoch to its end (the rest of it after a resume or an early break).

        Which one is decided when the first batch is asked for, as in torch; a loop that was begun
        before ends in NothingQueuedError then.
        """
        nothing_left = self._chosen and self._ended
        self._go(self._next_cursor)  # after the batch that was taken last
        self._chosen, self._loop = False, self._loop + 1
        if not nothing_left:
            yield from self._batches(self._loop)

    def _batches(self, loop: int) -> Iterator[Item]:
        """What loop number ``loop`` yields: the reader's epoch to its end."""
        for batch in self.reader:
            self._note(taken(batch), self.reader.cursor)
            yield self._convert(batch)
            self._check_loop(loop)
        self._pass_end()

    def _convert(self, batch: Batch) -> Item:
        """``batch`` as the framework wants it."""
        raise NotImplementedError

    def _more(self, batch: Batch) -> list[Any]:
        """What was asked for beside data and labels: the mask, the indices, or both; copies."""
        both = {"with_mask": batch.mask, "with_indices": batch.indices}
        return [array.copy() for name, array in both.items() if self._options[name]]

    def _check_loop(self, loop: int) -> None:
        if self._loop != loop:
            raise NothingQueuedError(
                "this loop ended when the reader was moved or another loop over it began",
                hint="open one reader per loop",
            )

    def _note(self, last: Taken, cursor: Cursor) -> None:
        """The consumer gets a batch; afterwards the reader is at ``cursor``."""
        self.last = last
        self._cursor, self._ended = cursor, last.last

    def _pass_end(self) -> None:
        """From an epoch's end to the next one's start."""
        self._cursor, self._ended = self._next_cursor, False

    def __len__(self) -> int:
        """Batches in a whole epoch on this rank."""
        return len(self.reader)

    # -- cursor ----------------------------------------------------------------------------

    def seek(self, epoch: int, step: int = 0) -> None:
        """The next loop begins with batch ``step`` of ``epoch``; ParamsError if there is none."""
        self.reader.seek(epoch, step)
        self._moved()

    def set_epoch(self, epoch: int) -> None:
        """The next loop is ``epoch``, from its start, as with torch's DistributedSampler. A state
        that was loaded just before stays, unless it is of the end of the epoch before."""
        start = self._next_cursor
        if self._chosen and (not self._ended or start.epoch != epoch):
            return
        if start == Cursor(epoch):
            self._pass_end()
        else:
            self.seek(epoch)
        self._chosen = False

    def state_dict(self) -> State:
        """As AsyncReader's, counting the batches that the consumer took from this adapter."""
        cursor = self._cursor
        return {
            **self.reader.state_dict(),
            "epoch": cursor.epoch,
            "samples": cursor.position,
            "steps": cursor.step,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where ``state`` says: the next loop is the rest of that epoch.

        Nothing is left of it if the state was saved inside a loop at the epoch's last batch; the
        loop after that is the next epoch. Raises ParamsError, and changes nothing, if other
        training saved the state.
        """
        self.reader.load_state_dict(state)
        self._moved(cursor_of(state))

    def _go(self, cursor: Cursor) -> None:
        """Move the reader to a cursor that it had before, or to an epoch's start."""
        self.reader.go_to(cursor)
        self._cursor, self._ended = cursor, False

    @property
    def _next_cursor(self) -> Cursor:
        """The cursor; if that is an epoch's end, the next epoch's start."""
        return Cursor(self._cursor.epoch + 1) if self._ended else self._cursor

    def _moved(self, to: Cursor | None = None) -> None:
        """The reader was moved; ``to``: by a state, which may be of an epoch's end."""
        now = self.reader.cursor
        self._cursor, self._ended = to or now, to is not None and to.epoch != now.epoch
        self._chosen = True
        self._loop += 1

    # -- what it serves --------------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label number, or None if the dataset has no names."""
        return self.reader.classes

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self.reader.params.batch_size

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Close the reader. A second call does nothing."""
        self.reader.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.reader!r}>"

    def _repr_html_(self) -> str:
        """As AsyncReader's, for notebooks (IPython's rich display)."""
        return self.reader._repr_html_().replace("AsyncReader", type(self).__name__, 1)

    def __reduce__(self) -> tuple[object, ...]:
        _, (given, _) = self.reader.__reduce__()
        return _reopen, (type(self), given, self._options, self.state_dict())


def _reopen(
    kind: type[Any], params: dict[str, Any], options: dict[str, Any], state: dict[str, Any]
) -> Any:
    """A pickled adapter, opened again: the same set and cursor."""
    loader = kind(params, **options)
    loader.load_state_dict(state)
    return loader
