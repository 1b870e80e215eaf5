"""The patterns are exact in their dtype, and no misplaced block or rank leaves the result as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from seatrial.payload import pattern
from seatrial.payload.pattern import EXACT, POISON, Blocks, Sums, first_difference

CPU = torch.device("cpu")
DTYPES = sorted(EXACT)
WORLDS = (1, 2, 3, 8, 100, 300, 4096)
ELEMENTS = 256
SEED = 11


def empty(dtype: str, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.full((elements,), POISON, dtype=getattr(torch, dtype))


def block(dtype: str, source: int, first: int = 0, elements: int = ELEMENTS, seed: int = SEED) -> torch.Tensor:
    out = empty(dtype, elements)
    Blocks(dtype, seed).fill(out, source, first)
    return out


def inputs(sums: Sums, dtype: str, world: int, first: int = 0) -> torch.Tensor:
    """What each rank adds: [world, elements]."""
    out = torch.empty(world, ELEMENTS, dtype=getattr(torch, dtype))
    for rank in range(world):
        sums.fill_input(out[rank], rank, first)
    return out


def total(sums: Sums, dtype: str, first: int = 0) -> torch.Tensor:
    out = empty(dtype)
    sums.fill_sum(out, first)
    return out


def pairwise(parts: torch.Tensor) -> torch.Tensor:
    """The sum over ranks as a tree adds it, in the tensor's own dtype."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        parts = torch.cat([parts[0:even:2] + parts[1:even:2], parts[even:]])
    return parts[0]


def pairs(world: int, count: int = 20) -> Iterator[tuple[int, int]]:
    """Neighbours, the ends, ranks a power of two apart, and some others."""
    draw = random.Random(world)
    near = [(rank, rank + step) for rank in (0, world // 2) for step in (1, 2, 32, 128, 256, 2048)]
    chosen = [(0, world - 1), *near, *(tuple(draw.sample(range(world), 2)) for _ in range(count if world > 1 else 0))]
    return ((p, q) for p, q in chosen if 0 <= p < q < world or 0 <= q < p < world)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_holds_every_integer_up_to_its_bound(dtype: str) -> None:
    top = EXACT[dtype]
    numbers = torch.tensor([*range(300 if top > 300 else top), top - 1, top, POISON], dtype=torch.int64)
    assert torch.equal(numbers.to(getattr(torch, dtype)).to(torch.int64), numbers)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_the_bound_of_a_float_is_tight(dtype: str) -> None:
    above = torch.tensor([EXACT[dtype] + 1], dtype=torch.int64)
    assert not torch.equal(above.to(getattr(torch, dtype)).to(torch.int64), above)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_sums_are_exact_in_any_order(dtype: str, world: int) -> None:
    sums = Sums(dtype, world, SEED, CPU)
    parts, expected = inputs(sums, dtype, world), total(sums, dtype)
    exact = parts.to(torch.int64)
    assert exact.min() >= 0
    assert exact.sum(0).max() <= EXACT[dtype]
    assert torch.equal(exact.sum(0), expected.to(torch.int64))
    for order in (range(world), reversed(range(world)), random.Random(1).sample(range(world), world)):
        added = torch.zeros_like(expected)
        for rank in order:
            added += parts[rank]
        assert torch.equal(added, expected)
    assert torch.equal(pairwise(parts), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_a_lost_or_doubled_rank_changes_the_sum(dtype: str, world: int) -> None:
    sums = Sums(dtype, world, SEED, CPU)
    for rank in {0, 1, world // 2, world - 1} & set(range(world)):
        mine = empty(dtype)
        sums.fill_input(mine, rank)
        active = mine != 0
        assert active.sum() >= ELEMENTS // sums.stride
        assert active[: sums.stride].any(), "every rank is active in each window of a stride"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_lost_and_another_doubled_changes_the_sum(dtype: str, world: int) -> None:
    sums = Sums(dtype, world, SEED, CPU)
    for lost, doubled in pairs(world):
        one, other = empty(dtype), empty(dtype)
        sums.fill_input(one, lost)
        sums.fill_input(other, doubled)
        assert not torch.equal(one, other), f"ranks {lost} and {doubled} add the same"


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ranks_lost_and_the_one_between_tripled_changes_the_sum(dtype: str) -> None:
    sums = Sums(dtype, 8, SEED, CPU)
    parts = inputs(sums, dtype, 8).to(torch.int64)
    for rank in range(1, 7):
        assert not torch.equal(parts[rank - 1] + parts[rank + 1], 2 * parts[rank])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", [2, 8, 4096])
def test_a_sum_that_is_shifted_or_of_another_block_differs(dtype: str, world: int) -> None:
    sums = Sums(dtype, world, SEED, CPU)
    here = total(sums, dtype)
    for shift in (1, 2, sums.stride, ELEMENTS, 3 * ELEMENTS, 1 << 33):
        assert not torch.equal(here, total(sums, dtype, shift)), f"shifted by {shift}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_swapped_and_doubled_blocks_differ(dtype: str, world: int) -> None:
    for one, other in pairs(world):
        ours, theirs = block(dtype, one, elements=16), block(dtype, other, elements=16)
        assert not torch.equal(ours, theirs), f"the blocks of ranks {one} and {other} are the same"


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_ranks_differ_in_every_element(dtype: str) -> None:
    ours = block(dtype, 3)
    for other in (2, 4, 5, 131, 255):
        assert not (ours == block(dtype, other)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shifted_block_differs(dtype: str) -> None:
    for shift in (1, 2, 64, ELEMENTS, 1 << 33):
        assert not torch.equal(block(dtype, 5, elements=16), block(dtype, 5, shift, elements=16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_seed_gives_another_pattern(dtype: str) -> None:
    assert not torch.equal(block(dtype, 1), block(dtype, 1, seed=SEED + 1))
    assert not torch.equal(total(Sums(dtype, 8, 1, CPU), dtype), total(Sums(dtype, 8, 2, CPU), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pattern_never_holds_the_poison_and_uses_its_range(dtype: str) -> None:
    values = block(dtype, 7, elements=5000).to(torch.int64)
    top = min(EXACT[dtype], 1 << 24)
    assert values.min() >= 0
    assert top * 0.98 <= values.max() < top
    assert total(Sums(dtype, 8, SEED, CPU), dtype).to(torch.int64).min() >= 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_chunks_leave_no_seam(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums(dtype, 300, SEED, CPU)
    whole, added, summed = block(dtype, 9), empty(dtype), total(sums, dtype)
    sums.fill_input(added, 9)
    monkeypatch.setitem(pattern._CHUNK, "cpu", 7)
    again = empty(dtype)
    sums.fill_input(again, 9)
    assert torch.equal(block(dtype, 9), whole)
    assert torch.equal(again, added)
    assert torch.equal(total(sums, dtype), summed)
    assert torch.equal(block(dtype, 9, 100), torch.cat([whole[100:], block(dtype, 9, ELEMENTS, 100)]))


def test_an_empty_world_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 rank"):
        Sums("float32", 0, SEED, CPU)


def test_equal_tensors_have_no_difference() -> None:
    assert first_difference(block("float32", 1), block("float32", 1)) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_difference_and_the_count_are_told(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pattern._CHUNK, "cpu", 7)
    expected = block(dtype, 1)
    got = expected.clone()
    got[[40, 41, 250]] += 1
    found = first_difference(got, expected)
    assert found is not None
    assert (found.wrong, found.offset) == (3, 40)
    assert found.got == found.expected + 1


def test_a_nan_is_a_difference() -> None:
    expected = block("float32", 1)
    got = expected.clone()
    got[-1] = float("nan")
    found = first_difference(got, expected)
    assert found is not None
    assert (found.wrong, found.offset) == (1, ELEMENTS - 1)
    assert found.got != found.got


def test_poison_left_behind_is_seen_in_every_element() -> None:
    found = first_difference(empty("bfloat16"), block("bfloat16", 1))
    assert found is not None
    assert (found.wrong, found.offset, found.got) == (ELEMENTS, 0, POISON)
