"""One element of rank 1's result is off by one, once."""

from collections.abc import Callable
from typing import Any

from _plant import Later, here, wrap

OFFSET = 1234
ELEMENTS = 16384


def flip(real: Callable[..., Any], _: int) -> Callable[..., Any]:
    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = real(tensor, *args, **kwargs)
        return Later(work, lambda: tensor[OFFSET].add_(1)) if tensor.numel() == ELEMENTS else work

    return all_reduce


if here():
    wrap("all_reduce", flip)
