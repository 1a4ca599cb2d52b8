"""ReaderDataset in Keras 3 on its torch and jax backends, each in a process of its own."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest
from child_processes import run
from frameworks import needs
from project import ROOT

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed: pip install '.[keras]'", allow_module_level=True)

SCRIPT = Path(__file__).with_name("keras_scenarios.py")
SCENARIOS = re.findall(r"^@scenario\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module", params=["torch", "jax"])
def told(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """What came of each scenario on a backend."""
    backend = request.param
    needs(backend)
    places = [str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    ended = run([sys.executable, SCRIPT], env={**os.environ, **environment})
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str | None] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(told: dict[str, str | None], scenario: str) -> None:
    """Each scenario of keras_scenarios.py ends as its first lines say."""
    wrong = told[scenario]
    if wrong is None:
        pytest.skip("this Keras has steps_per_execution=1 only with this backend")
    assert not wrong, wrong
