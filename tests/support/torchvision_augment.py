"""How far our operations are from torchvision's: ``python tests/support/torchvision_augment.py``.

Prints a table of tests/benchmarks/RESULTS.md. Both get the same photographs and the same numbers,
drawn by ours; torchvision gets them in the place of its own make_params().
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from asyncreader.pixels.augment import AUGMENT, known
from asyncreader.pixels.augment.base import Operation
from asyncreader.pixels.augment.functions import perspective_coefficients
from asyncreader.pixels.augment.policies import SPACES
from asyncreader.system.keyed_random import Draws

#: Draws of each operation, for each photograph.
DRAWS = 8
#: (height, width) of the parts of photographs.
SIZES = ((224, 224), (131, 197))

#: The operations with options, and torchvision's classes of them.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "color-jitter, all": (
        {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.4},
        "ColorJitter",
    ),
    "color-jitter, brightness": ({"brightness": 0.9}, "ColorJitter"),
    "color-jitter, contrast": ({"contrast": 0.9}, "ColorJitter"),
    "color-jitter, saturation": ({"saturation": 0.9}, "ColorJitter"),
    "color-jitter, hue": ({"hue": 0.5}, "ColorJitter"),
    "random-grayscale": ({"p": 1.0}, "RandomGrayscale"),
    "random-solarize": ({"threshold": 100.5, "p": 1.0}, "RandomSolarize"),
    "random-posterize": ({"bits": 3, "p": 1.0}, "RandomPosterize"),
    "random-equalize": ({"p": 1.0}, "RandomEqualize"),
    "random-autocontrast": ({"p": 1.0}, "RandomAutocontrast"),
    "random-sharpness": ({"sharpness_factor": 1.7, "p": 1.0}, "RandomAdjustSharpness"),
    "gaussian-blur": ({"kernel_size": (23, 7)}, "GaussianBlur"),
    "random-rotation": ({"degrees": 180, "fill": (9, 200, 77)}, "RandomRotation"),
    "random-rotation, bilinear": ({"degrees": 180, "interpolation": "bilinear"}, "RandomRotation"),
    "random-affine": (
        {"degrees": 30, "translate": (0.2, 0.1), "scale": (0.5, 2), "shear": (-20, 20, -9, 9)},
        "RandomAffine",
    ),
    "random-affine, bilinear": (
        {"degrees": 30, "shear": 20, "interpolation": "bilinear", "fill": 55, "center": (9, 30)},
        "RandomAffine",
    ),
    "random-perspective": ({"p": 1.0}, "RandomPerspective"),
    "random-perspective, nearest": (
        {"p": 1.0, "interpolation": "nearest", "fill": (9, 200, 77)},
        "RandomPerspective",
    ),
    "random-vertical-flip": ({"p": 1.0}, "RandomVerticalFlip"),
    "trivial-augment-wide": ({}, "TrivialAugmentWide"),
    "trivial-augment-wide, bilinear": (
        {"interpolation": "bilinear", "fill": 128},
        "TrivialAugmentWide",
    ),
    "rand-augment": ({}, "RandAugment"),
    "auto-augment": ({}, "AutoAugment"),
    "random-erasing": ({"p": 1.0, "value": (9, 200, 77)}, "RandomErasing"),
}
#: Cases whose pixels are mixed from several: their mean is compared, not their largest difference.
INTERPOLATING = tuple(name for name in CASES if "bilinear" in name or "perspective" in name)


def operation(name: str) -> Operation:
    """The operation of a case, as a reader's parameter makes it."""
    (made,) = AUGMENT("augment", (name.split(",")[0], CASES[name][0]))
    return made


def theirs(name: str) -> Any:
    """torchvision's transform of a case."""
    from torchvision.transforms import v2

    options, kind = CASES[name]
    return getattr(v2, kind)(**options)


def photographs() -> list[Any]:
    """Parts of the photographs that scikit-learn ships, (H, W, 3) uint8."""
    from sklearn.datasets import load_sample_images

    found = load_sample_images().images
    return [
        np.ascontiguousarray(image[60 : 60 + high, 120 : 120 + wide])
        for image in found
        for high, wide in SIZES
    ]


def given_to(name: str, drawn: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """What our draws are as torchvision's make_params() returns them."""
    kind = name.split(",")[0]
    if kind == "color-jitter":
        words = ("brightness", "contrast", "saturation", "hue")
        factors = {f"{w}_factor": f for w, f in zip(words, drawn["factors"], strict=True)}
        return {"fn_idx": drawn["order"], **factors}
    if kind == "random-grayscale":
        return {"num_input_channels": shape[2]}
    if kind == "gaussian-blur":
        return {"sigma": [drawn["sigma"]] * 2}
    if kind == "random-perspective":
        high, wide = shape[0] - 1, shape[1] - 1
        corners = ((0, 0), (wide, 0), (wide, high), (0, high))
        return {"coefficients": list(perspective_coefficients(corners, drawn["moved"]))}
    if kind == "random-erasing":
        import torch

        value = torch.tensor(CASES[name][0]["value"])[:, None, None]
        place = {"i": drawn["top"], "j": drawn["left"], "h": drawn["rows"], "w": drawn["columns"]}
        return {**place, "v": value}
    return dict(drawn)


def their_picture(name: str, transform: Any, image: Any, drawn: Any) -> Any:
    """What torchvision makes of a picture with our numbers."""
    import torch

    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)
    if "chosen" in drawn:
        for chosen, magnitude in drawn["chosen"]:
            tensor = transform._apply_image_or_video_transform(
                tensor, chosen, magnitude, transform.interpolation, transform._fill
            )
    else:
        tensor = transform.transform(tensor, given_to(name, drawn, image.shape))
    return tensor.permute(1, 2, 0).numpy()


def pairs(name: str) -> Iterator[tuple[Any, Any]]:
    """Our picture and theirs, of each photograph and draw."""
    ours, transform = operation(name), theirs(name)
    for number, image in enumerate(photographs()):
        for draw in range(DRAWS):
            drawn = ours.draw(Draws(1000 * number + draw), image.shape)
            assert drawn is not None
            made = image.copy()
            ours.apply(made, drawn)
            yield made, their_picture(name, transform, image, drawn)


def differences(name: str) -> tuple[int, float]:
    """The largest difference of a level, and the largest mean of a picture."""
    largest, mean = 0, 0.0
    for made, expected in pairs(name):
        apart = np.abs(made.astype(np.int64) - expected)
        largest, mean = max(largest, int(apart.max())), max(mean, float(apart.mean()))
    return largest, mean


def magnitudes() -> Iterator[tuple[str, float, float]]:
    """The name, our magnitude and torchvision's, of all bins of all spaces."""
    from torchvision.transforms import v2

    kinds = {"trivial-augment-wide": v2.TrivialAugmentWide, "rand-augment": v2.RandAugment}
    for kind, table in {**kinds, "auto-augment": v2.AutoAugment}.items():
        assert list(SPACES[kind]) == list(table._AUGMENTATION_SPACE)
        for name, (function, signed) in table._AUGMENTATION_SPACE.items():
            of = SPACES[kind][name]
            for bins in (10, 31):
                expected = function(bins, 131, 197)
                assert (of is None) == (expected is None)
                if of is not None:
                    assert of.signed == signed
                    for number in range(bins):
                        found = of.of(number, bins, (131, 197, 3))
                        yield name, found, float(expected[number])


def main() -> None:
    """Print the table."""
    assert {name.split(",")[0] for name in CASES} == set(known())
    print("| operation | largest difference | mean difference |\n|---|--:|--:|")
    for name in CASES:
        largest, mean = differences(name)
        written = "0" if mean == 0 else f"{mean:.1g}" if mean >= 1e-4 else "below 0.0001"
        kind, comma, more = name.partition(",")
        print(f"| `{kind}`{comma}{more} | {largest} | {written} |")


if __name__ == "__main__":
    main()
