"""The sampler's events (``payload.sampler``) as numbers that may be computed with: finite, named, with their units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial.job import Event

HOST = {
    ("cpu", "busy"): ("host.cpu.busy", "share"),
    ("cpu", "steal"): ("host.cpu.steal", "share"),
    ("cpu", "iowait"): ("host.cpu.iowait", "share"),
    ("cpu", "interrupts"): ("host.cpu.interrupts", "share"),
    ("cores", "ranks"): ("host.cpu.ranks", "cores"),
    ("cores", "own"): ("host.cpu.own", "cores"),
    ("cores", "others"): ("host.cpu.others", "cores"),
    ("network", "rx"): ("host.network.rx", "B/s"),
    ("network", "tx"): ("host.network.tx", "B/s"),
    ("loopback", "rx"): ("host.loopback.rx", "B/s"),
    ("loopback", "tx"): ("host.loopback.tx", "B/s"),
    ("disk", "read"): ("host.disk.read", "B/s"),
    ("disk", "write"): ("host.disk.write", "B/s"),
}
"""Where each host metric stands in a ``sample``, what it is called and its unit. Shares are of all cores' time."""

RANK = {
    "cores": ("rank.cpu", "cores"),
    "rss": ("rank.memory", "B"),
    "threads": ("rank.threads", "threads"),
    "stopped": ("rank.stopped", "flag"),
}
"""The columns of ``ranks``; ``stopped`` is 1 while the rank's state is T or t (stopped, or held by a debugger)."""

GPU = {
    "reasons": ("gpu.reasons", "bits"),
    "utilisation": ("gpu.utilisation", "%"),
    "memory_utilisation": ("gpu.memory.utilisation", "%"),
    "memory_used": ("gpu.memory.used", "B"),
    "power": ("gpu.power", "W"),
    "temperature": ("gpu.temperature", "C"),
    "sm_clock": ("gpu.clock.sm", "MHz"),
    "memory_clock": ("gpu.clock.memory", "MHz"),
}
"""The columns of ``gpus``, read at each tick."""

COUNTERS = {
    "ecc_uncorrected": ("gpu.ecc.uncorrected", "count"),
    "ecc_corrected": ("gpu.ecc.corrected", "count"),
    "remap_pending": ("gpu.remap.pending", "flag"),
    "remap_failure": ("gpu.remap.failure", "flag"),
    "nvlink_errors": ("gpu.nvlink.errors", "count"),
    "pcie_replays": ("gpu.pcie.replays", "count"),
    "headroom": ("gpu.headroom", "C"),
}
"""The columns of ``counters``, read once a second."""

COUNTER_PERIOD = 1.0
"""Seconds between two readings of one GPU's counters (``payload.gpus.SLOW_SECONDS``)."""

UNITS = {
    "host.memory.used": "B",
    **dict(HOST.values()),
    **dict(RANK.values()),
    **dict(GPU.values()),
    **dict(COUNTERS.values()),
}


@dataclass(frozen=True)
class Key:
    """A metric of one place."""

    metric: str
    gpu: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Sample:
    """One tick: ``t`` and ``dt`` in seconds of the node's monotonic clock; rates are means over ``dt``."""

    t: float
    dt: float
    values: Mapping[Key, float]
    neighbour: tuple[str, float] | None = None
    """The busiest process name that is not ours and its cores, where it was looked up."""


@dataclass(frozen=True)
class Xid:
    """A driver error of a GPU, at ``t`` on the node's clock."""

    t: float
    uuid: str
    xid: int


@dataclass(frozen=True)
class NvmlFault:
    """A reading that a GPU should have answered, at ``t``; ``uuid`` None where it concerns none in particular."""

    t: float
    uuid: str | None
    metric: str
    error: str


@dataclass(frozen=True)
class Stream:
    """All that a sampler said.

    ``links`` has the number of NVLinks that are up, by GPU. ``absent`` says why there is no NVML; ``broken``, that
    there should be one. ``unsupported`` holds pairs of GPU and column. ``damaged`` counts values that were no finite
    numbers, and are left out.
    """

    period: float
    cpus: int
    links: Mapping[str, int]
    absent: str | None
    broken: bool
    samples: tuple[Sample, ...]
    xids: tuple[Xid, ...] = ()
    faults: tuple[NvmlFault, ...] = ()
    unsupported: frozenset[tuple[str, str]] = frozenset()
    damaged: int = 0
    finished: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs, in NVML's order."""
        return tuple(self.links)


def read(events: Sequence[Event]) -> Stream | None:
    """Take a sampler's events in.

    Returns:
        None where it never said what it samples: then nothing it said has a meaning.
    """
    head = next((event for event in events if event.name == "sampling"), None)
    if head is None:
        return None
    nvml = head.fields["nvml"]
    links = {gpu["uuid"]: gpu["links"] for gpu in head.fields["gpus"]}
    reader = _Reader(tuple(links))
    samples = tuple(sample for event in events if event.name == "sample" for sample in reader.sample(event.fields))
    return Stream(
        period=head.fields["period"],
        cpus=head.fields["cpus"],
        links=links,
        absent=nvml.get("absent"),
        broken=nvml.get("kind") == "library broken",
        samples=samples,
        xids=tuple(Xid(e.t, e.fields["uuid"], e.fields["xid"]) for e in events if e.name == "xid"),
        faults=tuple(
            NvmlFault(e.t, e.fields["uuid"], e.fields["metric"], e.fields["error"])
            for e in events
            if e.name == "nvml_fault"
        ),
        unsupported=frozenset(
            (e.fields["uuid"], metric) for e in events if e.name == "unsupported" for metric in e.fields["metrics"]
        ),
        damaged=reader.damaged,
        finished=any(event.name == "sampled" for event in events),
    )


@dataclass
class _Reader:
    gpus: tuple[str, ...]
    damaged: int = field(default=0)

    def sample(self, fields: Mapping[str, Any]) -> Iterator[Sample]:
        """The sample, or nothing where its place in time is damaged."""
        at, dt = self._number(fields.get("at")), self._number(fields.get("dt"))
        if at is None or dt is None or dt <= 0:
            return
        values = {key: value for key, found in self._all(fields) if (value := self._number(found)) is not None}
        neighbour = fields.get("neighbour")
        yield Sample(at, dt, values, (str(neighbour[0]), float(neighbour[1])) if neighbour else None)

    def _number(self, found: object) -> float | None:
        """A finite number, as it is; None stands for what could not be read, anything else is damage."""
        if found is None:
            return None
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return found
        self.damaged += 1
        return None

    def _all(self, fields: Mapping[str, Any]) -> Iterator[tuple[Key, object]]:
        yield Key("host.memory.used"), fields.get("memory")
        for (group, name), (metric, _) in HOST.items():
            yield Key(metric), (fields.get(group) or {}).get(name)
        yield from self._of_ranks(fields.get("ranks") or {})
        yield from self._of_gpus(fields.get("gpus") or {}, GPU, self.gpus)
        counters = fields.get("counters") or {}
        yield from self._of_gpus(counters, COUNTERS, [self.gpus[index] for index in counters.get("gpu", ())])

    @staticmethod
    def _of_ranks(columns: Mapping[str, Any]) -> Iterator[tuple[Key, object]]:
        stopped = [int(state in "Tt") for state in columns.get("state", ())]
        for name, (metric, _) in RANK.items():
            column = stopped if name == "stopped" else columns.get(name, ())
            for rank, value in zip(columns.get("rank", ()), column, strict=True):
                yield Key(metric, rank=rank), value

    @staticmethod
    def _of_gpus(
        columns: Mapping[str, Any], table: Mapping[str, tuple[str, str]], uuids: Sequence[str]
    ) -> Iterator[tuple[Key, object]]:
        for name, (metric, _) in table.items():
            if name in columns:
                for uuid, value in zip(uuids, columns[name], strict=True):
                    yield Key(metric, gpu=uuid), value
