"""Opens what is to be packed: folders and packed sets, joined, all samples or some, with splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from asyncreader.errors import ParamsError, closed_on_error
from asyncreader.formats.packed import RAGGED, Encoding
from asyncreader.sampling.feistel import permutation

from ..options import Options
from .dataset_samples import DatasetSamples, may_be_packed
from .folder import FolderSamples, class_names
from .samples import Samples
from .selected import JoinedSamples, renamed, select
from .splits import check_split_names, drawn, shared_out

#: Keeps the order of packing independent of every order of training with the same seed.
_STREAM: Final = 0x7061636B

#: Letters of the names in a description, which has at most 64 KiB in HDF5.
MOST_LETTERS: Final = 60_000


def open_samples(
    options: Options, exclude: str, known: tuple[str, ...] = (), usual: Encoding | None = None
) -> Samples:
    """What the sources in ``options`` hold, and ``options`` choose of it, in their order.

    ``exclude``: the target, in case it lies inside a folder; ``known``: classes that keep their
    numbers, new ones go behind; ``usual``: the encoding of sources that have it already, or have
    none.
    """
    opened: list[Samples] = []
    if len(options.sources) > 1:
        usual = usual or options.encoding
    with closed_on_error(opened):
        for path in options.sources:
            params = options.params and replace(options.params, path=path)
            opened.append(_open(replace(options, src=path, params=params), exclude, usual))
        given = None if options.classes is None else class_names(options.classes)
        whole = _of_one_list(opened, known if given is None else given)
        samples = whole[0] if len(whole) == 1 else JoinedSamples(whole, options.sources)
        if options.select:
            samples = samples.of(select(samples, options.select))
        if options.sample is not None:
            samples = samples.of(drawn(options, samples))
        if given is not None and (samples.classes != given or samples.label_kind != "class"):
            samples = renamed(samples, given)
        if samples.splits is not None:
            samples.splits = samples.splits.present()
        if options.split:
            samples.splits = shared_out(options, samples)
        if samples.splits is not None:
            check_split_names(samples.splits.names)
        if options.shuffle is not None:
            positions = np.arange(samples.count, dtype=np.int64)
            samples = samples.of(permutation(samples.count, options.shuffle, _STREAM)(positions))
        splits = () if samples.splits is None else samples.splits.names
        if len(json.dumps([*splits, *samples.label_names])) > MOST_LETTERS:
            samples.label_names = ()
            samples.notes = (*samples.notes, "the names of the labels are too long to be kept")
        return samples


def _open(options: Options, exclude: str, usual: Encoding | None) -> Samples:
    if not may_be_packed(options.src):
        if options.params is not None:
            raise ParamsError(
                "params say how a dataset is read", path=options.src, found="a folder"
            )
        if options.kinds:
            raise ParamsError(
                "boxes_field, keypoints_field and numbers_field say what the fields of a dataset "
                "hold, or of samples that a program adds",
                path=options.src,
                found="a folder, which has images alone",
            )
        return FolderSamples(replace(options, encoding=options.encoding or usual), exclude)
    if options.fields:
        raise ParamsError("fields are for folders of images", found="a dataset")
    if usual is None:
        return DatasetSamples(options)
    # named for a source that has it, an encoding would encode its samples again
    samples = DatasetSamples(replace(options, encoding=None))
    if samples.encoding == usual or RAGGED in (samples.encoding, usual):
        return samples  # the others differ from it: that is an error
    samples.close()
    return DatasetSamples(replace(options, encoding=usual))


def _of_one_list(opened: Sequence[Samples], known: tuple[str, ...]) -> Sequence[Samples]:
    """The sources with one list of classes: ``known`` ones, and behind them the others of all."""
    names = [one.classes for one in opened]
    if opened[0].label_kind != "class" or (not known and all(one == names[0] for one in names)):
        return opened
    new = {name for one in names for name in one or ()} - set(known)
    ordered = sorted(new, key=lambda name: name.encode("utf-8", "surrogateescape"))
    every = (*known, *ordered)
    return [
        one if one.classes == every or one.label_kind != "class" else renamed(one, every)
        for one in opened
    ]
