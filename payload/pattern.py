"""Data whose outcome is known exactly, element by element, so that every wrong element of a collective is seen.

Blocks (what is moved unchanged) hold a hash of source rank, index and seed. Sums (what is added up) hold values that
depend on rank and index and are so small that every partial sum, in any order and at any world size, is an integer
which the dtype holds exactly. Both are made in chunks, so that the overhead in memory does not grow with the size.
"""

from typing import List, NamedTuple, Optional, Tuple, Union

import torch

EXACT = {"bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 53, "int32": 1 << 30}
"""For each dtype, a bound up to which it holds every integer exactly: 2^(mantissa bits + 1) for the floats."""

POISON = -1
"""Fills an output before its collective: no block and no sum ever holds it, and every dtype does."""

_LEVELS = 1 << 24
_CLASSES = 64
_OFFSETS = 64
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}
_WORD = (1 << 64) - 1


def _signed(word: int) -> int:
    """The 64-bit pattern ``word`` as torch's int64 holds it."""
    return word - (1 << 64) if word >> 63 else word


# The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): each output bit depends on every input bit.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """``z >> bits`` with zeros from the left: torch's own shift copies the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _hash(first: int, count: int, key: int, device: torch.device) -> torch.Tensor:
    """64 hashed bits for each of the indices first, first + 1, ...: int64 of shape [count]."""
    z = torch.arange(first, first + count, dtype=torch.int64, device=device).mul_(_GOLDEN).add_(key)
    z.bitwise_xor_(_shifted(z, 30)).mul_(_FIRST)
    z.bitwise_xor_(_shifted(z, 27)).mul_(_SECOND)
    return z.bitwise_xor_(_shifted(z, 31))


def _key(*parts: int) -> int:
    """One int64 key from several numbers."""
    word = 0
    for part in parts:
        word = (word ^ (part & _WORD)) * 0xD6E8FEB86659FD93 & _WORD
        word ^= word >> 32
    return _signed(word)


def _spans(count: int, device: torch.device) -> List[Tuple[int, int]]:
    """The chunks [start, stop) of a buffer of ``count`` elements."""
    step = _CHUNK[device.type]
    return [(start, min(start + step, count)) for start in range(0, count, step)]


class Blocks:
    """Elements that are moved unchanged: value(source rank, index in the source's buffer).

    At one index, any two sources whose ranks differ by less than the number of levels (256 for bfloat16, 2^24 for
    float32) hold different values; farther ranks, and other indices, are apart by the hash alone.

    Args:
        dtype: a key of EXACT.
        seed: another seed gives other values everywhere.
    """

    def __init__(self, dtype: str, seed: int) -> None:
        self._levels = min(EXACT[dtype], _LEVELS)
        self._seed = seed

    def fill(self, out: torch.Tensor, source: int, first: int = 0) -> None:
        """Write elements first, first + 1, ... of ``source`` into ``out``, a contiguous tensor of shape [count]."""
        group, member = divmod(source, self._levels)
        key = _key(self._seed, 1, group)
        for start, stop in _spans(out.numel(), out.device):
            bits = _hash(first + start, stop - start, key, out.device)
            step = _shifted(bits, 33).bitwise_or_(1)
            # An odd step is invertible modulo a power of two: that is what keeps the sources apart.
            out[start:stop] = bits.add_(step.mul_(member)).bitwise_and_(self._levels - 1)


class Sums:
    """Elements that are added up over all ranks, and their exact sum.

    Where the world is too large for every rank to add at least one of two values, only each ``stride``-th rank is
    active at an index, the next one at the next index. An active rank r holds 1 + ((a + b[r, c]) mod L): b is a table
    of hashes; a and c are hashes of the index; L, the number of levels, times the active ranks is at most EXACT. So
    the sum at an index is one cell of a table over (phase of the stride, a, c), and no element costs a loop over ranks.

    Args:
        dtype: a key of EXACT.
        world_size: how many ranks are added up.
        seed: another seed gives other values everywhere.
        device: where the tables are; the tensors to be filled must be there too.

    Raises:
        ValueError: the world is empty.
    """

    def __init__(self, dtype: str, world_size: int, seed: int, device: torch.device) -> None:
        if world_size < 1:
            raise ValueError(f"a sum needs at least 1 rank, not {world_size}")
        self._dtype = getattr(torch, dtype)
        self._key = _key(seed, 2)
        self.stride = -(-world_size // (EXACT[dtype] // 2))
        self.levels = EXACT[dtype] // -(-world_size // self.stride)
        self._offsets = min(self.levels, _OFFSETS)
        hashes = _hash(0, world_size * _CLASSES, _key(seed, 3), device).reshape(world_size, _CLASSES)
        self._shares = _shifted(hashes, 1) % self.levels

    def fill_input(self, out: torch.Tensor, rank: int, first: int = 0) -> None:
        """Write elements first, first + 1, ... of what ``rank`` adds into ``out``, contiguous, of shape [count]."""
        table = torch.zeros(self.stride, self._offsets, _CLASSES, dtype=torch.int64, device=out.device)
        a = torch.arange(self._offsets, dtype=torch.int64, device=out.device).unsqueeze(1)
        table[rank % self.stride] = self._values(self._shares[rank], a)
        self._look_up(out, first, table)

    def fill_sum(self, out: torch.Tensor, first: int = 0) -> None:
        """Write elements first, first + 1, ... of the sum over all ranks into ``out``, contiguous, of shape [count]."""
        self._look_up(out, first, torch.stack([self._sums(phase) for phase in range(self.stride)]))

    def _sums(self, phase: int) -> torch.Tensor:
        """The sum over the ranks that are active in a phase of the stride: int64 of [offsets, classes]."""
        active = self._shares[phase :: self.stride]
        return torch.stack([self._values(active, a).sum(0) for a in range(self._offsets)])

    def _values(self, shares: torch.Tensor, a: Union[int, torch.Tensor]) -> torch.Tensor:
        return (shares + a * (self.levels // self._offsets)) % self.levels + 1

    def _look_up(self, out: torch.Tensor, first: int, table: torch.Tensor) -> None:
        cells = table.reshape(-1).to(self._dtype)
        for start, stop in _spans(out.numel(), out.device):
            bits = _hash(first + start, stop - start, self._key, out.device)
            cell = _shifted(bits, 40).remainder_(self._offsets)
            if self.stride > 1:
                index = torch.arange(first + start, first + stop, dtype=torch.int64, device=out.device)
                cell.add_(index.remainder_(self.stride), alpha=self._offsets)
            cell.mul_(_CLASSES).add_(bits.bitwise_and_(_CLASSES - 1))
            out[start:stop] = cells[cell]


class Difference(NamedTuple):
    """How a result differs from what was expected: how many elements, and the first of them."""

    wrong: int
    offset: int
    got: float
    expected: float


def first_difference(got: torch.Tensor, expected: torch.Tensor) -> Optional[Difference]:
    """Compare every element of two contiguous tensors of one shape [count]; a NaN equals nothing.

    Returns:
        None where all are equal.
    """
    if torch.equal(got, expected):
        return None
    wrong, offset = 0, -1
    for start, stop in _spans(got.numel(), got.device):
        places = (got[start:stop] != expected[start:stop]).nonzero()
        wrong += len(places)
        if offset < 0 and len(places):
            offset = start + int(places[0])
    if wrong == 0:
        raise ValueError(f"tensors of unlike shapes: {tuple(got.shape)} and {tuple(expected.shape)}")
    return Difference(wrong, offset, got[offset].item(), expected[offset].item())
