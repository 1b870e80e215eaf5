"""What a run means to judge, known in full before the first job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from seatrial.bounds import SELECTORS, Bound, Bounds
from seatrial.check import Planned
from seatrial.config import Cluster
from seatrial.errors import UsageError
from seatrial.job import JobSpec
from seatrial.quantity import format_seconds
from seatrial.site import Site


class Plan:
    """The planned checks of a run, each with the test that judges it."""

    def __init__(self, site: Site, bounds: Bounds) -> None:
        self.site = site
        self.bounds = bounds
        self._planned: dict[tuple[str, Any], tuple[Planned, str]] = {}
        self._skipped: dict[str, str] = {}
        self.jobs: dict[str, JobSpec] = {}

    def __len__(self) -> int:
        return len(self._planned)

    def add(self, planned: Planned, test: str) -> None:
        """Enter a check.

        Raises:
            UsageError: the catalogue does not know it, or another test plans it too.
        """
        if self.bounds.entry(planned.id) is None:
            raise UsageError(f"{test}: plans the check {planned.id!r}, which no checks.yaml describes")
        _, owner = self._planned.setdefault(planned.key(), (planned, test))
        if owner != test:
            raise UsageError(f"{planned}: planned by two tests, {owner} and {test}; a check has one outcome")

    def skip(self, test: str, reason: str) -> None:
        """Say that a test does not apply here, and why."""
        self._skipped[test] = f"skipped: {reason}"

    def of(self, test: str) -> list[Planned]:
        """The checks that a test judges."""
        return [planned for planned, owner in self._planned.values() if owner == test]

    def bound(self, planned: Planned) -> Bound | None:
        """The bound that fits a check here, whatever its confidence."""
        return self.bounds.find(planned.id, self.site.context(**planned.place.where))

    def gate(self, planned: Planned) -> Bound | None:
        """The bound that decides a check here; None where there is none, or one that only reports."""
        bound = self.bound(planned)
        return bound if bound is not None and bound.gates else None

    @property
    def armed(self) -> int:
        """How many checks have a bound that decides."""
        return sum(
            self.gate(planned) is not None for planned, test in self._planned.values() if test not in self._skipped
        )

    @property
    def record_only(self) -> int:
        """How many checks that apply here have none."""
        return sum(test not in self._skipped for _, test in self._planned.values()) - self.armed

    def rows(self) -> list[dict[str, Any]]:
        """The checks as the record's plan line holds them."""
        return [
            {"id": p.id, "where": dict(p.place.where), "test": test, "bound": self.gate(p) is not None}
            for p, test in self._planned.values()
        ]

    def notes(self) -> list[str]:
        """Bounds for this hardware that no planned check uses, and planned checks that no bound decides."""
        used = {str(self.bound(planned)) for planned, _ in self._planned.values()}
        unused = [bound for bound in self.bounds.bounds if self._is_for_here(bound) and str(bound) not in used]
        applied = [planned for planned, test in self._planned.values() if test not in self._skipped]
        bare = [planned for planned in applied if self.gate(planned) is None]
        return [f"bound that no check of this run uses: {bound}" for bound in unused] + [
            f"check that no bound decides: {planned}" for planned in bare
        ]

    def _is_for_here(self, bound: Bound) -> bool:
        """Whether a bound is for a suite of this run, and its selectors are this site's; its places may be any."""
        suites = {planned.id.partition(".")[0] for planned, _ in self._planned.values()}
        here = self.site.context()
        return bound.check.partition(".")[0] in suites and all(
            here.get(key) == value for key, value in bound.when.items() if key in SELECTORS
        )

    def paper(self, cluster: Cluster) -> Iterator[str]:
        """The plan as a user reads it before consenting: jobs, GPUs, budgets, GPU-hours, cost, checks."""
        jobs = list(self.jobs.values())
        gpus, hours, cost = footprint(cluster, jobs)
        yield f"plan for cluster {cluster.name}: {len(jobs)} jobs, {len(self)} checks ({self.armed} with a bound)"
        for job in jobs:
            yield from _job(job)
        price = "no price in the profile" if cost is None else f"{cost:.2f} {_currency(cluster)}"
        yield f"at most {gpus} GPUs at once, {hours:.2f} GPU-hours if every budget is spent, cost: {price}"
        for planned, test in self._planned.values():
            bound = self.gate(planned)
            decides = "no bound decides it" if bound is None else bound.limits()
            yield f"  check {planned}: {self._skipped.get(test) or decides}"


def _job(job: JobSpec) -> Iterator[str]:
    budget = job.budget
    spans = ", ".join(
        f"{name} {format_seconds(seconds)}"
        for name, seconds in (
            ("queue", budget.queue),
            ("start", budget.start),
            ("silence", budget.silence),
            ("total", budget.total),
            ("clean-up", budget.cleanup),
        )
    )
    yield f"job {job.name}: {job.ranks} ranks on {job.nodes} node(s), {job.gpus} GPUs; budgets: {spans}"
    yield f"  payload {job.payload} {json.dumps(dict(job.settings))}"


def _currency(cluster: Cluster) -> str:
    return cluster.prices.currency if cluster.prices is not None else ""


def footprint(cluster: Cluster, jobs: Sequence[JobSpec]) -> tuple[int, float, float | None]:
    """The most GPUs at once, the GPU-hours if every job spends its whole budget, and what they and the nodes cost.

    Raises:
        UsageError: it is more than the profile's limits allow.
    """
    gpus = max((job.gpus for job in jobs), default=0)
    hours = sum(job.gpus * _longest(job) for job in jobs)
    node_hours = sum(job.nodes * _longest(job) for job in jobs)
    prices = cluster.prices
    cost = None if prices is None else hours * prices.gpu_hour + node_hours * prices.node_hour
    if cluster.limits is not None:
        limits = cluster.limits
        asked = (("gpus", gpus, limits.gpus), ("gpu_hours", hours, limits.gpu_hours), ("cost", cost, limits.cost))
        over = [
            f"{name}: expected at most {limit:g}, this run could take {value:g}"
            for name, value, limit in asked
            if limit is not None and value is not None and value > limit
        ]
        if over:
            raise UsageError(f"{cluster.name}: limits: {'; '.join(over)}; raise the limit or select fewer tests")
    return gpus, hours, cost


def _longest(job: JobSpec) -> float:
    """Hours that a job may hold its hardware."""
    return (job.budget.start + job.budget.total + job.budget.cleanup) / 3600
