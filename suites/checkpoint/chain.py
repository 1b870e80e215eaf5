"""Kills a training job, restores it, kills it again: each job of a chain goes on from what the one before has left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.errors import InconclusiveError
from seatrial.job import Event, JobSpec, Result
from seatrial.site import Site
from seatrial.supervise import SupervisedJob

from . import plan
from .plan import Kill
from .trace import Trace

Launch = Callable[[JobSpec], AbstractContextManager[SupervisedJob]]
Note = Callable[..., None]
"""Writes a line into the record."""


@dataclass(frozen=True)
class Home:
    """Where a chain's checkpoints are, and the name under which they are written."""

    folder: str
    run: str

    def of(self, chain: str) -> Mapping[str, str]:
        """The settings of a chain's jobs: chains share no checkpoint."""
        return {"folder": f"{self.folder}/{chain}", "run": f"{self.run}/{chain}"}


@dataclass(frozen=True)
class Link:
    """A job of a chain after its end; times are in seconds of time.monotonic(), of this process alone."""

    result: Result
    submitted: float
    loaded: float | None
    """When a loaded checkpoint was first heard of."""
    first_step: float | None
    """When the first step that it made was heard of."""
    killed: float | None = None
    seen: Mapping[int, float] = field(default_factory=dict)
    """When each rank's end was seen."""

    @property
    def trace(self) -> Trace:
        """What its ranks said."""
        return Trace(self.result)

    @property
    def queued(self) -> float:
        """Seconds that it waited for the hardware."""
        timeline = self.result.timeline
        return 0.0 if timeline.admitted is None else timeline.admitted.t - timeline.submitted.t

    @property
    def unsupported(self) -> str:
        """Why its engine is not there; empty where it is."""
        return next((str(event.fields["why"]) for event in self.result.of("unsupported")), "")

    def rejected(self) -> list[str]:
        """The checkpoints that were found and not loaded, each with its rank, path and reason."""
        events = self.result.of("rejected")
        return [f"rank {event.rank}: {event.fields['path']}: {event.fields['why']}" for event in events]


class Chain:
    """Runs a chain's jobs when they are asked for, each after the one that it is restored from.

    Args:
        name: which chain of plan.CHAINS.
        site: the pool.
        launch: launches a job.
        home: where the checkpoints go.
        note: where each kill is noted.
    """

    def __init__(self, name: str, site: Site, launch: Launch, home: Home, note: Note) -> None:
        self.name = name
        self.kills: Sequence[Kill] = plan.CHAINS[name]
        self._site = site
        self._launch = launch
        self._home = home
        self._note = note
        self._links: list[Link] = []

    def link(self, number: int) -> Link:
        """A job of the chain.

        Raises:
            InconclusiveError: it, or one before it, did not come to the point at which it was to be killed.
        """
        while len(self._links) <= number:
            self._go_on()
        return self._links[number]

    def links(self) -> list[Link]:
        """All jobs."""
        return [self.link(number) for number in range(len(self.kills) + 1)]

    def _go_on(self) -> None:
        number = len(self._links)
        for before in self._links[-1:]:
            self._refuse_unkilled(before, self.kills[number - 1])
        spec = plan.link(self._site, self.name, number)
        spec = replace(spec, settings={**spec.settings, **self._home.of(self.name)})
        kill = self.kills[number] if number < len(self.kills) else None
        link = self._run(spec, kill)
        self._links.append(link)
        if number:
            self._tell(number - 1)

    def _refuse_unkilled(self, link: Link, kill: Kill) -> None:
        result = link.result
        if link.killed is None and not link.unsupported:
            raise InconclusiveError(
                f"job {result.job}: it was to be killed in {kill.where} {kill.step} ({kill.name}), but it ended before "
                f"that: {result.ending.value}: {result.cause}"
            )

    def _run(self, spec: JobSpec, kill: Kill | None) -> Link:
        submitted, killed = time.monotonic(), None
        with self._launch(spec) as job:
            loaded = _now_if(job.follow(lambda event: event.name in ("loaded", "step")))
            first = _now_if(job.follow(lambda event: event.name == "step"))
            if kill is not None and job.follow(lambda event: event.name == "held") is not None:
                killed = time.monotonic()
                for rank in kill.victims(self._site.ranks):
                    job.kill(rank, signal.SIGKILL)
            return Link(job.wait(), submitted, loaded, first, killed, job.exits())

    def _tell(self, number: int) -> None:
        """Note a kill and the restart after it, in seconds of the trial's clock."""
        kill, dead, restored = self.kills[number], self._links[number], self._links[number + 1]
        if dead.killed is None:
            return
        offset = dead.result.clock
        victim = kill.victims(self._site.ranks)[0]
        last = dead.result.events[victim][-1]
        said: dict[str, Any] = {
            "kill": kill.name,
            "victims": list(kill.victims(self._site.ranks)),
            "where": f"{kill.where} {kill.step}",
            "signal": "SIGKILL",
            "restored_by": restored.result.job,
            "killed": round(dead.killed - offset, 4),
            "seen": round(self.detected(number) + dead.killed - offset, 4),
            "loaded": _rounded(restored.loaded, offset),
            "first_step": _rounded(restored.first_step, offset),
        }
        self._note("event", job=dead.result.job, rank=victim, seq=last.seq + 1, clock=last.t, name="killed", said=said)

    def detected(self, number: int) -> float:
        """Seconds from a kill to the sight of its last victim's end.

        Raises:
            InconclusiveError: an end was never seen.
        """
        kill, dead = self.kills[number], self._links[number]
        victims = kill.victims(self._site.ranks)
        missing = [rank for rank in victims if rank not in dead.seen]
        if dead.killed is None or missing:
            raise InconclusiveError(
                f"job {dead.result.job}: the end of ranks {missing or list(victims)} was never seen"
            )
        return max(dead.seen[rank] for rank in victims) - dead.killed

    def restart(self, number: int) -> float:
        """Seconds from a kill to the first step of the job that was restored after it, without its wait in the queue.

        Raises:
            InconclusiveError: it made none.
        """
        dead, restored = self.link(number), self.link(number + 1)
        if dead.killed is None or restored.first_step is None:
            raise InconclusiveError(f"job {restored.result.job}: no step: {restored.result.cause}")
        return restored.first_step - dead.killed - restored.queued


def _rounded(moment: float | None, offset: float) -> float | None:
    return None if moment is None else round(moment - offset, 4)


def _now_if(event: Event | None) -> float | None:
    return None if event is None else time.monotonic()
