"""How far our pixels are from torchvision's: ``python tests/support/torchvision_pixels.py``.

Prints the table of tests/benchmarks/RESULTS.md. The photographs are those that scikit-image and
scikit-learn ship; both sides decode the same files.
"""

import io
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image

from asyncreader.pixels.encoded import put_views
from asyncreader.pixels.row_maker import RowView
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.transform import plan_rows
from asyncreader.stats import Meter

SIZE = (224, 224)
PHOTOGRAPHS = {
    "skimage.data": ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"),
    "sklearn.datasets.images": ("china.jpg", "flower.jpg"),
}
#: What is compared: see pairs().
WAYS = (
    "decoded, not resized",
    "`RandomResizedCrop`, same box, bilinear",
    "`RandomResizedCrop`, same box, bicubic",
    "the same on a PIL image, bilinear",
    "the same on a PIL image, bicubic",
    "`Resize(256)`, `CenterCrop(224)`",
    "`Resize((224, 224))` of JPEGs of 872 to 1,411 pixels",
)
#: Those are decoded at a smaller scale.
LARGE = ("hubble_deep_field.jpg", "retina.jpg")
#: Of each photograph, for each way with random boxes.
BOXES = 12


#: The operators that load_torchvision() declared; they are gone with this.
_DECLARED: list[Any] = []


def load_torchvision() -> None:
    """Import torchvision. Its compiled operators cannot be loaded beside a torch of another build
    (for the CPU, say). They are not needed here, but its import wants their names."""
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import torchvision  # noqa: F401
            return
        except RuntimeError as exc:
            lacking = re.search(r"operator torchvision::(\w+) does not exist", str(exc))
            if lacking is None:
                raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        _DECLARED[-1].define(f"{lacking[1]}(Tensor given) -> Tensor")


def need_torchvision() -> None:
    """Skip the test that runs where torchvision is missing, or cannot be imported."""
    try:
        load_torchvision()
    except Exception as exc:
        import pytest

        pytest.skip(f"torchvision cannot be imported: {type(exc).__name__}: {exc}")


def ours(data: bytes, size: tuple[int, int], draws: Any = None, **wanted: Any) -> Any:
    """(H, W, C) as a reader of encoded files makes them."""
    fill = plan_rows(
        SampleSpec(None, np.dtype(np.uint8), "HWC", encoding="original"),
        OutputSpec(layout="NHWC", size=size, **wanted),
        "",
    )
    out = np.empty((*size, 3), np.uint8)
    put_views((RowView(fill, draws, False, out),), data, Meter())
    return out


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """The way, our pixels and torchvision's, of every photograph."""
    from torchvision.transforms import InterpolationMode, v2
    from torchvision.transforms.v2.functional import pil_to_tensor, resized_crop

    resized = OutputSpec(size=SIZE, crop="random-resized")
    centre = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    for package, names in PHOTOGRAPHS.items():
        for name in names:
            data = files(package).joinpath(name).read_bytes()
            picture = Image.open(io.BytesIO(data)).convert("RGB")  # as ImageFolder does
            decoded = pil_to_tensor(picture)
            high, wide = decoded.shape[1:]
            yield WAYS[0], ours(data, (high, wide), crop="none"), channels_last(decoded)
            for number in range(BOXES):
                draws = np.random.default_rng(number).random(40)
                rect = resized.rect(high, wide, draws)
                for way, mode, source in (
                    (WAYS[1], "bilinear", decoded),
                    (WAYS[2], "bicubic", decoded),
                    (WAYS[3], "bilinear", picture),
                    (WAYS[4], "bicubic", picture),
                ):
                    wanted = resized_crop(
                        *(source, rect.top, rect.left, rect.height, rect.width, SIZE),
                        interpolation=InterpolationMode(mode),
                        antialias=True,
                    )
                    wanted = pil_to_tensor(wanted) if source is picture else wanted
                    options = {"crop": "random-resized", "interpolation": mode}
                    yield way, ours(data, SIZE, draws, **options), channels_last(wanted)
            found = ours(data, SIZE, crop="center", crop_ratio=0.875)
            yield WAYS[5], found, channels_last(centre(decoded))
    squeeze = v2.Resize(SIZE, antialias=True)
    for name in LARGE:
        data = files("skimage.data").joinpath(name).read_bytes()
        decoded = pil_to_tensor(Image.open(io.BytesIO(data)).convert("RGB"))
        yield WAYS[6], ours(data, SIZE, crop="none"), channels_last(squeeze(decoded))


def channels_last(picture: Any) -> Any:
    """A (C, H, W) tensor as an array (H, W, C)."""
    return picture.permute(1, 2, 0).numpy()


def differences() -> dict[str, tuple[float, float, float]]:
    """Levels of 255 by way: the mean, the 99th percentile and the largest of all pixels."""
    found: dict[str, list[Any]] = {way: [] for way in WAYS}
    for way, a, b in pairs():
        found[way].append(np.abs(a.astype(int) - b).ravel())
    joined = {way: np.concatenate(parts) for way, parts in found.items()}
    return {
        way: (float(off.mean()), float(np.percentile(off, 99)), float(off.max()))
        for way, off in joined.items()
    }


if __name__ == "__main__":
    print("| torchvision | mean | 99 % | largest |\n|---|---|---|---|")
    for way, (mean, most, largest) in differences().items():
        print(f"| {way} | {mean:.3f} | {most:.0f} | {largest:.0f} |")
