"""Rank 1 receives the blocks of two ranks in each other's place."""

from collections.abc import Callable
from typing import Any

from _plant import Later, here, wrap


def swapped(output: Any) -> None:
    first, second = output.chunk(2)
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def gather_tensor(real: Callable[..., Any], _: int) -> Callable[..., Any]:
    def all_gather_into_tensor(output: Any, *args: Any, **kwargs: Any) -> Any:
        work = real(output, *args, **kwargs)
        return Later(work, lambda: swapped(output)) if output.numel() > 1024 else work

    return all_gather_into_tensor


if here():
    wrap("all_gather_into_tensor", gather_tensor)
