"""The hostile corpus, an attack a test, each in its first way; and proof that harm is noticed.

All ways: ``pytest tests/faults/test_cases.py --long -k attacks``.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import pytest
from command_sets import run

from asyncreader import AsyncReader, ParamsError
from faults.case_attacks import broken, group, ways
from faults.hostile import all_attacks
from faults.hostile.corpus import CANARY, NONE, Attack, Corpus, Scratch, Target
from faults.hostile.runner import AttackRunner

ATTACKS = all_attacks()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("hostile") / "corpus")


@pytest.fixture(scope="module")
def runner(corpus: Corpus) -> Iterator[AttackRunner]:
    with AttackRunner(corpus) as runner:
        yield runner


@pytest.mark.faults
@pytest.mark.parametrize("name", ATTACKS)
def test_attack(runner: AttackRunner, name: str) -> None:
    """An attack ends in a typed error or in harmless data: no signal, no hang, no other file's
    byte, no program, no file touched, no memory beyond 2 GiB, no control character shown."""
    attack = ATTACKS[name]
    if group(attack) == "stores":
        pytest.importorskip("obstore")
    assert broken(attack, list(runner.run(attack, ways(attack, 1)))) == []


def test_settings_are_left_alone(runner: AttackRunner) -> None:
    """After all attacks, what Pillow, HDF5 and the process are set to is as it was."""
    assert runner.settings() == "same"


def test_every_kind_has_attacks() -> None:
    """The corpus has attacks of every kind, and most of them must be refused."""
    groups = {group(attack) for attack in ATTACKS.values()}
    assert groups == {
        *("HDF5", "LMDB", "shards", "pictures", "folders and CSVs", "fields and masks"),
        *("displayed names", "stores"),
    }
    assert len(ATTACKS) > 600
    assert sum(bool(attack.refused) for attack in ATTACKS.values()) > 450


# -- harm is noticed ------------------------------------------------------------------------------


def test_canary_is_noticed(runner: AttackRunner) -> None:
    """Reading the secret file itself is reported as a leak."""
    leak = Attack("leak", lambda scratch: Target(scratch.secret_h5), frozenset(NONE), "", ("read",))
    (result,) = runner.run(leak, ("read",))
    assert result.outcome == "leaked"


def test_change_is_noticed(runner: AttackRunner, corpus: Corpus) -> None:
    """A file that is changed or made while an attack is opened is noticed."""
    made: list[Scratch] = []

    def make(scratch: Scratch) -> Target:
        made.append(scratch)
        return Target(scratch.copy("raw.h5"))

    results = runner.run(Attack("x", make, frozenset(), "", ("read", "info")), ("read", "info"))
    assert next(results).outcome == "served"
    (made[0].folder / "left").touch()
    assert next(results).outcome == "files changed"


@pytest.mark.faults
def test_death_is_noticed(runner: AttackRunner) -> None:
    """A child process that dies is reported with its signal, and replaced."""
    odd = Attack(
        "x", lambda scratch: Target(scratch.copy("raw.h5")), frozenset(), "", ("die", "info")
    )
    assert [result.outcome for result in runner.run(odd, ("die", "info"))] == ["signal", "served"]


def test_h5py_loads_the_plugin(corpus: Corpus) -> None:
    """h5py itself loads the canary plugin on reading the same file."""
    if not (corpus.plugins / "libcanary.so").is_file():
        pytest.skip("no C compiler: the plugin is a pipe")
    made, _ = corpus.prepare(ATTACKS["plugin_labels"])
    script = f"import h5py\ntry: h5py.File({str(made.path)!r})['labels'][()]\nexcept OSError: pass"
    environment = {**os.environ, "HDF5_PLUGIN_PATH": str(corpus.plugins)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert corpus.touched.exists()
    corpus.touched.unlink()


def test_h5py_reads_the_external_bytes(corpus: Corpus) -> None:
    """h5py itself returns the canary by external storage, links and virtual data sets."""
    for name in ("external_storage_data", "external_link_data", "virtual"):
        made, _ = corpus.prepare(ATTACKS[name])
        with h5py.File(made.path) as file:
            assert CANARY[:60] in file["data"][()].tobytes(), name


def test_broken_page_is_noticed(runner: AttackRunner, corpus: Corpus) -> None:
    """A page with markup, a script or a link that comes from a set would be reported."""
    from faults.hostile.pages import injected

    page = corpus.root / "page.html"
    words = ["preview", str(corpus.base("raw.h5")), "--html", str(page), "--quiet"]
    assert run(*words).exit_code == 0
    good = page.read_text(encoding="utf-8")
    assert injected(good) == []
    for evil in ("<script>x</script>", "<img src=//evil>", "<b onclick=x>", "<!--", "<u>", "\x1b"):
        assert injected(good.replace("<h1>", f"<h1>{evil}")), evil


# -- states, and processes -----------------------------------------------------------------------


_FIELDS = ("epoch", "samples", "steps", "global_batch", "seed", "shuffle", "fingerprint")
STATES: list[Any] = [
    None,
    [],
    "{}",
    {},
    *({field: value} for field in _FIELDS for value in (None, [], {}, "x", -1, 1.5, 10**400)),
]


def test_hostile_states(corpus: Corpus) -> None:
    """A state with fields of any type or size is a ParamsError, and the reader goes on as it was;
    what looks like a whole number of batches of another size is accepted."""
    params = {"path": corpus.base("raw.h5"), "batch_size": 2, "shuffle": True}
    with AsyncReader(params) as reader:
        good = json.loads(json.dumps(reader.state_dict()))
        first = next(iter(reader)).indices.tolist()
        for state in STATES:
            changed = {**good, **state} if isinstance(state, dict) and state else state
            if isinstance(state, dict) and set(state) == {"global_batch"}:
                with contextlib.suppress(ParamsError):
                    reader.load_state_dict(changed)
                continue
            with pytest.raises(ParamsError) as caught:
                reader.load_state_dict(changed)
            assert len(str(caught.value)) < 2000
        reader.load_state_dict(good)
        assert next(iter(reader)).indices.tolist() == first
