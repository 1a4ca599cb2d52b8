"""Self-supervised views: SimCLR on images without labels, judged by the nearest neighbours.

asyncreader convert cifar/train cifar-train.h5 --size 32x32
asyncreader convert cifar/test cifar-test.h5 --size 32x32
python tests/examples/recipes/simclr.py cifar-train.h5 cifar-test.h5

It prints the accuracy of the 20 nearest neighbours by features, and by raw pixels.
"""

import argparse

import torch
from cifar10 import NUMBERS, network
from torch import nn

from asyncreader.adapters.torch import TorchReader

VIEWS = {
    "views": 2, "size": (32, 32), "crop": "random-resized", "crop_area": (0.2, 1), "flip": True,
    "augment": [("color-jitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4,
                                  "hue": 0.1}), ("random-grayscale", {"p": 0.2})],
}  # fmt: skip


def loss_of(one, other, temperature=0.2):
    """NT-Xent: each of 2B features (B, D) is to be nearest to the other view of its image."""
    features = nn.functional.normalize(torch.cat([one, other]))
    likeness = features @ features.T / temperature
    likeness = likeness - 1e9 * torch.eye(len(features))  # an image is not its own neighbour
    count = len(one)
    return nn.functional.cross_entropy(likeness, (torch.arange(2 * count) + count) % (2 * count))


def features(model, path, subset):
    """What a model makes of a set, (N, D), normalised, and its labels."""
    with TorchReader(
        NUMBERS, path=path, subset=subset, size=(32, 32), batch_size=128, last_batch="short"
    ) as loader:
        model.eval()
        with torch.inference_mode():
            pairs = [(model(images).flatten(1), labels) for images, labels in loader]
    found, labels = (torch.cat(part) for part in zip(*pairs, strict=True))
    return nn.functional.normalize(found), labels


def neighbours(model, train, test, subset, count=20):
    """The accuracy of the class that most of the nearest neighbours have."""
    known, classes = features(model, train, subset)
    asked, truth = features(model, test, None)
    nearest = classes[(asked @ known.T).topk(count).indices]
    return (nearest.mode().values == truth).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--every", type=int, default=5, help="takes one image of so many")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = network(128)
    encoder, subset = model[:-1], slice(None, None, options.every)
    head = nn.Sequential(nn.ReLU(), model[-1])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with TorchReader(
        NUMBERS, **VIEWS, path=options.train, subset=subset, batch_size=128, shuffle=True, njob=3
    ) as loader:
        for epoch in range(options.epochs):
            for (both,), _ in loader:  # (128, 2, 3, 32, 32) float32; labels are not used
                loss = loss_of(*(head(encoder(both[:, view])) for view in (0, 1)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    given = options.train, options.test, subset
    print(f"accuracy {neighbours(encoder, *given):.3f}", end=", ")
    print(f"by raw pixels {neighbours(nn.Flatten(), *given):.3f}")


if __name__ == "__main__":
    main()
