"""Train a small network with numpy alone: two matrices, and batches that are ready when needed.

asyncreader convert sample_data/train train.h5 --size 48x48
asyncreader convert sample_data/test test.h5 --size 48x48
python tests/examples/train_numpy.py train.h5 test.h5
"""

import argparse

import numpy as np

from asyncreader import AsyncReader

BATCH, HIDDEN, RATE, MOMENTUM = 32, 64, 0.05, 0.9


def features(images, labels):
    """What the network sees: how far each 2x2 block is from the picture's border colour.

    The reader calls this on its own threads, while the network trains on the batch before.
    images: (B, H, W, 3) uint8; returns (B, H/2 * W/2) float32, about 0 to 1, and the labels.
    """
    count, height, width, _ = images.shape
    blocks = images.reshape(count, height // 2, 2, width // 2, 2, 3).mean(axis=(2, 4))
    border = np.median(np.concatenate([blocks[:, 0], blocks[:, -1]], axis=1), axis=1)
    far = np.abs(blocks - border[:, None, None]).max(axis=3).reshape(count, -1)
    return (far / far.max(axis=1, keepdims=True)).astype(np.float32), labels


def forward(x, layers):
    """Hidden values (B, HIDDEN) and class probabilities (B, classes) of features x."""
    hidden = np.maximum(x @ layers[0], 0)
    scores = hidden @ layers[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="the packed pictures to learn from")
    parser.add_argument("test", help="the packed pictures to be judged by")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    shared = {"layout": "NHWC", "postprocess": features}
    train = AsyncReader(
        shared, path=options.train, batch_size=BATCH, shuffle=True, flip=True, nthread=2, njob=2
    )
    # "short": the last batch has what is left, so that every test picture is judged once
    test = AsyncReader(shared, path=options.test, batch_size=BATCH, last_batch="short")

    rng = np.random.default_rng(0)
    inputs, classes = train.data_shape[1], len(train.classes)
    layers = [rng.normal(0, (2 / inputs) ** 0.5, (inputs, HIDDEN)).astype(np.float32)]
    layers += [rng.normal(0, (2 / HIDDEN) ** 0.5, (HIDDEN, classes)).astype(np.float32)]
    speeds = [np.zeros_like(layer) for layer in layers]

    with train, test:
        for epoch in range(options.epochs):
            losses = []
            for x, labels in train:  # one epoch, another order each time
                label = labels[:, 0]
                hidden, guess = forward(x, layers)
                losses.append(-np.log(guess[np.arange(len(x)), label] + 1e-9).mean())
                guess[np.arange(len(x)), label] -= 1  # now the gradient of the scores
                guess /= len(x)
                back = (guess @ layers[1].T) * (hidden > 0)
                gradients = [x.T @ back, hidden.T @ guess]
                for layer, speed, gradient in zip(layers, speeds, gradients, strict=True):
                    speed *= MOMENTUM
                    speed -= RATE * gradient
                    layer += speed
            print(f"epoch {epoch + 1:2}: loss {np.mean(losses):.3f}")
        right = [(forward(x, layers)[1].argmax(axis=1) == labels[:, 0]) for x, labels in test]
        print(train.stats().verdict)
        print(f"accuracy {np.concatenate(right).mean():.3f}")


if __name__ == "__main__":
    main()
