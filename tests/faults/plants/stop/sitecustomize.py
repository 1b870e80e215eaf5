"""Rank 1 stops without a word in the middle of the work, as a frozen process does."""

import os
import signal
from collections.abc import Callable
from typing import Any

from _plant import here, wrap


def stop(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    if call == 60:
        os.kill(os.getpid(), signal.SIGSTOP)
    return real


if here():
    wrap("all_reduce", stop)
