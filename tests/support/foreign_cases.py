"""A set of every foreign layout, and what must come out of it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata_files
import foreign_sets as foreign
import h5py
import numpy as np
from fakes import paint, pictures
from source_contract import Built

from asyncreader.sources import Request, open_source

#: Samples of each set.
COUNT = 23
LABELS = np.arange(COUNT, dtype=np.int64) * 300 - 5


def built(
    path: str,
    images: np.ndarray,
    stored: list[bytes],
    labels: np.ndarray | None = LABELS,
    paths: list[bytes] | None = None,
    io: str = "auto",
    **fields: Any,
) -> Built:
    request = Request(**fields)
    return Built(
        lambda: open_source(path, request, io=io), images, stored, labels, paths, path=path
    )


def caffe(side: int, io: str = "auto", order: str = "RGB", channels: int = 3) -> Any:
    def build(folder: Path) -> Built:
        images = paint(COUNT, (side, side + 3, channels))
        path = foreign.write_lmdb(folder / "set", foreign.caffe(images, LABELS))
        stored = [foreign.planes(image) for image in images]
        served = images[..., ::-1] if order == "stored" else images
        paths = [b"dir/%d.jpg" % i for i in range(COUNT)]
        return built(path, served, stored, paths=paths, io=io, channel_order=order)

    return build


def caffe_floats(packed: bool) -> Any:
    def build(folder: Path) -> Built:
        images = paint(COUNT, (9, 7, 2), "float32")
        entries, stored = {}, []
        for i, image in enumerate(images):
            planes = np.ascontiguousarray(image.transpose(2, 0, 1))
            entries[str(i).encode()] = foreign.datum(
                planes.shape, label=int(LABELS[i]), floats=planes, packed=packed
            )
            bare = foreign.datum(floats=planes)[1:]
            stored.append(planes.tobytes() if packed else bare)
        order = sorted(range(COUNT), key=str)  # keys without padding: in the order of the keys
        path = foreign.write_lmdb(folder / "set", entries)
        return built(path, images[order], [stored[i] for i in order], LABELS[order])

    return build


def caffe_encoded(folder: Path) -> Built:
    images = pictures(COUNT, (20, 23, 3))
    files = foreign.files(images)
    values = [foreign.datum(None, f, int(n), encoded=True) for f, n in zip(files, LABELS)]  # noqa: B905
    path = foreign.write_lmdb(folder / "set", {b"%08d" % i: v for i, v in enumerate(values)})
    return built(path, images, files)


def pyxis(shape: tuple[int, ...], dtype: str = "uint8", io: str = "auto") -> Any:
    def build(folder: Path) -> Built:
        images = paint(COUNT, shape, dtype)
        samples = [
            foreign.pyxis_sample({"input": image, "other": "text", "target": label})
            for image, label in zip(images, LABELS.astype(">i8"), strict=True)
        ]
        path = foreign.write_pyxis(folder / "set", samples)
        native = images.astype(images.dtype.newbyteorder("="))
        return built(path, native, [image.tobytes() for image in images], io=io)

    return build


def branch(folder: Path) -> Built:
    images = paint(COUNT, (40, 43, 3))
    samples = {
        i * i * 9: foreign.branch_sample({"X": image, "y": int(label)})
        for i, (image, label) in enumerate(zip(images, LABELS, strict=True))
    }
    path = foreign.write_branch(folder / "set", samples)
    return built(path, images, [image.tobytes() for image in images])


def tensorpack(encoded: bool) -> Any:
    def build(folder: Path) -> Built:
        images = pictures(COUNT, (20, 23, 3))
        files = foreign.files(images)
        values = [np.frombuffer(f, np.uint8) for f in files] if encoded else list(images)
        points = [[foreign.numpy_map(v), int(n)] for v, n in zip(values, LABELS, strict=True)]
        path = foreign.write_lmdb(folder / "set", foreign.tensorpack(points, "{}"))
        stored = files if encoded else [image.tobytes() for image in images]
        return built(path, images, stored)

    return build


def ocr(folder: Path) -> Built:
    images = pictures(COUNT, (40, 43, 3))
    files = foreign.files(images)
    texts = [f"wörd {i % 7}" for i in range(COUNT)]
    path = foreign.write_lmdb(folder / "set", foreign.ocr(files, texts))
    return built(path, images, files, np.arange(COUNT) % 7)


def basicsr(folder: Path) -> Built:
    images = pictures(COUNT, (20, 23, 1))
    names = [f"sub/{COUNT - i:03d}_s001" for i in range(COUNT)]  # listed in another order
    path = foreign.write_basicsr(folder / "set.lmdb", dict(zip(names, images, strict=True)))
    paths = [f"{name}.png".encode() for name in names]
    return built(path, images, foreign.files(images), None, paths)


def stylegan(folder: Path) -> Built:
    large, small = pictures(COUNT, (32, 32, 3)), pictures(COUNT, (8, 8, 3))
    sizes = {8: foreign.files(small), 32: foreign.files(large)}
    path = foreign.write_lmdb(folder / "set", foreign.stylegan(sizes))
    return built(path, large, sizes[32], None)


def lsun(kind: str, subdir: bool) -> Any:
    def build(folder: Path) -> Built:
        images = pictures(COUNT, (20, 23, 3))
        files = foreign.files(images, kind)
        keys = [b"%040x" % (i * 7919) for i in range(COUNT)]
        entries = dict(zip(keys, files, strict=True))
        path = foreign.write_lmdb(folder / "church_train_lmdb", entries, subdir=subdir)
        return built(path, images, files, None)

    return build


def vlen(user_block: int = 0, io: str = "auto", **storage: Any) -> Any:
    def build(folder: Path) -> Built:
        images = pictures(COUNT, (20, 23, 3))
        files = foreign.files(images)
        with h5py.File(folder / "set.h5", "w", userblock_size=user_block) as file:
            foreign.vlen(file, "encoded_images", files, **storage)
            file["targets"] = LABELS[:, None]
        return built(str(folder / "set.h5"), images, files, LABELS[:, None], io=io)

    return build


def fuel(folder: Path) -> Built:
    """MNIST's way: features (N, 1, 28, 28) with labelled axes."""
    images = paint(COUNT, (28, 28, 1))
    with h5py.File(folder / "mnist.hdf5", "w") as file:
        file["features"] = images.transpose(0, 3, 1, 2)
        foreign.label_axes(file["features"])
        file["targets"] = LABELS[:, None]
        rows = [
            (s, n, 0, 9, None, True) for s in ("train", "test") for n in ("features", "targets")
        ]
        foreign.fuel_split(file, rows)
    return built(str(folder / "mnist.hdf5"), images, [i.tobytes() for i in images], LABELS[:, None])


def fuel_vlen(folder: Path) -> Built:
    """Flattened pixels of variable length, all of one shape as it happens; big-endian."""
    images = paint(COUNT, (6, 5, 3), "uint16")
    flat = [np.ascontiguousarray(i.transpose(2, 0, 1)).reshape(-1).astype(">u2") for i in images]
    with h5py.File(folder / "set.hdf5", "w") as file:
        data = foreign.vlen(file, "image_features", flat)
        foreign.shapes(file, data, [(3, 6, 5)] * COUNT)
        file["targets"], file["chosen"] = LABELS[:, None], np.array([1, 2])
        rows = [(n, 0, COUNT, i) for n, i in (("all", None), ("some", "chosen"))]
        names = ("image_features", "targets")
        foreign.fuel_split(file, [(s, n, a, b, i, True) for s, a, b, i in rows for n in names])
    stored = [row.tobytes() for row in flat]
    return built(str(folder / "set.hdf5"), images, stored, LABELS[:, None])


def biggan(folder: Path) -> Built:
    images = paint(COUNT, (8, 7, 3))
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    with h5py.File(folder / "ILSVRC8.hdf5", "w") as file:
        file.create_dataset("imgs", data=planes, chunks=(5, 3, 8, 7), maxshape=(None, 3, 8, 7))
        file.create_dataset("labels", data=LABELS, chunks=(5,), maxshape=(None,))
    stored = [image.tobytes() for image in planes]
    return built(str(folder / "ILSVRC8.hdf5"), images, stored)


def pcam(folder: Path) -> Built:
    images = paint(COUNT, (8, 7, 3))
    labels = (np.arange(COUNT, dtype=np.uint8) % 2).reshape(COUNT, 1, 1, 1)
    with h5py.File(folder / "split_train_x.h5", "w") as file:
        file.create_dataset("x", data=images, chunks=(3, 8, 7, 3), compression="gzip")
    with h5py.File(folder / "split_train_y.h5", "w") as file:
        file["y"] = labels
    stored = [image.tobytes() for image in images]
    return built(str(folder / "split_train_x.h5"), images, stored, labels)


def caffe_data(folder: Path) -> Built:
    """One file of Caffe's HDF5Data, named by itself."""
    images, labels = paint(COUNT, (8, 7, 3)), LABELS.astype("<f4")
    with h5py.File(folder / "train.h5", "w") as file:
        file["data"], file["label"] = images, labels
    stored = [image.tobytes() for image in images]
    return built(str(folder / "train.h5"), images, stored, labels)


def npy(side: int, io: str = "auto", dtype: str = "uint8") -> Any:
    def build(folder: Path) -> Built:
        images = paint(COUNT, (side, side + 2, 3), dtype)
        np.save(folder / "rows.npy", images)
        values = [image.tobytes() for image in images]
        return built(str(folder / "rows.npy"), images, values, None, io=io)

    return build


def sparse(name: str, matlab: bool = False, **storage: Any) -> Any:
    """Sparse rows in the group ``name``: of AnnData, of 10x Genomics in both versions, of
    ``matlab``, whose columns they are, or of neither."""
    indices, starts = ("ir", "jc") if matlab else ("indices", "indptr")

    def build(folder: Path) -> Built:
        kind = "<f8" if name == "X" else "<i4"
        table = paint(COUNT, (12,)).astype(kind) * (paint(COUNT, (12,)) % 3 == 0)
        rows, columns = np.nonzero(table)
        indptr = np.searchsorted(rows, np.arange(COUNT + 1))
        with h5py.File(folder / "set.h5", "w") as file:
            group = file.create_group(name)
            group.create_dataset("data", data=table[rows, columns], **storage)
            group.create_dataset(indices, data=columns.astype("<i4"), **storage)
            group[starts] = indptr
            if name in ("matrix", "mm10"):
                group["shape"] = (12, COUNT)
                group["barcodes"] = np.array([b"AAC"] * COUNT)
                genes = "features/id" if name == "matrix" else "genes"
                group[genes] = np.array([b"ENSG%d" % i for i in range(12)])
            elif matlab:
                group.attrs["MATLAB_sparse"] = np.uint64(12)
            else:
                group.attrs["shape"] = table.shape
            if name == "X":
                anndata_files.mark(file, "anndata")
                anndata_files.mark(group, "csr_matrix")
                file.create_group("obs")
                anndata_files.frame(file, "var", [f"gene{i}" for i in range(12)])
        stored = [
            columns[lo:hi].astype("<i4").tobytes() + table[i, columns[lo:hi]].tobytes()
            for i, (lo, hi) in enumerate(itertools.pairwise(indptr))
        ]
        return built(str(folder / "set.h5"), table.astype(np.float32), stored, None)

    return build


def loom(folder: Path) -> Built:
    table = paint(COUNT, (12,)).astype("<f4")
    with h5py.File(folder / "set.loom", "w") as file:
        file.create_dataset("matrix", data=table.T, chunks=(5, 7), compression="gzip")
        file["row_attrs/Gene"] = [f"g{i}" for i in range(12)]
        file["col_attrs/CellID"] = [f"c{i}" for i in range(COUNT)]
        file.create_group("layers")
    return built(str(folder / "set.loom"), table, [row.tobytes() for row in table], None)


def pandas(folder: Path) -> Built:
    values = paint(COUNT, (12,)).astype("<f8")
    with h5py.File(folder / "set.h5", "w") as file:
        frame = file.create_group("df")
        frame.attrs["pandas_type"] = np.bytes_("frame")
        frame["block0_values"], frame["axis1"] = values, np.arange(COUNT)
        frame["block0_items"] = np.array([b"c%d" % i for i in range(12)])
    return built(str(folder / "set.h5"), values, [row.tobytes() for row in values], None)


#: A name, whose first word is the layout, and what writes the set into a folder.
CASES: dict[str, Callable[[Path], Built]] = {
    "Caffe": caffe(8),
    "Caffe large": caffe(40),
    "Caffe large pread": caffe(40, "pread"),
    "Caffe as stored": caffe(8, order="stored"),
    "Caffe grey": caffe(8, channels=1),
    "Caffe 5 channels": caffe(8, channels=5),
    "Caffe floats": caffe_floats(packed=False),
    "Caffe packed floats": caffe_floats(packed=True),
    "Caffe encoded": caffe_encoded,
    "pyxis": pyxis((8, 7, 3)),
    "pyxis large": pyxis((40, 43, 3)),
    "pyxis pread": pyxis((40, 43, 3), io="pread"),
    "pyxis big-endian": pyxis((6, 5, 3), ">f4"),
    "pyxis double": pyxis((6, 5, 3), "<f8"),
    "pyxis matrix": pyxis((28, 28)),
    "pyxis vector": pyxis((5000,), ">u2"),
    "pyxis branch": branch,
    "tensorpack files": tensorpack(encoded=True),
    "tensorpack pixels": tensorpack(encoded=False),
    "OCR": ocr,
    "BasicSR": basicsr,
    "StyleGAN2": stylegan,
    "LSUN": lsun("WEBP", subdir=True),
    "LSUN one file": lsun("PNG", subdir=False),
    "vlen": vlen(),
    "vlen user block pread": vlen(512, "pread"),
    "vlen chunks": vlen(chunks=(4,), maxshape=(None,)),
    "vlen gzip": vlen(1024, chunks=(5,), compression="gzip", shuffle=True),
    "Fuel": fuel,
    "Fuel vlen": fuel_vlen,
    "BigGAN-PyTorch": biggan,
    "PCam": pcam,
    "data/label": caffe_data,
    "AnnData": sparse("X", chunks=(9,), compression="gzip"),
    "AnnData contiguous": sparse("X"),
    "10x": sparse("matrix", chunks=(30,), compression="gzip"),
    "10x of one genome": sparse("mm10"),
    "sparse": sparse("data"),
    "sparse of MATLAB": sparse("data", matlab=True),
    "loom": loom,
    "pandas": pandas,
    "npy": npy(8),
    "npy pread": npy(40, "pread"),
    "npy floats big-endian": npy(6, dtype=">f4"),
}
