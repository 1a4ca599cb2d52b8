"""Train a small CNN with Keras 3, on its torch or jax backend: model.fit() on packed pictures.

asyncreader convert sample_data/train train.h5 --size 48x48
asyncreader convert sample_data/test test.h5 --size 48x48
KERAS_BACKEND=torch python tests/examples/train_keras.py train.h5 test.h5
"""

import argparse

import keras
from keras import layers

from asyncreader.adapters.keras import ReaderDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="the packed pictures to learn from")
    parser.add_argument("test", help="the packed pictures to be judged by")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)

    # The reader shuffles, flips and casts on its own threads; Keras takes the batches as they come.
    numbers = {"dtype": "float32", "scale": 1 / 128, "mean": (1.0, 1.0, 1.0)}
    train = ReaderDataset(
        numbers, path=options.train, batch_size=32, shuffle=True, flip=True, nthread=2, njob=2
    )
    # "pad" keeps the last batch's shape; what is padded weighs nothing in loss and accuracy.
    test = ReaderDataset(numbers, path=options.test, batch_size=32, last_batch="pad")

    model = keras.Sequential()
    for width in (16, 32, 64):
        model.add(layers.Conv2D(width, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(len(train.classes), activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss="sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )

    model.fit(train, epochs=options.epochs, verbose=2)
    _, accuracy = model.evaluate(test, verbose=0)
    print(f"accuracy {accuracy:.3f}")
    train.close()
    test.close()


if __name__ == "__main__":
    main()
