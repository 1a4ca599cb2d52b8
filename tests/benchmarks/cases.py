"""What is compared: the cases of the benchmark, their contenders, and the ratios asked of them."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import inputs
import rivals

#: The mode every user knows, and the fastest one (``rivals.FASTEST`` says what it is).
EPOCHS, FASTEST = "epochs", "fastest"

OURS = ("ours HDF5", "ours LMDB")
#: Kinds of players.py that are this library.
OUR_KINDS = ("ours", "first_epochs")


@dataclass(frozen=True)
class Setting:
    """What all contenders of a case are given alike."""

    batch: int = 128
    workers: int = 2
    #: What is done with a batch: "none", or "sum" (it is read once).
    consumer: str = "none"


@dataclass
class Contender:
    """One row of a case: a kind of players.py, its interpreter and what it is given."""

    name: str
    kind: str
    spec: dict[str, Any]
    python: str = sys.executable
    modes: tuple[str, ...] = (EPOCHS, FASTEST)
    #: Decoder and resize, where there are some.
    about: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The mode with the higher median; KeyError if none ran."""
        if not self.rates:
            raise KeyError(self.name)
        return max(self.rates, key=lambda mode: statistics.median(self.rates[mode]))


@dataclass(frozen=True)
class Goal:
    """A ratio that is told: ``ours`` / ``other``, round by round, each in its better mode.

    ``bar``: what it has to reach, if anything is asked. ``mode``: hold this mode of both instead.
    """

    ours: str
    other: str
    bar: float | None = None
    mode: str | None = None


@dataclass
class Case:
    name: str
    contenders: list[Contender]
    goals: list[Goal]
    setting: Setting = field(default_factory=Setting)
    #: Samples in an epoch; 0: windows are bounded by seconds alone.
    count: int = 0


@dataclass(frozen=True)
class Pythons:
    """Interpreters that have the rivals."""

    ffcv: str = sys.executable
    torch: str = sys.executable
    peers: str = sys.executable


def ours(name: str, path: str, about: str = "", **params: Any) -> Contender:
    return Contender(name, "ours", {"params": {"path": path, **params}}, about=about)


def limit(name: str, kind: str, **spec: Any) -> Contender:
    """A bound that no loader is asked to pass: the bare work in as many threads."""
    return Contender(name, kind, spec, modes=(FASTEST,))


# -- raw pixels ----------------------------------------------------------------------------------


def raw(name: str, made: dict[str, str], pythons: Pythons) -> Case:
    """Stored pixels, in random order."""
    side, count = (224, inputs.RAW224) if name == "raw224" else (32, inputs.RAW32)
    rows = {"count": count, "shape": [side, side, 3]}
    beton = str(Path(made[name]).with_suffix(".beton"))
    contenders = [
        ours("ours HDF5", made[f"{name}.h5"]),
        ours("ours LMDB", made[f"{name}.lmdb"], verify="never"),
        limit("memcpy", "memcpy", row_bytes=side * side * 3),
        Contender("FFCV", "ffcv", {**rows, "beton": beton, "npy": made[name]}, pythons.ffcv),
        Contender(
            "DataLoader + h5py", "torch_h5py", {**rows, "path": made[f"{name}.h5"]}, pythons.torch
        ),
        Contender(
            "DataLoader + lmdb", "torch_lmdb", {**rows, "path": made[f"{name}.lmdb"]}, pythons.torch
        ),
    ]
    big = name == "raw224"
    goals = []
    for mine in OURS:
        goals += [
            Goal(mine, "FFCV", 1.4 if big else 2.0),
            Goal(mine, "FFCV", 2.0 if big else None, EPOCHS),
            Goal(mine, "memcpy", (0.6 if mine == OURS[0] else 0.5) if big else 0.4),
            Goal(mine, "DataLoader + h5py", 10.0 if big else 30.0),
            Goal(mine, "DataLoader + lmdb"),
        ]
    return Case(name, contenders, goals, count=count)


def raw_otherwise(case: Case) -> list[Case]:
    """The same with a consumer that reads, other batch sizes, and other numbers of workers."""
    found = []
    for suffix, setting in (
        ("each batch summed", Setting(consumer="sum")),
        ("batch 32", Setting(batch=32)),
        ("batch 512", Setting(batch=512)),
        ("1 worker", Setting(workers=1)),
        ("4 workers", Setting(workers=4)),
    ):
        names = [*OURS, "FFCV", "DataLoader + lmdb"]
        if setting.consumer == "none":
            names.append("memcpy")
        goals = [Goal(mine, other) for mine in OURS for other in names if other not in OURS]
        goals += [Goal(mine, "FFCV", mode=EPOCHS) for mine in OURS]
        found.append(variant(case, suffix, setting, names, goals))
    return found


def variant(case: Case, suffix: str, setting: Setting, names: list[str], goals: list[Goal]) -> Case:
    """A case with another setting and some of its contenders, none of which has run."""
    chosen = [
        replace(contender, rates={}, failures={}, versions={})
        for contender in case.contenders
        if contender.name in names
    ]
    return Case(f"{case.name}, {suffix}", chosen, goals, setting, case.count)


def gzip(name: str, made: dict[str, str], pythons: Pythons) -> Case:
    """Compressed HDF5: each sample by itself, or 64 small ones together."""
    big = name == "raw224"
    side, count = (224, inputs.RAW224) if big else (32, inputs.RAW32)
    chunk = 1 if big else 64
    path = made[f"{name}.gz"]
    spec = {"path": path, "count": count, "shape": [side, side, 3], "chunk": chunk}
    random, whole = "DataLoader + h5py, random order", "DataLoader + h5py, whole chunks"
    return Case(
        f"{name} gzip, {chunk} a chunk",
        [
            ours("ours HDF5", path, shuffle=True if big else "block"),
            limit("bare inflate", "inflate", path=path),
            Contender(random, "torch_h5py", spec, pythons.torch),
            Contender(whole, "torch_h5py_block", spec, pythons.torch, (FASTEST,)),
        ],
        [
            Goal("ours HDF5", "bare inflate", 0.95 if big else 0.85),
            Goal("ours HDF5", random, 4.0 if big else 150.0),
            Goal("ours HDF5", whole, 1.0),
        ],
        count=count,
    )


# -- JPEGs ---------------------------------------------------------------------------------------

LIBJPEG = "libjpeg-turbo"
NO_ANTIALIASING = "bilinear without antialiasing"


def jpeg(crop: str, made: dict[str, str], pythons: Pythons) -> Case:
    """JPEGs decoded, cropped and resized to 224 x 224."""
    count = inputs.JPEGS * inputs.TIMES
    spec = {"folder": made["jpeg"], "count": count, "shape": [224, 224, 3], "crop": crop}
    params: dict[str, Any] = {"size": [224, 224], "verify": "never"}
    params |= (
        {"crop_ratio": 0.875} if crop == "center" else {"crop": "random-resized", "flip": True}
    )
    mine = f"simplejpeg ({LIBJPEG}); the reader's default resize"
    beton = {**spec, "beton": made["jpeg"] + ".beton", "quality": inputs.QUALITY}
    lmdb = {**spec, "path": made["jpeg.lmdb"]}
    only_crop = "only the crop decoded"
    contenders = [
        ours("ours LMDB", made["jpeg.lmdb"], mine, **params),
        ours("ours HDF5", made["jpeg.h5"], mine, **params),
        limit("bare decode", "decode", folder=made["jpeg"]),
        Contender(
            "FFCV", "ffcv", beton, pythons.ffcv,
            about=f"{LIBJPEG}, fast IDCT; OpenCV INTER_AREA",
        ),
        Contender(
            "DALI, CPU", "dali", spec, pythons.peers, (FASTEST,),
            f"nvImageCodec ({LIBJPEG}){', ' + only_crop if crop == 'random' else ''}; "
            "linear, antialiased",
        ),
        Contender(
            "tf.data", "tfdata", spec, pythons.peers,
            about=f"{LIBJPEG}, {only_crop}; {NO_ANTIALIASING}",
        ),
        Contender(
            "Grain", "grain", spec, pythons.peers,
            about=f"simplejpeg; OpenCV {NO_ANTIALIASING}",
        ),
        Contender(
            "DataLoader + lmdb", "torch_lmdb", lmdb, pythons.torch,
            about=f"simplejpeg; OpenCV {NO_ANTIALIASING}",
        ),
        Contender(
            "DataLoader + folder", "torch_folder", spec, pythons.torch,
            about="Pillow, fastest mode torchvision.io; bilinear, antialiased",
        ),
    ]  # fmt: skip
    contenders[2].about = f"simplejpeg ({LIBJPEG}), whole pictures, no resize"
    bars = {"FFCV": 1.4, "Grain": 1.2, "DataLoader + lmdb": 2.5, "bare decode": 0.95}
    asked = bars if crop == "center" else {}
    others = [contender.name for contender in contenders[2:]]
    goals = [
        Goal(name, other, asked.get(other))
        for name in ("ours LMDB", "ours HDF5")
        for other in others
    ]
    title = "center crop" if crop == "center" else "random-resized crop, flip"
    return Case(f"JPEG, {title}", contenders, goals, count=count)


def jpeg_otherwise(case: Case) -> list[Case]:
    """The same with a consumer that reads, and other numbers of workers."""
    names = ["ours LMDB", "bare decode", "FFCV", "DALI, CPU", "tf.data", "DataLoader + lmdb"]
    goals = [Goal("ours LMDB", other) for other in names[1:]]
    return [
        variant(case, suffix, setting, names, goals)
        for suffix, setting in (
            ("each batch summed", Setting(consumer="sum")),
            ("1 worker", Setting(workers=1)),
            ("4 workers", Setting(workers=4)),
        )
    ]


def restarts(case: Case, made: dict[str, str], asked: dict[str, float]) -> Case:
    """The same JPEGs with restart markers, of which only the part is decoded that is wanted."""
    (plain,) = [contender for contender in case.contenders if contender.name == "ours HDF5"]
    marked, names = "ours HDF5, restart markers", ["ours HDF5", "FFCV", "DALI, CPU", "tf.data"]
    goals = [Goal(marked, other, asked[other]) for other in asked]
    found = variant(case, "restart markers", case.setting, names, goals)
    params = {**plain.spec["params"], "path": made["jpeg.restarts"]}
    about = f"{plain.about}; only the part decoded"
    found.contenders.insert(0, Contender(marked, plain.kind, {"params": params}, about=about))
    return found


#: Ratios asked of restart markers.
RESTARTS = {
    "center": {"ours HDF5": 1.15, "FFCV": 1.5},
    "random": {"ours HDF5": 1.45, "FFCV": 2.1, "DALI, CPU": 2.0, "tf.data": 2.0},
}


# -- ours alone ----------------------------------------------------------------------------------


def floats(made: dict[str, str]) -> Case:
    """Cast and normalised while a slot is filled."""
    given = {"dtype": "float32", "scale": 1 / 255, "mean": [0.485, 0.456, 0.406],
             "std": [0.229, 0.224, 0.225], "verify": "never"}  # fmt: skip
    path, other = made["raw224.h5"], "bare float32 fill"
    view, packed = "ours, NCHW view of NHWC", "ours, contiguous NCHW"
    half = {**given, "dtype": "float16", "flip": True}
    return Case(
        "raw224 to normalised float32",
        [
            ours(view, path, **given),
            ours(packed, path, contiguous=True, **given),
            ours(f"{packed}, float16, flip", path, contiguous=True, **half),
            limit(other, "fill", row_values=224 * 224 * 3),
        ],
        [Goal(view, other, 0.6), Goal(packed, other, 0.6)],
        count=inputs.RAW224,
    )


def verifying(made: dict[str, str]) -> Case:
    """What checksums cost in an epoch that checks all samples, and in later ones."""
    path = made["raw224.lmdb"]
    found = []
    for verify in ("never", "first", "always"):
        params = {"path": path, "verify": verify}
        name = f"first epoch, {verify}"
        found.append(Contender(name, "first_epochs", {"params": params}, modes=(FASTEST,)))
    for verify in ("never", "first"):
        found.append(ours(f"later epochs, {verify}", path, verify=verify))
    return Case(
        "cost of verify, raw224 LMDB",
        found,
        [
            Goal("first epoch, first", "first epoch, never", 0.75),
            Goal("first epoch, always", "first epoch, never", 0.7),
            Goal("later epochs, first", "later epochs, never", 0.97),
        ],
        count=inputs.RAW224,
    )


#: What users do besides plain copying from one file, and the parameters of it.
PATHS: dict[str, dict[str, Any]] = {
    "flip": {"flip": True},
    "NCHW, contiguous": {"contiguous": True},
    "float32": {"dtype": "float32", "scale": 1 / 255},
    "float16": {"dtype": "float16", "scale": 1 / 255},
    "postprocess that does nothing": {"postprocess": "nothing"},
    "copy=True": {"copy": True},
    'io="pread"': {"io": "pread"},
    "process workers": {"workers": "process"},
}

#: Shares of plain copying that are asked for, at 32 x 32 and 224 x 224.
SHARES = {
    "8 shards": (0.8, 0.9), 'io="pread"': (0.3, 0.6), "flip": (0.5, 0.8),
    "NCHW, contiguous": (0.6, 0.85), "copy=True": (0.8, 0.7),
    "postprocess that does nothing": (0.6, None), "process workers": (0.4, None),
}  # fmt: skip


def paths(name: str, made: dict[str, str]) -> Case:
    """What each path costs that is not plain copying from one file: all from one run."""
    count = inputs.RAW224 if name == "raw224" else inputs.RAW32
    found = [
        ours("plain", made[f"{name}.h5"]),
        ours("8 shards", made[f"{name}.shards"], verify="never"),
        ours("list of 2 files", str(Path(made[f"{name}.halves"]) / "*.h5")),
        *(ours(path, made[f"{name}.h5"], **params) for path, params in PATHS.items()),
    ]
    for one in found:
        one.modes = (FASTEST,)
    goals = []
    for one in found[1:]:
        bars = SHARES.get(one.name)
        goals.append(Goal(one.name, "plain", bars and bars[name == "raw224"]))
    for dtype in ("float32", "float16"):
        bare = f"bare loop to {dtype}"
        found.append(limit(bare, "cast", npy=made[name], count=count, dtype=dtype))
        goals.append(Goal(dtype, bare, 0.85))
    return Case(f"paths, {name}", found, goals, count=count)


#: What checksums are compared on, and the share of the same path without them that is asked for
#: with "always", which the first epoch has to reach, too.
CHECKED: dict[str, tuple[dict[str, Any], float]] = {
    "copy": ({}, 0.85),
    "flip": (PATHS["flip"], 0.7),
    "NCHW, contiguous": (PATHS["NCHW, contiguous"], 0.7),
    "float32": (PATHS["float32"], 0.7),
    "flip, float32": ({"flip": True, **PATHS["float32"]}, 0.7),
    "center crop": ({"crop": "center"}, 0.7),
    "random crop": ({"crop": "random"}, 0.7),
    "random-resized crop": ({"crop": "random-resized"}, 0.9),
}


def checked(name: str, path: str, made: dict[str, str]) -> Case:
    """What checksums cost on one path, in the first epoch, the second, and with "always"."""
    params, bar = CHECKED[path]
    side, count = (224, inputs.RAW224) if name == "raw224" else (32, inputs.RAW32)
    part = side * 6 // 7 if path != "random-resized crop" else side
    given = {"path": made[f"{name}.lmdb"], **params}
    if "crop" in params:
        given["size"] = [part, part]
    found, goals = [], []
    for title, epoch, verify, share in (
        ("first epoch", 0, "first", bar),
        ("second epoch", 1, "first", 0.97),
        ("always", 1, "always", bar),
    ):
        never = f"{['first', 'second'][epoch]} epoch, never"
        if never not in [one.name for one in found]:
            spec = {"params": {**given, "verify": "never"}, "epoch": epoch}
            found.append(Contender(never, "first_epochs", spec, modes=(FASTEST,)))
        spec = {"params": {**given, "verify": verify}, "epoch": epoch}
        found.append(Contender(title, "first_epochs", spec, modes=(FASTEST,)))
        goals.append(Goal(title, never, share))
    return Case(f"checks, {name}, {path}", found, goals, count=count)


def encodings(made: dict[str, str]) -> Case:
    """Pictures of 256 x 256 as pixels, 4:2:0 planes and JPEGs with restart markers, trained on as
    ImageNet is: random-resized crops of 224 x 224, mirrored at random."""
    given = {"size": [224, 224], "crop": "random-resized", "flip": True}
    names = {"pixels": "raw256", "yuv420": "yuv420256", "JPEG": "jpeg256"}
    found = [ours(name, made[key], **given) for name, key in names.items()]
    goals = [Goal("yuv420", "JPEG", 3.0), Goal("yuv420", "pixels", 0.7)]
    return Case("encodings at 256", found, goals, count=inputs.JPEGS * inputs.TIMES)


def matrix(made: dict[str, str]) -> list[Case]:
    """Every path of raw pixels, every path with checks, and the encodings."""
    names = ("raw224", "raw32")
    small = ("copy", "flip", "flip, float32")
    return [
        *(paths(name, made) for name in names),
        *(checked("raw224", path, made) for path in CHECKED),
        *(checked("raw32", path, made) for path in small),
        encodings(made),
    ]


# -- augmentation --------------------------------------------------------------------------------

CROPPED: dict[str, Any] = {"size": [224, 224], "crop": "random-resized", "flip": True}
AUGMENTED = ["trivial-augment-wide", ["random-erasing", {"p": rivals.ERASED}]]
NORMALISED: dict[str, Any] = {
    "dtype": "float32", "scale": 1 / 255, "mean": [0.49, 0.48, 0.45], "std": [0.2, 0.2, 0.2],
}  # fmt: skip
PADDED: dict[str, Any] = {"size": [32, 32], "crop": "random", "crop_padding": 4, "flip": True}
CUTOUT = {"augment": [["random-erasing", {"scale": [0.25, 0.25], "ratio": [1, 1], "p": 1}]]}


def augmented(made: dict[str, str], pythons: Pythons, raw: bool) -> Case:
    """Random-resized crop, flip, trivial-augment-wide and erasing, from JPEGs or from pixels."""
    path = made["raw256" if raw else "jpeg.restarts"]
    mine, plain = "ours", "ours, crop and flip alone"
    found = [ours(mine, path, augment=AUGMENTED, **CROPPED), ours(plain, path, **CROPPED)]
    count, side = inputs.JPEGS * inputs.TIMES, 256
    spec = {"folder": made["jpeg"], "path": path, "count": count, "shape": [side, side, 3]}
    for decoder in ("h5py",) if raw else ("tensor", "pillow"):
        name = f"DataLoader, v2 of {'h5py rows' if raw else decoder}"
        about = "" if raw else f"decoded by {'Pillow' if decoder == 'pillow' else 'torchvision.io'}"
        one = {**spec, "decoder": decoder}
        found.append(Contender(name, "torch_recipe", one, pythons.torch, about=about))
    bar = 10.0 if raw else 4.0
    goals = [Goal(mine, other.name, bar) for other in found[2:]]
    goals += [] if raw else [Goal(mine, plain, 0.6)]
    return Case(f"augmented, {'raw 256' if raw else 'JPEG'}", found, goals, count=count)


def cifar(made: dict[str, str]) -> Case:
    """Padded crop and flip of 32 x 32, with and without cutout, as shares of plain copying."""
    path, plain = made["raw32.h5"], "plain"
    found = [ours(plain, path)]
    for dtype, given in (("uint8", {}), ("float32", NORMALISED)):
        found.append(ours(f"padded, {dtype}", path, **PADDED, **given))
        found.append(ours(f"padded, cutout, {dtype}", path, **PADDED, **CUTOUT, **given))
    goals = [Goal(one.name, plain, 0.3) for one in found[1:]]
    return Case("augmented, raw32", found, goals, count=inputs.RAW32)


def drawn(made: dict[str, str]) -> Case:
    """What it costs to draw records by weights, in balanced classes, or from two sets by ratio."""
    path, plain = made["raw32.h5"], "plain"
    halves = sorted(map(str, Path(made["raw32.halves"]).glob("*.h5")))
    mix = dict(zip(halves, (0.9, 0.1), strict=True))
    found = [
        ours(plain, path),
        ours("weights", path, weights="balanced"),
        ours("balanced permutation", path, shuffle="balanced-permutation"),
        Contender("mix", "ours", {"params": {"mix": mix}}),
    ]
    asked = {"weights": 0.95, "mix": 0.95}
    goals = [Goal(one.name, plain, asked.get(one.name)) for one in found[1:]]
    return Case("orders, raw32", found, goals, count=inputs.RAW32)


def recipes(made: dict[str, str], pythons: Pythons) -> list[Case]:
    """Training recipes: augmentation, and orders that are drawn."""
    found = [
        augmented(made, pythons, raw=False), augmented(made, pythons, raw=True),
        cifar(made), drawn(made),
    ]  # fmt: skip
    for case in found:
        for contender in case.contenders:
            contender.modes = (FASTEST,)
    return found


def all_cases(made: dict[str, str], pythons: Pythons) -> list[Case]:
    """Every case, the plain ones first."""
    plain = [raw(name, made, pythons) for name in ("raw224", "raw32")]
    packed = [gzip(name, made, pythons) for name in ("raw224", "raw32")]
    pictures = [jpeg(crop, made, pythons) for crop in ("center", "random")]
    marked = [
        restarts(case, made, asked) for case, asked in zip(pictures, RESTARTS.values(), strict=True)
    ]
    return [
        *plain, *packed, *pictures, *marked, floats(made), verifying(made),
        *(other for case in plain for other in raw_otherwise(case)),
        *jpeg_otherwise(pictures[1]), *matrix(made),
    ]  # fmt: skip


#: Cases that ``--against`` runs if none is chosen: every hot path once.
GUARD = (
    "raw224", "raw32", "raw32, batch 32", "raw224 gzip, 1 a chunk", "raw32 gzip, 64 a chunk",
    "JPEG, center crop", "JPEG, random-resized crop, flip", "raw224 to normalised float32",
    "paths, raw224", "paths, raw32",
)  # fmt: skip


def of_two_trees(case: Case, here: str, there: str, name: str) -> Case:
    """A case with our own contenders alone, each from two trees: this one, and that of ``name``."""
    found, goals = [], []
    for contender in case.contenders:
        if contender.kind not in OUR_KINDS:
            continue
        for tree, title in ((here, contender.name), (there, f"{contender.name} at {name}")):
            spec = {**contender.spec, "tree": tree}
            found.append(Contender(title, contender.kind, spec, modes=(FASTEST,)))
        goals.append(Goal(contender.name, f"{contender.name} at {name}", 0.95))
    return Case(case.name, found, goals, case.setting, case.count)
