"""Numbers of one stretch of a sampler's stream; what was not seen is None, never zero.

The figures in capitals are policy. None of them decides a verdict: they decide when telemetry has seen too little to
speak, and over how long the kernel's coarse CPU accounts are averaged.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.telemetry.readings import COUNTER_PERIOD, Key, Sample, Stream
from seatrial.telemetry.reasons import Class, Reason, decode
from seatrial.telemetry.series import LATE

STRETCH = 1.0
"""Seconds over which cores are averaged before they are held against a share: the kernel counts CPU time in ticks of
10 ms, so that one tick is 5% of two cores over 0.1 s, but 0.5% over 1 s."""

LEAST_WORK = 0.05
"""Core-seconds, five such ticks, under which a stretch shows nothing but rounding."""

LEAST_COVERAGE = 0.9
"""The share of the window that must have been seen before its means, and the absence of an event, are worth a word."""

COUNTER_SLACK = 1.5 * COUNTER_PERIOD
"""Seconds by which a counter's first reading may come after the window's start, and its last before the end."""


@dataclass(frozen=True)
class Seen:
    """A sample and the ``seconds`` of the window that it stands for."""

    sample: Sample
    seconds: float

    def value(self, metric: str, gpu: str | None = None) -> float | None:
        """One reading of the host or of a GPU."""
        return self.sample.values.get(Key(metric, gpu=gpu))


def seen(stream: Stream, start: float, end: float) -> tuple[Seen, ...]:
    """The samples that say something of a window.

    A sample stands for the time since the one before it; a late one for a single period, because what went on in the
    gap is known of no metric but the means.
    """
    parts = []
    for sample in stream.samples:
        reach = sample.dt if sample.dt <= LATE * stream.period else stream.period
        seconds = min(sample.t, end) - max(sample.t - reach, start)
        if seconds > 0:
            parts.append(Seen(sample, seconds))
    return tuple(parts)


@dataclass(frozen=True)
class Stretch:
    """About STRETCH seconds: the work of others in core-seconds, stolen core-seconds, and who worked most."""

    seconds: float
    others: float
    stolen: float
    name: str | None


def others(part: Seen, cpus: int) -> float | None:
    """Core-seconds that neither the ranks nor the trial itself used; below zero where the kernel's accounts differ."""
    busy, ranks, own = (part.value(f"host.cpu.{name}") for name in ("busy", "ranks", "own"))
    return None if busy is None or ranks is None or own is None else (busy * cpus - ranks - own) * part.seconds


def stolen(part: Seen, cpus: int) -> float | None:
    """Core-seconds that the hypervisor gave to other guests."""
    steal = part.value("host.cpu.steal")
    return None if steal is None else steal * cpus * part.seconds


def stretches(parts: Sequence[Seen], cpus: int) -> list[Stretch]:
    """The window cut into stretches; a rest that is short stays with the last one."""
    groups: list[list[Seen]] = [[]]
    for part in parts:
        if sum(known.seconds for known in groups[-1]) >= STRETCH:
            groups.append([])
        groups[-1].append(part)
    if len(groups) > 1 and sum(part.seconds for part in groups[-1]) < STRETCH / 2:
        rest = groups.pop()
        groups[-1] += rest
    return [_stretch(group, cpus) for group in groups if group]


def _stretch(parts: Sequence[Seen], cpus: int) -> Stretch:
    return Stretch(
        seconds=sum(part.seconds for part in parts),
        others=sum(others(part, cpus) or 0.0 for part in parts),
        stolen=sum(stolen(part, cpus) or 0.0 for part in parts),
        name=busiest(parts),
    )


def share(parts: Sequence[Seen], cpus: int, seconds: float, work: Callable[[Seen, int], float | None]) -> float | None:
    """The share of the machine's cores that some ``work`` took; None where too little of the window was seen."""
    known = [(part.seconds, done) for part in parts if (done := work(part, cpus)) is not None]
    covered = sum(lasting for lasting, _ in known)
    if covered < LEAST_COVERAGE * seconds:
        return None
    return max(0.0, sum(done for _, done in known)) / covered / cpus


def busiest(parts: Sequence[Seen]) -> str | None:
    """The name of the other process that was found busiest most; None where nobody looked."""
    cores: dict[str, float] = defaultdict(float)
    for part in parts:
        if part.sample.neighbour is not None:
            name, used = part.sample.neighbour
            cores[name] += used
    return max(cores, key=lambda name: cores[name], default=None)


@dataclass(frozen=True)
class Throttle:
    """Seconds in which a GPU's clocks were held down: by any reason of a class, and by each reason.

    ``warn`` contains ``unknown``. ``seen`` is for how many seconds the reasons were read at all.
    """

    seen: float
    fail: float = 0.0
    warn: float = 0.0
    normal: float = 0.0
    unknown: float = 0.0
    by_reason: Mapping[str, float] = field(default_factory=dict)


def throttle(parts: Sequence[Seen], gpu: str) -> Throttle:
    """For how long, and why, a GPU's clocks were held down."""
    read = [
        (part.seconds, list(decode(int(bits))))
        for part in parts
        if (bits := part.value("gpu.reasons", gpu)) is not None
    ]

    def lasting(test: Callable[[Reason], bool]) -> float:
        return sum(seconds for seconds, reasons in read if any(test(reason) for reason in reasons))

    by_reason: dict[str, float] = defaultdict(float)
    for seconds, reasons in read:
        for reason in reasons:
            by_reason[reason.name] += seconds
    return Throttle(
        seen=sum(seconds for seconds, _ in read),
        fail=lasting(lambda reason: reason.kind is Class.FAIL),
        warn=lasting(lambda reason: reason.kind is Class.WARN),
        normal=lasting(lambda reason: reason.kind is Class.NORMAL),
        unknown=lasting(lambda reason: not reason.known),
        by_reason=dict(by_reason),
    )


@dataclass(frozen=True)
class Count:
    """How far a counter went, or a state; None with the reason where that is not known."""

    value: int | None
    why: str = ""


def counted(stream: Stream, gpu: str, column: str, metric: str, start: float, end: float) -> Count:
    """How far a GPU's counter went in a window, from the last reading before it to the first one after it."""
    readings = list(_around(stream, Key(metric, gpu=gpu), start, end))
    problem = _unread(stream, gpu, column, readings, start, end)
    if problem:
        return Count(None, problem)
    values = [value for _, value in readings]
    if any(after < before for before, after in itertools.pairwise(values)):
        return Count(None, "went back: it was reset in the window")
    return Count(int(values[-1] - values[0]))


def remapping(stream: Stream, gpu: str, start: float, end: float) -> Count:
    """1 where rows of a GPU's memory wait to be remapped or could not be, 2 where both, 0 where neither."""
    states = []
    for name in ("remap_pending", "remap_failure"):
        readings = list(_around(stream, Key(f"gpu.{name.replace('_', '.')}", gpu=gpu), start, end))
        problem = _unread(stream, gpu, "remap_pending", readings, start, end)
        if problem:
            return Count(None, problem)
        states.append(any(value for _, value in readings))
    return Count(sum(states))


def _around(stream: Stream, key: Key, start: float, end: float) -> Iterator[tuple[float, float]]:
    """The readings in a window, with the last one before it and the first one after it."""
    readings = [(sample.t, sample.values[key]) for sample in stream.samples if key in sample.values]
    first = max((t for t, _ in readings if t <= start), default=start)
    last = min((t for t, _ in readings if t >= end), default=end)
    return ((t, value) for t, value in readings if first <= t <= last)


def _unread(
    stream: Stream, gpu: str, column: str, readings: Sequence[tuple[float, float]], start: float, end: float
) -> str:
    if (gpu, column) in stream.unsupported:
        return "the device does not support it"
    if len(readings) < 2:
        return f"read {len(readings)} times, two are needed"
    if readings[0][0] > start + COUNTER_SLACK or readings[-1][0] < end - COUNTER_SLACK:
        return f"read only from {readings[0][0] - start:.1f} s to {readings[-1][0] - start:.1f} s of the window"
    return ""
