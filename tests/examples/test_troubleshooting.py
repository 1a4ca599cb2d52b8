"""docs/troubleshooting.md: each message on it is given by the package, with the type it says."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_sets import damaged
from frameworks import no_gpu_torch
from PIL import Image
from project import ROOT

from asyncreader import AsyncReader, Batch
from converters import Writer, convert

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

#: Each message of the page with the type that its text begins with.
SAID = dict(re.findall(r"^### (.+)\n\n`(\w+)`", PAGE, re.MULTILINE))

PIXELS = np.random.default_rng(0).integers(0, 255, (20, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets and folders of pictures: whole, damaged and such as others wrote."""
    made = tmp_path_factory.mktemp("troubles")
    with Writer(made / "train.h5") as writer:
        writer.add_many(PIXELS, np.arange(20) % 4)
    damaged(made / "train.h5", made / "damaged.h5", 0)
    with h5py.File(made / "foreign.h5", "w") as file:
        file["images"], file["few"] = PIXELS, np.arange(5)
        file["axes"] = np.zeros((20, 3, 4, 9), np.uint8)
    (made / "page.h5").write_text("<html>not found</html>")
    for name in ("photos/cat", "flat", "sizes/cat", "parts/train/cat", "parts/val/cat"):
        (made / name).mkdir(parents=True)
    for i in range(2):
        Image.fromarray(PIXELS[i]).save(made / f"photos/cat/{i}.png")
        Image.fromarray(PIXELS[i]).save(made / f"flat/{i}.png")
        Image.fromarray(PIXELS[i]).save(made / f"parts/{('train', 'val')[i]}/cat/{i}.png")
        Image.fromarray(PIXELS[i][: 8 + i]).save(made / f"sizes/cat/{i}.png")
    convert(made / "sizes", made / "sizes.h5", encoding="original")
    return made


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def opened(path: str | None = "train.h5", **params: object) -> Callable[[], None]:
    """Opens a reader, and takes a batch."""

    def run() -> None:
        given = params if path is None else {"path": path, **params}
        with AsyncReader(given) as reader:
            next(iter(reader))

    return run


def used(use: Callable[[AsyncReader], object], **params: object) -> Callable[[], None]:
    """Uses a reader of four samples a batch."""

    def run() -> None:
        with AsyncReader({"path": "train.h5", "batch_size": 4, **params}) as reader:
            use(reader)

    return run


def _of_another_seed(reader: AsyncReader) -> None:
    with AsyncReader(path="train.h5", shuffle=True, seed=1) as other:
        reader.load_state_dict(other.state_dict())


def _in_a_fork(reader: AsyncReader) -> None:
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            reader.fetchData()
        except BaseException as exc:
            os.write(writes, f"{type(exc).__name__}\n{exc}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    kind, _, text = os.read(reads, 4096).decode().partition("\n")
    os.close(reads)
    os.close(writes)
    raise type(kind, (Exception,), {})(text)


def _late(data: object, labels: object) -> None:
    time.sleep(0.1)


def _taken(reader: AsyncReader) -> Batch:
    reader.fetchData()
    return reader.getNextBatch()


#: What leads to each message.
PROVOKED: dict[str, Callable[[], object]] = {
    "unknown parameter '...'; did you mean '...'?": opened(batchsize=32),
    "name one source of data": opened(None, batch_size=2),
    "no such file or folder [...]": opened("missing.h5"),
    "nothing matches this pattern [...]": opened("missing*.h5"),
    "neither HDF5 nor LMDB by its content [...]": opened("page.h5"),
    "a folder of images, and no dataset yet [...]; found ...": opened("photos"),
    "no field '...' in this dataset [...]; found ...": opened("foreign.h5"),
    "'...' has another number of rows than the data [...]": opened(
        "foreign.h5", data_field="images", labels_field="few"
    ),
    "no split '...' in the dataset [...]": opened(subset="train"),
    "the order of this dataset's axes is ambiguous: it may be NCHW [...]": opened(
        "foreign.h5", data_field="axes", labels_field=None
    ),
    "the stored images differ in size, but all images of a batch have one size [...]": opened(
        "sizes.h5", batch_size=2
    ),
    "scale, mean and std need a float dtype": opened(scale=1 / 255),
    "mean has one value, or one per channel": opened(dtype="float32", mean=(0.5, 0.5)),
    "an epoch would have no batch": opened(batch_size=100),
    'verify="always" of a dataset without checksums [...]': opened(
        "foreign.h5", data_field="images", labels_field=None, verify="always"
    ),
    "cuda=True, but torch sees no GPU": opened(cuda=True),
    "this batch was given back: its memory is used for later batches": used(
        lambda reader: [batch.data for batch in list(reader)]
    ),
    "arrays of batches that were given back are still held": used(
        lambda reader: [images for images, _ in reader]
    ),
    "every slot is in use": used(lambda reader: [reader.fetchData() for _ in range(2)]),
    "no batch is in flight": used(lambda reader: reader.getNextBatch()),
    "no more batches can be kept": used(lambda reader: next(iter(reader)).keep()),
    "all ... epochs have been fetched": used(
        lambda reader: [reader.fetchData() for _ in range(6)], epochs=1, njob=8
    ),
    "this reader is closed": used(lambda reader: (reader.close(), reader.fetchData())),
    "no batch within ... s": used(_taken, postprocess=_late, timeout=0.01),
    "postprocess raised ...": used(_taken, postprocess=lambda data, labels: {}["a mistake"]),
    "postprocess cannot be sent to worker processes": used(
        _taken, postprocess=lambda data, labels: None, workers="process"
    ),
    "an AsyncReader serves whole batches, and its length is a number of batches": used(
        lambda reader: reader.__getitems__([0, 1])  # what torch's DataLoader calls
    ),
    "this reader belongs to the process that this one was forked from": used(_in_a_fork),
    "WORLD_SIZE=..., but world_size is left out: each rank serves all batches": opened(),
    "the state was saved by other training: ... differs": used(_of_another_seed, shuffle=True),
    "the stored bytes of a sample do not match its checksum [...]": opened("damaged.h5"),
    "the target exists already [...]": lambda: convert("photos", "train.h5"),
    "the folder is flat: its images have no class [...]": lambda: convert("flat", "new.h5"),
    "folders called 'train' and 'val' are the parts of a dataset and no classes [...]": (
        lambda: convert("parts", "new.h5")
    ),
    "images of different sizes cannot be stored as raw pixels [...]": lambda: convert(
        "sizes", "new.h5"
    ),
    "the target's suffix does not say what to write": lambda: convert("photos", "new.zip"),
}


@pytest.mark.parametrize("message", PROVOKED)
def test_a_message_is_given(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leads to a message raises an error (or warns) of the type and the words on the page."""
    monkeypatch.setitem(sys.modules, "torch", no_gpu_torch(0))
    if SAID[message] == "UserWarning":
        monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises((Exception, Warning)) as raised:
        PROVOKED[message]()
    assert type(raised.value).__name__ == SAID[message]
    assert re.search(".*".join(map(re.escape, message.split("..."))), str(raised.value))


def test_every_message_of_the_page_is_tried() -> None:
    """No message stands on the page that no test has seen."""
    assert set(SAID) == set(PROVOKED)
    assert len(SAID) == len(re.findall(r"^### ", PAGE, re.MULTILINE))
