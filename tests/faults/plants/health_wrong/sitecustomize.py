"""Rank 1's device gives a product with one wrong element, from a moment on."""

from collections.abc import Callable
from typing import Any

from _plant import here, wrap

ROW, COLUMN = 3, 5
FIRST = 30


def flip(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    def mm(*args: Any, **kwargs: Any) -> Any:
        product = real(*args, **kwargs)
        product[ROW, COLUMN] += 1
        return product

    return mm if call >= FIRST else real


if here():
    wrap("mm", flip, "torch")
