"""One hash for all ways to read a set: ``python tests/benchmarks/one_hash.py [FOLDER]``.

Packs 1,000 photographs of 500 x 375 as raw pixels of 224 x 224 and as the files' own bytes, each
as HDF5 and LMDB, and reads three shuffled epochs with nthread 1, 2, 4, 8 and njob 1, 3 (the files'
own bytes with random-resized crops to 96 x 96 and flips). Each of the sixteen ways must give the
same bytes. Printed are the hash of (data, labels, indices) and that of (labels, indices), which is
the order's own: run it before and after a change that must not move a pixel.
"""

import hashlib
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from inputs import Input, Place, write_pictures

from asyncreader import AsyncReader
from converters import convert

PHOTOS = Input("jpeg{count}x{times}", write_pictures, count=1000, times=1)
WAYS = {
    "raw": ({"size": (224, 224)}, {}),
    "original": (
        {"encoding": "original"},
        {"size": (96, 96), "crop": "random-resized", "flip": True},
    ),
}


def hashes(path: Path, params: dict[str, Any]) -> tuple[str, str]:
    """Of (data, labels, indices), and of (labels, indices), over three epochs."""
    everything, order = hashlib.sha256(), hashlib.sha256()
    with AsyncReader(path=str(path), batch_size=64, shuffle=True, epochs=3, **params) as reader:
        for _ in range(3):
            for batch in reader:
                labels, indices = batch.labels.tobytes(), batch.indices.tobytes()
                everything.update(np.ascontiguousarray(batch.data).tobytes() + labels + indices)
                order.update(labels + indices)
    return everything.hexdigest()[:16], order.hexdigest()[:16]


def main() -> int:
    """Print a line for each encoding; 1 if two ways differ."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        photos = Place(folder).path(PHOTOS)
        differ = False
        for name, (packing, reading) in WAYS.items():
            found = set()
            for suffix in ("h5", "lmdb"):
                packed = Path(scratch) / f"{name}.{suffix}"
                convert(photos, packed, **packing)
                for nthread, njob in itertools.product((1, 2, 4, 8), (1, 3)):
                    found.add(hashes(packed, {"nthread": nthread, "njob": njob, **reading}))
            differ = differ or len(found) != 1
            print(name, *(" / ".join(pair) for pair in sorted(found)))
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
