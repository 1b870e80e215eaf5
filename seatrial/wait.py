"""The one waiting verb."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T | None], *, what: str, timeout: float, state: Callable[[], str], period: float = 0.02
) -> T:
    """Wait until ``condition`` returns something true, and return it.

    Args:
        condition: what is asked.
        what: what is waited for, in words.
        timeout: seconds.
        state: the last state seen, in words, for the error.
        period: seconds between two askings.

    Raises:
        TimeoutError: the condition was not met in time; its text shows the last state.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s; last seen: {state()}")
        time.sleep(period)
