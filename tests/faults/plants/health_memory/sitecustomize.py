"""One element of rank 1's memory traffic comes out wrong."""

from collections.abc import Callable
from typing import Any

from _plant import here, wrap

OFFSET = 77
CALL = 20


def flip(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    def add(*args: Any, **kwargs: Any) -> Any:
        total = real(*args, **kwargs)
        total[OFFSET] += 1
        return total

    return add if call == CALL else real


if here():
    wrap("add", flip, "torch")
