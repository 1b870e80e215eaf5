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

    def __hash__(self) -> int:
        return hash(self.key())


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
    value, lacks = measurement.value, _lacks(measurement, bound)
    if value is None or lacks:
        return Verdict(measurement, Outcome.INCONCLUSIVE, lacks or measurement.why or "not measured", bound)
    if bound is None:
        return Verdict(measurement, Outcome.UNCALIBRATED, "no bound with a source exists for this place")
    reference = None if bound.of is None else measurement.references[bound.of]
    low, high = _scaled(bound.low, reference), _scaled(bound.high, reference)
    outcome, reason = _compare(measurement.interval or (value, value), low, high)
    near = outcome is Outcome.PASS and bound.kind is not Kind.EQUAL and _is_near(value, low, high)
    return Verdict(measurement, outcome, reason, bound, (low, high), reference, near)


def _lacks(measurement: Measurement, bound: Bound | None) -> str:
    """What a measurement lacks to be judged by a bound; empty where nothing."""
    value = measurement.value
    if value is None:
        return ""
    least, greatest = measurement.interval or (value, value)
    if not all(map(math.isfinite, (value, least, greatest))):
        return f"not a finite number: {value:g}, interval [{least:g}, {greatest:g}]"
    if not least <= value <= greatest:
        return f"the value {value:g} is outside its own interval [{least:g}, {greatest:g}]"
    if bound is None:
        return ""
    if measurement.unit != bound.unit:
        return f"measured in {measurement.unit!r}, the bound is in {bound.unit!r}"
    if measurement.n < bound.samples:
        return f"{measurement.n} samples, the bound needs {bound.samples}"
    return "" if bound.of is None else _lacks_reference(bound, measurement.references.get(bound.of))


def _lacks_reference(bound: Bound, reference: float | None) -> str:
    usable = reference is not None and 0 < reference < math.inf
    limits = [_scaled(limit, reference) for limit in (bound.low, bound.high)] if usable else [math.nan]
    if all(limit is None or math.isfinite(limit) for limit in limits):
        return ""
    return f"the bound is a ratio to {bound.of}, which was measured as {reference}"


def _scaled(limit: float | None, reference: float | None) -> float | None:
    return limit if limit is None or reference is None else limit * reference


def _compare(interval: tuple[float, float], low: float | None, high: float | None) -> tuple[Outcome, str]:
    least, greatest = interval
    if (low is None or least >= low) and (high is None or greatest <= high):
        return Outcome.PASS, "inside its bound"
    if (low is not None and greatest < low) or (high is not None and least > high):
        return Outcome.FAIL, "outside its bound"
    crosses = f"the median's 95% interval [{least:g}, {greatest:g}] crosses it"
    return Outcome.INCONCLUSIVE, f"noise wider than the bound: {crosses}"


def _is_near(value: float, low: float | None, high: float | None) -> bool:
    return any(limit is not None and abs(value - limit) < NEAR * abs(limit) for limit in (low, high))


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
        lines.append(f"  bound: {_terms(verdict)}; confidence {bound.confidence}")
        lines.append(f"  source: {bound.source} ({bound.date}; {bound.conditions})")
    lines += [f"  disturbed by: {disturbance}" for disturbance in measured.qualified]
    lines += [f"  {measured.detail}"] if measured.detail else []
    lines += [f"  next: {next_step}"] if next_step else []
    return "\n".join(lines)


def _terms(verdict: Verdict) -> str:
    """The bound in words; a ratio also as the limits that it came to in this run."""
    bound, (low, high), unit = verdict.bound, verdict.limits, verdict.measurement.unit
    assert bound is not None
    if verdict.reference is None:
        return bound.limits()
    limits = " and ".join(
        f"{word} {limit:g} {unit}" for word, limit in (("at least", low), ("at most", high)) if limit is not None
    )
    return f"{bound.limits()}, in this run {limits} ({bound.of}: {verdict.reference:g} {unit})"
