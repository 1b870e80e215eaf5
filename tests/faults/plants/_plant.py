"""Wraps functions of torch in one rank's process, from outside the payload: the folder is on its PYTHONPATH."""

import importlib
import os
from collections.abc import Callable
from typing import Any

RANK = "1"


def here() -> bool:
    """Whether this process is the rank that the fault is planted in."""
    return os.environ.get("RANK") == RANK


class Later:
    """A pending collective whose result is tampered with when it is there."""

    def __init__(self, work: Any, tamper: Callable[[], None]) -> None:
        self._work = work
        self._tamper = tamper

    def wait(self, *args: Any) -> Any:
        done = self._work.wait(*args)
        self._tamper()
        return done


def wrap(
    name: str, around: Callable[[Callable[..., Any], int], Callable[..., Any]], module: str = "torch.distributed"
) -> None:
    """Replace a function of a module by ``around(real, call number)``."""
    owner = importlib.import_module(module)
    real, calls = getattr(owner, name), iter(range(10**9))

    def planted(*args: Any, **kwargs: Any) -> Any:
        return around(real, next(calls))(*args, **kwargs)

    setattr(owner, name, planted)
