"""Fine-tune a network of ImageNet on a packed set, or train it from random weights.

python tests/examples/recipes/photographs.py photos-train.h5 photos-test.h5
python tests/examples/recipes/finetune.py photos-train.h5 photos-test.h5

It takes torchvision's weights of ResNet-18 where they were downloaded before, or with --download.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision.models import ResNet18_Weights, resnet18

from asyncreader.adapters.torch import TorchReader

NUMBERS = {"dtype": "float32", "scale": 1 / 255}
NUMBERS |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def network(classes, download):
    """ResNet-18 with a new last layer, and whether its other weights are those of ImageNet."""
    weights = ResNet18_Weights.IMAGENET1K_V1
    kept = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    found = download or kept.exists()
    model = resnet18(weights=weights if found else None)
    model.fc = nn.Linear(model.fc.in_features, classes)
    return model.to(memory_format=torch.channels_last), found


def train(model, loader, epochs, rate):
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    for epoch in range(epochs):
        for images, labels in loader:  # labels: (B, classes), smoothed
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=56, help="side of what the network sees")
    parser.add_argument("--download", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    size = (options.size, options.size)
    shared = {**NUMBERS, "size": size, "batch_size": 64, "nthread": 2, "njob": 3}
    with (
        TorchReader(shared, path=options.train, shuffle=True, crop="random-resized", flip=True,
                    crop_area=(0.35, 1), label_smoothing=0.1) as loader,
        TorchReader(shared, path=options.test, crop="center", crop_ratio=0.875,
                    last_batch="short") as test,
    ):  # fmt: skip
        model, found = network(len(loader.classes), options.download)
        print("weights of ImageNet" if found else "random weights: those of ImageNet are not here")
        train(model, loader, options.epochs, rate=3e-4 if found else 1e-3)
        model.eval()
        with torch.inference_mode():
            right = [model(images).argmax(1) == labels for images, labels in test]
        print(f"accuracy {torch.cat(right).float().mean():.3f}")


if __name__ == "__main__":
    main()
