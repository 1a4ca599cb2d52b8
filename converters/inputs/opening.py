"""Opens what is to be packed: folders and packed sets, joined, all samples or some, with splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asyncreader.errors import ParamsError, closed_on_error
from asyncreader.formats.packed import RAGGED, Encoding

from ..options import Options
from .folder import FolderSamples, class_names
from .packed import PackedSamples, may_be_packed
from .samples import Samples
from .selected import JoinedSamples, Selected, select
from .splits import check_split_names, drawn, shared_out


def open_samples(
    options: Options, exclude: str, known: tuple[str, ...] = (), usual: Encoding | None = None
) -> Samples:
    """What the sources in ``options`` hold, and ``options`` choose of it. ``exclude``: the target,
    in case it lies inside a folder; ``known``: classes that keep their numbers, new ones go
    behind; ``usual``: the encoding of sources that have it already, or have none."""
    opened: list[Samples] = []
    if len(options.sources) > 1:
        usual = usual or options.encoding
    with closed_on_error(opened):
        for path in options.sources:
            params = options.params and replace(options.params, path=path)
            opened.append(_open(replace(options, src=path, params=params), exclude, usual))
        whole = _renamed(options, opened, known)
        samples = whole[0] if len(whole) == 1 else JoinedSamples(whole, options.sources)
        if options.select:
            samples = Selected(samples, select(samples, options.select))
        if options.sample is not None:
            samples = Selected(samples, drawn(options, samples))
        if samples.splits is not None:
            samples.splits = samples.splits.present()
        if options.split:
            samples.splits = shared_out(options, samples)
        if samples.splits is not None:
            check_split_names(samples.splits.names)
        return samples


def _open(options: Options, exclude: str, usual: Encoding | None) -> Samples:
    if not may_be_packed(options.src):
        if options.params is not None:
            raise ParamsError(
                "params say how a dataset is read", path=options.src, found="a folder"
            )
        return FolderSamples(replace(options, encoding=options.encoding or usual), exclude)
    if options.fields:
        raise ParamsError("fields are for folders of images", found="a dataset")
    if options.allow_pickle:
        from .pickled import open_pickled

        if (pickled := open_pickled(options)) is not None:
            return pickled
    if usual is None:
        return PackedSamples(options)
    # named for a source that has it, an encoding would encode its samples again
    samples = PackedSamples(replace(options, encoding=None))
    if samples.encoding == usual or RAGGED in (samples.encoding, usual):
        return samples  # the others differ from it: that is an error
    samples.close()
    return PackedSamples(replace(options, encoding=usual))


def _renamed(
    options: Options, opened: Sequence[Samples], known: tuple[str, ...]
) -> Sequence[Samples]:
    """The sources with one list of classes: as ``options.classes`` names them, or those of all."""
    given = options.classes
    if given is not None and all(isinstance(one, FolderSamples) for one in opened):
        return opened  # numbered by it
    if given is None and ((len(opened) == 1 and not known) or opened[0].label_kind != "class"):
        return opened
    if given is not None:
        every = class_names(given)
    else:
        names = [one.classes for one in opened]
        if not known and all(one == names[0] for one in names):
            return opened
        new = {name for one in names for name in one or ()} - set(known)
        ordered = sorted(new, key=lambda name: name.encode("utf-8", "surrogateescape"))
        every = (*known, *ordered)
    return [
        one
        if one.classes == every or one.label_kind != "class"
        else Selected(one, np.arange(one.count, dtype=np.int64), every)
        for one in opened
    ]
