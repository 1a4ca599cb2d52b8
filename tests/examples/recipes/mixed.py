"""Few images in colour and many in grey, mixed by ratio: what the grey ones add to the few.

asyncreader convert cifar/train cifar-train.h5 --size 32x32
asyncreader convert cifar/test cifar-test.h5 --size 32x32
python tests/examples/recipes/mixed.py cifar-train.h5 cifar-test.h5

It writes colour.h5 and grey.h5 here, and prints the accuracy after the mix, and after colour.h5
alone.
"""

import argparse

import numpy as np
import torch
from cifar10 import NUMBERS, RANDOM, accuracy, network, train

import asyncreader
from asyncreader.adapters.torch import TorchReader

#: Grey as television defines it (ITU-R BT.601): the parts of red, green and blue.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def write_sets(path, every):
    """colour.h5 has one image of ``every``, grey.h5 the others without their colours."""
    with (
        asyncreader.open(path, layout="NHWC") as given,
        asyncreader.Writer("colour.h5", classes=given.classes, overwrite=True) as colour,
        asyncreader.Writer("grey.h5", classes=given.classes, overwrite=True) as grey,
    ):
        few = np.arange(len(given)) % every == 0
        for first in range(0, len(given), 1000):
            images, labels = given[first : first + 1000]
            chosen = few[first : first + 1000]
            colour.add_many(images[chosen], labels=labels[chosen, 0])
            luma = (images[~chosen] @ LUMA).round().astype(np.uint8)  # (N, H, W)
            grey.add_many(luma[..., None].repeat(3, axis=3), labels=labels[~chosen, 0])
    print(f"colour.h5: {few.sum()} images; grey.h5: {(~few).sum()}")


def trained(mix, options):
    """The accuracy of a network that learned from a mix, in the same number of steps for any."""
    torch.manual_seed(options.seed)
    shared = {**NUMBERS, "batch_size": 128, "njob": 3}
    with (
        TorchReader(shared, **RANDOM, mix=mix, epoch_samples=options.samples, shuffle=True,
                    seed=options.seed) as loader,
        TorchReader(shared, path=options.test, last_batch="short") as test,
    ):  # fmt: skip
        model = network(len(loader.classes))
        train(model, loader, options.epochs)
        return accuracy(model, test)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="the packed images to learn from")
    parser.add_argument("test", help="the packed images to be judged by")
    parser.add_argument("--every", type=int, default=50, help="one image of so many has colours")
    parser.add_argument("--ratio", type=float, default=0.5, help="of colour.h5 in the mix")
    parser.add_argument("--samples", type=int, default=25_600, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_sets(options.train, options.every)
    mixed = trained({"colour.h5": options.ratio, "grey.h5": 1 - options.ratio}, options)
    alone = trained({"colour.h5": 1}, options)
    print(f"accuracy {mixed:.3f}; after as many steps with colour.h5 alone {alone:.3f}")


if __name__ == "__main__":
    main()
