"""From the events of a staging job to numbers: throughput, wrong files, waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from seatrial.errors import AccessError, InconclusiveError
from seatrial.job import Ending, Result
from seatrial.quantity import format_bytes

LEAST_ABSENT = LEAST_PRESENT = 0.99
"""The share of the source's pages that must be absent (cold) or present (warm): the rest moves a rate by less than the
3.5% that is the least effect ever judged."""


@dataclass(frozen=True)
class Wrong:
    """Files that are not as their manifest has them: how many, and the first of them in words."""

    count: int
    detail: str


@dataclass(frozen=True)
class Rates:
    """The throughput of copies of one kind in GB/s; ``why`` says why there is none to judge."""

    samples: tuple[float, ...]
    why: str
    detail: str

    @property
    def median(self) -> float | None:
        """Its median; None where there is none to judge."""
        return None if self.why or not self.samples else median(self.samples)


class Staged:
    """The events of a staging job, trusted only where its ranks' streams are whole.

    Args:
        result: the job after its end.
    """

    def __init__(self, result: Result) -> None:
        self.result = result

    def of(self, rank: int, event: str, /, **fields: object) -> list[Mapping[str, Any]]:
        """What a rank said in events of one name.

        Raises:
            InconclusiveError: the rank's stream is damaged.
        """
        faults = [fault for fault in self.result.faults if fault.rank == rank]
        if faults:
            raise InconclusiveError(f"job {self.result.job}: damaged events: {faults[0]}")
        said = [one.fields for one in self.result.events.get(rank, ()) if one.name == event]
        return [one for one in said if all(one.get(key) == value for key, value in fields.items())]

    def only(self, rank: int, event: str, /, **fields: object) -> Mapping[str, Any]:
        """The one event of a phase.

        Raises:
            AccessError: a storage did not let us in.
            InconclusiveError: the phase was not reached, with what ended the job.
        """
        found = self.of(rank, event, **fields)
        if not found:
            self.refused(rank)
            raise InconclusiveError(f"rank {rank} on {self._node(rank)}: no {event!r} event: {self.cause(rank)}")
        return found[-1]

    def refused(self, rank: int, what: str | None = None) -> None:
        """Tell that a folder or a storage did not let us in, where it is so.

        Raises:
            AccessError: it is so.
        """
        for one in self.of(rank, "refused"):
            if what is None or one["what"] == what:
                raise AccessError(
                    f"rank {rank} on {self._node(rank)}: {one['what']} did not let us in: {one['why']}; correct the "
                    "profile's path, bucket or credentials, or the rights there"
                )

    def lacking(self, rank: int, op: str) -> str:
        """Why this environment cannot do a phase; empty where it can."""
        return next((str(one["why"]) for one in self.of(rank, "unsupported", op=op)), "")

    def _node(self, rank: int) -> str:
        return self.result.nodes.get(rank, "no node")

    def cause(self, rank: int) -> str:
        """Why a rank did not come so far: too little space, or the job's end."""
        short = next((one for one in self.of(rank, "space") if one["free"] < one["needed"]), None)
        if short is not None:
            return f"too little space: {needed_space(short)}"
        broken = self.of(rank, "broken")
        if broken:
            return f"{broken[0]['what']!r} broke: {broken[0]['why']}"
        return f"{self.result.ending.value}: {self.result.cause}"

    def missing_ranks(self) -> Wrong:
        """Ranks without a good completion, and what is wrong with each.

        A completion is good when the rank saw as many ranks as were asked for, and is the very process that was
        launched; ranks on one node more than others have staged there twice and elsewhere never.
        """
        faults = [text for rank in range(self.result.spec.ranks) if (text := self._incomplete(rank))]
        nodes = set(self.result.nodes.values())
        if len(nodes) != self.result.spec.nodes:
            faults.append(f"ran on {len(nodes)} nodes ({', '.join(sorted(nodes))}), expected {self.result.spec.nodes}")
        return Wrong(len(faults), "; ".join(faults))

    def _incomplete(self, rank: int) -> str:
        done, hello = self.of(rank, "done"), self.of(rank, "hello")
        if not done:
            return f"rank {rank}: no completion event"
        if done[-1]["world_size"] != self.result.spec.ranks:
            return f"rank {rank}: saw a world of {done[-1]['world_size']}, expected {self.result.spec.ranks}"
        pids = [int(str(peer).rpartition(":")[2]) for peer in done[-1]["peers"]]
        expected = [one["pid"] for one in hello]
        return "" if pids == expected else f"rank {rank}: is process {pids}, expected {expected}"

    @property
    def ended_itself(self) -> bool:
        """Whether the job ended in a way that tells of its ranks."""
        return self.result.ending in (Ending.COMPLETED, Ending.DIED, Ending.SILENT) and not self.result.faults

    def wrong_files(self, rank: int, name: str, expected: int) -> Wrong:
        """All wrong files of all copies of a data set on a node; so many copies are expected.

        Raises:
            AccessError: a storage did not let us in.
            InconclusiveError: nothing was copied, or fewer copies were made and nothing is wrong with these.
        """
        self.only(rank, "copy", name=name)
        staged = self.of(rank, "copy", name=name, tool="streams")
        named = {text: None for copy in staged for text in _named(copy["faults"])}
        stops = {f"the copy stopped at {copy['stopped']}": None for copy in staged if copy["stopped"]}
        count = sum(int(copy["faults"]["count"]) for copy in staged) + len(stops) * (not named)
        if not count and len(staged) != expected:
            raise InconclusiveError(f"rank {rank}: {len(staged)} copies, expected {expected}: {self.cause(rank)}")
        return Wrong(count, "; ".join([*list(stops)[:3], *list(named)[:12]]))

    def rates(self, rank: int, state: str, tool: str, streams: int, expected: int) -> Rates:
        """The throughput of the seeded data set's copies from one state.

        Raises:
            AccessError: a storage did not let us in.
            InconclusiveError: nothing was copied.
        """
        self.only(rank, "copy", name="seeded", state=state)
        copies = self.of(rank, "copy", name="seeded", state=state, tool=tool, streams=streams)
        why = "" if len(copies) == expected else f"{len(copies)} copies, expected {expected}"
        why = next((text for copy in copies if (text := _unproven(copy, state))), why)
        samples = tuple(copy["bytes"] / copy["seconds"] / 1e9 for copy in copies if copy["bytes"])
        return Rates(samples, why, _latency(copies) if tool == "streams" else "")


def needed_space(space: Mapping[str, Any]) -> str:
    """A space event in words."""
    needed, free = (format_bytes(int(space[key])) for key in ("needed", "free"))
    return f"{space['path']} ({space['filesystem']}) has {free} free, the data needs {needed}"


def _named(faults: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind}: {path}" + (f" ({why})" if why != kind else "")
        for kind in ("missing", "extra", "changed")
        for path, why in faults[kind]
    ]


def _unproven(copy: Mapping[str, Any], state: str) -> str:
    """Why a copy says nothing of this state: its pages were not seen to be in it, or it is no whole copy."""
    if copy["faults"]["count"] or copy["stopped"]:
        first = copy["stopped"] or next(iter(_named(copy["faults"])), "")
        return f"a copy by {copy['tool']} is not whole, so it has no rate: {first}"
    if copy["unseen"] or not copy["pages"]:
        return f"{state} is not proven: {copy['unseen'] or 'no page was looked at'}"
    resident = copy["resident"] / copy["pages"]
    if state == "cold" and 1 - resident < LEAST_ABSENT:
        return (
            f"cold is not proven: {resident:.1%} of the source's pages stayed in memory after they were to be dropped "
            "(a tmpfs, or a file system that keeps them); name a storage on a disk in the profile"
        )
    if state == "warm" and resident < LEAST_PRESENT:
        return (
            f"warm is not proven: {resident:.1%} of the source's pages are in memory; the data set is too large for it"
        )
    return ""


def _latency(copies: Sequence[Mapping[str, Any]]) -> str:
    timed = [copy for copy in copies if copy["p50_ms"] is not None]
    if not timed:
        return ""
    p50, p99 = (median(copy[key] for copy in timed) for key in ("p50_ms", "p99_ms"))
    slowest = max(timed, key=lambda copy: float(copy["p99_ms"]))["slowest"]
    device = median(copy["device_bytes"] / copy["bytes"] for copy in timed if copy["bytes"])
    return (
        f"a file takes {p50:.1f} ms (p50), {p99:.1f} ms (p99), from its first byte until it is durable under its final "
        f"name; slowest {slowest}; {device:.0%} of the bytes were read from a device"
    )


def wait_share(loader: Mapping[str, Any]) -> tuple[float | None, str]:
    """The share of the steps' time that the training loop waited for its data, and the steps in words."""
    waits, works = loader.get("wait_us", []), loader.get("work_us", [])
    if not waits or len(waits) != len(works):
        return None, str(loader.get("why", "no step was timed"))
    waited, worked = sum(waits), sum(works)
    step = (waited + worked) / len(waits) / 1e3
    words = (
        f"{len(waits)} steps of {step:.1f} ms on {loader['device']}, after {loader['warmup']} unmeasured; "
        f"longest wait {max(waits) / 1e3:.1f} ms"
    )
    return waited / (waited + worked), words
