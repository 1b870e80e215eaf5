"""Small, exact statistics: medians with intervals, robust outliers, rates that zero failures prove."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from seatrial.errors import InconclusiveError

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


MAD_TO_SIGMA = 0.6745
"""The median absolute deviation of normal samples in units of their standard deviation."""


def robust_distances(samples: Sequence[float]) -> list[float]:
    """How far each sample is from the median: the modified z-score 0.6745 (x - median) / MAD (Iglewicz, Hoaglin, 1993).

    MAD, the median absolute deviation from the median, is not moved by the outliers that it shall show.

    Raises:
        InconclusiveError: MAD is zero, so that there is no scale to tell a distance by.
        ValueError: there is no sample, or one is not finite.
    """
    if not samples or not all(map(math.isfinite, samples)):
        raise ValueError("samples must be finite, and at least one")
    middle = median(samples)
    spread = median(abs(sample - middle) for sample in samples)
    if spread == 0:
        raise InconclusiveError(f"at least half of {len(samples)} samples are {middle:g}: their MAD is zero")
    return [MAD_TO_SIGMA * (sample - middle) / spread for sample in samples]


def low_outliers(samples: Sequence[float], distance: float, effect: float) -> list[int]:
    """Which samples are far below the others: by a robust distance and, at once, by a share of the median.

    Args:
        samples: positive numbers.
        distance: the least modified z-score, counted downwards.
        effect: the least share of the median by which an outlier lies below it: a fleet that is very much alike has a
            small MAD, and would make outliers of differences that nobody minds.

    Raises:
        InconclusiveError: MAD is zero.
        ValueError: there is no sample, or one is not finite.
    """
    distances, middle = robust_distances(samples), median(samples)
    return [
        index
        for index, (sample, z) in enumerate(zip(samples, distances, strict=True))
        if z < -distance and sample < (1 - effect) * middle
    ]
