"""Cases of the contract of all sources (asyncreader/testing), and what packed files do besides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import damage

from asyncreader import ChecksumError, testing
from asyncreader.pixels.geometry import resize_into
from asyncreader.pixels.specs import OutputSpec
from asyncreader.pixels.tables import MIRROR_DRAW
from asyncreader.sources import Inspector
from asyncreader.system.keyed_random import STREAM_VIEW, key_of, mix_rows, uniforms
from asyncreader.testing.contract import assert_same, fill_rows, sized

#: Every way of filling.
MODES: dict[str, OutputSpec] = {
    "copy": OutputSpec(layout="NHWC"),
    "view": OutputSpec(),
    "transpose": OutputSpec(contiguous=True),
    "mirror": OutputSpec(layout="NHWC", flip=True),
    "mirror NCHW": OutputSpec(contiguous=True, flip=True),
    "cast": OutputSpec(dtype=np.dtype("float32")),
    "affine": OutputSpec(layout="NHWC", dtype=np.dtype("float32"), scale=1 / 64, mean=(0.5,)),
    "affine NCHW": OutputSpec(
        contiguous=True, dtype=np.dtype("float32"), scale=0.25, mean=(3.0,), std=(2.0,), flip=True
    ),
    "affine float16": OutputSpec(dtype=np.dtype("float16"), scale=1 / 256, std=(0.5,)),
    "each": OutputSpec(dtype=np.dtype("float64"), scale=0.5, mean=(1.0,), std=(3.0,)),
    "size": OutputSpec(size=(1, 1)),
    "size squeezed": OutputSpec(size=(1, 1), crop="none", flip=True, dtype=np.dtype("float32")),
    "random crop": OutputSpec(size=(1, 1), crop="random", crop_ratio=0.8, layout="NHWC"),
    "random-resized": OutputSpec(size=(1, 1), crop="random-resized", flip=True),
    "ranges": OutputSpec(
        size=(1, 1), crop="random-resized", crop_area=(0.3, 0.5), crop_aspect=(0.5, 1)
    ),
    "padded crop": OutputSpec(size=(1, 1), crop="random", crop_padding=3, padding_mode="edge"),
    "views": OutputSpec(size=(1, 1), crop="random-resized", flip=True, views=2),
    "views as stored": OutputSpec(flip=True, views=3),
}

#: The same of samples that are no images.
OTHER_MODES: dict[str, OutputSpec] = {
    "copy": OutputSpec(),
    "cast": OutputSpec(dtype=np.dtype("float64")),
    "affine": OutputSpec(dtype=np.dtype("float32"), scale=0.5, mean=(1.0,), std=(4.0,)),
}


def expected(images: np.ndarray, wanted: OutputSpec, keys: np.ndarray) -> np.ndarray:
    """What a fill must make of ``images``, one by one and in plain numpy."""
    if wanted.views:
        once, numbers = replace(wanted, views=0), keys.view(np.int64)
        others = (mix_rows(key_of(STREAM_VIEW, k), numbers) for k in range(1, wanted.views))
        return np.stack([expected(images, once, own) for own in (keys, *others)], axis=1)
    dtype = wanted.dtype or images.dtype
    flips = uniforms(keys, MIRROR_DRAW) < 0.5
    draws = np.stack([uniforms(keys, k) for k in range(40 if wanted.size else 1)], axis=1)
    rows = []
    for i, image in enumerate(images):
        if wanted.size is not None:
            high, wide = image.shape[:2]
            rect, p = wanted.rect(high, wide, draws[i]), wanted.crop_padding
            if p:
                image = np.pad(image, ((p, p), (p, p), (0, 0)), "edge")
            resized = np.empty((*wanted.size, image.shape[2]), image.dtype)
            resize_into(image, resized, rect.box())
            image = resized
        if wanted.flip and flips[i]:
            image = image[:, ::-1]
        if wanted.affine:
            mean, std = (v[0] if len(v) == 1 else v for v in (wanted.mean, wanted.std))
            image = (image.astype(np.float64) * wanted.scale - mean) / std
        rows.append(image.astype(dtype))
    batch = np.stack(rows)
    if batch.ndim == 4 and wanted.layout == "NCHW":
        batch = batch.transpose(0, 3, 1, 2)
    return batch


@dataclass
class Built(testing.KnownSet):
    """A set that a test may damage; what must come out of it is worked out by numpy."""

    #: The packed file, which holds each sample's bytes as they are: a test may damage them.
    file: str = field(default="", kw_only=True)
    #: What a user names to open a foreign set.
    path: str = field(default="", kw_only=True)

    def modes(self) -> dict[str, OutputSpec]:
        modes = MODES if self.images.ndim == 4 else OTHER_MODES
        return {name: sized(mode, self.images) for name, mode in modes.items()}

    def expected(self, records: np.ndarray, wanted: OutputSpec, keys: np.ndarray) -> np.ndarray:
        return expected(self.images[records], wanted, keys)


#: How a set of some kind is made in a folder.
Build = Callable[[Path], Built]


def each_of(cases: Mapping[str, Build]) -> Any:
    """The fixture ``case`` of a class: its tests run for each of these."""

    @pytest.fixture(scope="class", params=cases.values(), ids=[c.replace(" ", "-") for c in cases])
    @classmethod
    def case(cls: type, request: pytest.FixtureRequest) -> Build:
        found: Build = request.param
        return found

    return case


class PackedContract(testing.CheckedSourceContract):
    """Needs fixtures ``built`` (shared by a case's tests) and ``fresh`` (of this test alone)."""

    def test_damage_is_named(self, fresh: Built) -> None:
        """A flipped byte is a ChecksumError that says where; all other rows are filled."""
        damage(fresh.file, fresh.stored[5])
        source = fresh.opened()
        records = np.arange(10)
        modes = (MODES[name] for name in ("affine NCHW", "size", "views", "views as stored"))
        for mode in (OutputSpec(layout="NHWC"), *modes):
            wanted = sized(mode, fresh.images)
            found, keys, errors = fill_rows(
                source, wanted, records, check=np.ones(10, np.bool_), batch=10
            )
            assert [error.row for error in errors] == [5]
            error = errors[0].error
            assert isinstance(error, ChecksumError)
            assert error.path == source.facts.path
            assert error.index == 5
            assert error.key == ("0000000005" if source.facts.container == "LMDB" else None)
            assert fresh.paths is not None
            assert error.source_path == fresh.paths[5].decode()
            assert error.source_path in str(error)
            assert "record 5" in str(error)
            good = np.delete(records, 5)
            scale = fresh.tolerance * wanted.scale / min(wanted.std)
            assert_same(found[good], expected(fresh.images[good], wanted, keys[good]), scale)
        with pytest.raises(ChecksumError) as caught:
            Inspector(source.first).bytes(5)
        assert caught.value.index == 5
        source.close()
