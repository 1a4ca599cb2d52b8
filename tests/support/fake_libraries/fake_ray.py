"""Stands for Ray where it is not installed: tasks run in this process, one after the other, from
pickles of what they were given, as a worker gets them, and in another folder."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any


class RayTaskError(Exception):
    """What Ray raises of a task that raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Remote:
    """A function that runs when it is called by ``remote``."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def options(self, **_: object) -> _Remote:
        return self

    def remote(self, argument: Any) -> object:
        try:
            with contextlib.chdir("/"):
                done: Any = (True, self._function(pickle.loads(pickle.dumps(argument))))
        except Exception as exc:
            done = (False, pickle.loads(pickle.dumps(exc)))
        return _Reference(done)


class _Reference:
    def __init__(self, done: tuple[bool, Any]) -> None:
        self.done = done


class FakeRay:
    """The parts of the module ``ray`` that the engine uses."""

    class exceptions:
        RayTaskError = RayTaskError
        RayError = RayTaskError

    def is_initialized(self) -> bool:
        return True

    def remote(self, **_: object) -> Callable[[Callable[[Any], Any]], _Remote]:
        return _Remote

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: _Reference) -> Any:
        good, value = reference.done
        if not good:
            raise RayTaskError(value)
        return value

    def cancel(self, reference: _Reference, force: bool) -> None:
        """Nothing runs any more."""
