"""ml-pyxis' interface and files: samples of named arrays in LMDB, msgpack inside msgpack.

Layout: named databases ``data_db`` (key ``{:010}``, value a msgpack map name -> packed array) and
``meta_db`` (``nb_samples`` in ASCII digits, and the user's strings). A packed array is a msgpack
map of ``type`` (2), ``dtype`` (numpy's string), ``shape`` and ``data`` (C order), keys as bytes.

Files are read without the LMDB library, as bytes that are checked (sources/lmdb/btree.py): a
damaged one raises an error, and a reader can be pickled, forked and shared by threads, also while a
writer is at work. Needs ``msgpack``: ``pip install -e '.[pyxis]'``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..sources import absolute
from ..system.checks import FILE
from .pyxis_batches import (
    DataIterator,
    SequentialBatch,
    SequentialBatchThreadSafe,
    SimpleBatch,
    SimpleBatchThreadSafe,
    StochasticBatch,
    StochasticBatchThreadSafe,
)
from .pyxis_reader import Reader
from .pyxis_writer import Writer

__all__ = [
    "DataIterator",
    "Reader",
    "SequentialBatch",
    "SequentialBatchThreadSafe",
    "SimpleBatch",
    "SimpleBatchThreadSafe",
    "StochasticBatch",
    "StochasticBatchThreadSafe",
    "TorchDataset",
    "Writer",
]

if TYPE_CHECKING:
    from torch import Tensor


class TorchDataset:
    """Samples as dicts of torch tensors, for torch's DataLoader with any number of workers."""

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        self.dirpath = absolute(FILE("dirpath", dirpath))
        self.db = Reader(self.dirpath, lock=False)

    def __len__(self) -> int:
        return len(self.db)

    def __getitem__(self, key: int) -> dict[str, Tensor]:
        import torch

        return {name: torch.from_numpy(value) for name, value in self.db[key].items()}

    def __repr__(self) -> str:
        return repr(self.db)
