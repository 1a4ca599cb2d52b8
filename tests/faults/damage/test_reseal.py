"""HDF5 metadata with good checksums that say something false."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from fakes import paint

from asyncreader import FormatError
from asyncreader.sources import open_source
from faults.damage.reseal import lookup3, seal, sealed_blocks


def with_attributes(path: Path) -> Path:
    """A set with more attributes than a header has: HDF5 keeps them in a tree and a heap."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file["data"] = paint(8)
        for number in range(12):
            file.attrs[f"note {number}"] = np.bytes_("what its owner says of it")
        file.attrs["nothing"] = h5py.Empty("f4")
    return path


def test_lookup3_is_that_of_hdf5(tmp_path: Path) -> None:
    """Every block that HDF5 sealed is found by its checksum; sealing again changes nothing."""
    path = with_attributes(tmp_path / "a.h5")
    data = path.read_bytes()
    blocks = sealed_blocks(data)
    kinds = {data[start : start + 4] for start, _ in blocks}
    assert {b"\x89HDF", b"OHDR", b"BTHD", b"BTLF", b"FRHP"} <= kinds
    again = bytearray(data)
    for start, length in blocks:
        seal(again, start, length)
    assert again == data
    # "Four score and seven years ago", from the comments of lookup3.c
    key = np.frombuffer(b"Four score and seven years ago", np.uint8).copy()
    assert int(lookup3(key, key.size)) == 0x17770551


#: What kills HDF5 2.0 or keeps it busy, all with good checksums: block, offset in it, bytes.
FORGED = [
    (b"BTHD", 6, (4096).to_bytes(4, "little")),
    (b"BTHD", 6, (1).to_bytes(4, "little")),
    (b"BTHD", 10, (1).to_bytes(2, "little")),
    (b"BTHD", 12, (3).to_bytes(2, "little")),
    (b"BTHD", 24, (5).to_bytes(2, "little")),
    (b"BTHD", 26, (81 << 16).to_bytes(8, "little")),
    (b"BTHD", 5, b"\x09"),
    (b"BTLF", 6 + 2 * 17, b"\x30"),
    (b"BTLF", 6 + 2 * 17 + 1, b"\xff\x0f"),
    (b"BTLF", 6 + 2 * 17 + 8, b"\x02"),
    (b"FRHP", 110, b"\x03"),
    (b"FRHP", 110, b"\x00\x08"),
    (b"FRHP", 120, (1 << 33).to_bytes(8, "little")),
    (b"FHDB", 22 + 6, b"\xff"),
    (b"FRHP", 130, b"\xff\xff\xff"),
]


@pytest.mark.parametrize(("block", "offset", "value"), FORGED)
def test_forged_attribute_storage(tmp_path: Path, block: bytes, offset: int, value: bytes) -> None:
    """Trees and heaps that break their own rules are refused before HDF5 believes them."""
    path = with_attributes(tmp_path / "a.h5")
    open_source(path).close()
    data = bytearray(path.read_bytes())
    start, lengths = data.index(block), dict(sealed_blocks(bytes(data)))
    data[start + offset : start + offset + len(value)] = value
    if start in lengths:
        seal(data, start, lengths[start])
    path.write_bytes(data)
    with pytest.raises(FormatError, match="structure is damaged"):
        open_source(path)


@pytest.mark.parametrize(("offset", "value"), [(44, 1 << 63), (52, 1 << 62), (8, 3), (6, 0)])
def test_forged_chunk_index(tmp_path: Path, offset: int, value: int) -> None:
    """A chunk index that claims more than the file can hold is refused, not searched for ever."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.create_dataset(
            "data",
            data=paint(30),
            chunks=(1, 6, 5, 3),
            maxshape=(None, 6, 5, 3),
            compression="gzip",
        )
    assert open_source(path).facts.count == 30
    data = bytearray(path.read_bytes())
    start, length = next(b for b in sealed_blocks(bytes(data)) if data[b[0] : b[0] + 4] == b"EAHD")
    width = 8 if value > 255 else 1
    data[start + offset : start + offset + width] = value.to_bytes(width, "little")
    seal(data, start, length)
    path.write_bytes(data)
    with pytest.raises(FormatError, match="structure is damaged"):
        open_source(path)


def test_large_sound_structures_are_read(tmp_path: Path) -> None:
    """Hundreds of attributes and data sets, in trees of several levels and heaps of many blocks,
    are as they should be."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=("v110", "v110"), track_order=True) as file:
        file["data"] = paint(4)
        for i in range(400):
            file.attrs[f"attribute {i}"] = np.arange(i % 60)
            file[f"more {i}"] = i
        file.attrs["long"] = "x" * 60_000
    source = open_source(path)
    assert source.facts.count == 4
    source.close()
