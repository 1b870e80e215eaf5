"""What a trial launches, in frozen data, and the protocols that a target fills in.

A target turns a JobSpec into a Carrier, which says what happens to the ranks and can end them. Budgets, completeness
and the naming of the rank at fault are the same on every target: they are in ``seatrial.supervise``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Budget:
    """How long each stretch of a job may take, in seconds."""

    queue: float = 600.0
    """From submission until the target grants the hardware."""
    start: float = 120.0
    """From the grant until every rank has joined the group (a container image's pull included)."""
    silence: float = 60.0
    """Without progress of any rank, or without a word from one."""
    total: float = 900.0
    """From the moment when all ranks have joined until the last one's end."""
    cleanup: float = 20.0
    """Kept in reserve to end the job and to see that it is gone."""


@dataclass(frozen=True)
class JobSpec:
    """One piece of work: ``payload`` run by ``ranks`` processes.

    ``payload`` is a command of the payload zip and its settings; the settings must survive JSON.
    """

    name: str
    payload: str
    settings: Mapping[str, Any]
    ranks: int
    gpus_per_rank: int = 0
    nodes: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    budget: Budget = Budget()

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.ranks * self.gpus_per_rank


@dataclass(frozen=True)
class Gpu:
    """One device as NVML names it; ``memory`` in bytes."""

    index: int
    uuid: str
    name: str
    memory: int
    pci: str


@dataclass(frozen=True)
class Node:
    """One host of the cluster; ``memory`` in bytes."""

    name: str
    cpus: int
    memory: int
    kernel: str
    accelerator: str
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


class JobState(enum.Enum):
    """Where a job is in its life."""

    SUBMITTED = "submitted"
    ADMITTED = "admitted"
    STARTED = "started"
    ENDED = "ended"


class Ending(enum.Enum):
    """How a job ended. Only COMPLETED carries numbers that may be judged."""

    COMPLETED = "completed"
    DIED = "a rank died"
    INCOMPLETE = "incomplete"
    QUEUE_TIMEOUT = "queue budget spent"
    START_TIMEOUT = "start budget spent"
    SILENT = "silence budget spent"
    OVERTIME = "total budget spent"
    CANCELLED = "cancelled"
    LEAKED = "not gone within the clean-up reserve"


@dataclass(frozen=True)
class Moment:
    """A step of a job's life: ``t`` in seconds since the trial's start."""

    t: float
    cause: str


@dataclass(frozen=True)
class Timeline:
    """The four moments of a job; None where it never came so far."""

    submitted: Moment
    admitted: Moment | None = None
    started: Moment | None = None
    ended: Moment | None = None


@dataclass(frozen=True)
class Event:
    """One event of one rank, as its payload wrote it; ``t`` in seconds on that rank's own clock."""

    rank: int
    seq: int
    t: float
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class StreamFault:
    """Damage in a rank's event stream: where it is and what was expected there."""

    rank: int
    line: int
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"rank {self.rank}, event line {self.line}: {self.kind} ({self.detail})"


# What a carrier reports, in the order in which it happened.


@dataclass(frozen=True)
class Admitted:
    """The target granted the hardware."""

    cause: str


@dataclass(frozen=True)
class Waiting:
    """The job is still in the queue, and why."""

    cause: str


@dataclass(frozen=True)
class Started:
    """A rank's process exists."""

    rank: int
    node: str
    pid: int


@dataclass(frozen=True)
class Output:
    """Bytes of a rank's event stream (``rank`` may be payload.events.SAMPLER)."""

    rank: int
    data: bytes


@dataclass(frozen=True)
class Exited:
    """A rank's process ended; ``code`` as in subprocess: negative is the signal that ended it."""

    rank: int
    code: int


@dataclass(frozen=True)
class Lost:
    """The target lost sight of the job: its launcher died, its node went away."""

    cause: str


Sign = Admitted | Waiting | Started | Output | Exited | Lost


class Carrier(Protocol):
    """One job on one target: what happens to it, and the power to end it."""

    def poll(self) -> Sequence[Sign]:
        """What happened since the last call; returns at once."""
        ...

    def kill(self, rank: int, signal: int) -> None:
        """Send a signal to one rank."""
        ...

    def end(self, reserve: float) -> Sequence[str]:
        """End every process of the job, within ``reserve`` seconds.

        Returns:
            What is still alive, a description each; empty when absence is proven.
        """
        ...


@dataclass(frozen=True)
class Completed:
    """A command run on a node."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Leftover:
    """Something that a run left behind, by its exact identity."""

    kind: str
    identity: str


@dataclass(frozen=True)
class Series:
    """One telemetry metric over a job's window: ``t`` in seconds since the trial's start, ``v`` in ``unit``."""

    job: str
    node: str
    metric: str
    unit: str
    t: tuple[float, ...]
    v: tuple[float, ...]
    gaps: int
    gpu: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Result:
    """Everything that is known of a job after its end."""

    job: str
    spec: JobSpec
    ending: Ending
    cause: str
    culprits: tuple[int, ...]
    exits: Mapping[int, int]
    events: Mapping[int, tuple[Event, ...]]
    faults: tuple[StreamFault, ...]
    timeline: Timeline
    nodes: Mapping[int, str]
    pids: Mapping[int, int]
    logs: Path
    samples: tuple[Event, ...] = ()
    """The sampler's events."""
    sampler_faults: tuple[StreamFault, ...] = ()
    clock: float = 0.0
    """What to subtract from a node's monotonic seconds to get seconds since the trial's start."""

    def of(self, name: str) -> list[Event]:
        """All ranks' events of one name, rank by rank, in the order of each rank."""
        return [event for rank in sorted(self.events) for event in self.events[rank] if event.name == name]


class Job(Protocol):
    """A job that runs; leaving its context ends it and verifies that nothing of it lives."""

    id: str
    spec: JobSpec

    def state(self) -> JobState:
        """Where the job is now."""
        ...

    def wait(self) -> Result:
        """Wait for the end, or until a budget is spent. Every wait is bounded by the spec's budgets."""
        ...

    def events(self) -> Sequence[Event]:
        """All events that arrived so far."""
        ...

    def kill(self, rank: int, signal: int) -> None:
        """Send a signal to one rank."""
        ...

    def cancel(self) -> None:
        """End the job and prove its absence.

        Raises:
            seatrial.errors.LeakError: something of it is still alive after the clean-up reserve.
        """
        ...

    def timeline(self) -> Timeline:
        """Submitted, admitted, started, ended: each with its cause."""
        ...


class Target(Protocol):
    """A cluster that can be asked what it is and given work."""

    def nodes(self) -> Sequence[Node]:
        """The hosts, as they are found."""
        ...

    def features(self) -> frozenset[str]:
        """What it can do: ``cuda``, ``mig``, ..."""
        ...

    def submit(self, spec: JobSpec) -> Job:
        """Launch a job: its ledger entry is on disk before it exists."""
        ...

    def run(self, node: str, argv: Sequence[str], timeout: float) -> Completed:
        """Run one command on one node.

        Raises:
            TimeoutError: it did not end in time; it has been killed.
        """
        ...

    def leftovers(self, run_id: str) -> Sequence[Leftover]:
        """What a run left on the cluster."""
        ...

    def close(self) -> None:
        """Release the target's own connections."""
        ...
