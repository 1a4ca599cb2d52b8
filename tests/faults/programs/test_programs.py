"""Proof that the harness of programs sees how they end."""

import sys
from pathlib import Path

import pytest

from faults.programs import case_exits
from faults.programs.child_runner import ChildRunner, started


def test_every_end_of_a_trial_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that dies, raises, hangs, or leaves a process behind is told so, and what it
    reported; the next one is not disturbed."""
    (tmp_path / "odd_program.py").write_text("""
import os, signal, sys, time
from faults.programs.child_runner import tell
def warm(): pass
def trial(what):
    tell(what=what)
    if what == "dies": os.kill(os.getpid(), signal.SIGSEGV)
    if what == "raises": raise ValueError("odd")
    if what == "hangs": time.sleep(600)
    if what == "leaves one" and os.fork() == 0: time.sleep(600)
    return 3
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ChildRunner("odd_program") as runner:
        ways = {"dies": "SIGSEGV", "raises": "exit code 1", "hangs": "hang", "ends": "exit code 3"}
        for what, how in ways.items():
            end = runner.run({"patience": 1 if what == "hangs" else 300}, what=what)
            assert (end.how, end.report, end.left) == (how, {"what": what}, ())
            assert ("ValueError: odd" in end.output) == (what == "raises")
        end = runner.run({"outlive": 1}, what="leaves one")
        assert end.how == "exit code 3"
        assert "odd_program" in end.left[0]


def test_python_itself_says_1_after_ctrl_c(tmp_path: Path) -> None:
    """A program that ends by Ctrl-C has exit code 1 if another thread evaluates text afterwards, by
    Python's doing: no promise is broken. With any other error, one is."""
    (tmp_path / "program.py").write_text("""
import os, signal, threading
def evaluate():
    threading.main_thread().join()
    eval("1 + 1")
threading.Thread(target=evaluate).start()
os.kill(os.getpid(), signal.SIGINT)
threading.Event().wait()
""")
    end = started([sys.executable, str(tmp_path / "program.py")], {})
    assert end.code == 1
    assert case_exits.interrupted(end, "loop") == []
    (tmp_path / "other.py").write_text("raise SystemError")
    end = started([sys.executable, str(tmp_path / "other.py")], {})
    (problem,) = case_exits.interrupted(end, "loop")
    assert "exit code 1" in problem
