"""Training and evaluation in several processes: the accuracy is that of one process, exactly.

asyncreader convert sample_data/train train.h5 --size 48x48
asyncreader convert sample_data/test test.h5 --size 48x48
torchrun --standalone --nproc-per-node=2 tests/examples/recipes/distributed.py train.h5 test.h5

Every rank evaluates its share of the test images: with ``last_batch="pad"`` each image is on one
rank, once. Then rank 0 evaluates all of them alone, and both counts must be equal.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from asyncreader.adapters.torch import TorchReader

NUMBERS = {"dtype": "float32", "scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
SHARED = {"rank": "auto", "world_size": "auto"}  # what torchrun says


def network(classes):
    layers, width = [], 3
    for wider in (16, 32, 64):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def right(model, loader):
    """Images that the model names right, and images: int64 (2,)."""
    sums = torch.zeros(2, dtype=torch.int64)
    with loader, torch.inference_mode():
        for images, labels, mask in loader:
            sums[0] += (model(images).argmax(1) == labels)[mask].sum()
            sums[1] += mask.sum()
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(0)
    with TorchReader(
        NUMBERS, **SHARED, path=options.train, batch_size=16, shuffle=True, flip=True
    ) as loader:
        model = DistributedDataParallel(network(len(loader.classes)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(options.epochs):
            for images, labels in loader:  # this rank's 16 of the step's 16 x ranks
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    trained = model.module.eval()
    for buffer in trained.buffers():  # the ranks' means of BatchNorm differ: rank 0's for all
        dist.broadcast(buffer, 0)
    test = {**NUMBERS, "path": options.test, "batch_size": 25, "last_batch": "pad"}
    shared = right(trained, TorchReader(test, **SHARED, with_mask=True))
    dist.all_reduce(shared)
    if dist.get_rank() == 0:
        alone = right(trained, TorchReader(test, rank=0, world_size=1, with_mask=True))
        assert torch.equal(shared, alone), (shared, alone)
        print(f"{dist.get_world_size()} processes: {shared[1]} images, each once")
        print(f"accuracy {shared[0] / shared[1]:.4f}, in one process {alone[0] / alone[1]:.4f}")
    dist.barrier()  # no rank leaves before the last is done: with gloo, it may abort as it exits
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
