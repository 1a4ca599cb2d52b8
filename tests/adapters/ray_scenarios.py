"""What is tried on Ray, on one cluster of three nodes: run by test_ray.py in a process of its own.

``python tests/adapters/ray_scenarios.py FOLDER [--count 20000]`` packs so many pictures into 16
shards while a node is killed, reads them with Ray Data, and with 4 workers of Ray Train that write
down what they get; it prints a JSON object of what came of it. Needs ``pip install -e '.[ray]'``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from PIL import Image
from ray.cluster_utils import Cluster

from asyncreader import AsyncReader
from asyncreader.adapters.ray import packed_datasource
from converters import convert

SHARDS = 16
WORKERS = 4
BATCH = 32


def photos(folder: Path, count: int) -> Path:
    """``count`` small JPEG files in four classes, no two alike."""
    base = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    for number in range(count):
        image = base.resize((128, 128))
        image.putpixel((number % 128, number // 128 % 128), (number % 256, 9, number // 256 % 256))
        held = io.BytesIO()
        image.save(held, "JPEG")
        place = folder / f"class{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(held.getvalue())
    return folder


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files, byte for byte."""
    names = sorted(os.listdir(one))
    return names == sorted(os.listdir(other)) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def packing(folder: Path, cluster: Any, victim: Any, count: int) -> dict[str, Any]:
    """Local and on Ray, where a node goes when the first shard is done."""
    source = photos(folder / "photos", count)
    options: dict[str, Any] = {"encoding": "original", "check_decode": True, "shards": SHARDS}
    started = time.perf_counter()
    convert(source, folder / "local", **options)
    local = time.perf_counter() - started
    seen: list[int] = []
    killers: list[threading.Thread] = []

    def progress(done: int, _: int) -> None:
        seen.append(done)
        if not killers:
            killers.append(
                threading.Thread(
                    target=cluster.remove_node, args=(victim,), kwargs={"allow_graceful": False}
                )
            )
            killers[0].start()

    started = time.perf_counter()
    report = convert(source, folder / "ray", engine="ray", progress=progress, **options)
    spent = time.perf_counter() - started
    killers[0].join()
    cluster.wait_for_nodes(timeout=60)
    return {
        "count": report.count,
        "same": same(folder / "local", folder / "ray"),
        "nodes left": sum(node["Alive"] for node in ray.nodes()),
        "progress": [seen[0], seen[-1], len(seen)],
        "left behind": sorted(set(os.listdir(folder)) - {"photos", "local", "ray"}),
        "local seconds": round(local, 1),
        "ray seconds": round(spent, 1),
    }


def reading(folder: Path) -> dict[str, Any]:
    """Ray Data over the set: in order if that is asked for, and complete in any case."""
    path = str(folder / "ray")
    with AsyncReader(path=path, batch_size=64, layout="NHWC", last_batch="short") as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        first, labels = batch.data.copy(), batch.labels[:, 0].copy()
    told: dict[str, Any] = {}
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    for ordered in (True, False):
        context.execution_options.preserve_order = ordered
        data = ray.data.read_datasource(packed_datasource(path=path), override_num_blocks=6)
        index: list[int] = []
        right = True
        for number, rows in enumerate(data.iter_batches(batch_size=64, batch_format="numpy")):
            index += rows["index"].tolist()
            if ordered and number == 0:
                right = bool((rows["data"] == first).all() and (rows["labels"] == labels).all())
        count = len(index)
        told["ordered" if ordered else "complete"] = (index if ordered else sorted(index)) == list(
            range(count)
        )
        told["pixels and labels"] = told.get("pixels and labels", True) and right
        told["count"] = count
    return told


def train(config: dict[str, Any]) -> None:
    """A worker of Ray Train: two epochs, every index written down."""
    from ray.train import get_context

    with AsyncReader(
        path=config["path"], batch_size=BATCH, shuffle="block", seed=7, nthread="auto", epochs=2,
        rank="auto", world_size="auto", last_batch="pad",
    ) as reader:  # fmt: skip
        rows = [batch.indices.tolist() for _ in range(2) for batch in reader]
        place = Path(config["folder"]) / f"rank{get_context().get_world_rank()}.json"
        place.write_text(json.dumps(rows))


def training(folder: Path) -> dict[str, Any]:
    """Four workers of Ray Train: what they got, joined, is what one process gets."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    path = str(folder / "ray")
    (folder / "ranks").mkdir()
    DataParallelTrainer(
        train,
        train_loop_config={"path": path, "folder": str(folder / "ranks")},
        scaling_config=ScalingConfig(
            num_workers=WORKERS, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD"
        ),
        run_config=RunConfig(storage_path=str(folder / "results")),
    ).fit()
    ranks = [
        json.loads((folder / "ranks" / f"rank{rank}.json").read_text()) for rank in range(WORKERS)
    ]
    joined = [[n for rank in ranks for n in rank[step]] for step in range(len(ranks[0]))]
    with AsyncReader(
        path=path, batch_size=BATCH * WORKERS, shuffle="block", seed=7, epochs=2, last_batch="pad"
    ) as reader:
        alone = [batch.indices.tolist() for _ in range(2) for batch in reader]
        count = reader.count
    half = len(joined) // 2
    return {
        "steps": sorted({len(rank) for rank in ranks}),
        "as one process": joined == alone,
        "each once": [
            sorted(n for step in epoch for n in step if n >= 0) == list(range(count))
            for epoch in (joined[:half], joined[half:])
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    told = on_a_cluster(options.folder, options.count)
    (options.folder / "told.json").write_text(json.dumps(told, indent=1))
    json.dump(told, sys.stdout, indent=1)


def on_a_cluster(folder: Path, count: int) -> dict[str, Any]:
    """All of it, on three nodes."""
    node = {"object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **node})
    try:
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        victim = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        return {
            "packing": packing(folder, cluster, victim, count),
            "reading": reading(folder),
            "training": training(folder),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
