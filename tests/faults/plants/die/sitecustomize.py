"""Rank 1 is killed in the middle of the work."""

import os
import signal
from collections.abc import Callable
from typing import Any

from _plant import here, wrap


def die(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    if call == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    return real


if here():
    wrap("all_reduce", die)
