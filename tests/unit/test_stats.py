"""The statistics, against their definitions and against known tables."""

from __future__ import annotations

import itertools
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.stats import median_interval, proven_rate, summary

samples = st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=60)


@given(samples)
def test_the_interval_is_of_samples_and_holds_the_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    assert set(interval) <= set(values)
    assert interval[0] <= median(values) <= interval[1]


@given(samples, st.randoms())
def test_the_order_of_the_samples_does_not_matter(values: list[float], chance: random.Random) -> None:
    shuffled = values[:]
    chance.shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(values)


@pytest.mark.parametrize("n", range(6))
def test_fewer_than_six_samples_have_no_interval(n: int) -> None:
    assert median_interval([1.0] * n) is None


@pytest.mark.parametrize(
    # The ranks of the sign test at 5%, two-sided, as printed in tables of the binomial distribution.
    ("n", "low", "high"),
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12), (20, 6, 15), (25, 8, 18), (50, 18, 33)],
)
def test_the_ranks_are_those_of_the_sign_test(n: int, low: int, high: int) -> None:
    assert median_interval([float(rank) for rank in range(1, n + 1)]) == (low, high)


@pytest.mark.parametrize("n", [6, 9, 11])
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    """All 2^n ways in which samples fall on either side of the true median 0 are equally likely."""
    held = 0
    for sides in itertools.product((-1.0, 1.0), repeat=n):
        interval = median_interval([side * (1 + index / n) for index, side in enumerate(sides)])
        assert interval is not None
        held += interval[0] <= 0 <= interval[1]
    assert held / 2**n >= 0.95


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        median_interval([1.0] * 10 + [bad])
    with pytest.raises(ValueError, match="finite"):
        summary([1.0, bad])


def test_a_summary_is_the_median_and_its_interval_or_nothing() -> None:
    assert summary([]) == (None, None)
    assert summary([3.0, 1.0]) == (2.0, None)
    assert summary([float(rank) for rank in range(1, 10)]) == (5.0, (2.0, 8.0))


def test_zero_failures_prove_a_rate_and_no_more() -> None:
    assert proven_rate(1) == pytest.approx(0.95)
    # From n >= ln(0.05) / ln(1 - p): 59 trials exclude 5%, 299 exclude 1%.
    assert proven_rate(58) > 0.05 > proven_rate(59)
    assert proven_rate(298) > 0.01 > proven_rate(299)
    with pytest.raises(ValueError, match="no trial"):
        proven_rate(0)
