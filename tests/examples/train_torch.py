"""Train a small CNN with PyTorch. Kill it at any moment, start it again: it goes on, exactly.

asyncreader convert sample_data/train train.h5 --size 48x48
asyncreader convert sample_data/test test.h5 --size 48x48
python tests/examples/train_torch.py train.h5 test.h5 --checkpoint run.pt
"""

import argparse
import json
import os

import torch
from torch import nn

from asyncreader.adapters.torch import TorchReader

#: How pictures become numbers; the same for training and for judging.
NUMBERS = {"dtype": "float32", "scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def network(classes):
    """Three convolutions and a mean over the picture, with its weights in channels-last order."""
    layers, width = [], 3
    for wider in (16, 32, 64):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        width = wider
    layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    # Pictures lie in the file as (H, W, C) and arrive so, without a transpose: this keeps it so.
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def save(path, model, optimizer, loader):
    """Weights and place of one moment, so that no sample is trained on twice or never.

    All of it comes under its name, or nothing: a kill in the middle leaves the one before.
    """
    held = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    part = f"{path}.part"
    with open(part, "wb") as file:
        torch.save(held, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="the packed pictures to learn from")
    parser.add_argument("test", help="the packed pictures to be judged by")
    parser.add_argument("--checkpoint", default="run.pt")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    parser.add_argument(
        "--record", help="write the samples of each step there, a line of JSON each"
    )
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = TorchReader(
        NUMBERS,
        path=options.train,
        batch_size=32,
        shuffle=True,
        flip=True,
        last_batch="wrap",
        nthread="auto",
        njob=4,
    )
    torch.manual_seed(0)
    model = network(len(loader.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    if os.path.exists(options.checkpoint):
        held = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        loader.load_state_dict(held["loader"])  # the next batch is the one that was due
        print(f"goes on in epoch {held['loader']['epoch'] + 1}, step {held['loader']['steps'] + 1}")

    step = 0
    while (epoch := loader.state_dict()["epoch"]) < options.epochs:
        for images, labels in loader:  # an epoch, or the rest of the one that was cut off
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if options.record:
                taken = loader.last
                line = {"epoch": taken.epoch, "step": taken.step, "indices": taken.indices.tolist()}
                with open(options.record, "a") as file:
                    print(json.dumps(line), file=file)
            if step % options.save_every == 0:
                save(options.checkpoint, model, optimizer, loader)
        print(f"epoch {epoch + 1:2}: loss {loss.item():.3f}")
    save(options.checkpoint, model, optimizer, loader)
    loader.close()

    model.eval()
    right = total = 0
    with TorchReader(NUMBERS, path=options.test, batch_size=28, last_batch="short") as judge:
        for images, labels in judge:
            with torch.no_grad():
                guess = model(images.to(device)).argmax(1).cpu()
            right, total = right + (guess == labels).sum().item(), total + len(labels)
    print(f"accuracy {right / total:.3f}")


if __name__ == "__main__":
    main()
