"""One run against one cluster: what it means to judge, what it launched, what it found. Knows nothing of pytest."""

from __future__ import annotations

import datetime
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import seatrial
from seatrial import record, shipping
from seatrial.check import Measurement, Outcome, Place, Planned, Verdict, explain, judge, qualify
from seatrial.config import Cluster
from seatrial.errors import AccessError, LeakError, SeatrialError, UsageError
from seatrial.job import JobSpec, Moment, Result, Target
from seatrial.ledger import Ledger
from seatrial.plan import Plan
from seatrial.supervise import SupervisedJob
from seatrial.target import open_target
from seatrial.target.local import Workshop
from seatrial.telemetry.series import series
from seatrial.telemetry.window import Window, window
from seatrial.verdict import Conclusion, Judged, conclude

RECORD = "record.jsonl"
RESULTS = (RECORD, "report.html", "junit.xml", "ledger.jsonl", shipping.NAME)
"""What a run writes into its directory."""

REMOVAL_SECONDS = 120.0
"""How long a folder of data may take to be removed from a node."""


@dataclass(frozen=True)
class Ticket:
    """What identifies a run, handed to every process of it."""

    id: str
    folder: str
    epoch: float
    """Monotonic seconds at the trial's start; all processes of a run share one host's clock."""
    worker: str = "main"

    def since(self) -> float:
        """Seconds since the trial's start."""
        return round(time.monotonic() - self.epoch, 6)


def new_ticket(folder: str | None, cwd: Path) -> Ticket:
    """Make a run directory.

    Raises:
        UsageError: it cannot be written, or it already holds a run.
    """
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    id_ = f"{stamp}-{secrets.token_hex(2)}"
    path = (cwd / folder) if folder else cwd / "runs" / id_
    try:
        taken = [name for name in RESULTS if (path / name).exists()]
        if not taken:
            (path / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--run-dir {path}: expected a writable directory, observed: {error.strerror}") from error
    if taken:
        raise UsageError(f"--run-dir {path}: it already holds a run ({taken[0]}); nothing is overwritten; name another")
    return Ticket(id_, str(path), time.monotonic())


class Trial:
    """A run in one process: the whole run, or one xdist worker's part of it.

    Args:
        ticket: which run, and which process of it.
        cluster: the profile.
        plan: what it means to judge.
    """

    def __init__(self, ticket: Ticket, cluster: Cluster, plan: Plan) -> None:
        self.ticket = ticket
        self.cluster = cluster
        self.plan = plan
        self.site = plan.site
        self.folder = Path(ticket.folder)
        self.watch: Callable[[SupervisedJob], None] = lambda _: None
        self._recorded: set[tuple[str, Any]] = set()
        self._windows: dict[str, Window] = {}
        self._target: Target | None = None
        self._fault: SeatrialError | None = None
        part = RECORD if ticket.worker == "main" else f"record.{ticket.worker}.jsonl"
        self._writer = record.Writer(self.folder / part)
        self._ledger = Ledger(self.folder, ticket.id)
        self._ledger.begin()

    def write(self, type_: str, **fields: Any) -> None:
        """Append one line to the record."""
        self._writer.write(type_, self.ticket.since(), **fields)

    def open_record(self, argv: Sequence[str]) -> None:
        """Write what is known before the plan: the run and the profile."""
        started = datetime.datetime.now(datetime.timezone.utc)
        self.write(
            "run",
            schema=record.SCHEMA,
            id=self.ticket.id,
            argv=list(argv),
            seatrial=seatrial.__version__,
            python=sys.version.split()[0],
            started=started.isoformat(timespec="seconds"),
            host=socket.gethostname(),
        )
        profile = json.loads(self.cluster.model_dump_json())
        self.write("cluster", profile=profile, kind=self.cluster.target.kind, features=[self.site.device])

    def write_plan(self, deselected: Sequence[str]) -> None:
        """Write which checks this run means to judge, before the first job."""
        plan = self.plan
        self.write(
            "plan",
            checks=plan.rows(),
            armed=plan.armed,
            record_only=plan.record_only,
            deselected=list(deselected),
            notes=plan.notes(),
        )

    # The target and its jobs.

    def target(self) -> Target:
        """The cluster, opened and preflighted once; its first infrastructure fault is latched.

        Raises:
            SeatrialError: it is not what the profile promises, or it cannot be reached.
        """
        if self._fault is not None:
            raise self._fault
        if self._target is None:
            try:
                self._target = self._open()
            except SeatrialError as fault:
                self._fault = fault
                raise
        return self._target

    def _open(self) -> Target:
        payload = self.folder / shipping.NAME
        digest = shipping.pack(payload)
        target = open_target(
            self.cluster, Workshop(self.folder, payload, self._ledger, self.ticket.since, self.ticket.worker)
        )
        for node in target.nodes():
            if self.site.device == "cuda" and len(node.gpus) != self.site.gpus_per_node:
                raise AccessError(
                    f"node {node.name}: expected {self.site.gpus_per_node} GPUs (gpus_per_node), "
                    f"observed {len(node.gpus)}; correct the profile, or the node"
                )
            fields = asdict(node)
            fields["versions"] = {**fields["versions"], "payload": digest}
            self.write("node", hostname=node.name, **fields)
        return target

    @contextmanager
    def launch(self, spec: JobSpec) -> Iterator[SupervisedJob]:
        """Launch a job; on leaving it is ended, its absence proven, and everything known of it is in the record."""
        job = self.target().submit(spec)
        assert isinstance(job, SupervisedJob)
        job.on_change = self.watch
        try:
            yield job
        finally:
            try:
                job.cancel()
            finally:
                self._enter(job.wait())

    @contextmanager
    def scratch(self, name: str, root: str) -> Iterator[str]:
        """A folder for data that outlive a job: in the ledger before it exists, removed from every node on leaving.

        Args:
            name: what it is for.
            root: the folder on the nodes that it is to be in; empty for the run directory.

        Raises:
            LeakError: it could not be removed.
        """
        target, entry = self.target(), f"{name}-{self.ticket.worker}"
        path = Path(root or self.folder) / f"seatrial-{self.ticket.id}-{entry}"
        self._ledger.intend(entry, f"{self.ticket.id}/{entry}", path)
        try:
            yield str(path)
        finally:
            for node in target.nodes():
                done = target.run(node.name, ["rm", "-rf", "--", str(path)], REMOVAL_SECONDS)
                if done.code != 0:
                    raise LeakError(f"node {node.name}: {path} could not be removed: {done.stderr.strip()}")
            self._ledger.gone(entry)

    def _enter(self, result: Result) -> None:
        timeline = {
            name: asdict(moment) if isinstance(moment := getattr(result.timeline, name), Moment) else None
            for name in ("submitted", "admitted", "started", "ended")
        }
        self.write(
            "job",
            id=result.job,
            payload=result.spec.payload,
            settings=dict(result.spec.settings),
            nodes=sorted(set(result.nodes.values())),
            ranks=result.spec.ranks,
            gpus=result.spec.gpus,
            queue=None,
            budget=asdict(result.spec.budget),
            timeline=timeline,
            state=result.ending.value,
            cause=result.cause,
            culprits=list(result.culprits),
            exit={str(rank): code for rank, code in result.exits.items()},
            faults=[str(fault) for fault in (*result.faults, *result.sampler_faults)],
            placement={str(rank): node for rank, node in result.nodes.items()},
            logs=f"logs/{result.job}",
        )
        for events in result.events.values():
            for event in events:
                said = dict(event.fields)
                self.write(
                    "event", job=result.job, rank=event.rank, seq=event.seq, clock=event.t, name=event.name, said=said
                )
        node = next(iter(result.nodes.values()), socket.gethostname())
        for line in series(result.job, node, result.samples, result.clock):
            fields = asdict(line)
            self._writer.write("series", fields.pop("t"), **fields)
        self._windows[result.job] = window_of(result)

    def window(self, result: Result) -> Window:
        """What telemetry says of a job's window."""
        if result.job not in self._windows:
            self._windows[result.job] = window_of(result)
        return self._windows[result.job]

    # Checks.

    def decide(self, measurement: Measurement, result: Result | None) -> Verdict:
        """Judge a measurement: its bound, what disturbed its window, and the profile's waivers."""
        bound = self.plan.bound(measurement.planned)
        if bound is not None and not bound.gates and measurement.value is not None:
            reason = f"a bound of low confidence only reports: {bound.value} {bound.unit} ({bound.source})"
            return Verdict(measurement, Outcome.UNCALIBRATED, reason, bound)
        verdict = judge(measurement, bound)
        if result is not None and not measurement.planned.id.startswith("telemetry."):
            verdict = qualify(verdict, self.window(result).disturbances)
        return self._waive(verdict)

    def _waive(self, verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.FAIL:
            return verdict
        planned, today = verdict.measurement.planned, datetime.date.today()
        for waiver in self.cluster.waivers:
            if not waiver.covers(planned.id, planned.place.where):
                continue
            if not waiver.active(today):
                return replace(verdict, reason=f"{verdict.reason}; its waiver expired on {waiver.expires}")
            reason = f"{verdict.reason}; waived by {waiver.owner} until {waiver.expires}: {waiver.reason}"
            return replace(verdict, outcome=Outcome.WAIVED, reason=reason)
        return verdict

    def enter(self, verdict: Verdict, *, test: str, job: str | None) -> None:
        """Write a verdict into the record; a check has one outcome.

        Raises:
            ValueError: the check already has one.
        """
        measured, bound = verdict.measurement, verdict.bound
        key = measured.planned.key()
        if key in self._recorded:
            raise ValueError(f"{measured.planned}: judged twice in one run")
        self._recorded.add(key)
        entry = self.plan.bounds.entry(measured.planned.id)
        self.write(
            "check",
            id=measured.planned.id,
            outcome=verdict.outcome.value,
            observed=measured.value if measured.value is not None and abs(measured.value) < float("inf") else None,
            unit=measured.unit,
            n=measured.n,
            interval=None if measured.interval is None else list(measured.interval),
            bound=None if bound is None else _bound_fields(verdict),
            where=dict(measured.planned.place.where),
            test=test,
            job=job,
            reason=verdict.reason,
            detail=measured.detail,
            next=entry.next if entry is not None else "",
            qualified=list(measured.qualified),
            near=verdict.near,
        )

    def explain(self, verdict: Verdict) -> str:
        """What a check prints: what, where, observed, bound, source, next step."""
        entry = self.plan.bounds.entry(verdict.measurement.planned.id)
        return explain(verdict, entry.next if entry is not None else "")

    def unjudged(self, test: str) -> list[Planned]:
        """The planned checks of a test that have no outcome yet."""
        return [planned for planned in self.plan.of(test) if planned.key() not in self._recorded]

    def fill(self, test: str, outcome: Outcome, reason: str) -> None:
        """Give the checks that a test never came to judge an outcome that says so."""
        for planned in self.unjudged(test):
            entry = self.plan.bounds.entry(planned.id)
            unit = entry.unit if entry is not None else ""
            measurement = Measurement(planned, None, unit, n=0, why=reason)
            self.enter(Verdict(measurement, outcome, reason, self.plan.bound(planned)), test=test, job=None)

    def close(self) -> None:
        """Close this process's part of the record."""
        if self._target is not None:
            self._target.close()
        self._writer.close()


def _bound_fields(verdict: Verdict) -> dict[str, Any]:
    bound = verdict.bound
    assert bound is not None
    return {
        "kind": bound.kind.value,
        "value": bound.value,
        "of": bound.of,
        "reference": verdict.reference,
        "limits": list(verdict.limits),
        "source": bound.source,
        "date": bound.date.isoformat(),
        "confidence": bound.confidence,
        "conditions": bound.conditions,
    }


def window_of(result: Result) -> Window:
    """What telemetry says of exactly a job's window, from its start to its end."""
    begin = result.timeline.started or result.timeline.admitted or result.timeline.submitted
    end = result.timeline.ended
    assert end is not None
    return window(result.samples, begin.t + result.clock, end.t + result.clock, result.sampler_faults)


def planned_check(check: str, where: Mapping[str, str]) -> Planned:
    """A planned check from its parts."""
    return Planned(check, Place(dict(where)))


def finish(ticket: Ticket, cluster: Cluster, trouble: Sequence[str], *, certify: bool) -> Conclusion:
    """Gather all parts of a run's record, decide, and write the verdict as its last line."""
    folder = Path(ticket.folder)
    parts = sorted(folder.glob("record.gw*.jsonl"))
    if parts:
        record.merge([folder / RECORD, *parts], folder / RECORD)
    known = record.read(folder / RECORD)
    plan = known.plan
    unplanned = [] if plan is not None else ["the run ended before its plan was made"]
    conclusion = conclude(
        [planned_check(check.id, check.where) for check in (plan.checks if plan is not None else ())],
        [_judged(check) for check in known.checks],
        trouble=[*trouble, *known.damage, *unplanned],
        deselected=plan.deselected if plan is not None else (),
        required=cluster.require,
        certify=certify,
    )
    writer = record.Writer(folder / RECORD)
    gpu_hours = sum(job.gpus * _hours(job) for job in known.jobs)
    for waiver in cluster.waivers:
        writer.write("waiver", ticket.since(), **json.loads(waiver.model_dump_json()))
    writer.write(
        "verdict",
        ticket.since(),
        verdict=conclusion.verdict,
        reason=conclusion.reason,
        counts=dict(conclusion.counts),
        worst=list(conclusion.worst),
        missing=list(conclusion.missing),
        gpu_hours=round(gpu_hours, 6),
        cost=_cost(cluster, known.jobs),
        seconds=ticket.since(),
    )
    writer.close()
    return conclusion


def _judged(check: record.Check) -> Judged:
    limits = check.bound.limits if check.bound is not None and check.observed is not None else ()
    observed = check.observed or 0.0
    excess = max((abs(observed - limit) / max(abs(limit), 1e-12) for limit in limits if limit is not None), default=0.0)
    return Judged(planned_check(check.id, check.where), Outcome(check.outcome), excess)


def _hours(job: record.Job) -> float:
    """Hours from the grant of the hardware to the end."""
    begin, end = job.timeline.admitted, job.timeline.ended
    return 0.0 if begin is None or end is None else (end.t - begin.t) / 3600


def _cost(cluster: Cluster, jobs: Sequence[record.Job]) -> float | None:
    """What the jobs cost by the profile's prices."""
    prices = cluster.prices
    if prices is None:
        return None
    return round(sum(_hours(j) * (j.gpus * prices.gpu_hour + len(j.nodes) * prices.node_hour) for j in jobs), 4)
