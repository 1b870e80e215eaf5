"""The jobs: how long each was queued, starting and running, what ended it, and what its telemetry saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.record import Job, Moment, Record, Series, Timeline
from seatrial.reports import words
from seatrial.reports.plots import Figure, over_time

PLOTS = 150
"""So many telemetry plots are drawn; the other metrics are named."""


@dataclass(frozen=True)
class Stretch:
    """A part of a job's life as a bar: its place in percent of the whole trial, and its words."""

    kind: str
    left: float
    width: float
    words: str


@dataclass(frozen=True)
class Row:
    """One job with its bar."""

    job: Job
    stretches: Sequence[Stretch]


STRETCHES = (("queue", "submitted", "admitted"), ("start", "admitted", "started"), ("run", "started", "ended"))
"""The parts of a job's life with the moments that bound them."""


def rows(record: Record) -> list[Row]:
    """All jobs in the order in which they ended."""
    whole = span(record)
    return [Row(job, _stretches(job, whole)) for job in record.jobs]


def span(record: Record) -> float:
    """How long the trial took, in seconds, as far as the record knows."""
    known = [moment.t for job in record.jobs for moment in moments(job.timeline)]
    return max([*known, record.verdict.seconds if record.verdict is not None else 0.0, 1e-9])


def moments(timeline: Timeline) -> list[Moment]:
    """The moments that a job came to."""
    named = (timeline.submitted, timeline.admitted, timeline.started, timeline.ended)
    return [moment for moment in named if moment is not None]


def _stretches(job: Job, whole: float) -> list[Stretch]:
    """The parts that the job came to; the last one reaches to its end."""
    found = []
    ended = job.timeline.ended
    for kind, first, last in STRETCHES:
        begin: Moment | None = getattr(job.timeline, first)
        end: Moment | None = getattr(job.timeline, last) or ended
        if begin is None or end is None or (kind != "run" and begin is end):
            continue
        took = max(end.t - begin.t, 0.0)
        budget = job.budget.get("total" if kind == "run" else kind)
        allowed = f" of {words.seconds(budget)}" if budget is not None else ""
        shown = f"{kind} {words.seconds(took)}{allowed}"
        found.append(Stretch(kind, 100 * max(begin.t, 0.0) / whole, 100 * took / whole, shown))
    return found


@dataclass(frozen=True)
class Telemetry:
    """What was sampled over one job's window."""

    job: Job
    figures: Sequence[Figure]
    silent: Sequence[str]
    undrawn: Sequence[str]

    @property
    def open(self) -> bool:
        """Whether it is shown unfolded: where the job did not complete."""
        return self.job.state != "completed"


def telemetry(record: Record) -> list[Telemetry]:
    """The telemetry of each job that has any, a plot a metric."""
    left = PLOTS
    found = []
    for job in record.jobs:
        by_metric: dict[tuple[str, str], list[Series]] = {}
        for series in record.series:
            if series.job == job.id:
                by_metric.setdefault((series.metric, series.unit), []).append(series)
        one = _telemetry(job, by_metric, left)
        left -= len(one.figures)
        found += [one] if by_metric else []
    return found


def _telemetry(job: Job, by_metric: dict[tuple[str, str], list[Series]], left: int) -> Telemetry:
    sampled = {key: [one for one in series if one.t] for key, series in by_metric.items()}
    figures = [over_time(key[0], series, job.timeline) for key, series in sampled.items() if series][:left]
    drawn = [key for key, series in sampled.items() if series]
    silent = [metric for (metric, _), series in by_metric.items() if not all(one.t for one in series)]
    return Telemetry(job, figures, silent, [metric for metric, _ in drawn[left:]])
