"""The inputs of the benchmarks: values and files of cases, each file made once in the folder given.

Pictures are cut from photographs that scikit-image and scikit-learn ship. Sizes follow what people
train on: 224 x 224 crops, CIFAR's 32 x 32, and JPEGs of 500 x 375 at quality 90, 4:2:0.
"""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

QUALITY = 90


class Value:
    """A value of a case, which is smaller with ``--small``, and which ``--give NAME=`` changes."""

    def __init__(self, usual: Any, small: Any = None, name: str = "") -> None:
        self.usual, self.small, self.name = usual, usual if small is None else small, name


class Input:
    """A file or folder that ``make(path, **sizes)`` makes; its name may hold sizes in braces."""

    def __init__(self, file: str, make: Callable[..., None], **sizes: Any) -> None:
        self.file, self.make, self.sizes = file, make, sizes


class Place:
    """Where inputs lie, and what the command line gave: it makes plain values of those of cases."""

    def __init__(
        self, folder: Path, small: bool = False, given: dict[str, str] | None = None
    ) -> None:
        self.folder = folder / "small" if small else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.small, self.given = small, given or {}
        self.files: dict[Path, str] = {}

    def plain(self, value: Any) -> Any:
        """The value as JSON holds it: numbers, words and paths. Missing inputs are made."""
        if isinstance(value, dict):
            return {self.plain(key): self.plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(one) for one in value]
        if isinstance(value, Value):
            usual = value.small if self.small else value.usual
            return type(usual)(self.given.get(value.name, usual))
        return str(self.path(value)) if isinstance(value, Input) else value

    def path(self, wanted: Input) -> Path:
        """The path of an input, which is made unless it is there."""
        sizes = self.plain(wanted.sizes)
        numbers = {name: size for name, size in sizes.items() if not isinstance(size, (dict, str))}
        path = self.folder / wanted.file.format(**numbers)
        if not path.exists():
            temporary = path.with_name(path.name + ".part")
            print(f"building {path.name} ...", flush=True)
            wanted.make(temporary, **sizes)
            temporary.rename(path)
        self.files[path] = ", ".join(f"{name} {size}" for name, size in numbers.items())
        return path

    def inputs(self) -> dict[str, str]:
        """The inputs that were used, and their sizes."""
        return {path.name: sizes for path, sizes in self.files.items()}

    def warm(self, specs: Any) -> None:
        """Read the inputs that these name, so that every contender finds its own in the page
        cache."""
        words = json.dumps(specs)
        for path in self.files:
            if json.dumps(str(path)) in words:
                for file in [path] if path.is_file() else sorted(path.rglob("*")):
                    if file.is_file():
                        with open(file, "rb", buffering=0) as opened:
                            while opened.read(1 << 24):
                                pass


# -- pictures --------------------------------------------------------------------------------------


def photographs() -> list[np.ndarray]:
    """The colour photographs, uint8 (H, W, 3)."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    names = ("astronaut", "chelsea", "coffee", "rocket", "retina", "immunohistochemistry")
    photos = []
    for name in names:
        try:
            photos.append(np.asarray(getattr(skimage.data, name)())[..., :3])
        except Exception:  # some are fetched over a network on first use: those that ship will do
            continue
    return photos + [np.asarray(image) for image in load_sample_images().images]


def crops(count: int, height: int, width: int, seed: int) -> Iterator[np.ndarray]:
    """``count`` pieces of the photographs, rescaled to (height, width, 3), mirrored at random."""
    rng = np.random.default_rng(seed)
    photos = photographs()
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        h, w = photo.shape[:2]
        scale = rng.uniform(0.45, 1.0)
        if w * height >= h * width:
            rows, columns = h * scale, h * scale * width / height
        else:
            rows, columns = w * scale * height / width, w * scale
        top, left = rng.uniform(0, h - rows), rng.uniform(0, w - columns)
        piece = Image.fromarray(photo).resize(
            (width, height), Image.Resampling.BILINEAR, box=(left, top, left + columns, top + rows)
        )
        pixels = np.asarray(piece)
        yield pixels[:, ::-1] if rng.random() < 0.5 else pixels


def write_array(path: Path, count: int, side: int) -> None:
    """Raw pictures as a .npy (count, side, side, 3) uint8."""
    pixels = np.empty((count, side, side, 3), np.uint8)
    for i, piece in enumerate(crops(count, side, side, seed=side)):
        pixels[i] = piece
    with open(path, "wb") as file:
        np.save(file, pixels)


def write_pictures(
    path: Path, count: int, times: int = 1, size: tuple[int, int] = (375, 500)
) -> None:
    """JPEGs in ten class folders, each of them ``times`` times."""
    for i, piece in enumerate(crops(count, *size, seed=1)):
        into = path / f"class{i % 10}"
        into.mkdir(parents=True, exist_ok=True)
        encoded = io.BytesIO()
        Image.fromarray(piece).save(encoded, "JPEG", quality=QUALITY, subsampling=2)
        for turn in range(times):
            (into / f"{i:05d}-{turn}.jpg").write_bytes(encoded.getvalue())


def write_rows(path: Path, rows: Any, half: int | None = None, **options: Any) -> None:
    """Rows of an array, or of a .npy, or half of them, with numbers as labels, by plain h5py."""
    import h5py

    rows = np.load(rows, mmap_mode="r") if isinstance(rows, str) else rows
    rows = rows if half is None else np.array_split(rows, 2)[half]
    if chunk := options.pop("chunk", None):
        options |= {"chunks": (chunk, *rows.shape[1:]), "compression": "gzip"}
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", rows.shape, rows.dtype, **options)
        for low in range(0, len(rows), 64):
            data[low : low + 64] = rows[low : low + 64]
        file["labels"] = np.arange(len(rows))[:, None]


def write_converted(path: Path, source: str, **options: Any) -> None:
    """A set as ``asyncreader convert`` writes it."""
    from converters import convert

    convert(source, path, **options)


def write_repeated(path: Path, rows: str, count: int) -> None:
    """An LMDB of ours whose rows repeat those of a smaller array."""
    import h5py

    middle = path.with_name(path.name + "_middle.h5")
    pixels = np.load(rows, mmap_mode="r")
    with h5py.File(middle, "w") as file:
        data = file.create_dataset("data", (count, *pixels.shape[1:]), pixels.dtype)
        for low in range(0, count, len(pixels)):
            data[low : low + len(pixels)] = pixels[: count - low]
        file["labels"] = np.arange(count)[:, None]
    write_converted(path, str(middle), format="lmdb")
    middle.unlink()


#: Samples of the raw sets. JPEGs: different ones, and how often each is in its set, because an
#: epoch of 1,000 pictures would be over before a loader that starts anew each epoch is under way.
SIDES = {"raw224": 224, "raw32": 32}
COUNTS = {"raw224": Value(4000, 160), "raw32": Value(50_000, 2560)}
EPOCH_OF_JPEGS = Value(10_000, 200)
#: Samples in a gzip chunk.
CHUNKS = {"raw224": 1, "raw32": 64}

JPEG = Input("jpeg{count}x{times}", write_pictures, count=Value(1000, 40), times=Value(10, 5))
RAW: dict[str, Input] = {}
for _name, _side in SIDES.items():
    RAW[_name] = Input(f"{_name}.npy", write_array, count=COUNTS[_name], side=_side)
    RAW[f"{_name}.h5"] = Input(f"{_name}_plain.h5", write_rows, rows=RAW[_name])
    RAW[f"{_name}.gz"] = Input(f"{_name}_gzip.h5", write_rows, rows=RAW[_name], chunk=CHUNKS[_name])
    for _half in (0, 1):
        RAW[f"{_name}.half{_half}"] = Input(
            f"{_name}_half{_half}.h5", write_rows, rows=RAW[_name], half=_half
        )
    RAW[f"{_name}.lmdb"] = Input(
        f"{_name}_lmdb", write_converted, source=RAW[f"{_name}.h5"], format="lmdb"
    )
    RAW[f"{_name}.shards"] = Input(
        f"{_name}_shards", write_converted, source=RAW[f"{_name}.h5"], format="hdf5", shards=8
    )


def jpeg_set(file: str, **options: Any) -> Input:
    """The JPEGs as ``asyncreader convert`` packs them, with these options."""
    return Input(file, write_converted, source=JPEG, **{"format": "hdf5", **options})


JPEG_LMDB = jpeg_set("jpeg.lmdb", encoding="original", format="lmdb")
JPEG_H5 = jpeg_set("jpeg.h5", encoding="original")
JPEG_RESTARTS = jpeg_set("jpeg_restarts.h5", encoding="original", restarts=True)
AT_256 = {
    encoding: jpeg_set(f"jpeg_256_{encoding}.h5", encoding=encoding, size=(256, 256))
    for encoding in ("raw", "yuv420", "jpeg")
}
MANY_RECORDS = Input(
    "raw32_{count}_lmdb", write_repeated, rows=RAW["raw32"], count=Value(1_281_167, 5000)
)


# -- other fields ----------------------------------------------------------------------------------

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
#: Chunks that h5py chooses for (200, 84, 84, 3) where robomimic does not say any.
ROBOT_CHUNK = (50, 21, 21, 1)


def write_robot(path: Path, episodes: int, steps: int, packed: bool) -> None:
    """Episodes as robomimic writes them, of moving pieces of photographs."""
    import h5py

    rng = np.random.default_rng(0)
    how: dict[str, Any] = {"chunks": ROBOT_CHUNK, "compression": "gzip"} if packed else {}
    pieces = list(crops(40, 84, 84 + steps, seed=84))
    with h5py.File(path, "w") as file:
        for i in range(episodes):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = steps
            for camera in CAMERAS:
                wide = pieces[rng.integers(len(pieces))]
                seen = np.stack([wide[:, s : s + 84] for s in range(steps)])
                demo.create_dataset(f"obs/{camera}", data=seen, **how)
            for name, width in (("obs/robot0_eef_pos", 9), ("actions", 7)):
                demo[name] = rng.normal(size=(steps, width))


def write_cells(path: Path, cells: int, genes: int, types: int = 20) -> None:
    """A CSR matrix, 5 % full, as anndata's write_h5ad(compression="gzip") writes it; cells of one
    type lie beside each other."""
    import h5py

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    import anndata_files

    rng = np.random.default_rng(0)
    each = rng.binomial(genes, 0.05, cells)
    ends = np.concatenate(([0], np.cumsum(each)))
    columns = [np.sort(rng.choice(genes, n, replace=False)).astype(np.int32) for n in each]
    values = rng.poisson(1.5, ends[-1]).astype(np.float32) + 1
    codes, names = np.sort(rng.integers(0, types, cells)), [f"type {i}" for i in range(types)]
    with h5py.File(path, "w") as file:
        anndata_files.mark(file, "anndata")
        parts = values, np.concatenate(columns), ends
        anndata_files.put(file.create_group("X"), parts, (cells, genes), compression="gzip")
        anndata_files.frame(file, "obs", [f"obs{i}" for i in range(cells)], ["cell_type"])
        anndata_files.frame(file, "var", [f"var{i}" for i in range(genes)])
        anndata_files.categorical(file["obs"], "cell_type", codes, names)


def write_jets(path: Path, jets: int, members: int = 20) -> None:
    """Structured rows as umami-preprocessing writes them for salt: contiguous, float32 and
    float16."""
    import h5py

    rng = np.random.default_rng(0)
    kinds = [(f"v{i}", "f4" if i % 2 else "f2") for i in range(members)]
    rows = np.zeros(jets, np.dtype([*kinds, ("flavour", "i4")]))
    for name in rows.dtype.names or ():
        rows[name] = rng.integers(0, 100, jets)
    with h5py.File(path, "w") as file:
        file["jets"] = rows


def write_volume(path: Path, shape: list[int], number: int) -> None:
    """A volume, uint16 under ``raw``, with its labels, uint8 under ``label``: gzip in the chunks
    that h5py chooses."""
    import h5py

    z, y, x = np.ogrid[tuple(slice(0, 20, n * 1j) for n in shape)]
    smooth = (np.sin(z) + np.sin(y * 1.3) + np.cos(x * 0.7)) * 2000 + 8000
    noise = np.random.default_rng(number).normal(0, 60, shape)
    with h5py.File(path, "w") as file:
        for name, data in (
            ("raw", (smooth + noise).astype(np.uint16)),
            ("label", (smooth // 1500).astype(np.uint8)),
        ):
            file.create_dataset(name, data=data, chunks=True, compression="gzip")


def write_groups(path: Path, groups: int) -> None:
    """Episodes of two data sets each, contiguous and in gzip chunks."""
    import h5py

    rows = np.zeros((100, 9), np.float32)
    with h5py.File(path, "w") as file:
        for i in range(groups):
            file[f"data/demo_{i}/actions"] = rows[:, :7]
            file.create_dataset(
                f"data/demo_{i}/obs/qpos", data=rows, chunks=(50, 9), compression="gzip"
            )


def write_ends(path: Path, episodes: int, steps: int) -> None:
    """Episodes of bytes one after the other, and the ends of them."""
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", (episodes * steps, 1), np.uint8)
        for first in range(0, episodes, 1000):
            last = min(episodes, first + 1000)
            data[first * steps : last * steps] = np.arange(first, last).repeat(steps)[:, None]
        file["ends"] = np.arange(1, episodes + 1) * steps


ROBOT = {
    packed: Input(
        f"robot_{packed}.hdf5", write_robot, episodes=Value(200, 6), steps=Value(200, 60),
        packed=packed == "gzip",
    )
    for packed in ("gzip", "contiguous")
}  # fmt: skip
CELLS = Input("cells.h5ad", write_cells, cells=Value(20_000, 200), genes=Value(20_000, 500))
JETS = Input("jets.h5", write_jets, jets=Value(500_000, 2000))
GROUPS = Input("groups.hdf5", write_groups, groups=Value(10_000, 30))
#: 200 MB of pictures and 100 MB of labels in each.
VOLUMES = [
    Input(
        f"volume{number or ''}.h5", write_volume, shape=Value([384, 512, 512], [70, 100, 96]),
        number=number,
    )
    for number in range(4)
]  # fmt: skip
#: Episodes from 10^4 to 10^8 rows.
ENDS = {
    f"{10**power * 10_000:,}": Input(
        "ends_{episodes}_{steps}.h5", write_ends, episodes=10**power, steps=Value(10_000, 100)
    )
    for power in range(5)
}
