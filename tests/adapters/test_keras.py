"""ReaderDataset in Keras 3 on its torch and jax backends, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import run
from frameworks import GOOD, LABELS, STEPS, is_whole_epoch, sample_sets

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed: pip install '.[keras]'", allow_module_level=True)

__all__ = ["sample_sets"]  # a fixture

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parent / "support"


@pytest.fixture(scope="module", params=["torch", "jax"])
def told(request: pytest.FixtureRequest, sample_sets: dict[str, str]) -> Any:
    """What keras_scenarios.py recorded on a backend."""
    backend = request.param
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: pip install '.[{backend}]'")
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(SUPPORT)}
    words = [sys.executable, HERE / "keras_scenarios.py", json.dumps(sample_sets)]
    ended = run(words, env=environment)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    print(f"keras on {backend}: {result['seconds']:.1f} s, accuracy {result['training']:.3f}")
    assert result["backend"] == backend
    assert all(
        is_whole_epoch(result["expected"][start : start + STEPS]) for start in range(0, 60, STEPS)
    )
    return result


@pytest.mark.parametrize("unbuilt", [0, 1])
def test_two_fits_lose_and_double_nothing(told: Any, unbuilt: int) -> None:
    """Two fits of two epochs train on exactly the reader's four epochs, model built or not."""
    fitted = told["two_fits"][unbuilt]
    assert fitted["trained"] == told["expected"][: 4 * STEPS]
    assert fitted["place"] == [4, 0]


def test_every_new_model_only_peeks(told: Any) -> None:
    """An unbuilt model, and one compiled again, peek in the middle of a dataset's life."""
    assert told["unbuilt_after_built"] == told["expected"][: 3 * STEPS]


@pytest.mark.parametrize("unbuilt", [0, 1])
def test_several_steps_per_execution(told: Any, unbuilt: int) -> None:
    """With steps_per_execution=4 too every batch is trained on once, in order."""
    if told["several_steps"][unbuilt] is None:
        pytest.skip("this Keras has steps_per_execution=1 only with this backend")
    assert told["several_steps"][unbuilt] == told["expected"][: 4 * STEPS]


@pytest.mark.parametrize("unbuilt", [0, 1])
def test_steps_per_epoch_goes_on(told: Any, unbuilt: int) -> None:
    """With steps_per_epoch=3 each epoch of each fit goes on where the last one stopped."""
    assert told["steps_per_epoch"][unbuilt] == told["expected"][: 4 * 3 + STEPS]


def test_a_look_is_not_a_use(told: Any) -> None:
    """dataset[0], looked at before fit(), is the first batch of fit() all the same."""
    assert told["looked_at"] == [told["expected"][:STEPS]] * 2


def test_an_interrupted_epoch_starts_again(told: Any) -> None:
    """After an exception in the second epoch the next fit serves that epoch from its start."""
    before, after = told["interrupted"]
    assert before == told["expected"][: STEPS + 4]
    assert after == told["expected"][STEPS : 2 * STEPS]


def test_validation_is_whole(told: Any) -> None:
    """Validation and evaluate() see each held-out sample once, and do not disturb training."""
    assert told["validation"]["trained"] == told["expected"][: 2 * STEPS]
    in_order = LABELS[: STEPS * 4, 0].reshape(STEPS, 4).tolist()
    assert told["validation"]["tested"] == in_order * 3


def test_resume(told: Any) -> None:
    """A state or pickle of batch 14 goes on with batch 14, model built or not."""
    assert told["resumed"] == [told["expected"][14:20]] * 4


def test_twelve_batches_held(told: Any) -> None:
    """Twelve batches held at once are right and private; with zero_copy they share 3 slots."""
    assert told["held"]["seen"] == told["expected"][:12]
    copied, shared = told["held"]["buffers"]
    assert copied == 12
    assert shared <= 3


def test_padded_rows_weigh_nothing(told: Any) -> None:
    """last_batch="pad" comes with sample weights: what is padded adds nothing to the loss."""
    assert told["kinds"]["weights"] == [[1.0] * 4] * 10 + [[1.0, 1.0, 0.0, 0.0]]
    padded, alone = told["weighted"]
    # Keras divides the weighted sum by the number of all rows, 44 with the padded ones
    assert padded == pytest.approx(alone * 42 / 44, rel=1e-4)


def test_soft_labels(told: Any) -> None:
    """Soft labels come as (B, classes) float32 and fit() trains on them; padded rows have labels of
    zeros and weigh nothing."""
    found = told["soft"]
    assert found["types"] == ["float32 (4, 50)"]
    for sums, weights in zip(found["sums"], found["weights"], strict=True):
        assert sums == pytest.approx(weights, abs=1e-5)
    assert found["weights"][-1] == [1.0, 1.0, 0.0, 0.0]
    assert 0 < found["loss"][0] < 10


def test_predict_without_labels(told: Any) -> None:
    """A set without labels gives (data,); predict() serves whole epochs."""
    assert told["kinds"]["alone"] == 1
    assert told["kinds"]["predicted"] == [[40, 1], [40, 1]]
    assert told["kinds"]["place"] == 2


def test_layout_and_end(told: Any) -> None:
    """layout="NCHW" is kept, also by pickle; past epochs=1 comes FinishedError."""
    assert told["kinds"]["shapes"] == [[4, 3, 6, 5]] * 2
    assert told["kinds"]["whole"] == STEPS + 100


def test_training(told: Any) -> None:
    """fit() on sample_data names 9 of 10 held-out pictures."""
    assert told["training"] >= GOOD
