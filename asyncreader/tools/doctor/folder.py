"""A folder of pictures before it is packed: what is in it, and what each encoding would take and
give, tried on some of its pictures."""

from __future__ import annotations

import csv
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import AsyncReaderError, ParamsError, SampleError
from ...pixels import codec
from ...sources import open_source
from ...system.limits import available_memory, usable_cores
from ..label_stats import LabelCount, count_labels
from . import measure
from .advice import USUAL_SIZE, Proposal, command
from .facts import look
from .packing import PackedSample, pack_samples

if TYPE_CHECKING:
    from converters.inputs.folder import FolderSamples

#: The side of pictures that random crops of the usual size are usually cut from.
MARGIN: Final = 256

#: Pictures that are looked at, and packed to be tried; bytes of the latter.
_LOOKED_AT: Final = 2000
_TRIED: Final = 256
_TRIED_BYTES: Final = 96 << 20
#: Parts of the time for looking at pictures, and for packing some in each form.
_LOOK, _PACK = 0.2, 0.45
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
class Form:
    """One way to pack the pictures, and what it would take and give."""

    words: str
    options: Mapping[str, Any]
    """Options of ``convert``."""
    command: str
    costs: str
    size: float | None = None
    """Bytes of all pictures; worked out from those packed. None where ``failure`` says why."""
    fits: bool | None = None
    """Whether that stays in memory."""
    samples_per_second: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Survey:
    """What :func:`survey` found. ``served``: the (H, W) that was served; ``cut``: how it was cut
    out; ``tried``: how many pictures were packed in each form, at most."""

    pictures: Pictures
    forms: tuple[Form, ...]
    advised: Form | None
    served: tuple[int, int]
    cut: str
    tried: int
    memory: int
    """Bytes that the page cache may take."""
    seconds: float
    """How long it took."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def survey(
    src: str,
    dst: str | None = None,
    *,
    seconds: float = 15.0,
    progress: Callable[[str], None] | None = None,
    **given: Any,
) -> Survey:
    """What is in the folder ``src``, and what each encoding would take in space and give in speed.

    ``given``: options of ``convert``; with ``encoding`` that one alone is tried, with ``size`` all
    of them at that size. Pictures that are tried are packed in a temporary folder (TMPDIR). Takes
    about ``seconds``, and longer where listing the folder does. ``progress`` gets a line for each
    step. Raises what ``convert`` raises of a folder that it does not take as a whole.
    """
    from converters.check_options import check, check_encoding
    from converters.inputs.folder import FolderSamples
    from converters.inputs.packed import may_be_packed

    began, tell = time.perf_counter(), progress or (lambda _: None)
    dst = dst or f"{os.path.basename(os.path.abspath(src))}.h5"
    given = {name: value for name, value in given.items() if value is not None}
    # what is wrong with them is told as convert tells it
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
    options = check(src, dst, **kept, encoding="original", skip_bad=True)
    tell("listing the folder")
    with (
        closing(FolderSamples(options, options.dst)) as samples,
        tempfile.TemporaryDirectory(prefix="asyncreader-dry-run-") as folder,
    ):
        tell("looking at images")
        seen = _look(samples, began + _LOOK * seconds)
        pictures = _described(samples, seen)
        trial = _Trial(src, dst, given, folder, pictures, seen, tell)
        forms = trial.run(seconds - (time.perf_counter() - began))
    return Survey(
        pictures=pictures,
        forms=forms,
        advised=_advised(forms),
        served=trial.served,
        cut=trial.crop,
        tried=trial.tried,
        memory=trial.memory,
        seconds=time.perf_counter() - began,
    )


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


@dataclass
class _Seen:
    """What was found of the pictures looked at: paths, bytes and headers of the good ones."""

    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    headers: list[codec.ImageHeader] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)

    @property
    def looked_at(self) -> int:
        return len(self.paths) + len(self.bad)


def _look(samples: FolderSamples, until: float) -> _Seen:
    """Look at pictures in random order (the same each time), until the time is over."""
    seen, path = _Seen(), samples.paths[0]
    assert path is not None
    for number in np.random.default_rng(0).permutation(samples.count)[:_LOOKED_AT].tolist():
        if seen.looked_at >= 16 and time.perf_counter() > until:
            break
        try:
            (picture, *_) = samples.fetch(number, lambda _: None)
            header = codec.read_header(bytes(picture.data))
        except SampleError as exc:
            seen.bad.append((samples.where(number), exc.what))
            continue
        seen.paths.append(os.fsdecode(path(number)))
        seen.sizes.append(len(picture.data))
        seen.headers.append(header)
    return seen


def _described(samples: FolderSamples, seen: _Seen) -> Pictures:
    """``seen`` and the listing as they are told. SampleError where no picture is good."""
    if not seen.headers:
        raise SampleError(
            "none of the images looked at can be converted",
            source_path=seen.bad[0][0] if seen.bad else None,
            found=seen.bad[0][1] if seen.bad else "no images",
        )
    rows = samples.label_rows(np.arange(samples.count, dtype=np.int64))
    classes = None if samples.label_kind != "class" else count_labels(rows, samples.classes)
    found = sorted(((one.height, one.width) for one in seen.headers), key=math.prod)
    odd = {
        "16 bits": sum(bool(one.deep) for one in seen.headers),
        "turned by EXIF": sum(one.orientation != 1 for one in seen.headers),
        "decoded by Pillow, which is slow": sum(one.odd for one in seen.headers),
    }
    packable = round(samples.count * len(seen.headers) / seen.looked_at)
    return Pictures(
        count=samples.count,
        packable=packable,
        size=float(np.mean(seen.sizes)) * packable,
        classes=None if classes is None else tuple(classes),
        looked_at=seen.looked_at,
        kinds=dict(Counter(one.kind for one in seen.headers).most_common()),
        sizes=(found[0], found[len(found) // 2], found[-1]),
        different=len(set(found)),
        odd={name: count for name, count in odd.items() if count},
        ignored={name: count for name, count in samples.ignored.items() if count},
        bad=(*((name, why.what) for _, name, why in samples.skipped), *seen.bad),
        notes=tuple(samples.notes),
    )


# -- what each encoding takes and gives ----------------------------------------------------------


class _Trial:
    """Some of the pictures, packed in each form and read as training reads them."""

    def __init__(
        self,
        src: str,
        dst: str,
        given: Mapping[str, Any],
        folder: str,
        pictures: Pictures,
        seen: _Seen,
        tell: Callable[[str], None],
    ) -> None:
        self._src, self._dst, self._given, self._folder = src, dst, given, folder
        self._pictures, self._tell = pictures, tell
        self.memory = available_memory()
        total = np.cumsum(seen.sizes)
        self.tried = max(1, int(np.searchsorted(total[:_TRIED], _TRIED_BYTES)))
        self._paths = seen.paths[: self.tried]
        self._size = given.get("size")
        self.crop, self.served = "center", USUAL_SIZE
        smallest, middle, largest = pictures.sizes
        if isinstance(self._size, Sequence):
            self.served = int(self._size[0]), int(self._size[1])
        elif self._size is not None:
            side = max(1, self._size * USUAL_SIZE[0] // MARGIN)
            self.crop, self.served = "random-resized", (side, side)
        elif smallest == largest and max(middle) <= MARGIN:
            self.served = middle
        else:
            self.crop = "random-resized"
            self._size = MARGIN

    def run(self, seconds: float) -> tuple[Form, ...]:
        """Pack and read, for about so many ``seconds``."""
        original = os.path.join(self._folder, "original.h5")
        self._tell("converting some images as they are")
        names = ("channels", "bits", "follow_links")
        self._pack(original, {name: self._given[name] for name in names if name in self._given})
        with closing(open_source(original)) as source:
            facts = look(source, original)
        forms = self._forms(facts.unmarked, facts.deep)
        others = [form for form in forms if form.name != "original"]
        packed = pack_samples(
            others, facts, original, None, {}, self._folder, seconds * _PACK, self._tell
        )
        packed["original"] = PackedSample(original, facts.stored_bytes, facts.count)
        self._tell("measuring readers")
        with measure.Trials() as trials:
            for form in forms:
                found = packed[form.name]
                if isinstance(found, PackedSample):
                    trials.add(form.name, self._reader(found))
            rates = trials.run(seconds * (1 - _PACK))
            return tuple(
                self._form(form, packed[form.name], rates.get(form.name), trials.failures)
                for form in forms
            )

    def _pack(self, target: str, how: Mapping[str, Any]) -> None:
        """The pictures that are tried, as their files are."""
        from converters import convert

        table = os.path.join(self._folder, "pictures.csv")
        with open(table, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            csv.writer(file).writerows((path, 0) for path in self._paths)
        options = {"encoding": "original", "labels": table, "skip_bad": True, **how}
        convert(self._src, target, progress=False, **options)

    def _forms(self, unmarked: bool, deep: bool) -> list[Proposal]:
        """The ways to pack that are tried. ``unmarked``: most are JPEGs without restart markers;
        ``deep``: grey pictures of 16 bits."""
        if (encoding := _encoding(self._given)) is not None:
            names = ("encoding", *_OF_ENCODING)
            how = {name: self._given[name] for name in names if self._given.get(name)}
            costs = _SCALED if "size" in how else ""
            return [Proposal(encoding, f"encoding {encoding}", costs, {}, how)]
        size = self._size
        sized: dict[str, Any] = {} if size is None else {"size": size}
        if "resize" in self._given:
            sized["resize"] = self._given["resize"]
        square = {"size": (size, size)} if isinstance(size, int) else sized
        costs = _SCALED if sized else ""
        lossy = _LOSSY if sized else "pixels change a little: keep SRC"
        forms = [
            Proposal("original", "the files as they are", "", {}, {"encoding": "original"}),
            Proposal("jpeg", "JPEG", lossy, {}, {"encoding": "jpeg", **sized}),
            Proposal("png", "PNG", costs, {}, {"encoding": "png", **sized}),
            Proposal("yuv420", "4:2:0 planes", lossy, {}, {"encoding": "yuv420", **square}),
            Proposal("raw", "pixels", costs, {}, {"encoding": "raw", **square}),
        ]
        if unmarked and self.crop.startswith("random"):
            how = {"encoding": "original", "restarts": True}
            forms.insert(1, Proposal("restarts", "the files with restart markers", "", {}, how))
        left_out = {"jpeg", "yuv420"} if deep else set[str]()
        if self._given.get("channels") == 1:
            left_out.add("yuv420")
        return [form for form in forms if form.name not in left_out]

    def _reader(self, packed: PackedSample) -> dict[str, Any]:
        """The parameters of a reader in training."""
        high, wide = self.served
        batch = max(1, min(_BATCH, _BATCH_BYTES // (3 * high * wide)))
        cores = usable_cores()
        reads: dict[str, Any] = {
            "path": packed.path,
            "size": self.served,
            "crop": self.crop,
            "shuffle": True,
            "batch_size": batch,
            "nthread": cores,
            "njob": max(2, cores),
            "last_batch": "wrap",
            "subset": measure.repeated(packed.count, batch),
        }
        return reads

    def _form(
        self,
        form: Proposal,
        packed: PackedSample | AsyncReaderError,
        rate: measure.Rate | None,
        failures: Mapping[str, AsyncReaderError],
    ) -> Form:
        options = dict(form.convert or {})
        others = {name: value for name, value in self._given.items() if name not in _OF_ENCODING}
        if self._pictures.bad:
            others["skip_bad"] = True
        made = command(self._src, self._dst, {**_written(others), **options}, {})
        failed = packed if isinstance(packed, AsyncReaderError) else failures.get(form.name)
        size = None
        if isinstance(packed, PackedSample):
            size = packed.bytes_each * self._pictures.packable
        return Form(
            words=form.words,
            options=options,
            command=made,
            costs=form.costs,
            size=size,
            fits=None if size is None else size <= self.memory,
            samples_per_second=None if rate is None else rate.samples_per_second,
            failure=None if failed is None else str(failed),
        )


def _written(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a command line has them: flags that are not set are left out."""
    return {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not False and value != {} and name not in ("encoding", "progress")
    }


def _advised(forms: Sequence[Form]) -> Form | None:
    """The form to choose: of those that stay in memory (of all, where none does) the fastest, or
    the smallest of those that are about as fast."""
    good = [form for form in forms if form.samples_per_second and form.size]
    good = [form for form in good if form.fits] or good
    if not good:
        return None
    fastest = max(form.samples_per_second or 0 for form in good)
    near = [form for form in good if (form.samples_per_second or 0) >= _SAME * fastest]
    return min(near, key=lambda form: form.size or 0)
