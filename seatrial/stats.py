"""Small, exact statistics: medians with intervals, rates that zero failures prove."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

CONFIDENCE = 0.95


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The distribution-free confidence interval of the median, from order statistics.

    The interval from the k-th smallest to the k-th largest of n samples holds the median with probability
    1 - 2 * P(Binomial(n, 1/2) < k); the largest k that keeps ``confidence`` is taken.

    Returns:
        (low, high), or None where n is too small for the confidence (below 6 samples for 95%).

    Raises:
        ValueError: a sample is not finite.
    """
    if not all(map(math.isfinite, samples)):
        raise ValueError("samples must be finite")
    n = len(samples)
    tail, k = 0.0, 0
    while k <= n // 2:
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - confidence:
            break
        k += 1
    if k == 0:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[n - k]


def summary(samples: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    """The median and its 95% interval; (None, None) for no samples."""
    if not samples:
        return None, None
    return median(samples), median_interval(samples)


def proven_rate(trials: int, confidence: float = CONFIDENCE) -> float:
    """The failure rate that ``trials`` without a failure exclude: 1 - (1 - C)^(1/n), from n >= ln(1-C)/ln(1-p)."""
    if trials < 1:
        raise ValueError("no trial proves nothing")
    return 1.0 - math.pow(1.0 - confidence, 1.0 / trials)
