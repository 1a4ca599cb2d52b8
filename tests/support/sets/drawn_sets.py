"""Sets with features drawn at random: how they are stored, what opens them, and their reference.

:class:`DrawnContract` has the tests of such sets: those of any reader, and what their reference
knows besides.
"""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from field_kinds import (
    HEIGHT,
    WIDTH,
    Array,
    Asked,
    Boxes,
    Draw,
    Encoded,
    Image,
    Mask,
    Numbers,
    Ragged,
    Sparse,
    Table,
)
from reader_contract import ReaderContract, Row, Served, same, tupled
from reference import Field, Look, Patch, Reference

import asyncreader
from asyncreader import FormatError, ParamsError, Writer, convert

CLASSES = ("cat", "dog", "owl")
#: Containers that a Writer makes.
PACKED = ("h5", "lmdb", "shards")
#: Parameters that are given by field.
BY_FIELD = (
    *("columns", "dtype", "max_length", "mean", "members", "overlong", "pad_value", "scale", "std"),
)
#: Features that do not go together, as the pages say: any of the one with any of the other.
REFUSED: tuple[tuple[set[str], set[str]], ...] = (
    ({"container mix"}, {"kind Ragged", "renamed", "weights", "sample windows", "sample whole"}),
    ({"container mix"}, {"sample patch", "balanced", "labels several", "labels given"}),
    ({"container data"}, {"labels several"}),
    ({"episodes groups"}, {"kind Ragged", "kind Sparse"}),
    ({"views", "boxes"}, {"sample windows", "sample whole"}),
    ({"views"}, {"boxes", "kind Ragged"}),
    ({"moved"}, {"no image first"}),
    ({"weights"}, {"shuffle block", "shuffle balanced-permutation"}),
    ({"balanced"}, {"labels none", "labels wide", "labels several", "a row of each episode"}),
    ({"sample patch"}, {"container lmdb"}),
    *(({alone}, {alone}) for alone in ("empty", "ambiguous", "uneven")),
)


class DrawnSet:
    """A set in ``folder``: ``params`` serve it, and ``reference`` says what its samples are.
    ``forced``: the values of some features; ``features``: what was drawn."""

    def __init__(self, folder: Path, *seed: int, **forced: Any) -> None:
        self.draw, self.folder = Draw(seed, forced), folder
        self.rng, self.params = self.draw.rng, dict[str, Any]()
        self.sample = self.draw("sample", *("rows",) * 3, *("windows",) * 2, "whole", "patch")
        packed = PACKED if self.sample in ("rows", "patch") else ()
        self.container = self.draw("container", "file", "file", "files", "data", "mix", *packed)
        self.packed = self.container in PACKED
        self.episodes = self._episodes()
        single = self.sample == "patch" and not self.packed and self.draw("single volume", 0, 0, 1)
        self.volumes = None if single else 0
        self.kinds = self._kinds()
        self.names = {name: name for name in self.kinds if name != "boxes"}
        plain = self.packed or self.sample == "patch"
        if not plain and self.draw("renamed", False, False, False, True):
            self.names = {f"my_{name}": name for name in self.names}
            self.names["again"] = self.draw.any(*self.names.values())
        self.extra: dict[str, int | None] = dict.fromkeys(self.kinds, 0)
        later = [name for name in ("b", "c") if type(self.kinds.get(name)) is Numbers]
        if later and self.episodes in ("groups", "ends", "files"):
            extra = None if self.episodes == "ends" else self.draw("more", None, 1)
            self.extra[later[0]] = extra if self.draw("extra", False, True) else 0
        #: rows of each episode of each file, without episodes of each file
        files = {"files": int(self.rng.integers(2, 4)), "mix": 2}.get(self.container, 1)
        files = 5 if self.episodes == "files" else files
        self.lengths = [self._lengths() for _ in range(files)]
        every = list(itertools.chain(*self.lengths))
        self.labelled = self.draw("labels", *self._labels())
        self.rows = {name: [self._made(name, n) for n in every] for name in self.kinds}
        if self.volumes is None:  # of several extents
            for rows in self.rows.values():
                rows[:] = [[row[n % 2 :] for row in some] for n, some in enumerate(rows)]
        self.labels = [self._label(n) for n in every]
        if self.labelled == "attribute":  # classes are the texts that there are
            there = sorted({label for label, n in zip(self.labels, every, strict=True) if n})
            self.labels = [there.index(label) if label in there else 0 for label in self.labels]
        self.train: list[int] = []
        self.params |= self._source()
        if self.episodes == "whole":  # all files together are one recording
            self.lengths, self.labels = [[sum(every)]], [np.concatenate(self.labels)]
            self.rows = {name: [list(itertools.chain(*some))] for name, some in self.rows.items()}
            every = self.lengths[0]
        self.reference = self._reference([n > 0 for n in every])
        getattr(self, f"_{self.sample}")()
        self._look()
        for option in BY_FIELD:
            given = {f.name: f.asked[option] for f in self.reference.fields if option in f.asked}
            alone = not self.several or (len(self.names) == 1 and self.draw.any(True, False))
            if given:
                self.params[option] = next(iter(given.values())) if alone else given
        self._subset()
        self.population = self.reference.population()
        self._order()

    @property
    def features(self) -> set[str]:
        """What was drawn, by name."""
        ref, found = self.reference, set(self.draw.features)
        found |= {f"kind {type(kind).__name__}" for kind in self.kinds.values()}
        shapes = [ref.uncut(n) for n in range(len(ref.lengths))] if ref.patch else []
        sources = {ref.source(unit) for unit in self.population}
        derived = {
            "moved": ref.look != Look() or ref.views,
            "no image first": not isinstance(self.kinds["data"], Mask),
            "balanced": "balanced" in f"{self.params['shuffle']} {self.params.get('weights')}",
            "a row of each episode": ref.by_episode and not ref.whole,
            "ambiguous": ref.patch is not None and self._ambiguous(ref.patch),
            "uneven": len({*map(tuple, shapes)}) > 1,
            "empty": not self.population or sources < set(ref.sources or ()),
        }
        return found | {name for name, value in derived.items() if value}

    @property
    def refused(self) -> str | None:
        """Why it must be refused, or None."""
        pairs = ((one & self.features, other & self.features) for one, other in REFUSED)
        return next((f"{one} with {other}" for one, other in pairs if one and other), None)

    def served(self) -> Served:
        """What a reader must serve."""
        rng, ref, count = self.rng, self.reference, len(self.population)
        count = self.params.get("epoch_samples", count)
        size, world = int(rng.integers(1, min(5, count) + 1)), min(int(rng.integers(1, 4)), count)
        sizes = size, world, int(rng.integers(1, min(4, count // world) + 1))
        known = None if self.container == "mix" else count
        return Served(self.params, ref.check, known, sizes, ref.unit)

    def _ambiguous(self, patch: Patch) -> bool:
        """Whether a patch that is no trailing one may be an image with channels first."""
        axes = len(self.kinds["data"].shape)
        left = patch.shape[0] if 0 in patch.axes else self.kinds["data"].shape[0]
        return axes == 3 and patch.axes != tuple(range(3))[-len(patch.axes) :] and left <= 4

    # -- what is stored --------------------------------------------------------------------------

    def _episodes(self) -> str | None:
        some: list[str | None] = [None] if self.sample in ("rows", "patch") else ["ends"]
        if self.sample != "patch" and not self.packed and self.container != "mix":
            some = some * (17 if self.sample == "rows" else 1) + ["ids", "flags", "axis", "whole"]
            some += ["groups"] * 2 if self.container != "data" else []
            some += ["files"] * (3 * (self.container == "files"))
        return self.draw("episodes", *some)  # type: ignore[no-any-return]

    def _kinds(self) -> dict[str, Numbers]:
        rng, draw = self.rng, self.draw
        if self.sample == "patch":
            shape = tuple(int(n) for n in rng.integers(5, 9, rng.integers(2, 4)))
            return {"data": Numbers(shape, "u2"), "b": Numbers(shape, "u1")}
        stored = self.container in ("file", "files", "mix")
        flat = self.episodes != "axis"
        names = ["Numbers", "Image", *(["Mask"] if self.sample == "rows" else [])]
        names += ["Ragged"] if flat and self.sample != "whole" else []
        names += (["Table"] if flat and not self.packed else []) + ["Sparse"] * (flat and stored)
        dtypes = ("f4", "f4", "f8", "i8", "u2", "?", *(() if self.packed else (">f4",)))
        how = ["_offsets", "_lengths"] if self.episodes is None else ["_cuts"]
        how += ["vlen"] if self.container in ("file", "files") else []
        kinds: dict[str, Numbers] = {}
        for name in ("data", "b", "c")[: draw("fields", 1, 2, 3)]:
            ragged = Ragged((), draw.any("i4", "f4", "i8"), draw("how", *how))
            kinds[name] = {
                "Numbers": Numbers(draw.any((), (4,), (4,), (2, 5)), draw.any(*dtypes)),
                "Ragged": replace(ragged, shape=() if ragged.how == "vlen" else draw.any((), (2,))),
                "Sparse": Sparse(dtype=draw.any("f4", "f8")),
                "Table": Table(),
                "Image": Image(),
                "Encoded": Encoded(),
                "Mask": Mask(),
            }[draw("kind" if name == "data" else f"kind of {name}", *names)]
        image = isinstance(kinds["data"], Image) and self.container != "lmdb"
        if image and draw("boxes", False, False, True):
            kinds["boxes"] = Boxes(dtype=draw.any("i4", "f4"))
        return kinds

    def _lengths(self) -> list[int]:
        rng = self.rng
        if self.episodes == "axis":
            return [int(rng.integers(3, 8))] * int(rng.integers(2, 5))
        if self.episodes in (None, "whole", "files"):
            return [int(rng.integers(5, 12))] if self.volumes == 0 else [1]
        empty = self.episodes in ("groups", "ends") and set(self.extra.values()) == {0}
        return [*rng.integers(0 if empty else 2, 8, rng.integers(2, 5)).tolist(), 5]

    def _made(self, name: str, count: int) -> list[Array]:
        extra = self.extra[name]
        return self.kinds[name].make(self.rng, 1 if extra is None else count + extra)

    def _labels(self) -> tuple[str, ...]:
        if self.packed:
            return "none", "column", "wide", "text"
        if self.container == "data" or self.episodes == "axis" or self.volumes is None:
            return "none", "given"
        some: tuple[str, ...] = ("none", "number", "number", "column", "wide", "given", "several")
        some += ("attribute", "episode") if self.episodes in ("groups", "files") else ()
        return some + (("episode",) if self.episodes in ("ends", "ids", "flags") else ())

    def _label(self, count: int) -> Any:
        """The label of an episode, or an array of those of its rows."""
        rng, kind = self.rng, self.labelled
        if kind in ("attribute", "episode"):
            return int(rng.integers(3))
        if kind == "wide":
            return rng.integers(0, 9, (count, 3)) / 4
        numbers = rng.integers(0, 3, count).astype("i8" if self.packed else "i2")
        return numbers[:, None] if kind == "column" or self.packed else numbers

    # -- writing ---------------------------------------------------------------------------------

    def _source(self) -> dict[str, Any]:
        """Write the set; what names it."""
        suffix = {"lmdb": ".lmdb", "shards": ""}.get(self.container, ".h5")
        if self.container == "data":
            arrays: dict[str, Array] = self._tables(self.lengths[0])
            for name, kind in self.kinds.items():
                flat = self._flat(name, slice(None))
                arrays |= kind.tables(name, flat) if isinstance(flat, list) else {name: flat}
            single = list(arrays) == list(self.names) == ["data"] and self.draw.any(True, False)
            return {"data": arrays["data"] if single else arrays}
        files = [self.folder / f"part_{n}{suffix}" for n in range(len(self.lengths))]
        ends = list(itertools.accumulate(map(len, self.lengths)))
        for path, lengths, end in zip(files, self.lengths, ends, strict=True):
            (self._pack if self.packed else self._put)(
                path, lengths, slice(end - len(lengths), end)
            )
        if self.container == "mix":
            ratio = self.draw.any(0.5, 0.25, 0.7)
            until = self.draw("mix_until", {}, {"mix_until": "first"})
            return {"mix": {files[0]: ratio, files[1]: 1 - ratio}} | until
        return {"path": files if self.container == "files" else files[0]}

    def _tables(self, lengths: list[int]) -> dict[str, Array]:
        """What says where the episodes of a file end."""
        last = np.isin(np.arange(sum(lengths)), np.cumsum(lengths) - 1)
        return {
            "ends": {"ends": np.cumsum(lengths)},
            "ids": {"ids": np.repeat(np.arange(len(lengths)) * 5 % 7, lengths)},
            "flags": {"done": last & (np.arange(last.size) % 2 == 0), "cut": last},
        }.get(self.episodes or "", {})

    def _flat(self, name: str, part: slice) -> Array | list[Array]:
        """The rows of a field in a file, or its array where that has other axes."""
        episodes = self.rows[name][part]
        if self.episodes == "axis":
            return np.stack([np.stack(rows) for rows in episodes])
        return episodes[0][0] if self.volumes is None else list(itertools.chain(*episodes))

    def _put(self, path: Path, lengths: list[int], part: slice) -> None:
        """Write a file with plain h5py."""
        draw = self.draw
        with h5py.File(path, "w") as file:
            if self.episodes != "groups":
                for name, kind in self.kinds.items():
                    flat = self._flat(name, part)
                    if isinstance(flat, list):
                        kind.put(file, name, flat, draw)
                    else:
                        draw.table(file, name, flat)
                for name, table in self._tables(lengths).items():
                    file[name] = table
                self._put_label(file, self.labels[part])
                return
            for at, label in enumerate(self.labels[part]):
                group = file.create_group(f"data/demo_{4 * at}")
                for name, kind in self.kinds.items():
                    kind.put(group, name, self.rows[name][part][at], draw)
                self._put_label(group, [label])
            if self.container == "file":
                able = np.flatnonzero(lengths)
                some = self.rng.permutation(able.size)[: self.rng.integers(1, able.size + 1)]
                self.train = sorted(some.tolist())
                file["mask/train"] = [f"demo_{4 * able[at]}".encode() for at in some]

    def _put_label(self, group: h5py.Group, labels: list[Any]) -> None:
        if self.labelled == "attribute":
            group.attrs["task"] = CLASSES[labels[0]]
        elif self.labelled == "episode":
            group["labels"] = labels[0] if self.episodes in ("groups", "files") else labels
        elif self.labelled not in ("none", "given"):
            group["labels"] = np.concatenate(labels)
            if self.labelled == "several":
                group["second"] = np.concatenate(labels)[:, None] * 0.5

    def _pack(self, path: Path, lengths: list[int], part: slice) -> None:
        """Write a file with a Writer."""
        more: dict[str, Any] = {"shards": 2} if self.container == "shards" else {}
        more |= {"compression": "gzip"} if self.container != "lmdb" and self.draw.any(0, 1) else {}
        more |= {"classes": CLASSES} if self.labelled == "text" else {}
        ragged = [name for name, kind in self.kinds.items() if kind.ragged]
        with Writer(path, variable_length=ragged, **more) as writer:
            for at in range(lengths[0]):
                row: dict[str, Any] = {name: rows[0][at] for name, rows in self.rows.items()}
                label = self.labels[0][at]
                label = CLASSES[label[0]] if self.labelled == "text" else label
                row |= {} if self.labelled == "none" else {"label": label}
                writer.add(row.pop("data"), path=f"row {at}", **row)

    # -- what is asked of it ---------------------------------------------------------------------

    def _reference(self, kept: list[bool]) -> Reference:
        """The reference of the set, and the parameters that name fields, labels and episodes."""
        draw, params, fields = self.draw, self.params, list[Field]()
        for name, stored in (self.names | {n: n for n in self.kinds if n == "boxes"}).items():
            kind, rows = self.kinds[stored], list(itertools.compress(self.rows[stored], kept))
            fields.append(Field(name, kind, rows, self.extra[stored], kind.ask(draw)))
        params |= {"boxes_field": "boxes"} if "boxes" in self.kinds else {}
        listed = dict(self.names) if "again" in self.names else list(self.names)
        several = isinstance(params.get("data"), dict) or len(fields) > 1
        listable = "data" not in params or several
        self.several = listable and (several or draw.any(True, False, False))
        if self.several:
            params["data_field"] = listed
        cuts = {n: f"{s}_cuts" for n, s in self.names.items()}
        cuts = {n: t for n, t in cuts.items() if t[-5:] == getattr(self.kinds[t[:-5]], "how", "")}
        params |= {"offsets_field": cuts if self.several else cuts["data"]} if cuts else {}
        self.labels = list(itertools.compress(self.labels, kept))
        if self.labelled == "given":
            params["labels"] = np.concatenate(self.labels)
        elif self.container != "data":
            asked = {"none": None, "several": ["labels", "second"], "attribute": "@task"}
            params["labels_field"] = asked.get(self.labelled, "labels")
        tables = {"flags": "flags:done,cut", "groups": "groups:data/demo_*"}
        tables |= {name: f"{name}:{name}" for name in ("ends", "ids")}
        if self.episodes is not None:
            params["episodes"] = tables.get(self.episodes, self.episodes)
        sources = [n for n, some in enumerate(self.lengths) for rows in some if rows]
        return Reference(
            fields,
            [n for n in itertools.chain(*self.lengths) if n],
            self.episodes is not None,
            sources if self.container == "mix" else None,
            None if self.labelled == "none" else self._label_of,
        )

    def _label_of(self, episode: int, row: int) -> Any:
        label = self.labels[episode]
        if self.labelled in ("attribute", "episode"):
            return np.asarray(label)
        one = np.asarray(label[row])
        return (one, one[None] * 0.5) if self.labelled == "several" else one

    def _rows(self) -> None:
        """A sample is a row."""

    def _windows(self) -> None:
        """A sample is a window: one for all fields, or one for each of some."""
        rng, draw, ref, params = self.rng, self.draw, self.reference, self.params
        for one in ref.fields:
            one.asked.pop("overlong", None)
        if draw("one window", False, True):
            params["window"] = rows = int(rng.integers(1, 4))
            for one in ref.fields:
                one.reach = tuple(range(rows))
        else:
            params["window"] = window = dict[str, Any]()
            for one in ref.fields:
                first, step, rows = (int(rng.integers(low, 4)) for low in (-3, 1, 1))
                each: Any = (first, first + rows * step, step)
                if one is not ref.fields[0]:
                    each = draw.any(rows, each, rng.permutation(6)[:rows].tolist(), "last", None)
                if one.extra is not None and each is not None:
                    window[one.name] = one.reach = each
                    if isinstance(each, tuple):
                        one.reach = tuple(range(*each))
                    elif each != "last":
                        one.reach = tuple(range(each) if isinstance(each, int) else each)
        ref.every = draw("every", 1, 1, 2, 3, "episode")
        ref.edges = draw("edges", *itertools.product(("drop", "repeat", "zero"), repeat=2))
        params |= {"window_every": ref.every, "window_edge": ref.edges}
        if draw("outside", False, False, True):
            before, after = (None if e == "drop" else draw.any(1, 2, None) for e in ref.edges)
            ref.outside = params["window_outside"] = before, after

    def _whole(self) -> None:
        """A sample is a whole episode of some fields."""
        draw, ref = self.draw, self.reference
        most, every = int(self.rng.integers(1, 9)), draw.any(True, False)
        for one in ref.fields:
            if one is not ref.fields[0] and not every and (one.extra is None or draw.any(0, 1)):
                continue
            one.reach = "episode"
            if one.extra is not None:
                one.asked["max_length"] = most + draw.any(0, 0, 1)
                one.asked |= draw("overlong", {}, {"overlong": "random"}, {"overlong": "cut"})
                one.asked |= draw.any({}, {"pad_value": 1})
        chosen = {one.name: "episode" for one in ref.fields if one.reach}
        self.params["window"] = "episode" if every else chosen

    def _patch(self) -> None:
        """A sample is a patch of a volume."""
        rng, params, axes = self.rng, self.params, len(self.kinds["data"].shape)
        count = int(rng.integers(1, axes + 1))
        cut = tuple(range(axes - count, axes))
        if self.draw("patch axes", False, False, True):
            cut = tuple(sorted(rng.permutation(axes)[:count].tolist()))
            params["patch_axes"] = tuple(axis + (self.volumes == 0) for axis in cut)
        shape, step = (tuple(rng.integers(1, 5, count).tolist()) for _ in range(2))
        at = self.draw("patch at", "random", "grid", "grid", "center")
        params |= {"patch": shape, "patch_at": at, "sample_axis": self.volumes}
        if at == "grid" and self.draw.any(True, False):
            params["patch_step"] = step
        self.reference.patch = Patch(shape, cut, at, params.get("patch_step", shape))

    def _look(self) -> None:
        """Images are cut, mirrored, served several times, or with channels last."""
        draw, ref, params = self.draw, self.reference, self.params

        def asked(look: Look) -> Asked:
            size = {} if look.width == WIDTH else {"size": (HEIGHT, look.width), "crop": look.crop}
            return size | ({"flip": True} if look.flip else {})

        first = isinstance(self.kinds["data"], Mask)
        if draw("move", *((True, False) if first else (False,) * 30 + (True,))):
            width, crop = draw("look", (WIDTH, "center"), (6, "center"), (6, "random"))
            ref.look = Look(width, crop, draw("mirrored", True, False))
            params |= asked(ref.look)
            if draw("views", False, False, True):
                ref.views, params["views"] = (replace(ref.look, count=2),), 2
                if draw.any(True, False):
                    ref.views = Look(6, "random", False, 2), Look(4, "center", True, 1)
                    base = {"flip": False, "crop": "center"}
                    params["views"] = [base | asked(v) | {"count": v.count} for v in ref.views]
        images = any(isinstance(kind, Image) for kind in self.kinds.values())
        if images and draw("channels last", False, True):
            params["layout"] = "NHWC"
            for one in ref.fields:
                one.asked["layout"] = "NHWC"

    def _subset(self) -> None:
        """Some episodes, some records, or both."""
        rng, draw, ref, params = self.rng, self.draw, self.reference, self.params
        count = len(ref.lengths)
        total = count if ref.by_episode else ref.starts[-1]
        if ref.episodic and draw("episodes_subset", False, False, True):
            ref.episodes = rng.permutation(count)[: rng.integers(1, count + 1)].tolist()
            params["episodes_subset"] = ref.episodes
            if draw.any(False, count > 1):
                params["episodes_subset"], ref.episodes = slice(1, None), [*range(1, count)]
            elif draw.any(True, False):
                params["episodes_subset"] = np.array(ref.episodes)
        low, some = (
            int(rng.integers(0, 3)),
            ["slice", "backwards", "repeats", "some", "range", "list"],
        )
        some += ["split"] * 8 if self.train and ref.episodes is None else []
        kind = draw("subset", *[False] * 4, *some)
        if kind == "split":
            params["subset"], ref.episodes = "train", self.train
        elif kind:
            params["subset"] = ref.subset = {
                "slice": draw.any(slice(low, total - 1), slice(low, None, 2)),
                "backwards": slice(-1 - low, None, -1 - low % 2),
                "repeats": rng.integers(0, total, total),
                "some": rng.permutation(total)[: total // 2 + 1],
                "range": range(low, total, 2),
                "list": rng.integers(0, total, total).tolist(),
            }[kind]

    def _order(self) -> None:
        """The parameters of an order."""
        rng, draw, params, count = self.rng, self.draw, self.params, len(self.population)
        orders = False, True, "block", "replacement", "balanced-permutation"
        params |= {"shuffle": draw("shuffle", *orders), "seed": int(rng.integers(1000))}
        params["last_batch"] = draw("last_batch", "drop", "pad", "wrap", "short")
        if params["shuffle"] == "block":
            params |= draw.any({}, {"shuffle_window": 8})
        if draw("weights", *((False, True) if not params["shuffle"] else (False,) * 30 + (True,))):
            some = (rng.integers(0, 3, count) + (np.arange(count) == 0)).astype(float)
            params["weights"] = draw.any("balanced", some)
        patch = self.reference.patch
        drawn = "weights" in params or params["shuffle"] == "replacement" or "mix" in params
        drawn = drawn or (patch is not None and patch.at == "random")
        if drawn and "mix_until" not in params and draw("epoch_samples", False, True):
            params["epoch_samples"] = int(rng.integers(4, 30))


def draw_set(folder: Path, seed: int, refused: float = 0, **forced: Any) -> DrawnSet:
    """A set; of those that a reader must refuse only this share."""
    for number in itertools.count():
        (folder / str(number)).mkdir()
        drawn = DrawnSet(folder / str(number), seed, number, **forced)
        if drawn.refused is None or drawn.rng.random() < refused:
            return drawn
    raise AssertionError


@pytest.mark.filterwarnings("ignore:samples by number")
class DrawnContract(ReaderContract):
    """Tests of drawn sets. A subclass, or its module, has also a fixture ``drawn``: a
    :class:`DrawnSet`; its ``served`` is what that says."""

    def test_population(self, drawn: DrawnSet, served: Served) -> None:
        """Each epoch has the samples that its rule says: passes over the population, of a mix of
        each set and of balanced orders of each class; or draws of some of them."""
        ref, shuffle = drawn.reference, served.params["shuffle"]
        weights = served.params.get("weights")
        joined = [ref.unit(row) for row in itertools.chain(*served.order)]

        def group(unit: Any) -> Any:
            if shuffle != "balanced-permutation":
                return ref.source(unit)
            assert ref.label is not None
            return ref.label(*ref.where(unit[0])).item()

        population = drawn.population
        if isinstance(weights, np.ndarray):
            population = list(itertools.compress(population, weights))
        assert set(joined) <= set(population)
        if weights is not None or shuffle == "replacement":
            return
        for name in {group(unit) for unit in population}:
            members = [unit for unit in population if group(unit) == name]
            units = [unit for unit in joined if group(unit) == name]
            for first in range(0, len(units), len(members)):
                turn = units[first : first + len(members)]
                assert not Counter(turn) - Counter(members)
                assert shuffle is not False or turn == members[: len(turn)]

    def test_dataset(self, drawn: DrawnSet) -> None:
        """A Dataset has the same samples by number, and says what the file says of them."""
        ref, population = drawn.reference, drawn.population
        with asyncreader.open(**drawn.params, as_dict=True) as ds:
            assert ref.sources is not None or len(ds) == len(population)
            numbers = np.random.default_rng(0).permutation(len(ds))[:4].tolist()
            stacked: Any = ds[numbers]
            for k, number in enumerate(numbers):
                sample: Any = ds[number]
                for name, value in sample.items():
                    assert same(tupled(value), tuple(one[k] for one in tupled(stacked[name])))
                row = self.row(drawn, sample, ds.sample(number).record)
                ref.check_row(row, random=False)
                assert ref.sources is not None or ref.unit(row) == population[number]
            if drawn.packed:
                assert ds.paths == [f"row {unit[0]}" for unit in population]
            assert set(ds.splits) == ({"train"} if drawn.train else set())

    def row(self, drawn: DrawnSet, sample: Any, record: int) -> Row:
        """A sample of a Dataset, as a row."""
        ref = drawn.reference
        names = [one.name for one in ref.fields]

        def each(what: str) -> tuple[Any, ...] | None:
            keys = [what] if len(names) == 1 else [f"{name}.{what}" for name in names]
            values = tuple(sample.get(key) for key in keys)
            return values if any(value is not None for value in values) else None

        data = tuple(sample[name] for name in names) if drawn.several else (sample["data"],)
        source = None if ref.sources is None else ref.sources[ref.where(record)[0]]
        beside = sample.get("label"), sample.get("episode"), source
        return Row(record, sample.get("place"), data, *beside, each("present"), each("lengths"))

    def test_converted(self, drawn: DrawnSet) -> None:
        """The set that a Dataset is converted to serves what the Dataset serves: labels as (1,) of
        int64, images with axes in any order."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(plain, value))
            value = np.atleast_1d(value)
            value = value.astype("i8") if value.dtype.kind in "iu" else value
            return np.sort(value.reshape(-1)) if value.ndim == 3 else value

        target = drawn.folder / drawn.draw("target", "back.h5", "back.lmdb", "back")
        with asyncreader.open(**drawn.params) as ds:
            more: Asked = {} if target.suffix else {"shards": min(2, len(ds))}
            try:
                convert(ds, target, **more)
            except (ParamsError, FormatError) as exc:
                drawn.draw.features.add(f"not converted: {exc.what[:50]}")
                return
            names = ["data", *(one.name for one in drawn.reference.fields[1:])]
            fields: Asked = {"data_field": names if drawn.several else "data"}
            if drawn.labelled in ("none", "several"):
                several = ["labels", "second"] if drawn.labelled == "several" else None
                fields["labels_field"] = several
            with asyncreader.open(target, **fields) as back:
                for number in np.random.default_rng(0).permutation(len(ds))[:4].tolist():
                    assert same(plain(ds[number]), plain(back[number])), number
