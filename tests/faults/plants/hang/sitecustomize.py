"""Rank 1 lives and beats, but never comes to one collective: a hang in a driver call."""

import threading
from collections.abc import Callable
from typing import Any

from _plant import here, wrap


def hang(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    if call == 60:
        threading.Event().wait()
    return real


if here():
    wrap("all_reduce", hang)
