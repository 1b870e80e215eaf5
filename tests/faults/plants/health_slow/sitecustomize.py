"""Rank 1's device multiplies at a quarter of its speed."""

import time
from collections.abc import Callable
from typing import Any

from _plant import here, wrap


def quarter(real: Callable[..., Any], _: int) -> Callable[..., Any]:
    def mm(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        product = real(*args, **kwargs)
        time.sleep(3 * (time.perf_counter() - begin))
        return product

    return mm


if here():
    wrap("mm", quarter, "torch")
