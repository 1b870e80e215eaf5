"""Memory traffic whose result is known: copy and triad in a device's memory, copies between a host and its GPU.

Rates count what is moved, as STREAM does (McCalpin, 1995): a copy reads and writes each element, a triad
(y = x + 3 z) reads two and writes one. A copy between host and GPU counts its bytes once, as nvbandwidth does.
"""

import os
from typing import Callable, Dict, NamedTuple, Optional, Tuple

import torch

from .pattern import Blocks, Difference, first_difference

SCALE = 3
_LEVELS = "float16"
"""The pattern's values are below 2^11: x + 3 z stays far below 2^24, up to which float32 is exact."""
_CHUNK = 1 << 20
_CACHES = "/sys/devices/system/cpu/cpu{}/cache"
_UNITS = {"K": 1 << 10, "M": 1 << 20}


class Traffic(NamedTuple):
    """One kind of traffic: what does a part of it, the bytes that a part moves, and what compares the whole result."""

    work: Callable[[int], None]
    moved: int
    poison: Callable[[], None]
    check: Callable[[], Optional[Difference]]


class Stream:
    """Buffers of ``size`` bytes in a device's memory, worked through part by part.

    A part on its own may fit in a cache; it is not there, because all other parts were touched since its last turn.

    Args:
        size: of each of BUFFERS buffers, a multiple of 4 times ``parts``.
        parts: in how many pieces of equal length the traffic is timed.
        seed: another seed gives other contents.
        rank: the same for another rank.
        device: where they are.
    """

    BUFFERS = 4

    def __init__(self, size: int, parts: int, seed: int, rank: int, device: torch.device) -> None:
        self._x, self._z, self._y, self._sum = (
            torch.empty(size // 4, dtype=torch.float32, device=device) for _ in range(self.BUFFERS)
        )
        first, second = Blocks(_LEVELS, seed), Blocks(_LEVELS, seed + 1)
        for start in range(0, size // 4, _CHUNK):
            part = slice(start, min(start + _CHUNK, size // 4))
            x, z = (torch.empty(part.stop - start, dtype=torch.int32, device=device) for _ in range(2))
            first.fill(x, rank, start)
            second.fill(z, rank, start)
            self._x[part], self._z[part] = x, z
            # The sum is made of integers: not by the operation that is under test.
            self._sum[part] = x + z * SCALE
        self._parts = [buffer.chunk(parts) for buffer in (self._x, self._z, self._y)]
        self._moved = size // parts

    def kinds(self) -> Dict[str, Traffic]:
        """The traffic that these buffers can bear."""
        return {
            "copy": Traffic(self._copy, 2 * self._moved, self._poison, lambda: first_difference(self._y, self._x)),
            "triad": Traffic(self._triad, 3 * self._moved, self._poison, lambda: first_difference(self._y, self._sum)),
        }

    def _copy(self, part: int) -> None:
        x, _, y = self._parts
        y[part].copy_(x[part])

    def _triad(self, part: int) -> None:
        x, z, y = self._parts
        torch.add(x[part], z[part], alpha=SCALE, out=y[part])

    def _poison(self) -> None:
        self._y.fill_(float("nan"))


class HostCopies:
    """A buffer of ``size`` bytes in page-locked host memory and one on the GPU, copied in both directions.

    Args:
        size: of each of BUFFERS buffers on either side, a multiple of 4.
        seed: another seed gives other contents.
        rank: the same for another rank.
        device: the GPU.
    """

    BUFFERS = 2

    def __init__(self, size: int, seed: int, rank: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._far = torch.empty(size // 4, dtype=torch.float32, device=device)
        Blocks(_LEVELS, seed).fill(self._far, rank)
        self._landed = torch.empty_like(self._far)
        self._near, self._back = (torch.empty(size // 4, dtype=torch.float32, pin_memory=pinned) for _ in range(2))
        self._near.copy_(self._far)
        self._size = size

    def kinds(self) -> Dict[str, Traffic]:
        """Host to device, and device to host; both in one part."""
        return {
            "h2d": Traffic(self._to, self._size, self._poison, lambda: first_difference(self._landed, self._far)),
            "d2h": Traffic(self._from, self._size, self._poison, lambda: first_difference(self._back, self._near)),
        }

    def _to(self, _: int) -> None:
        self._landed.copy_(self._near, non_blocking=True)

    def _from(self, _: int) -> None:
        self._back.copy_(self._far, non_blocking=True)

    def _poison(self) -> None:
        self._landed.fill_(float("nan"))
        self._back.fill_(float("nan"))


def beyond_cache(size: int, core: Optional[int], caches: str = _CACHES) -> int:
    """``size``, or four times the core's last cache where that is more, as STREAM asks.

    Args:
        size: bytes.
        core: None on a GPU, whose cache the default size exceeds by far.
        caches: where the kernel describes a core's caches.
    """
    return size if core is None else max(size, 4 * _last_cache(caches.format(core)))


def _last_cache(folder: str) -> int:
    """Bytes of the cache of the highest level; 0 where the kernel tells of none."""
    try:
        found = [_cache(os.path.join(folder, name)) for name in os.listdir(folder) if name.startswith("index")]
    except FileNotFoundError:
        return 0
    return max(found, default=(0, 0))[1]


def _cache(folder: str) -> Tuple[int, int]:
    """A cache's level and its bytes."""
    with open(os.path.join(folder, "level")) as level, open(os.path.join(folder, "size")) as size:
        text = size.read().strip()
        return int(level.read()), int(text[:-1]) * _UNITS[text[-1]]
