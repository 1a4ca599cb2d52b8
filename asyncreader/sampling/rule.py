"""What a sample of a set is: a row of it, or what another rule says (episodes.py, patches.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np

from ..errors import AsyncReaderError
from ..system.array_types import Array, Bools, Int64
from ..system.text import some
from .samplers import Renumbered, Sampler, Storage, Subset

E = TypeVar("E", bound=AsyncReaderError)

#: Values of the parameter ``patch_at``.
PatchAt: TypeAlias = Literal["random", "grid", "center"]


class Rule:
    """Which rows of each field a sample of a set has, by the *record* that samplers draw.

    A rule is a small frozen value without I/O. Derive from this class: what has a body here is
    right where a sample is one row of each field, and its record is the number of that row.

    ``apart``: whether a record may be another row of each field; ``renumbered``: whether callers
    know samples by other numbers than their records; ``fields``: those of which a sample may have
    several rows; ``more``: what gives an epoch more samples.
    """

    apart: bool = False
    renumbered: bool = False
    fields: Collection[str] = ()
    more: str = ""

    # -- the set -----------------------------------------------------------------------------

    @property
    def noun(self) -> str:
        """What a sample is called."""
        return "sample"

    def samples(self, count: int) -> int:
        """The number of samples of a set of ``count`` rows."""
        return count

    def words(self, samples: int) -> list[str]:
        """What so many samples of the set are, and of what, as people read it."""
        return [some(samples, self.noun)]

    def joined(self, rules: Sequence[Rule], paths: Sequence[str]) -> Rule:
        """The rule of several files in sequence; this is one of ``rules``, those of the files
        ``paths``. FormatError or ParamsError where they do not go together."""
        return self

    def renamed(self, names: Mapping[str, str]) -> Rule:
        """The rule with the fields under other names: by name what each is called here."""
        return self

    # -- which samples there are -------------------------------------------------------------

    @property
    def splits(self) -> Mapping[str, Int64]:
        """What ``subset`` takes for each split that the rule knows by itself."""
        return {}

    def split(self, name: str) -> Rule | None:
        """The rule for the samples of one of :attr:`splits`; None where it is none."""
        return None

    @property
    def parts(self) -> int | None:
        """How many episodes ``subset`` chooses from; None where it chooses from the set's rows."""
        return None

    def placed(self, at: PatchAt) -> Rule:
        """The rule with its samples ``at`` other places, where it has such: see ``patch_at``."""
        return self

    def choose(self, chosen: Subset) -> tuple[Rule, Subset | None]:
        """The rule for the samples of what is chosen from the set, and its rows that are chosen;
        None for all that are left."""
        return self, chosen

    def numbers(self, rows: Subset) -> Subset:
        """The numbers of the samples, 0 to :meth:`samples` - 1, that begin at ``rows``."""
        return rows

    def check(self, left: int, whole: bool, path: str) -> None:
        """ParamsError where no sample is left; ``whole``: of the whole set."""
        return

    def labelled(self, numbers: Subset | None, needed_by: str) -> Subset | None:
        """The records of samples by their numbers, whose labels ``needed_by`` needs; None: all.
        ParamsError where samples have no label before they are drawn."""
        return numbers

    def begins(self, numbers: Int64) -> Int64:
        """The records of samples by their numbers."""
        return numbers

    def storage(self, rows: Storage) -> Storage:
        """How the samples are stored in a set whose rows are."""
        return rows

    def sampler(self, numbers: Sampler, storage: Storage) -> Sampler:
        """The records in the order of ``numbers``, which draws the numbers of samples."""
        return numbers

    # -- the rows of a field -----------------------------------------------------------------

    def rows_of(self, name: str, count: int) -> int:
        """How many rows a field has in a set of ``count``."""
        return count

    def width(self, name: str) -> int | None:
        """Rows of a field in a sample; None where it has no axis for them."""
        return None

    def is_whole(self, name: str) -> bool:
        """Whether a sample has a run of a field's rows whose length differs: see :meth:`whole`."""
        return False

    def alike(self, name: str) -> object:
        """What the rows of a field follow from: fields that have it in common have equal rows."""
        return None

    def stored(self, name: str, records: Int64) -> tuple[Int64, Bools | None]:
        """The field's rows in samples: int64 (B,) and None; or, with an axis for them, (B, W), and
        bool (B, W), False where another row stands for one that is not there."""
        return records, None

    def zeroed(self, name: str, records: Int64) -> Bools | None:
        """Which of these rows are zeros, bool (B, W); None where none can be."""
        return None

    def records(self, name: str, records: Int64) -> Int64:
        """The field's rows in samples, one sample after the other: int64 (B * W,) or (B,), -1 for
        zeros."""
        return records

    def whole(self, name: str, records: Int64) -> tuple[Int64, Int64, Int64]:
        """Of samples that differ in length: the first of the field's rows, how many it has, and
        how many the set has; int64 (B,) each."""
        every = np.ones(records.size, np.int64)
        return records, every, every

    def longest(self, name: str) -> int:
        """The most rows of a field that a sample has, where these differ in length."""
        return 1

    def rows_read(self, samples: int, block: int) -> int:
        """About how many rows of a field are read for ``samples`` that lie in blocks of ``block``
        rows."""
        return samples

    # -- what is said of samples -------------------------------------------------------------

    def shown(self, records: Int64) -> Int64:
        """Records as callers know them."""
        return records

    def told(self, error: E) -> E:
        """``error``, which names the sample as callers know it."""
        return error

    def labels_of(self, table: Array) -> Array:
        """The labels of records, of a set with this ``table``."""
        return table

    def episode(self, records: Int64) -> Int64 | None:
        """The episodes of samples: int64 (B,), -1 for records below 0; None without episodes."""
        return None

    def place(self, records: Int64) -> Int64 | None:
        """Where samples begin in what they are cut out of: int64 (B, k); None where they are not
        cut."""
        return None

    def present(self, name: str, records: Int64, mask: Bools) -> Bools | None:
        """Which rows of a field are the sample's own: bool (B, W), False for the samples that
        ``mask`` leaves out; None without an axis for them."""
        return None

    def identity(self) -> Mapping[str, str]:
        """What a state must match of it."""
        return {}


class Ruled(Renumbered):
    """The records of samples whose numbers ``sampler`` draws, as ``rule`` says."""

    def __init__(self, rule: Rule, sampler: Sampler) -> None:
        super().__init__(sampler)
        self.rule = rule

    def chosen(self, numbers: Int64) -> Int64:
        return self.rule.begins(numbers)

    def identity(self) -> Mapping[str, str | int | None]:
        """With that of the rule."""
        return {**self._sampler.identity(), **self.rule.identity()}


#: The rule of most sets: each row is a sample.
EACH_ROW: Final = Rule()


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of one field's samples, of which at most ``most`` values are served.

    ``offsets``: whole numbers (N + 1,), where the values of each begin; None: the ``rule`` says how
    many rows they have.
    """

    name: str
    most: int
    offsets: Array | None
    rule: Rule

    def served(self, records: Int64, mask: Bools) -> Int64:
        """Those of the samples at ``records`` (B,): int64 (B,), or (B, W) where each row of a
        window has a length; 0 for the samples that ``mask`` leaves out."""
        width = self.rule.width(self.name)
        shape = (records.size,) if self.offsets is None or width is None else (records.size, width)
        found = np.zeros(shape, np.int64)
        found[mask] = np.minimum(self._stored(records[mask]), self.most)
        return found

    def _stored(self, records: Int64) -> Int64:
        rule, name = self.rule, self.name
        if self.offsets is None:
            return rule.whole(name, records)[1]
        zeroed, rows = rule.zeroed(name, records), rule.stored(name, records)[0]
        starts, ends = (self.offsets[rows + k].astype(np.int64) for k in (0, 1))
        lengths: Int64 = ends - starts
        return lengths if zeroed is None else np.where(zeroed, 0, lengths)
