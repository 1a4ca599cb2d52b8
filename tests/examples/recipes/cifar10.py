"""CIFAR-10 on the CPU: a small residual network, trained with one cycle of the learning rate.

asyncreader convert cifar/train cifar-train.h5 --size 32x32
asyncreader convert cifar/test cifar-test.h5 --size 32x32
python tests/examples/recipes/cifar10.py cifar-train.h5 cifar-test.h5

``cifar/train`` and ``cifar/test`` are folders with a folder of images for each class.
"""

import argparse
import time

import torch
from torch import nn

from asyncreader.adapters.torch import TorchReader

#: How pixels become numbers, in training and in evaluation.
NUMBERS = {"dtype": "float32", "scale": 1 / 255}
NUMBERS |= {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
#: What is random in training: four pixels of padding, a crop of 32 x 32, a mirror image.
RANDOM = {"size": (32, 32), "crop": "random", "crop_padding": 4, "flip": True}


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def block(come, go, pool=False):
    layers = [nn.Conv2d(come, go, 3, padding=1, bias=False), nn.MaxPool2d(2)]
    return nn.Sequential(*layers[: 1 + pool], nn.BatchNorm2d(go), nn.ReLU())


def network(classes, width=24):
    """ResNet-9 with a stem of stride 2: (B, 3, 32, 32) to (B, classes)."""
    a, b, c = width, 2 * width, 4 * width
    stem = [nn.Conv2d(3, a, 4, 2, 1, bias=False), nn.BatchNorm2d(a), nn.ReLU()]
    body = [block(a, b, pool=True), Residual(block(b, b), block(b, b))]
    body += [block(b, c, pool=True), Residual(block(c, c), block(c, c))]
    layers = [*stem, *body, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(c, classes)]
    # images arrive as they lie in the file, (H, W, C): convolutions are faster so, too
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def train(model, loader, epochs, rate=0.2):
    """Train for so many epochs: the seconds it took, and those spent waiting for batches."""
    optimizer = torch.optim.SGD(model.parameters(), rate, 0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.25)
    loss_of, waited, began = nn.CrossEntropyLoss(label_smoothing=0.1), 0.0, time.perf_counter()
    for epoch in range(epochs):
        asked = time.perf_counter()
        for images, labels in loader:
            waited += time.perf_counter() - asked
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            asked = time.perf_counter()
        print(f"epoch {epoch + 1:2}: loss {loss.item():.3f}", flush=True)
    return time.perf_counter() - began, waited


def accuracy(model, loader):
    """The share of the images that the model names right."""
    model.eval()
    with torch.inference_mode():
        right = [(model(images).argmax(1) == labels) for images, labels in loader]
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="the packed images to learn from")
    parser.add_argument("test", help="the packed images to be judged by")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    shared = {**NUMBERS, "batch_size": 128, "njob": 3}
    with (
        TorchReader(
            shared, **RANDOM, path=options.train, shuffle=True, seed=options.seed
        ) as loader,
        TorchReader(shared, path=options.test, last_batch="short") as test,
    ):
        model = network(len(loader.classes))
        seconds, waited = train(model, loader, options.epochs)
        print(f"{seconds:.1f} s, of them {waited:.1f} s waiting for batches")
        print(f"accuracy {accuracy(model, test):.4f}")


if __name__ == "__main__":
    main()
