"""The sampler's readings as series, one a metric and place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from seatrial.job import Event, Series
from seatrial.telemetry.readings import COUNTER_PERIOD, COUNTERS, UNITS, Key, Stream, read

LATE = 1.5
"""Periods between two samples from which on one is missing: a sampler that is held up by less only comes late."""

_SLOW = frozenset(metric for metric, _ in COUNTERS.values())


def series(job: str, node: str, events: Sequence[Event], clock: float = 0.0) -> tuple[Series, ...]:
    """One series for each metric of each place that was ever read.

    Args:
        job: the job's id.
        node: whose sampler it is.
        events: all that it said.
        clock: what to subtract from the node's seconds to get seconds since the trial's start.
    """
    stream = read(events)
    if stream is None:
        return ()
    return tuple(_series(job, node, key, stream, clock) for key in _keys(stream))


def _keys(stream: Stream) -> list[Key]:
    found = {key for sample in stream.samples for key in sample.values}
    return sorted(found, key=lambda key: (key.metric, key.gpu or "", -1 if key.rank is None else key.rank))


def _series(job: str, node: str, key: Key, stream: Stream, clock: float) -> Series:
    points = list(_points(stream, key))
    times = [t for t, _ in points]
    period = max(stream.period, COUNTER_PERIOD) if key.metric in _SLOW else stream.period
    return Series(
        job=job,
        node=node,
        metric=key.metric,
        unit=UNITS[key.metric],
        t=tuple(round(t - clock, 6) for t in times),
        v=tuple(float(value) for _, value in points),
        gaps=missing(times, period),
        gpu=key.gpu,
        rank=key.rank,
    )


def _points(stream: Stream, key: Key) -> Iterator[tuple[float, float]]:
    for sample in stream.samples:
        if key in sample.values:
            yield sample.t, sample.values[key]


def missing(times: Sequence[float], period: float) -> int:
    """How many samples are missing between the first and the last of ``times``, in seconds."""
    steps = [after - before for before, after in itertools.pairwise(times)]
    return sum(round(step / period) - 1 for step in steps if step > LATE * period)
