"""Packing and reading on Ray: one cluster for all, in a process of its own with a time limit."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import h5py
import pytest
from converter_corpus import listed, write_small
from fake_ray import FakeRay
from fakes import packed, paint, write_hdf5
from PIL import Image

import asyncreader.pipeline.distributed
from asyncreader import AsyncReader, DecodeError, ParamsError
from asyncreader.params.parse import parse_params
from asyncreader.pipeline.distributed import rank_and_world, worker_count
from converters import convert

# -- without a cluster ---------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a set."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tasks_write_what_this_machine_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of Ray, which get pickles, write byte for byte the files of this machine: of pictures
    with masks, and of a packed set that has them, into LMDB."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    (tmp_path / "photos").mkdir()
    photos, masks = write_small(tmp_path / "photos"), tmp_path / "masks"
    for number, path in enumerate(photos.rglob("*.png")):
        place = masks / path.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (30, 20), number).save(place)
    options: dict[str, Any] = {"encoding": "png", "size": 32, "shards": 3}
    for source, more in (
        (photos, {"fields": {"mask": masks}}),
        (tmp_path / "local photos", {"format": "lmdb"}),
    ):
        targets = [tmp_path / f"{engine} {source.name}" for engine in ("local", "ray")]
        for target, engine in zip(targets, ("local", "ray"), strict=True):
            convert(source, target, engine=engine, **options, **more)
        one, other = map(files_of, targets)
        assert one == other


def test_bad_pictures_in_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a task has its type and names the picture; skipping gives the same files."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    (tmp_path / "photos").mkdir()
    photos = write_small(tmp_path / "photos")
    bad = photos / "class 1" / "13.png"
    bad.write_bytes(b"no picture")
    options: dict[str, Any] = {"size": 32, "shards": 4}
    with pytest.raises(DecodeError) as caught:
        convert(photos, tmp_path / "set", engine="ray", **options)
    assert caught.value.source_path == str(bad)
    for engine in ("local", "ray"):
        report = convert(photos, tmp_path / engine, engine=engine, skip_bad=True, **options)
        assert (len(report.skipped), report.count) == (1, 22)
    assert files_of(tmp_path / "local") == files_of(tmp_path / "ray")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shards": 2, "engine": "ray"}, r"pip install -e '\.\[ray\]'"),
        ({"engine": "ray"}, "engine 'ray' packs shards"),
        ({"shards": 2, "address": "auto"}, "address goes with"),
        ({"shards": 2, "engine": "spark"}, "engine"),
    ],
)
def test_what_cannot_be_asked_of_ray(
    tmp_path: Path, given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Ray is missing, the error names the command that installs it; one file is packed by one
    machine, and an address is that of a cluster. Nothing is left behind."""
    photos = write_small(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    before = listed(tmp_path)
    with pytest.raises(ParamsError, match=words):
        convert(photos, tmp_path / ("set" if "shards" in given else "one.h5"), **given)
    assert listed(tmp_path) == before


def ray_train(inside: bool) -> Any:
    """Stands for the module ray.train, in a worker or (``inside`` False) in the driver."""

    def get_context() -> SimpleNamespace:
        if not inside:
            raise RuntimeError("cannot be used outside of a Ray Train training function")
        told = {"get_world_rank": 2, "get_world_size": 4, "get_local_world_size": 2}
        return SimpleNamespace(**{name: lambda n=n: n for name, n in told.items()})

    return SimpleNamespace(get_context=get_context)


def test_auto_asks_ray_train_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """rank="auto" and nthread="auto" ask Ray Train's context, then the launcher's variables."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "9"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(asyncreader.pipeline.distributed, "usable_cores", lambda: 8)
    given = {"path": "x", "rank": "auto", "world_size": "auto", "nthread": "auto"}
    auto = parse_params(given, {})
    monkeypatch.setitem(sys.modules, "ray.train", ray_train(inside=True))
    assert (rank_and_world(auto), worker_count(auto)) == ((2, 4), 4)
    with pytest.raises(ParamsError, match="not what the launcher says"):
        rank_and_world(parse_params({**given, "world_size": 3}, {}))
    monkeypatch.setattr(asyncreader.pipeline.distributed, "_warned", False)
    with pytest.warns(UserWarning, match=r'world size is 4.*rank="auto", world_size="auto"'):
        AsyncReader(data=paint(9)).close()
    monkeypatch.setitem(sys.modules, "ray.train", ray_train(inside=False))
    assert (rank_and_world(auto), worker_count(auto)) == ((0, 9), 8)
    fixed = parse_params({"path": "x", "rank": 1, "world_size": 2}, {})
    assert rank_and_world(fixed) == (1, 2)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the datasource, with as much of Ray Data as it uses."""
    accessor = SimpleNamespace(batch_to_block=dict)
    parts = {
        "ray": {},
        "ray.data": {"Datasource": object, "ReadTask": object},
        "ray.data.block": {"BlockAccessor": accessor, "BlockMetadata": object},
    }
    for name, names in parts.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return import_module("asyncreader.adapters.ray")


def test_zeroed_rows_of_a_datasource(adapter: Any, tmp_path: Path) -> None:
    """With on_error="zero" rows have a mask, and a zeroed one no class: its label is -100."""
    path = write_hdf5(tmp_path / "bad.h5", packed(paint(10, (4, 4, 3))))
    with h5py.File(path, "r+") as file:
        file["data"][5] = 255 - file["data"][5]
        stored = file["labels"][:, 0].tolist()
    params = {"path": path, "batch_size": 4, "on_error": "zero"}
    _, rows, _ = adapter._blocks(params, 0, 10)
    assert rows["mask"].tolist() == [True, False, True, True]
    assert rows["labels"].tolist() == [stored[4], -100, *stored[6:8]]
    assert all("mask" not in rows for rows in adapter._blocks({**params, "on_error": "skip"}, 0, 4))


def test_a_datasource_has_no_order(adapter: Any, tmp_path: Path) -> None:
    """What Ray Data decides itself is refused: order, shares, epochs."""
    for name in ("shuffle", "rank", "epochs", "subset"):
        with pytest.raises(ParamsError, match=f"{name} is not for a datasource"):
            adapter.packed_datasource({"path": "x", name: 1})
    (tmp_path / "photos").mkdir()
    convert(write_small(tmp_path / "photos"), tmp_path / "set", shards=2)
    source = adapter.packed_datasource(path=tmp_path / "set", batch_size=4)
    with AsyncReader(path=tmp_path / "set") as reader:
        assert source.estimate_inmemory_data_size() == reader.count * (20 * 30 * 3 + 16)
