"""Rank 1's device slows down in the last part of the soak, which is what follows the memory traffic."""

import time
from collections.abc import Callable
from typing import Any

from _plant import here, wrap

AFTER = 0.8
moments: dict[str, float] = {}


def watch(real: Callable[..., Any], _: int) -> Callable[..., Any]:
    moments["last add"] = time.monotonic()
    return real


def tire(real: Callable[..., Any], _: int) -> Callable[..., Any]:
    def mm(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        product = real(*args, **kwargs)
        time.sleep(3 * (time.perf_counter() - begin))
        return product

    now = time.monotonic()
    if "last add" not in moments:
        return real
    return mm if now - moments.setdefault("soak", now) > AFTER else real


if here():
    wrap("add", watch, "torch")
    wrap("mm", tire, "torch")
