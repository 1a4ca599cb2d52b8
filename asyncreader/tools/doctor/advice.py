"""From facts and rates to words: what limits training on a set, and what would help.

Pure: nothing here opens a file or looks at a clock.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...params.reader import ReaderParams
from ...sampling import at_random
from ...system.text import in_bytes, sides, some
from ..trials import Rate
from .measure import Facts

#: Threads to a core where they wait for the disk.
READERS_PER_CORE: Final = 4

#: What must at least be gained before anything is advised.
WORTH: Final = 1.25

#: Turns of one trial that differ by less are taken to be the same.
_STEADY: Final = 0.1

#: The part of the workers' time in other steps up to which copying is what limits.
_LITTLE: Final = 0.1

#: (H, W) that most ImageNet training uses.
USUAL_SIZE: Final = (224, 224)

#: A set of pictures that many times the pixels of what training sees is worth cutting down.
_MUCH_LARGER: Final = 2.0

#: Shorter side that is kept for random crops of a size: 256 for 224, as ImageNet is usually kept.
_MARGIN: Final = 256 / 224

#: What is given up where only the middle of images is kept.
_KEEP: Final = "the images are cut and scaled for good: keep SRC"

#: Quality of JPEGs made from pixels; re-encoding loses something once.
_QUALITY: Final = 95


@dataclass(frozen=True)
class Ceilings:
    """What bare threads reach: samples/s, and bytes/s of the disk; None: not known or not there."""

    copy: float
    """Copying batches that lie in the caches, as many threads as the loader."""
    decode_one: float | None
    """Decoding in one thread."""
    decode_all: float | None
    """Decoding in as many threads as the loader."""
    disk_random: float | None
    """Pieces of the size of a sample (or chunk) at random offsets, past the page cache."""
    disk_in_order: float | None


@dataclass(frozen=True)
class Candidate:
    """A change that could help, and what came of it once it was tried."""

    name: str
    words: str
    costs: str = ""
    """What is given up for it; "" for nothing."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the reader that change."""
    options: Mapping[str, Any] | None = None
    """Options of ``convert`` where the set is packed anew."""
    command: str | None = None
    """What packs the set anew, fit for a shell."""
    samples_per_second: float | None = None
    factor: float | None = None
    """The rate in relation to the one that the set has now."""
    size: float | None = None
    """Bytes of the whole set after the change; None where ``failure`` says why."""
    fits: bool | None = None
    """Whether that stays in memory."""
    measured: bool = True
    """False if it was worked out from the disk's speed: the whole would not fit in memory."""
    failure: str | None = None

    @property
    def worth(self) -> bool:
        """Whether it helps."""
        return self.factor is not None and self.factor >= WORTH


@dataclass(frozen=True)
class Epoch:
    """What an epoch costs in one order of a set in compressed chunks, or in a set packed anew."""

    words: str
    read: float
    """Bytes read from the file for each sample."""
    inflated: float
    """Bytes inflated for each sample."""
    seconds: float
    command: str | None = None
    """What packs the set anew, fit for a shell."""


def epochs(facts: Facts, p: ReaderParams, served: float, tried: Sequence[Candidate]) -> list[Epoch]:
    """What an epoch of a set in compressed chunks costs as it is read now, and after each change
    that was tried; nothing of other sets. ``served``: samples/s now."""
    cost = facts.chunks
    if cost is None or facts.count == 0:
        return []
    whole = Epoch(f"shuffle={p.shuffle!r}", cost.read, cost.inflated, facts.count / served)
    if not at_random(p.shuffle):
        whole = replace(whole, read=cost.read_in_order, inflated=cost.inflated_in_order)
    found = [whole]
    for change in tried:
        if change.samples_per_second is None or change.name == "many":
            continue
        seconds = facts.count / change.samples_per_second
        if change.command is None:
            read, inflated = cost.read_in_order, cost.inflated_in_order
        else:
            read, inflated = (change.size or 0.0) / facts.count, 0.0
        found.append(Epoch(change.words, read, inflated, seconds, change.command))
    return found


def propose(facts: Facts, p: ReaderParams) -> list[Candidate]:
    """What is worth a trial, by the layout alone."""
    found = []
    full = p.shuffle is True
    if full and (facts.chunk > 1 or not facts.fits):
        unit = f"chunks of {facts.chunk}" if facts.chunk > 1 else "pieces of about 1 MB"
        costs = (
            f"{unit} in random order, samples mixed over {p.shuffle_window:,} at a time instead of "
            "over the whole dataset"
        )
        found.append(Candidate("block", 'shuffle="block"', costs, {"shuffle": "block"}))
    if not facts.fits:
        many = READERS_PER_CORE * facts.cores
        if int(p.nthread if p.nthread != "auto" else facts.cores) < many:
            more = {"nthread": many, "njob": many}
            costs = "more batches in memory, and many waiting threads"
            found.append(Candidate("many", f"nthread={many} njob={many}", costs, more))
    if facts.packable:
        found += _encoded(facts, p) if facts.encoded else _raw(facts, p)
    return found


def _encoded(facts: Facts, p: ReaderParams) -> list[Candidate]:
    """Pictures that are decoded each time: smaller ones, pixels, or JPEGs decoded in part."""
    found = []
    random = p.size is not None and p.crop.at_random
    size = p.size or (None if facts.shape is None else facts.picture)
    if size is not None and not random:
        cut = _before_crop(size, p)
        how = {"encoding": "raw", **_sized(cut, facts, p)}
        costs = "" if p.size is None else _KEEP
        found.append(Candidate("raw", f"convert to pixels of {sides(*cut)}", costs, options=how))
    if p.size is not None and facts.picture is not None and not facts.deep:
        side = math.ceil(max(p.size) * (_MARGIN if random else 1 / p.crop.ratio))
        if min(facts.picture) ** 2 > _MUCH_LARGER * side * side:
            words = f"convert to JPEGs of {side} on the shorter side"
            costs = "the images are scaled for good: keep SRC"
            found.append(
                Candidate("jpeg", words, costs, options={"encoding": "jpeg", "size": side})
            )
    if random and facts.unmarked:
        words = "convert to the same JPEGs with restart markers"
        found.append(Candidate("restarts", words, "", options={"restarts": True}))
    return found


def _raw(facts: Facts, p: ReaderParams) -> list[Candidate]:
    """Pixels: not compressed, not larger than needed, or small enough to stay in memory."""
    found = []
    proposal = Candidate("raw", "convert to plain pixels", "", options={"encoding": "raw"})
    wanted = bool(facts.compression) or (facts.container == "LMDB" and not facts.ours)
    if p.size is not None and facts.picture is not None and not p.crop.at_random:
        cut = _before_crop(p.size, p)
        if math.prod(facts.picture) > math.prod(cut):
            how = {"encoding": "raw", **_sized(cut, facts, p)}
            proposal = Candidate("raw", f"convert to pixels of {sides(*cut)}", _KEEP, options=how)
            wanted = True
    if wanted:
        found.append(proposal)
    large = facts.picture is not None and min(facts.picture) >= 64
    if not facts.fits and large and not facts.deep:
        words = f"convert to JPEGs (quality {_QUALITY})"
        costs = "pixels change a little: JPEG is lossy; keep SRC"
        how = {"encoding": "jpeg", "quality": _QUALITY}
        found.append(Candidate("jpeg", words, costs, options=how))
    return found


def _before_crop(size: tuple[int, int], p: ReaderParams) -> tuple[int, int]:
    """Of what shape to keep pictures so that a reader with ``crop_ratio`` cuts ``size`` out."""
    high, wide = (math.ceil(side / p.crop.ratio - 1e-9) for side in size)
    return high, wide


def _sized(cut: tuple[int, int], facts: Facts, p: ReaderParams) -> dict[str, Any]:
    if facts.shape is not None and facts.picture == cut:
        return {}
    squeezed = {"resize": "squeeze"} if p.crop.kind == "none" else {}
    return {"size": cut, **squeezed}


def command(src: str, dst: str, how: Mapping[str, Any], read: Mapping[str, Any]) -> str:
    """The ``asyncreader convert`` that does it. ``read``: how ``src`` is read."""
    words = ["asyncreader", "convert", src, dst, *option_words(how)]
    for name, value in read.items():
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        words += ["-p", f"{name}={text}"]
    return shlex.join(words)


def option_words(how: Mapping[str, Any]) -> list[str]:
    """Options of ``convert`` as the command line has them."""
    words = []
    for name, value in how.items():
        if name == "fields":
            for key, folder in value.items():
                words += ["--field", f"{key}={folder}"]
            continue
        if isinstance(value, Mapping):  # --split train=0.9,val=0.1
            value = ",".join(f"{key}={share}" for key, share in value.items())
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value))
    return words


def free_name(path: str, name: str, taken: Callable[[str], bool] = os.path.lexists) -> str:
    """A path next to ``path`` that does not exist yet: train.h5 -> train-raw.h5."""
    stem = os.path.splitext(path.rstrip(os.sep))[0]
    ends = itertools.chain([""], map("-{}".format, itertools.count(2)))
    return next(found for end in ends if not taken(found := f"{stem}-{name}{end}.h5"))


# -- words ---------------------------------------------------------------------------------------


def limit(
    facts: Facts, p: ReaderParams, now: Rate, tops: Ceilings, copied: bool
) -> tuple[str, list[str]]:
    """What limits the loader ("decode", "disk", "memory" or "work") and sentences about it.

    ``copied``: samples are handed out as they are stored, but for what other steps do to them.
    """
    served = now.samples_per_second
    if facts.fits is False and tops.disk_random is not None:
        needed = served * facts.stored_bytes * facts.chunk
        if _decode_share(now) < 0.5 and needed > 0.1 * tops.disk_random:
            return "disk", _about_disk(facts, tops)
    if (facts.encoded or facts.compression) and _decode_share(now) > 0.5:
        return "decode", _about_decoding(facts, p, now, tops)
    if copied and sum(_other_steps(now).values()) < _LITTLE:
        words = [
            "Memory: samples are copied as they lie, which is as fast as it gets; "
            f"{served / tops.copy:.0%} of copying one batch over and over in "
            f"{some(now.nthread, 'thread')}. Nothing in the file slows it down."
        ]
        if served < 0.5 * tops.copy and now.batch_bytes < 2 << 20:
            words.append("Batches are small: the fixed cost of each one shows.")
        return "memory", words
    return "work", [
        f"The work on each sample: {_parts(facts, p, now)}. As many threads could copy "
        f"{_times(tops.copy / served)} as many samples."
    ]


def _times(factor: float) -> str:
    """ "1.4 times", "26 times"."""
    return f"{factor:,.{0 if factor >= 10 else 1}f} times"


def _parts(facts: Facts, p: ReaderParams, now: Rate) -> str:
    """What the workers do, the longest first, each with its share of their time where it is more
    than one thing."""
    done = []
    if p.size is not None:
        done += ["cutting", "resizing"]
    if p.flip:
        done.append("mirroring")
    if p.contiguous or any(one is not None for one in (p.dtype, p.scale, p.mean, p.std)):
        done.append("converting")
    own = " and ".join(filter(None, (", ".join(done[:-1]), *done[-1:]))) or "copying"
    shares = _other_steps(now)
    shares[_undoing(facts)] = _decode_share(now)
    shares[own] = 1 - sum(shares.values())
    said = sorted(((part, name) for name, part in shares.items() if part >= 0.01), reverse=True)
    if len(said) == 1:
        return said[0][1]
    return ", ".join(f"{name} ({part:.0%} of the threads' time)" for part, name in said)


def _decode_share(now: Rate) -> float:
    """Part of the workers' time that goes into decoding, 0 to 1."""
    return now.steps.get("decode", 0.0)


def _other_steps(now: Rate) -> dict[str, float]:
    """Parts of the workers' time in steps that neither read nor decode."""
    return {name: part for name, part in now.steps.items() if name not in ("read", "decode")}


def _undoing(facts: Facts) -> str:
    """What decoding is for this set."""
    if facts.encoded:
        return f"decoding the images ({facts.encoding})"
    return f"undoing {facts.compression}"


def _about_disk(facts: Facts, tops: Ceilings) -> list[str]:
    assert tops.disk_random is not None
    piece = facts.stored_bytes * facts.chunk
    words = [
        f"The disk: the files ({in_bytes(facts.size)}) are larger than the memory left to them "
        f"({in_bytes(facts.memory)}), so that at least {1 - facts.memory / facts.size:.0%} of the "
        f"samples are read again in each epoch, {in_bytes(piece)} at a time."
    ]
    if tops.disk_in_order is not None and tops.disk_in_order > 1.5 * tops.disk_random:
        words.append(
            f"Read in order it gives {tops.disk_in_order / tops.disk_random:.1f} times as many "
            "bytes a second."
        )
    return words


def _about_decoding(facts: Facts, p: ReaderParams, now: Rate, tops: Ceilings) -> list[str]:
    undoing = _undoing(facts)
    words = [f"{undoing[0].upper()}{undoing[1:]}: {_decode_share(now):.0%} of the threads' time."]
    if facts.encoded and p.size is not None and facts.picture is not None:
        part = math.prod(p.size) / math.prod(facts.picture)
        if part < 0.5:
            words.append(
                f"They have {sides(*facts.picture)} pixels, of which training sees "
                f"{sides(*p.size)}: {part:.1%}."
            )
    if not facts.encoded and facts.chunk > 1 and p.shuffle is True:
        words.append(
            f"{facts.chunk} samples ({in_bytes(facts.chunk * facts.sample_bytes)}) are compressed "
            f"together; a sample drawn at random needs all of them, and {facts.chunk - 1} of "
            f"{facts.chunk} are inflated for nothing."
        )
    if not facts.encoded and facts.chunk > 1 and p.world_size != 1:
        words.append(
            f"Every rank decodes each chunk of {facts.chunk} that has one of its samples, and "
            "many ranks nearly all chunks: several ranks need one sample a chunk."
        )
    if tops.decode_all is not None and tops.copy > tops.decode_all:
        gain = _times(tops.copy / tops.decode_all)
        words.append(f"As plain pixels they could be copied {gain} as fast as they are decoded.")
    return words


def keeps_up(rate: float, batch_size: int, consumer_seconds: float) -> tuple[bool, str]:
    """Whether a loader of so many samples/s feeds a step of that length, and a sentence."""
    needed = batch_size / consumer_seconds
    step = f"{batch_size:,} samples in {consumer_seconds * 1e3:g} ms"
    if rate >= needed:
        return True, (
            f"The loader keeps up: {step} are {needed:,.0f} samples/s, and it gives "
            f"{rate / needed:,.1f} times that. Nothing needs to change."
        )
    return False, (
        f"The loader does not keep up: {step} are {needed:,.0f} samples/s, and it gives "
        f"{rate / needed:.0%} of that. Training waits {1 - rate / needed:.0%} of its time."
    )


def threads(rates: Sequence[Rate]) -> tuple[int, str | None]:
    """The fewest threads that are within a tenth of the fastest, and None. Where the rates differ
    by less than the turns of a trial: the most that were tried, and a sentence that says so."""
    fastest = max(rates, key=lambda rate: rate.samples_per_second)
    slowest = min(rates, key=lambda rate: rate.samples_per_second)
    apart = 1 - slowest.samples_per_second / fastest.samples_per_second
    noise = max((rate.fastest - rate.slowest) / rate.samples_per_second for rate in rates)
    if len(rates) > 1 and apart < noise and noise > _STEADY:
        most = max(rate.nthread for rate in rates)
        numbers = " and ".join(str(number) for number in sorted(rate.nthread for rate in rates))
        return most, (
            f"the rates with {numbers} threads differ by {apart:.0%}, and the turns of one trial "
            f"by up to {noise:.0%}: this does not show which number suits the dataset, and nthread "
            f"stays {most}"
        )
    near = [rate for rate in rates if rate.samples_per_second >= 0.9 * fastest.samples_per_second]
    return min(rate.nthread for rate in near), None


def suited(facts: Facts, nthread: int) -> dict[str, Any]:
    """Parameters that suit the set as it is, by what was measured and where it lies."""
    return {
        "nthread": nthread,
        # a batch in work for each thread; more only cost memory
        "njob": max(2, nthread),
        "io": "pread" if facts.network or not facts.fits else "auto",
    }


def chosen(
    tried: Sequence[Candidate], keeps: bool | None, needed: float | None
) -> Candidate | None:
    """What to do: nothing where the loader keeps up; else the cheapest change that makes it keep
    up (``needed`` samples/s), a parameter before a new file; else the one that gains most.
    """
    good = sorted((t for t in tried if t.worth), key=lambda t: -(t.factor or 0))
    if keeps or not good:
        return None
    if needed is not None:
        for change in sorted(good, key=lambda t: t.command is not None):
            if (change.samples_per_second or 0) >= needed:
                return change
    return good[0]
