"""The run record: JSON lines, one fact a line, from which every report is drawn.

A line is ``{"type": ..., "t": seconds since the start, ...}``; the first is ``run``, the last is ``verdict``. The
classes below are the exact shapes; ``json_schema`` tells them to other programs. Floats are finite.
"""

from __future__ import annotations

import glob
import hashlib
import heapq
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from seatrial.errors import UsageError

SCHEMA = 1
"""The version of these shapes. A new field keeps it, a changed meaning does not."""

OutcomeName = Literal["pass", "fail", "inconclusive", "uncalibrated", "skip", "waived", "error"]
VerdictName = Literal["accepted", "rejected", "not accepted"]


class Part(BaseModel):
    """A piece of a line. Fields that a later version adds are skipped."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Line(Part):
    """One line of the record; ``t`` in seconds since the trial's start."""

    t: float


class Run(Line):
    """Which run this is; ``started`` in ISO 8601, UTC."""

    type: Literal["run"]
    schema_version: int = Field(alias="schema")
    id: str
    argv: tuple[str, ...]
    seatrial: str
    python: str
    started: str
    host: str = ""


class PlannedCheck(Part):
    """A check that the run means to judge; ``bound`` tells whether a bound is armed for it."""

    id: str
    where: dict[str, str] = {}
    test: str = ""
    bound: bool = False

    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """A form that can be compared and hashed."""
        return self.id, tuple(sorted(self.where.items()))

    def __str__(self) -> str:
        return _named(self.id, self.where)


class Plan(Line):
    """What the run means to judge, written before the first job; ``deselected`` checks the command line left out."""

    type: Literal["plan"]
    checks: tuple[PlannedCheck, ...]
    armed: int = 0
    record_only: int = 0
    deselected: tuple[str, ...] = ()
    """Ids of checks that the command line left out."""
    notes: tuple[str, ...] = ()


class Cluster(Line):
    """The frozen profile, the kind of target, and what that target can do."""

    type: Literal["cluster"]
    profile: dict[str, Any]
    kind: str
    features: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The profile's name, or the target's kind where it has none."""
        return str(self.profile.get("name") or self.kind)


class Gpu(Part):
    """One device as NVML names it; ``memory`` in bytes."""

    index: int
    uuid: str
    name: str
    memory: int
    pci: str


class Node(Line):
    """One host as it was found; ``memory`` in bytes."""

    type: Literal["node"]
    name: str
    hostname: str = ""
    cpus: int
    memory: int
    kernel: str
    accelerator: str
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    versions: dict[str, str] = {}


class Moment(Part):
    """A step of a job's life: ``t`` in seconds since the trial's start."""

    t: float
    cause: str


class Timeline(Part):
    """The four moments of a job; None where it never came so far."""

    submitted: Moment | None = None
    admitted: Moment | None = None
    started: Moment | None = None
    ended: Moment | None = None


class Job(Line):
    """One job, written when it has ended. ``budget`` in seconds; ``exit`` and ``placement`` by rank."""

    type: Literal["job"]
    id: str
    payload: str
    settings: dict[str, Any] = {}
    nodes: tuple[str, ...] = ()
    ranks: int
    gpus: int
    queue: str | None = None
    budget: dict[str, float] = {}
    timeline: Timeline
    state: str
    cause: str = ""
    culprits: tuple[int, ...] = ()
    exit: dict[int, int | None] = {}
    faults: tuple[str, ...] = ()
    placement: dict[int, str] = {}
    logs: str = ""


class Event(Line):
    """What one rank's payload said; ``clock`` in seconds on that rank's own clock."""

    type: Literal["event"]
    job: str
    rank: int
    seq: int
    clock: float
    name: str
    said: dict[str, Any] = {}


class Series(Part):
    """One telemetry metric over a job's window: the array ``t`` in seconds since the start, ``v`` in ``unit``."""

    type: Literal["series"]
    t: tuple[float, ...]
    job: str
    node: str
    gpu: str | None = None
    rank: int | None = None
    metric: str
    unit: str
    v: tuple[float, ...]
    gaps: int

    @model_validator(mode="after")
    def _paired(self) -> Series:
        if len(self.t) != len(self.v):
            raise ValueError(f"{len(self.t)} times for {len(self.v)} values")
        return self


class Bound(Part):
    """What a check was held against; ``limits`` is the least and the greatest passing value in the check's unit.

    A ratio's ``value`` is a factor on ``reference``, the same run's measurement of ``of``.
    """

    kind: Literal["min", "max", "within", "equal", "ratio"]
    value: float | tuple[float | None, float | None] | None = None
    source: str
    date: str = ""
    confidence: str = ""
    conditions: str = ""
    of: str | None = None
    reference: float | None = None
    """What a ratio was held against, in the check's unit."""
    limits: tuple[float | None, float | None] = (None, None)


class Check(Line):
    """One check's outcome; ``interval`` is the 95% confidence interval of the median, in ``unit``."""

    type: Literal["check"]
    id: str
    outcome: OutcomeName
    observed: float | None = None
    unit: str
    n: int = 0
    interval: tuple[float, float] | None = None
    bound: Bound | None = None
    where: dict[str, str] = {}
    test: str = ""
    job: str | None = None
    reason: str = ""
    detail: str = ""
    next: str = ""
    qualified: tuple[str, ...] = ()
    near: bool = False

    @property
    def suite(self) -> str:
        """The first word of the id."""
        return self.id.partition(".")[0]

    @property
    def place(self) -> str:
        """Where the check was made, as words."""
        return _words(self.where)

    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """A form that can be compared and hashed, the same as its planned check's."""
        return self.id, tuple(sorted(self.where.items()))

    def __str__(self) -> str:
        return _named(self.id, self.where)


class Waiver(Line):
    """A failing check that the profile accepts by name until ``expires`` (ISO date), everywhere or at one place."""

    type: Literal["waiver"]
    check: str
    owner: str
    reason: str
    expires: str
    where: dict[str, str] | None = None

    def covers(self, check: Check) -> bool:
        """Whether it was written for this check at this place."""
        return check.id == self.check and (self.where or {}).items() <= check.where.items()


class Verdict(Line):
    """How the run ended: three ``worst`` check ids at most, worst first, and ``missing`` checks without an outcome."""

    type: Literal["verdict"]
    verdict: VerdictName
    reason: str = ""
    counts: dict[str, int]
    worst: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    gpu_hours: float
    cost: float | None = None
    seconds: float


LineT = TypeVar("LineT")
AnyLine = Run | Plan | Cluster | Node | Job | Event | Series | Check | Waiver | Verdict
LINES: Mapping[str, type[AnyLine]] = {
    "run": Run,
    "plan": Plan,
    "cluster": Cluster,
    "node": Node,
    "job": Job,
    "event": Event,
    "series": Series,
    "check": Check,
    "waiver": Waiver,
    "verdict": Verdict,
}


def _words(where: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in where.items())


def _named(check_id: str, where: Mapping[str, str]) -> str:
    return f"{check_id} [{_words(where)}]" if where else check_id


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of the record."""
    line = Annotated[AnyLine, Field(discriminator="type")]
    schema: dict[str, Any] = TypeAdapter[Any](line).json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"seatrial record, version {SCHEMA}"}
    return head | schema


@dataclass(frozen=True)
class Record:
    """A run as its record tells it. ``damage`` lists what could not be read or contradicts itself."""

    run: Run | None = None
    plan: Plan | None = None
    cluster: Cluster | None = None
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    events: tuple[Event, ...] = ()
    series: tuple[Series, ...] = ()
    checks: tuple[Check, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    verdict: Verdict | None = None
    """None when the run did not finish."""
    damage: tuple[str, ...] = ()
    digest: str = ""
    """SHA-256 of the file, in hexadecimal."""

    def counts(self) -> dict[str, int]:
        """Checks by outcome, outcomes without any left out."""
        return dict(Counter(check.outcome for check in self.checks))

    def missing(self) -> list[str]:
        """Planned checks without an outcome: those that the verdict names and those that the plan shows."""
        judged = {check.key() for check in self.checks}
        planned = self.plan.checks if self.plan is not None else ()
        said = self.verdict.missing if self.verdict is not None else ()
        return list(dict.fromkeys([*said, *(str(check) for check in planned if check.key() not in judged)]))

    def job(self, job_id: str | None) -> Job | None:
        """The job of that id."""
        return next((job for job in self.jobs if job.id == job_id), None)


class Writer:
    """Appends lines to a record, each whole and with the operating system when ``write`` returns.

    Threads may share a writer; processes may not (see ``merge``).
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        if _is_torn(path):
            self._put(b"\n")

    def write(self, kind: str, /, t: float | Sequence[float], **fields: object) -> None:
        """Append one line.

        Args:
            kind: the line's type, a key of ``LINES``.
            t: seconds since the trial's start; of a series the array of its times.
            fields: the line's other fields.

        Raises:
            ValueError: the reader would refuse this line; nothing is written.
        """
        line = _encoded(kind, {"type": kind, "t": t, **fields})
        with self._lock:
            self._put(line + b"\n")

    def _put(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) or 0 :]

    def close(self) -> None:
        """Close the file, with its data on the disk."""
        with self._lock:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def _encoded(kind: str, line: Mapping[str, object]) -> bytes:
    shape = LINES.get(kind)
    if shape is None:
        raise ValueError(f"record line of unknown type {kind!r}; expected one of {', '.join(LINES)}")
    known = {field.alias or name for name, field in shape.model_fields.items()}
    if unknown := sorted(set(line) - known):
        raise ValueError(f"record line {kind!r}: unknown fields {unknown}; expected {sorted(known)}")
    try:
        encoded = json.dumps(line, separators=(",", ":"), allow_nan=False).encode()
        shape.model_validate_json(encoded)
    except TypeError as error:
        raise ValueError(f"record line {kind!r} is not JSON: {error}") from error
    except ValidationError as error:
        raise ValueError(f"record line {kind!r}: {_faults(error)}") from error
    except ValueError as error:
        wild = ", ".join(f"{where} is {number}" for where, number in _floats(line, kind) if not math.isfinite(number))
        raise ValueError(f"record line {kind!r}: {wild or error}; expected finite numbers, or None") from error
    return encoded


def _floats(value: object, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floats(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _floats(item, f"{where}[{index}]")


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'line'}: {fault['msg']}, observed {fault['input']!r:.60}"
        for fault in error.errors(include_url=False)
    )


def read(path: Path) -> Record:
    """Read a record, whole or not.

    Lines of a type that this version does not know are skipped, as the format promises. Everything else that cannot
    be read is told in ``damage``, with its line.

    Raises:
        UsageError: the file cannot be read, or was written by a later version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the record {path} cannot be read: {error.strerror}; expected a run's record.jsonl"
        ) from error
    damage: list[str] = []
    lines = [line for line in _parsed(data, damage) if line is not None]
    for line in lines:
        if isinstance(line, Run) and line.schema_version > SCHEMA:
            newer = f"the record {path} has schema {line.schema_version}, this seatrial reads {SCHEMA}"
            raise UsageError(f"{newer}; read it with the version that wrote it, {line.seatrial}, or a later one")
    damage += _misplaced(lines)
    damage += [f"{part.name} beside the record is not merged into it" for part in parts_of(path)]
    record = Record(
        run=_only(lines, Run),
        plan=_only(lines, Plan),
        cluster=_only(lines, Cluster),
        nodes=_all(lines, Node),
        jobs=_all(lines, Job),
        events=_all(lines, Event),
        series=_all(lines, Series),
        checks=_all(lines, Check),
        waivers=_all(lines, Waiver),
        verdict=_only(lines, Verdict),
        digest=hashlib.sha256(data).hexdigest(),
    )
    return replace(record, damage=(*damage, *_contradictions(record)))


def _parsed(data: bytes, damage: list[str]) -> Iterator[AnyLine | None]:
    lines = data.split(b"\n")
    torn = len(lines) if lines[-1] else None
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield _line(line)
        except (ValueError, RecursionError) as error:
            fault = _faults(error) if isinstance(error, ValidationError) else str(error)
            if number == torn:
                damage.append(f"line {number}, the last, is torn after {len(line)} bytes: its writer was killed")
            else:
                damage.append(f"line {number}: {fault}")


def _line(line: bytes) -> AnyLine | None:
    content = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    if not isinstance(content, dict) or not isinstance(content.get("type"), str):
        raise ValueError("expected an object with a type")
    shape = LINES.get(content["type"])
    return None if shape is None else shape.model_validate_json(line)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _all(lines: Iterable[AnyLine], shape: type[LineT]) -> tuple[LineT, ...]:
    return tuple(line for line in lines if isinstance(line, shape))


def _only(lines: Iterable[AnyLine], shape: type[LineT]) -> LineT | None:
    return next(iter(_all(lines, shape)), None)


def _misplaced(lines: Sequence[AnyLine]) -> Iterator[str]:
    """What is not where the format puts it: one ``run`` first, one ``verdict`` last, one plan, one cluster."""
    if not lines or not isinstance(lines[0], Run):
        yield f"the first line is {_type(lines[0]) if lines else 'missing'}, expected run"
    for shape in (Run, Plan, Cluster, Verdict):
        found = _all(lines, shape)
        if len(found) > 1:
            yield f"{len(found)} lines of type {_type(found[0])}, expected one; the first is shown"
    after = len(lines) - 1 - next((at for at, line in enumerate(lines) if isinstance(line, Verdict)), len(lines) - 1)
    if after:
        yield f"{after} lines after the verdict, expected none"


def _type(line: object) -> str:
    return type(line).__name__.lower()


def _contradictions(record: Record) -> Iterator[str]:
    """Where the verdict, the plan and the checks disagree."""
    verdict = record.verdict
    if verdict is None:
        return
    counts = record.counts()
    for outcome in sorted({*counts, *verdict.counts}):
        said, found = verdict.counts.get(outcome, 0), counts.get(outcome, 0)
        if said != found:
            yield f"the verdict counts {said} checks as {outcome}, the record holds {found}"
    bad = sum(counts.get(outcome, 0) for outcome in ("fail", "inconclusive", "uncalibrated", "error"))
    if verdict.verdict == "accepted" and bad:
        yield f"the verdict is accepted beside {bad} checks that did not pass"
    if verdict.verdict == "accepted" and (missing := record.missing()):
        yield f"the verdict is accepted beside {len(missing)} planned checks without an outcome"


def parts_of(path: Path) -> list[Path]:
    """The part files that xdist workers left beside a record: ``record.gw0.jsonl`` beside ``record.jsonl``."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.gw*{glob.escape(path.suffix)}"))


def merge(parts: Sequence[Path], into: Path) -> None:
    """Merge part files into a record, in order of ``t``; each part's own order is kept, damaged lines too.

    The record's own writer must be closed, because the file is replaced. It is replaced at once, and the parts are
    removed after that: killed in between, a second call adds nothing twice.

    Args:
        parts: the files of the workers; the record itself may be among them.
        into: the record; what it already holds stays.
    """
    parts = [part for part in parts if part != into]
    own = _stamped(into) if into.exists() else []
    held = {line for _, line in own}
    added = [[item for item in _stamped(part) if item[1] not in held] for part in parts]
    merged = heapq.merge(own, *added, key=lambda item: item[0])
    fresh = into.with_name(f"{into.name}.merging")
    with fresh.open("wb") as file:
        file.writelines(line + b"\n" for _, line in merged)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(into)
    for part in parts:
        part.unlink()


def _stamped(path: Path) -> list[tuple[float, bytes]]:
    """The lines of a file, each with its ``t``; one without a time of its own follows the line before it."""
    return [(_stamp(line), line) for line in path.read_bytes().split(b"\n") if line]


def _stamp(line: bytes) -> float:
    try:
        content = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return 0.0
    t = content.get("t") if isinstance(content, dict) else None
    return float(t) if isinstance(t, (int, float)) else 0.0
