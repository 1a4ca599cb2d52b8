"""A folder of images before it is packed: what is in it, and what each encoding would take and
give. Some of its images are packed as they are, and the doctor tries the encodings on these."""

from __future__ import annotations

import csv
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...errors import ParamsError, SampleError
from ...pixels import codec
from ...system.limits import available_memory, usable_cores
from ..describe import LabelCount, count_labels
from ..trials import Trials
from . import diagnose
from .advice import USUAL_SIZE, Candidate, command
from .measure import Facts

if TYPE_CHECKING:
    from converters.inputs.folder import FolderSamples
    from converters.options import Options

#: The side of images that random crops of the usual size are usually cut from.
MARGIN: Final = 256

#: Images that are looked at, and packed to be tried; bytes of the latter.
_LOOKED_AT: Final = 2000
_TRIED: Final = 256
_TRIED_BYTES: Final = 96 << 20
#: Part of the time for looking at images.
_LOOK: Final = 0.2
#: Rates that differ by less count as the same: the smaller form is advised.
_SAME: Final = 0.9
#: Bytes of a batch in the trials, and the most samples of one.
_BATCH_BYTES: Final = 4 << 20
_BATCH: Final = 128

_SCALED: Final = "the images are scaled for good: keep SRC"
_LOSSY: Final = "pixels change a little, and the images are scaled for good: keep SRC"


@dataclass(frozen=True)
class Pictures:
    """What is in a folder. ``kinds``, ``sizes`` and ``odd`` are of the pictures looked at, which
    are drawn from all of them."""

    count: int
    packable: int
    """Those that can be packed; worked out from those looked at."""
    size: float
    """Their bytes; worked out from those looked at."""
    classes: tuple[LabelCount, ...] | None
    looked_at: int
    kinds: Mapping[str, int]
    """Pictures of each kind of file, such as "jpeg"."""
    sizes: tuple[tuple[int, int], ...]
    """(H, W) of the smallest, the middle and the largest picture by area."""
    different: int
    """Different (H, W)."""
    odd: Mapping[str, int]
    """Pictures that are no plain ones, by what is unusual about them."""
    ignored: Mapping[str, int]
    """Files that are no candidates, by kind."""
    bad: tuple[tuple[str, str], ...]
    """Pictures that cannot be packed, and why: of all those that cannot be opened, and those
    damaged among the ones looked at."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Survey:
    """What :func:`survey` found. ``served``: the (H, W) that was served; ``cut``: how it was cut
    out; ``tried``: how many images were packed in each form, at most."""

    pictures: Pictures
    forms: tuple[Candidate, ...]
    """The ways to pack that were tried; sizes are those of all images."""
    advised: Candidate | None
    served: tuple[int, int]
    cut: str
    tried: int
    memory: int
    """Bytes that the page cache may take."""
    seconds: float
    """How long it took."""


def survey(
    src: str,
    dst: str | None = None,
    *,
    seconds: float = 15.0,
    progress: Callable[[str], None] | None = None,
    trials: Callable[[], Trials] = Trials,
    **given: Any,
) -> Survey:
    """What is in the folder ``src``, and what each encoding would take in space and give in speed.

    ``given``: options of ``convert``; with ``encoding`` that one alone is tried, with ``size`` all
    of them at that size. Images that are tried are packed in a temporary folder (TMPDIR). Takes
    about ``seconds``, and longer where listing the folder does. ``progress`` gets a line for each
    step. Raises what ``convert`` raises of a folder that it does not take as a whole.
    """
    from converters.inputs.folder import FolderSamples

    began, tell = time.perf_counter(), progress or (lambda _: None)
    dst = dst or f"{os.path.basename(os.path.abspath(src))}.h5"
    given = {name: value for name, value in given.items() if value is not None}
    options = _checked(src, dst, given)
    tell("listing the folder")
    with (
        closing(FolderSamples(options, options.dst)) as samples,
        tempfile.TemporaryDirectory(prefix="asyncreader-dry-run-") as folder,
    ):
        tell("looking at images")
        good, bad = _look(samples, began + _LOOK * seconds)
        pictures = _described(samples, good, bad)
        served, crop, size = _as_served(given.get("size"), pictures)
        tell("converting some images as they are")
        original, count = _pack_some(src, good, given, folder)
        found = diagnose(
            _as_read(original, served, crop),
            seconds=seconds - (time.perf_counter() - began),
            progress=tell,
            propose=lambda facts, _: [
                form for form in _forms(given, size, crop, facts) if form.name != "original"
            ],
            trials=trials,
        )
    if pictures.bad:
        given = {**given, "skip_bad": True}
    memory, part = available_memory(), pictures.packable / found.facts.count
    # the files as they are: what the doctor has looked at
    rate, size_as_is = found.now.samples_per_second, float(found.facts.size)
    tried = {form.name: form for form in found.tried}
    forms = [
        tried.get(form.name) or replace(form, samples_per_second=rate, size=size_as_is)
        for form in _forms(given, size, crop, found.facts)
    ]
    forms = [_of_all(form, part, memory) for form in forms]
    forms = [replace(form, command=_command(src, dst, given, form)) for form in forms]
    return Survey(
        pictures=pictures,
        forms=tuple(forms),
        advised=_advised(forms),
        served=served,
        cut=crop,
        tried=count,
        memory=memory,
        seconds=time.perf_counter() - began,
    )


def _checked(src: str, dst: str, given: Mapping[str, Any]) -> Options:
    """The options with which the folder is listed; what is wrong with those that are given is told
    as ``convert`` tells it."""
    from converters.check_options import check, check_encoding
    from converters.inputs.dataset_samples import may_be_packed

    wanted = check(src, dst, **given)
    if _encoding(given) or given.get("quality") or given.get("restarts"):
        channels = wanted.channels or (1 if wanted.bits == 16 else 3)
        check_encoding(wanted, _encoding(given) or "raw", channels, wanted.bits)
    if may_be_packed(src):
        raise ParamsError(
            "a dry run is for folders of images",
            path=src,
            found="a dataset",
            hint="'asyncreader doctor' measures what another encoding of a dataset would give",
        )
    kept = {name: value for name, value in given.items() if name in _OF_LISTING}
    return check(src, dst, **kept, encoding="original", skip_bad=True)


#: Options that say which pictures there are, what they are stored as, and where.
_OF_LISTING: Final = (
    *("labels", "no_labels", "classes", "classes_from_folders", "follow_links"),
    *("split", "group_by", "splits_from_folders", "split_column", "channels", "bits"),
    *("format", "shards", "shard_size"),
)
#: Options of one encoding.
_OF_ENCODING: Final = ("size", "resize", "quality", "restarts", "compression", "chunk")


def _encoding(given: Mapping[str, Any]) -> str | None:
    """The one encoding that is asked for; None for all. Compression is for pixels."""
    found: str | None = given.get("encoding")
    return "raw" if found is None and given.get("compression") else found


# -- what is there -------------------------------------------------------------------------------


class _Image(NamedTuple):
    """A good image that was looked at."""

    path: str
    size: int
    header: codec.ImageHeader


def _look(samples: FolderSamples, until: float) -> tuple[list[_Image], list[tuple[str, str]]]:
    """Look at images in random order (the same each time), until the time is over: the good ones,
    and where the bad ones are and why."""
    good, bad, path = list[_Image](), list[tuple[str, str]](), samples.paths[0]
    assert path is not None
    for number in np.random.default_rng(0).permutation(samples.count)[:_LOOKED_AT].tolist():
        if len(good) + len(bad) >= 16 and time.perf_counter() > until:
            break
        try:
            (image, *_) = samples.fetch(number, lambda _: None)
            header = codec.read_header(bytes(image.data))
            good.append(_Image(os.fsdecode(path(number)), len(image.data), header))
        except SampleError as exc:
            bad.append((samples.where(number), exc.what))
    return good, bad


def _described(
    samples: FolderSamples, good: Sequence[_Image], bad: Sequence[tuple[str, str]]
) -> Pictures:
    """The images looked at and the listing as they are told. SampleError where none is good."""
    if not good:
        raise SampleError(
            "none of the images looked at can be converted",
            source_path=bad[0][0] if bad else None,
            found=bad[0][1] if bad else "no images",
        )
    classes = None
    if samples.label_kind == "class":
        classes = count_labels(samples.labels, samples.classes)
    headers = [image.header for image in good]
    shapes = sorted(((header.height, header.width) for header in headers), key=math.prod)
    odd = {
        "16 bits": sum(bool(header.deep) for header in headers),
        "turned by EXIF": sum(header.orientation != 1 for header in headers),
        "decoded by Pillow, which is slow": sum(header.odd for header in headers),
    }
    packable = round(samples.count * len(good) / (len(good) + len(bad)))
    return Pictures(
        count=samples.count,
        packable=packable,
        size=float(np.mean([image.size for image in good])) * packable,
        classes=None if classes is None else tuple(classes),
        looked_at=len(good) + len(bad),
        kinds=dict(Counter(header.kind for header in headers).most_common()),
        sizes=(shapes[0], shapes[len(shapes) // 2], shapes[-1]),
        different=len(set(shapes)),
        odd={name: count for name, count in odd.items() if count},
        ignored={name: count for name, count in samples.ignored.items() if count},
        bad=(*((name, why.what) for _, name, why in samples.skipped), *bad),
        notes=tuple(samples.notes),
    )


# -- what each encoding takes and gives ----------------------------------------------------------


def _as_served(size: Any, pictures: Pictures) -> tuple[tuple[int, int], str, Any]:
    """The (H, W) that training is taken to be served, how that is cut out, and the size that
    images are stored at; None where that is their own. ``size``: the one that is asked for."""
    smallest, middle, largest = pictures.sizes
    if isinstance(size, Sequence):
        return (int(size[0]), int(size[1])), "center", size
    if size is not None:
        side = max(1, size * USUAL_SIZE[0] // MARGIN)
        return (side, side), "random-resized", size
    if smallest == largest and max(middle) <= MARGIN:
        return middle, "center", None
    return USUAL_SIZE, "random-resized", MARGIN


def _pack_some(
    src: str, good: Sequence[_Image], given: Mapping[str, Any], folder: str
) -> tuple[str, int]:
    """Pack the images that are tried as their files are: the path of the dataset, and how many."""
    from converters import convert

    total = np.cumsum([image.size for image in good[:_TRIED]])
    count = max(1, int(np.searchsorted(total, _TRIED_BYTES)))
    table, target = (os.path.join(folder, name) for name in ("pictures.csv", "original.h5"))
    with open(table, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows((image.path, 0) for image in good[:count])
    names = ("channels", "bits", "follow_links")
    options = {name: given[name] for name in names if name in given}
    options |= {"encoding": "original", "labels": table, "skip_bad": True}
    convert(src, target, progress=False, **options)
    return target, count


def _as_read(path: str, served: tuple[int, int], crop: str) -> dict[str, Any]:
    """The parameters of a reader in training."""
    cores = usable_cores()
    return {
        "path": path,
        "size": served,
        "crop": crop,
        "shuffle": True,
        "batch_size": max(1, min(_BATCH, _BATCH_BYTES // (3 * math.prod(served)))),
        "nthread": cores,
        "njob": max(2, cores),
    }


def _forms(given: Mapping[str, Any], size: Any, crop: str, facts: Facts) -> list[Candidate]:
    """The ways to pack that are tried. ``facts``: of the images packed as they are."""
    if (encoding := _encoding(given)) is not None:
        names = ("encoding", *_OF_ENCODING)
        how = {name: given[name] for name in names if given.get(name)}
        costs = _SCALED if "size" in how else ""
        return [Candidate(encoding, f"encoding {encoding}", costs, options=how)]
    sized: dict[str, Any] = {} if size is None else {"size": size}
    if "resize" in given:
        sized["resize"] = given["resize"]
    square = {"size": (size, size)} if isinstance(size, int) else sized
    costs = _SCALED if sized else ""
    lossy = _LOSSY if sized else "pixels change a little: keep SRC"
    forms = [
        Candidate("original", "the files as they are", options={"encoding": "original"}),
        Candidate("jpeg", "JPEG", lossy, options={"encoding": "jpeg", **sized}),
        Candidate("png", "PNG", costs, options={"encoding": "png", **sized}),
        Candidate("yuv420", "4:2:0 planes", lossy, options={"encoding": "yuv420", **square}),
        Candidate("raw", "pixels", costs, options={"encoding": "raw", **square}),
    ]
    if facts.unmarked and crop.startswith("random"):
        how = {"encoding": "original", "restarts": True}
        forms.insert(1, Candidate("restarts", "the files with restart markers", options=how))
    left_out = {"jpeg", "yuv420"} if facts.deep else set[str]()
    if given.get("channels") == 1:
        left_out.add("yuv420")
    return [form for form in forms if form.name not in left_out]


def _of_all(form: Candidate, part: float, memory: int) -> Candidate:
    """A form with the size of all images, of which there are ``part`` times as many as were
    tried."""
    if form.failure is not None or form.size is None:
        return replace(form, size=None, fits=None)
    return replace(form, size=form.size * part, fits=form.size * part <= memory)


def _command(src: str, dst: str, given: Mapping[str, Any], form: Candidate) -> str:
    """The command that packs the folder so: flags that are not set are left out."""
    others = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not False and value != {} and name not in ("encoding", "progress")
        if name not in _OF_ENCODING
    }
    return command(src, dst, {**others, **(form.options or {})}, {})


def _advised(forms: Sequence[Candidate]) -> Candidate | None:
    """The form to choose: of those that stay in memory (of all, where none does) the fastest, or
    the smallest of those that are about as fast."""
    good = [form for form in forms if form.samples_per_second and form.size]
    good = [form for form in good if form.fits] or good
    if not good:
        return None
    fastest = max(form.samples_per_second or 0 for form in good)
    near = [form for form in good if (form.samples_per_second or 0) >= _SAME * fastest]
    return min(near, key=lambda form: form.size or 0)
