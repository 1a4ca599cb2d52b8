"""Kinds of stored fields: how plain h5py stores their rows, and what a row is served as.

A kind makes rows, puts them into an HDF5 group or into arrays, draws the parameters that a reader
takes for one field, and says what numpy makes of a row with these.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import h5py
import numpy as np
from fakes import encoded
from foreign_sets import vlen

Array: TypeAlias = np.ndarray
#: Parameters of one served field, by name.
Asked: TypeAlias = dict[str, Any]

#: Height and width of stored images.
HEIGHT, WIDTH = 6, 10
#: What a chunk that was never written is read as.
FILL = 7


class Draw:
    """Choices at random. ``forced``: values of some, by name; ``features``: what was chosen."""

    def __init__(self, seed: object, forced: dict[str, Any]) -> None:
        self.rng, self.forced, self.features = np.random.default_rng(seed), forced, set[str]()

    def any(self, *some: Any) -> Any:
        """One of ``some``."""
        return some[self.rng.integers(len(some))]

    def __call__(self, name: str, *some: Any) -> Any:
        """The value of a feature: one of ``some``."""
        value = self.forced[name] if name in self.forced else self.any(*some)
        if value is True or (isinstance(value, dict) and value):
            self.features.add(name)
        elif isinstance(value, str | int) and value is not False:
            self.features.add(f"{name} {value}")
        return value

    def table(self, group: h5py.Group, name: str, table: Array) -> None:
        """Store an array. Last rows of FILL are never written."""
        stored = self("stored", "contiguous", "chunked", "gzip", "cut")
        if stored == "contiguous" or 0 in table.shape:
            group[name] = table
            return
        chunks = (min(len(table), 4), *table.shape[1:])
        if stored == "cut":
            chunks = tuple(max(1, (n + 1) // 2) for n in table.shape)
        more: Asked = {} if stored == "chunked" else {"compression": "gzip"}
        written = len(table)
        if table.dtype.kind in "iuf":
            differs = np.flatnonzero((table != FILL).reshape(written, -1).any(1))
            more["fillvalue"], written = FILL, int(differs.max(initial=-1)) + 1
        data = group.create_dataset(name, table.shape, table.dtype, chunks=chunks, **more)
        data[:written] = table[:written]


def cast(values: Array, asked: Asked) -> Array:
    """Values in the dtype that is asked for, scaled and normalised, in native byte order."""
    dtype = np.dtype(asked.get("dtype", values.dtype)).newbyteorder("=")
    if "scale" in asked:
        values = (values.astype("f8") * asked["scale"] - asked["mean"]) / asked["std"]
    return values.astype(dtype)


@dataclass(frozen=True)
class Numbers:
    """Rows of one shape and dtype."""

    shape: tuple[int, ...] = (4,)
    dtype: Any = "f4"

    #: Whether a row moves with its image: crop and flip change it.
    moves: ClassVar[bool] = False
    #: Whether rows differ in length.
    ragged: ClassVar[bool] = False

    def make(self, rng: np.random.Generator, count: int) -> list[Array]:
        """``count`` rows; sometimes the last ones are FILL."""
        rows = rng.integers(0, 2 if self.dtype == "?" else 100, (count, *self.shape))
        if rng.random() < 0.1:
            rows[-3:] = FILL
        return list(rows.astype(self.dtype))

    def tables(self, name: str, rows: list[Array]) -> dict[str, Array]:
        """The arrays that hold rows, by name."""
        dtype = list(self.dtype) if isinstance(self.dtype, tuple) else self.dtype
        return {name: np.array(rows, dtype).reshape(len(rows), *self.shape)}

    def put(self, group: h5py.Group, name: str, rows: list[Array], draw: Draw) -> None:
        """Store rows in a group."""
        for inside, table in self.tables(name, rows).items():
            draw.table(group, inside, table)

    def ask(self, draw: Draw) -> Asked:
        """Draw the parameters of a served field."""
        asked: Asked = {}
        if len(self.shape) == 1 and draw("columns", False, False, True):
            count = draw.rng.integers(1, self.shape[0] + 1)
            asked["columns"] = draw.rng.permutation(self.shape[0])[:count].tolist()
        affine = {"dtype": "float32", "scale": 0.5, "mean": 3.0, "std": 2.0}
        return asked | draw("cast", {}, {}, {"dtype": "float64"}, affine)

    def serve(self, row: Array, asked: Asked) -> Array:
        """What a stored row is served as."""
        return cast(row[..., asked["columns"]] if "columns" in asked else row, asked)

    def move(self, row: Array, left: int, width: int, flip: bool) -> Array:
        """A stored row whose image is cut from column ``left`` on, and mirrored."""
        return row


@dataclass(frozen=True)
class Mask(Numbers):
    """Label maps of the images' size."""

    shape: tuple[int, ...] = (HEIGHT, WIDTH)
    dtype: Any = "u1"
    moves: ClassVar[bool] = True

    def ask(self, draw: Draw) -> Asked:
        return {}

    def move(self, row: Array, left: int, width: int, flip: bool) -> Array:
        row = row[:, left : left + width]
        return row[:, ::-1] if flip else row


@dataclass(frozen=True)
class Image(Mask):
    """Images (H, W, C), served channels first unless ``layout`` says otherwise."""

    shape: tuple[int, ...] = (HEIGHT, WIDTH, 3)

    def serve(self, row: Array, asked: Asked) -> Array:
        return row if asked.get("layout") == "NHWC" else np.moveaxis(row, -1, -3)


@dataclass(frozen=True)
class Encoded(Image):
    """Images as PNG files: of variable length, or in rows of as many bytes, with zeros after."""

    def put(self, group: h5py.Group, name: str, rows: list[Array], draw: Draw) -> None:
        files = [encoded(row) for row in rows]
        if not files or draw.any(True, False):
            vlen(group, name, files)
        else:
            size = max(map(len, files))
            padded = b"".join(file.ljust(size, b"\0") for file in files)
            draw.table(group, name, np.frombuffer(padded, np.uint8).reshape(-1, size))


@dataclass(frozen=True)
class Boxes(Mask):
    """Two boxes for each image, x1, y1, x2, y2; some are zeros, which are no box."""

    shape: tuple[int, ...] = (2, 4)

    def make(self, rng: np.random.Generator, count: int) -> list[Array]:
        low = rng.integers(0, (WIDTH - 1, HEIGHT - 1), (count, 2, 2))
        boxes = np.concatenate((low, rng.integers(low + 1, (WIDTH + 1, HEIGHT + 1))), axis=2)
        boxes[::3, 1] = 0
        return list(boxes.astype(self.dtype))

    def serve(self, row: Array, asked: Asked) -> Array:
        return row.astype("f4")

    def move(self, row: Array, left: int, width: int, flip: bool) -> Array:
        moved = row.astype("f4")
        x1, x2 = np.clip(moved[:, [0, 2]] - left, 0, width).T
        moved[:, 0], moved[:, 2] = (width - x2, width - x1) if flip else (x1, x2)
        moved[moved[:, 0] >= moved[:, 2]] = 0
        return np.where((row[:, 2] > row[:, 0])[:, None], moved, row)


@dataclass(frozen=True)
class Ragged(Numbers):
    """Rows of different length. ``how``: "vlen" of HDF5, or the suffix of a table beside values."""

    shape: tuple[int, ...] = ()
    how: str = "_offsets"
    ragged: ClassVar[bool] = True

    def make(self, rng: np.random.Generator, count: int) -> list[Array]:
        shapes = ((n, *self.shape) for n in rng.integers(0, 7, count))
        return [rng.integers(1, 100, shape).astype(self.dtype) for shape in shapes]

    def tables(self, name: str, rows: list[Array]) -> dict[str, Array]:
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.concatenate([np.zeros((0, *self.shape), self.dtype), *rows])
        starts = np.cumsum([0, *lengths])
        return {name: values, name + self.how: lengths if self.how == "_lengths" else starts}

    def put(self, group: h5py.Group, name: str, rows: list[Array], draw: Draw) -> None:
        if self.how != "vlen":
            super().put(group, name, rows, draw)
            return
        stored = group.create_dataset(name, (len(rows),), h5py.vlen_dtype(np.dtype(self.dtype)))
        for number, row in enumerate(rows):
            stored[number] = row

    def ask(self, draw: Draw) -> Asked:
        asked: Asked = {"max_length": int(draw.rng.integers(1, 9))} | draw.any({}, {"pad_value": 9})
        asked |= draw("overlong", {}, {"overlong": "random"}, {"overlong": "cut"})
        return asked | draw("cast", {}, {}, {"dtype": "float64"})


@dataclass(frozen=True)
class Sparse(Numbers):
    """Sparse rows (CSR), served as dense ones of float32; the last value may be two to be added."""

    shape: tuple[int, ...] = (6,)

    def make(self, rng: np.random.Generator, count: int) -> list[Array]:
        rows = rng.integers(0, 100, (count, *self.shape)) * (rng.random((count, 6)) < 0.4)
        return list((rows * (1.0 if self.dtype == "f4" else 1 + 2**-30)).astype(self.dtype))

    def put(self, group: h5py.Group, name: str, rows: list[Array], draw: Draw) -> None:
        dense = self.tables(name, rows)[name]
        row, column = np.nonzero(dense)
        values, indptr = dense[row, column], np.searchsorted(row, np.arange(len(dense) + 1))
        if values.size and draw.any(True, False):
            values, column = np.append(values, values[-1] / 2), np.append(column, column[-1])
            values[-2], indptr = values[-1], indptr + (indptr == len(row))
        inside = group.create_group(name)
        inside.attrs["shape"], inside.attrs["encoding-type"] = dense.shape, "csr_matrix"
        for part, table in (("data", values), ("indices", column), ("indptr", indptr)):
            draw.table(inside, part, table)

    def ask(self, draw: Draw) -> Asked:
        return {k: v for k, v in super().ask(draw).items() if k in ("columns", "dtype")}

    def serve(self, row: Array, asked: Asked) -> Array:
        return super().serve(row, {"dtype": "float32"} | asked)


@dataclass(frozen=True)
class Table(Numbers):
    """Structured rows, of which ``members`` are served."""

    shape: tuple[int, ...] = ()
    dtype: Any = (("pt", "f4"), ("n", "i2"), ("ok", "?"), ("cov", "f8", (2, 2)))

    def make(self, rng: np.random.Generator, count: int) -> list[Array]:
        rows = np.zeros(count, list(self.dtype))
        for name, *_ in self.dtype:
            rows[name] = rng.integers(0, 2 if name == "ok" else 100, rows[name].shape)
        return list(rows)

    def ask(self, draw: Draw) -> Asked:
        members = draw.any(["pt", "n"], ["n", "ok"], "pt", "cov")
        return {"members": members} | draw("cast", {}, {}, {"dtype": "float64"})

    def serve(self, row: Array, asked: Asked) -> Array:
        members = asked["members"]
        if isinstance(members, str):
            return cast(row[members], asked)
        return cast(np.stack([row[name] for name in members], axis=-1), asked)
