"""Measurements, bounds held against them, and verdicts: pure, so that every way to a false pass can be tested."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seatrial.bounds import Bound, Kind


class Outcome(str, enum.Enum):
    """The constitution's outcomes; nothing else exists, and only PASS is a pass."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNCALIBRATED = "uncalibrated"
    SKIP = "skip"
    WAIVED = "waived"
    ERROR = "error"


@dataclass(frozen=True)
class Place:
    """Where a check was made and under which conditions: node, gpu, rank, pair, and the suite's own (size, dtype)."""

    where: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.where.items())

    def key(self) -> tuple[tuple[str, str], ...]:
        """A form that can be compared and hashed."""
        return tuple(sorted(self.where.items()))


@dataclass(frozen=True)
class Planned:
    """A check that a run means to judge."""

    id: str
    place: Place = Place()

    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """A form that can be compared and hashed."""
        return self.id, self.place.key()

    def __str__(self) -> str:
        return f"{self.id} [{self.place}]" if self.place.where else self.id


@dataclass(frozen=True)
class Measurement:
    """A number, how many samples stand behind it, and the 95% confidence interval of its median.

    ``value`` None means: not measured, and ``why`` says why. ``references`` are the same run's measurements that a
    ratio bound may be held against, by name, in the same unit.
    """

    planned: Planned
    value: float | None
    unit: str
    n: int = 1
    interval: tuple[float, float] | None = None
    references: Mapping[str, float | None] = field(default_factory=dict)
    why: str = ""
    detail: str = ""
    qualified: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What was decided about one measurement, against what, and why."""

    measurement: Measurement
    outcome: Outcome
    reason: str
    bound: Bound | None = None
    limits: tuple[float | None, float | None] = (None, None)
    """The bound in the measurement's unit: the least and the greatest value that pass."""
    reference: float | None = None
    """What a ratio bound was held against, in the measurement's unit."""
    near: bool = False
    """A pass whose distance from its bound is under 5% of the bound."""


NEAR = 0.05
"""A pass closer to its bound than this share of it is listed as a near miss; it changes no outcome."""


def judge(measurement: Measurement, bound: Bound | None) -> Verdict:
    """Hold a measurement against its bound.

    Where the measurement has an interval, the interval decides: wholly inside is a pass, wholly outside a fail, and an
    interval that crosses the bound is noise wider than the bound, which is inconclusive.
    """
    value = measurement.value
    if value is None:
        return Verdict(measurement, Outcome.INCONCLUSIVE, measurement.why or "not measured", bound)
    numbers = [value, *(measurement.interval or ())]
    if not all(math.isfinite(number) for number in numbers):
        return Verdict(measurement, Outcome.INCONCLUSIVE, f"not a finite number: {numbers}", bound)
    if bound is None:
        return Verdict(measurement, Outcome.UNCALIBRATED, "no bound with a source exists for this place")
    if measurement.unit != bound.unit:
        reason = f"measured in {measurement.unit!r}, the bound is in {bound.unit!r}"
        return Verdict(measurement, Outcome.INCONCLUSIVE, reason, bound)
    if measurement.n < bound.samples:
        reason = f"{measurement.n} samples, the bound needs {bound.samples}"
        return Verdict(measurement, Outcome.INCONCLUSIVE, reason, bound)
    low, high, reference = bound.low, bound.high, None
    if bound.kind is Kind.RATIO:
        reference = measurement.references.get(bound.of or "")
        if reference is None or not math.isfinite(reference) or reference <= 0:
            reason = f"the bound is a ratio to {bound.of}, which was measured as {reference}"
            return Verdict(measurement, Outcome.INCONCLUSIVE, reason, bound)
        low = None if low is None else low * reference
        high = None if high is None else high * reference
    least, greatest = measurement.interval or (value, value)
    if not least <= value <= greatest:
        reason = f"the value {value:g} is outside its own interval [{least:g}, {greatest:g}]"
        return Verdict(measurement, Outcome.INCONCLUSIVE, reason, bound, (low, high), reference)
    inside = (low is None or least >= low) and (high is None or greatest <= high)
    outside = (low is not None and greatest < low) or (high is not None and least > high)
    if inside:
        near = any(limit is not None and abs(value - limit) < NEAR * abs(limit) for limit in (low, high))
        near = near and bound.kind is not Kind.EQUAL
        return Verdict(measurement, Outcome.PASS, "inside its bound", bound, (low, high), reference, near)
    if outside:
        return Verdict(measurement, Outcome.FAIL, "outside its bound", bound, (low, high), reference)
    reason = f"noise wider than the bound: the median's 95% interval [{least:g}, {greatest:g}] crosses it"
    return Verdict(measurement, Outcome.INCONCLUSIVE, reason, bound, (low, high), reference)


def qualify(verdict: Verdict, disturbances: tuple[str, ...]) -> Verdict:
    """Mark a verdict with what disturbed its window.

    A speed that missed its bound in a disturbed window is inconclusive: the disturbance may be the cause. A bound that
    was met all the same stays met, and an equality (a wrong result, a rank missing) has no such excuse.
    """
    if not disturbances:
        return verdict
    marked = replace(verdict, measurement=replace(verdict.measurement, qualified=disturbances))
    if verdict.outcome is Outcome.FAIL and verdict.bound is not None and verdict.bound.kind is not Kind.EQUAL:
        reason = f"{verdict.reason}, in a disturbed window: {'; '.join(disturbances)}"
        return replace(marked, outcome=Outcome.INCONCLUSIVE, reason=reason)
    return marked


def explain(verdict: Verdict, next_step: str) -> str:
    """What a failed check prints: what, where, observed, bound, where the bound comes from, and what to do next."""
    measured, bound = verdict.measurement, verdict.bound
    lines = [f"{verdict.outcome.value}: {measured.planned}: {verdict.reason}"]
    if measured.value is not None:
        interval = f", 95% interval [{measured.interval[0]:g}, {measured.interval[1]:g}]" if measured.interval else ""
        lines.append(f"  observed: {measured.value:g} {measured.unit} (n={measured.n}{interval})")
    if bound is not None:
        lines.append(f"  bound: {_limits(verdict)}; confidence {bound.confidence}")
        lines.append(f"  source: {bound.source} ({bound.date}; {bound.conditions})")
    lines += [f"  disturbed by: {disturbance}" for disturbance in measured.qualified]
    lines += [f"  {measured.detail}"] if measured.detail else []
    lines += [f"  next: {next_step}"] if next_step else []
    return "\n".join(lines)


def _limits(verdict: Verdict) -> str:
    bound, (low, high) = verdict.bound, verdict.limits
    assert bound is not None
    unit = verdict.measurement.unit
    if bound.kind is Kind.EQUAL:
        return f"exactly {bound.equals:g} {unit}"
    if bound.kind is Kind.RATIO and verdict.reference is None:
        return f"a ratio to {bound.of}"
    told = [f"at least {low:g} {unit}"] if low is not None else []
    told += [f"at most {high:g} {unit}"] if high is not None else []
    if bound.kind is Kind.RATIO:
        told.append(f"({bound.value} of {bound.of}, {verdict.reference:g} {unit} in this run)")
    return " ".join(told)
