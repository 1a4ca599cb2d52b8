"""Ours against what people would pick: side by side in one run, alternating.

``python tests/benchmarks/run.py DIR`` builds its inputs in DIR (once, about 5 GB with the rivals'
own files), runs every contender that is installed, and writes DIR/results.json and DIR/results.md.
``--ffcv-python``, ``--torch-python`` (torch, torchvision) and ``--peers-python`` (TensorFlow, DALI)
name interpreters that have the rivals. harness.py says how it is measured.

``--matrix`` measures ours alone: each path of raw pixels as a share of plain copying, and what
checks cost on each, in the first epoch and in the second. ``--recipes`` measures augmentation
against torchvision's v2 transforms in a DataLoader with as many workers, and orders that are drawn
against plain ones. ``--against REV`` compares every hot path with another revision: run it before
each commit that touches one, ``--against main``.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import harness
from harness import BOTH, EPOCHS, FASTEST, Contender, Goal, Setting, ours
from inputs import (
    AT_256,
    CHUNKS,
    COUNTS,
    EPOCH_OF_JPEGS,
    JPEG,
    JPEG_H5,
    JPEG_LMDB,
    JPEG_RESTARTS,
    QUALITY,
    RAW,
    SIDES,
    Input,
)  # fmt: skip
from ours import PAST_CACHES
from rivals import ERASED, LONG

Case = partial(harness.Case, seconds=5.0)
ONE = (FASTEST,)
OURS = ("ours HDF5", "ours LMDB")
H5PY, LMDB = "DataLoader + h5py", "DataLoader + lmdb"
#: One batch is copied again and again, in libc's two ways: caches decide which one is faster.
COPIES = ("memcpy", "memcpy, past the caches")
#: What decodes the JPEGs of a DataLoader, and what its transforms work on.
DECODERS = {
    "tensor": "decoded by torchvision.io, transforms of tensors",
    "pillow": "decoded by Pillow, transforms of its images",
}

WHOLE = "whole batches, written into shared memory"
#: What each rival does in its fastest mode.
FASTEST_WAYS = {
    "rivals.Ffcv": f"one index array of {LONG} epochs",
    "rivals.torch_h5py": f"a sampler without end; {WHOLE}",
    "rivals.torch_lmdb": f"a sampler without end; {WHOLE}",
    "rivals.torch_recipe": f"a sampler without end; {WHOLE}",
    "rivals.tfdata": "repeat() before shuffle, without order, fast IDCT",
    "rivals.dali": "pipe.run() without end",
}


def rival(name: str, kind: str, spec: dict[str, Any], about: str = "", **more: Any) -> Contender:
    """A loader of rivals.py, in the interpreter that has it."""
    python = {"Ffcv": "ffcv", "torch": "torch"}.get(kind.split("_")[0], "peers")
    ways = "; ".join(filter(None, (FASTEST_WAYS.get(f"rivals.{kind}"), about)))
    return Contender(name, f"rivals.{kind}", spec, python, about=ways, **more)


def limit(name: str, kind: str, about: str = "", **spec: Any) -> Contender:
    """The bare work in as many threads, which no loader is asked to pass."""
    return Contender(name, f"ours.{kind}", spec, modes=ONE, about=about)


def first_epochs(name: str, epoch: int = 0, **params: Any) -> Contender:
    spec = {"params": params, "epoch": epoch}
    return Contender(name, "ours.FirstEpochs", spec, modes=ONE, ours=True)


def otherwise(
    case: harness.Case, settings: dict[str, Setting], names: Sequence[str], goals: Sequence[Goal]
) -> list[harness.Case]:
    """The case with other settings and some of its contenders."""
    contenders = [one for one in case.contenders if one.name in names]
    some = replace(case, group="settings", contenders=contenders, goals=goals)
    return [
        replace(some, name=f"{case.name}, {suffix}", setting=setting)
        for suffix, setting in settings.items()
    ]


READ = {"each batch summed": Setting(consumer="sum")}
BATCHES = {"batch 32": Setting(batch=32), "batch 512": Setting(batch=512)}
WORKERS = {"1 worker": Setting(workers=1), "4 workers": Setting(workers=4)}

# -- raw pixels ------------------------------------------------------------------------------------


def raw(name: str) -> harness.Case:
    """Stored pixels, in random order."""
    side = SIDES[name]
    rows = {"count": COUNTS[name], "shape": [side, side, 3]}
    contenders = [
        ours(OURS[0], RAW[f"{name}.h5"]),
        ours(OURS[1], RAW[f"{name}.lmdb"], verify="never"),
        limit(COPIES[0], "memcpy", row_bytes=side * side * 3),
        limit(COPIES[1], "memcpy", row_bytes=side * side * 3, environment=PAST_CACHES),
        rival("FFCV", "Ffcv", {**rows, "npy": RAW[name]}),
        rival(H5PY, "torch_h5py", {**rows, "path": RAW[f"{name}.h5"]}),
        rival(LMDB, "torch_lmdb", {**rows, "path": RAW[f"{name}.lmdb"]}),
    ]
    goals = of_both("FFCV", *COPIES, H5PY, LMDB)
    return Case(name, "raw", contenders, goals, modes=BOTH, count=COUNTS[name])


def of_both(*others: str) -> list[Goal]:
    """Ratios of ours of either container and others, and of FFCV in users' own mode."""
    goals = [Goal(mine, other) for mine in OURS for other in others]
    return goals + [Goal(mine, "FFCV", EPOCHS) for mine in OURS]


def raw_otherwise(case: harness.Case) -> list[harness.Case]:
    """The same with a consumer that reads, other batch sizes, and other numbers of workers."""
    cases = []
    for settings, others in (
        (READ, ["FFCV", LMDB]),
        (BATCHES | WORKERS, ["FFCV", LMDB, *COPIES]),
    ):
        cases += otherwise(case, settings, [*OURS, *others], of_both(*others))
    return cases


def gzip(name: str) -> harness.Case:
    """Compressed HDF5: each sample by itself, or 64 small ones together."""
    big, side, path = name == "raw224", SIDES[name], RAW[f"{name}.gz"]
    spec = {"path": path, "count": COUNTS[name], "shape": [side, side, 3], "chunk": CHUNKS[name]}
    random, whole = f"{H5PY}, random order", f"{H5PY}, whole chunks"
    return Case(
        f"{name} gzip, {CHUNKS[name]} a chunk",
        "gzip",
        [
            ours("ours HDF5", path, shuffle=True if big else "block"),
            limit("bare inflate", "inflate", path=path),
            rival(random, "torch_h5py", spec),
            rival(whole, "torch_h5py_block", spec, modes=ONE),
        ],
        [Goal("ours HDF5", other) for other in ("bare inflate", random, whole)],
        modes=BOTH,
        count=COUNTS[name],
    )


# -- JPEGs -----------------------------------------------------------------------------------------

CROPS: dict[str, dict[str, Any]] = {
    "center": {"crop_ratio": 0.875},
    "random": {"crop": "random-resized", "flip": True},
}
TURBO, PLAIN = "libjpeg-turbo", "bilinear without antialiasing"
MINE = f"simplejpeg ({TURBO}); the reader's default resize"


def jpeg(crop: str) -> harness.Case:
    """JPEGs decoded, cropped and resized to 224 x 224."""
    params = {"size": [224, 224], "verify": "never", **CROPS[crop]}
    spec = {"images": JPEG, "count": EPOCH_OF_JPEGS, "shape": [224, 224, 3], "crop": crop}
    part = "only the crop decoded"
    dali = f"{TURBO}, fast IDCT{', ' + part if crop == 'random' else ''}; linear, antialiased"
    contenders = [
        ours("ours LMDB", JPEG_LMDB, MINE, **params),
        ours("ours HDF5", JPEG_H5, MINE, **params),
        limit(
            "bare decode", "decode", f"simplejpeg ({TURBO}), whole pictures, no resize", images=JPEG
        ),
        rival(
            "FFCV", "Ffcv", {**spec, "quality": QUALITY}, f"{TURBO}, fast IDCT; OpenCV INTER_AREA"
        ),
        rival("DALI, CPU", "dali", spec, dali, modes=ONE),
        rival("tf.data", "tfdata", spec, f"{TURBO}, {part}; {PLAIN}"),
        *loaders(spec),
    ]
    goals = [Goal(mine, other.name) for mine in OURS for other in contenders[2:]]
    title = "center crop" if crop == "center" else "random-resized crop, flip"
    return Case(f"JPEG, {title}", "jpeg", contenders, goals, modes=BOTH, count=EPOCH_OF_JPEGS)


def loaders(spec: dict[str, Any], decoders: dict[str, str] = DECODERS) -> list[Contender]:
    """PyTorch's DataLoader with the v2 transforms of torchvision, once for each decoder."""
    return [
        rival(
            f"DataLoader, v2 of {decoder}", "torch_recipe",
            {**spec, "decoder": decoder.split()[0]}, about,
        )
        for decoder, about in decoders.items()
    ]  # fmt: skip


def restarts(case: harness.Case, crop: str) -> harness.Case:
    """The same JPEGs with restart markers, of which only the part is decoded that is wanted."""
    marked, params = "ours HDF5, restart markers", {"size": [224, 224], "verify": "never"}
    mine = ours(marked, JPEG_RESTARTS, f"{MINE}; only the part decoded", **params, **CROPS[crop])
    names = ["ours HDF5", *(one.name for one in case.contenders[3:])]
    goals = [Goal(marked, other) for other in names]
    (some,) = otherwise(case, {"restart markers": case.setting}, names, goals)
    return replace(some, group="jpeg", contenders=[mine, *some.contenders])


# -- ours alone ------------------------------------------------------------------------------------


def floats() -> harness.Case:
    """Cast and normalised while a slot is filled."""
    given = {"dtype": "float32", "scale": 1 / 255, "mean": [0.485, 0.456, 0.406],
             "std": [0.229, 0.224, 0.225], "verify": "never"}  # fmt: skip
    path, bare = RAW["raw224.h5"], "bare float32 fill"
    view, packed = "ours, NCHW view of NHWC", "ours, contiguous NCHW"
    half = {**given, "dtype": "float16", "flip": True, "contiguous": True}
    contenders = [
        ours(view, path, **given),
        ours(packed, path, contiguous=True, **given),
        ours(f"{packed}, float16, flip", path, **half),
        limit(bare, "fill", row_values=224 * 224 * 3),
    ]
    goals = [Goal(view, bare), Goal(packed, bare)]
    name = "raw224 to normalised float32"
    return Case(name, "alone", contenders, goals, modes=BOTH, count=COUNTS["raw224"])


#: What users do besides plain copying from one file.
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


def paths(name: str) -> harness.Case:
    """What each path costs that is not plain copying from one file: all from one run."""
    contenders = [
        ours("plain", RAW[f"{name}.h5"]),
        ours("8 shards", RAW[f"{name}.shards"], verify="never"),
        ours("list of 2 files", [RAW[f"{name}.half{half}"] for half in (0, 1)]),
        *(ours(path, RAW[f"{name}.h5"], **params) for path, params in PATHS.items()),
    ]
    goals = [Goal(one.name, "plain") for one in contenders[1:]]
    for dtype in ("float32", "float16"):
        bare = f"bare loop to {dtype}"
        contenders.append(limit(bare, "cast", npy=RAW[name], dtype=dtype))
        goals.append(Goal(dtype, bare))
    return Case(f"paths, {name}", "matrix", contenders, goals, count=COUNTS[name])


#: What checksums are compared on.
CHECKED: dict[str, dict[str, Any]] = {
    "copy": {},
    **{path: PATHS[path] for path in ("flip", "NCHW, contiguous", "float32")},
    "flip, float32": {"flip": True, **PATHS["float32"]},
    "center crop": {"crop": "center", "size": [192, 192]},
    "random crop": {"crop": "random", "size": [192, 192]},
    "random-resized crop": {"crop": "random-resized", "size": [224, 224]},
}


def checked(name: str, path: str) -> harness.Case:
    """What checksums cost on one path, in the first epoch, the second, and with "always"."""
    given = {"path": RAW[f"{name}.lmdb"], **CHECKED[path]}
    contenders = [
        first_epochs("first epoch, never", 0, verify="never", **given),
        first_epochs("first epoch", 0, verify="first", **given),
        first_epochs("second epoch, never", 1, verify="never", **given),
        first_epochs("second epoch", 1, verify="first", **given),
        first_epochs("always", 1, verify="always", **given),
    ]
    goals = [
        Goal("first epoch", "first epoch, never"),
        *(Goal(checks, "second epoch, never") for checks in ("second epoch", "always")),
    ]
    return Case(f"checks, {name}, {path}", "matrix", contenders, goals, count=COUNTS[name])


CROPPED: dict[str, Any] = {"size": [224, 224], "crop": "random-resized", "flip": True}


def encodings() -> harness.Case:
    """Pictures of 256 x 256 as pixels, 4:2:0 planes and JPEGs with restart markers, trained on as
    ImageNet is: random-resized crops of 224 x 224, mirrored at random."""
    names = {"pixels": "raw", "yuv420": "yuv420", "JPEG": "jpeg"}
    contenders = [ours(name, AT_256[key], **CROPPED) for name, key in names.items()]
    goals = [Goal("yuv420", other) for other in ("JPEG", "pixels")]
    name = "encodings at 256"
    return Case(name, "matrix", contenders, goals, modes=BOTH, count=EPOCH_OF_JPEGS)


# -- augmentation ----------------------------------------------------------------------------------

AUGMENTED = ["trivial-augment-wide", ["random-erasing", {"p": ERASED}]]
NORMALISED: dict[str, Any] = {
    "dtype": "float32", "scale": 1 / 255, "mean": [0.49, 0.48, 0.45], "std": [0.2, 0.2, 0.2],
}  # fmt: skip
PADDED: dict[str, Any] = {"size": [32, 32], "crop": "random", "crop_padding": 4, "flip": True}
CUTOUT = {"augment": [["random-erasing", {"scale": [0.25, 0.25], "ratio": [1, 1], "p": 1}]]}


def augmented(source: str, path: Input, decoders: dict[str, str]) -> harness.Case:
    """Random-resized crop, flip, trivial-augment-wide and erasing, from JPEGs or from pixels."""
    mine, plain = "ours", "ours, crop and flip alone"
    contenders = [ours(mine, path, augment=AUGMENTED, **CROPPED), ours(plain, path, **CROPPED)]
    spec = {"images": JPEG, "path": path, "count": EPOCH_OF_JPEGS, "crop": "augmented"}
    contenders += loaders(spec, decoders)
    goals = [Goal(mine, other.name) for other in contenders[1:]]
    return Case(f"augmented, {source}", "recipes", contenders, goals, count=EPOCH_OF_JPEGS)


def cifar() -> harness.Case:
    """Padded crop and flip of 32 x 32, with and without cutout, as shares of plain copying."""
    path, plain = RAW["raw32.h5"], "plain"
    contenders = [ours(plain, path)]
    for dtype, given in (("uint8", {}), ("float32", NORMALISED)):
        contenders.append(ours(f"padded, {dtype}", path, **PADDED, **given))
        contenders.append(ours(f"padded, cutout, {dtype}", path, **PADDED, **CUTOUT, **given))
    goals = [Goal(one.name, plain) for one in contenders[1:]]
    return Case("augmented, raw32", "recipes", contenders, goals, count=COUNTS["raw32"])


def drawn() -> harness.Case:
    """What it costs to draw records by weights, in balanced classes, or from two sets by ratio."""
    path, plain = RAW["raw32.h5"], "plain"
    contenders = [
        ours(plain, path),
        ours("weights", path, weights="balanced"),
        ours("balanced permutation", path, shuffle="balanced-permutation"),
        ours("mix", mix={RAW["raw32.half0"]: 0.9, RAW["raw32.half1"]: 0.1}),
    ]
    goals = [Goal(one.name, plain) for one in contenders[1:]]
    return Case("orders, raw32", "recipes", contenders, goals, count=COUNTS["raw32"])


PLAIN_CASES = [raw(name) for name in SIDES]
JPEG_CASES = {crop: jpeg(crop) for crop in CROPS}
CASES: list[harness.Case] = [
    *PLAIN_CASES,
    *(gzip(name) for name in SIDES),
    *JPEG_CASES.values(),
    *(restarts(case, crop) for crop, case in JPEG_CASES.items()),
    floats(),
    *(other for case in PLAIN_CASES for other in raw_otherwise(case)),
    *(paths(name) for name in SIDES),
    *(checked("raw224", path) for path in CHECKED),
    *(checked("raw32", path) for path in ("copy", "flip", "flip, float32")),
    encodings(),
    augmented("JPEG", JPEG_RESTARTS, DECODERS),
    augmented("raw 256", AT_256["raw"], {"h5py rows": ""}),
    cifar(),
    drawn(),
]  # fmt: skip

#: Cases that ``--against`` runs if none is chosen: every hot path once.
GUARD = (
    "raw224", "raw32", "raw32, batch 32", "raw224 gzip, 1 a chunk", "raw32 gzip, 64 a chunk",
    "JPEG, center crop", "JPEG, random-resized crop, flip", "raw224 to normalised float32",
    "paths, raw224", "paths, raw32",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(harness.main("results", __doc__, CASES, asked=("recipes",), guard=GUARD))
