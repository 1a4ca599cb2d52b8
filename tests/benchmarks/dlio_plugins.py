"""DLIO's plug-ins: AsyncReader as its data loader, and its HDF5 reader without debug formatting.

DLIO imports them by name (``reader.data_loader_classname``, ``reader.reader_classname``), so this
folder must be on PYTHONPATH. ``others.py dlio`` runs DLIO with and without them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.hdf5_reader import HDF5Reader

from asyncreader import AsyncReader


class AsyncReaderLoader(BaseDataLoader):
    """DLIO's HDF5 files as batches of AsyncReader, with a thread for each of DLIO's workers."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        args = self._args
        train = self.dataset_type is DatasetType.TRAIN
        self.reader = AsyncReader(
            {
                "path": args.file_list_train if train else args.file_list_eval,
                "data_field": "records_0",
                "batch_size": self.batch_size,
                "shuffle": args.sample_shuffle is not Shuffle.OFF,
                "seed": args.seed,
                "nthread": max(1, args.read_threads),
                "njob": max(1, args.prefetch_size),
                "rank": args.my_rank,
                "world_size": args.comm_size,
            }
        )

    def next(self) -> Iterator[torch.Tensor]:
        """One epoch; DLIO calls it anew for each."""
        for batch in self.reader:
            yield torch.from_numpy(batch.data)

    def finalize(self) -> None:
        """DLIO calls this after every epoch, so the reader stays open."""


class QuietHDF5Reader(HDF5Reader):
    """DLIO's reader without two f-strings for each sample, one of them the map of all samples."""

    def read_index(self, global_sample_idx: int, step: int) -> Any:
        self.step, self.image_idx = step, global_sample_idx
        filename, sample_index = self.global_index_map[global_sample_idx]
        self.open_file_map[filename] = self.open(filename)
        self.get_sample(filename, sample_index)
        self.preprocess()
        self.close(filename)
        self.open_file_map[filename] = None
        return self._args.resized_image
