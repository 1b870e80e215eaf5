"""Telemetry of one node, beside the work: what its cores, memory, wires, disks, ranks and GPUs do, ten times a second.

Events, on the stream of rank SAMPLER:

- ``sampling`` first: period, host, cpus, memory, disks, gpus, and ``nvml``: its versions, or ``absent`` and why.
- ``sample`` at each tick: ``at`` (the node's monotonic clock), ``dt`` (seconds since the last), and the readings.
  ``ranks`` and ``gpus`` are columns: a list for each quantity, in the order of the lists ``rank`` and ``gpu``. What
  could not be read is null. Rates are means over ``dt``.
- ``unsupported``, ``nvml_fault``, ``xid``, ``ghost``, ``misread``: each said once, or as it happens.
- ``sampled`` last: samples, missed, wall and cpu_seconds, which is what the telemetry itself cost.

Standard input tells which ranks there are, a line ``RANK PID`` each; its end asks for the last sample.
"""

import contextlib
import gc
import os
import resource
import select
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

from . import nvml, procfs
from .events import Emitter

if TYPE_CHECKING:
    from .gpus import Gpus

NAMING_CORES = 0.1
"""A neighbour is looked up only where others use more cores than this."""
SHORTEST = 0.5
"""An interval under this share of the period has no rates: the kernel counts CPU time in ticks of 10 ms."""
LISTED_RANKS = 128
"""Ranks beyond these count in the sums only, so that an event stays within its size."""


def main(settings: Mapping[str, Any], emitter: Emitter) -> int:
    """Sample until standard input ends.

    Args:
        settings: ``period`` in seconds, ``harness`` and ``launcher`` (pids or None), ``paths`` (folders on the disks
            to watch).
        emitter: the sampler's stream.
    """
    with contextlib.ExitStack() as stack:
        gpus = _gpus(stack, float(settings["period"]), emitter)
        Sampler(settings, emitter, gpus).run()
    return 0


def _gpus(stack: contextlib.ExitStack, period: float, emitter: Emitter) -> "Union[Gpus, NoGpus]":
    try:
        library = stack.enter_context(nvml.session())
    except nvml.AbsentError as absent:
        return NoGpus(absent)
    from .gpus import Gpus  # noqa: PLC0415  (only where there are any)

    return Gpus(emitter, library, stack.enter_context(library.xids()), period)


class Schedule:
    """Ticks at fixed moments: a late one moves no other, and those that went by are counted, not made up for.

    Args:
        period: seconds from one tick to the next.
        now: the moment of tick 0.
    """

    def __init__(self, period: float, now: float) -> None:
        self._period = period
        self._start = now
        self.tick = 0
        self.missed = 0

    def next(self, taken: float, now: float) -> float:
        """The moment of the next tick.

        Args:
            taken: when the last sample was taken; it stands for the tick that is nearest to it.
            now: ticks up to here have gone by.
        """
        served = max(self.tick, round((taken - self._start) / self._period))
        coming = max(served, int((now - self._start) / self._period)) + 1
        self.missed += coming - self.tick - 1
        self.tick = coming
        return self._start + self.tick * self._period


class Orders:
    """Standard input: which ranks there are, and when to stop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self.ended = False

    def until(self, due: float) -> Iterable[str]:
        """Each line that arrives before ``due``, or before the end."""
        while not self.ended:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, due - time.monotonic()))
            if not ready:
                return
            data = os.read(self._fd, 4096)
            self.ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)


class NoGpus:
    """The GPUs' part of a sample where there are none that can be read."""

    def __init__(self, absent: nvml.AbsentError) -> None:
        self._absent = absent

    def describe(self) -> Dict[str, Any]:
        """The fields ``gpus`` and ``nvml`` of the event ``sampling``."""
        return {"gpus": [], "nvml": {"absent": str(self._absent), "kind": self._absent.kind.value}}

    def read(self, tick: int, every: bool) -> Dict[str, Any]:  # noqa: ARG002  (as Gpus.read)
        """Nothing."""
        return {}


class Host:
    """The host's part of a sample: everything but ranks and GPUs."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.cpus = os.cpu_count() or 1
        self.memory = procfs.Memory()
        self.disks = procfs.Disks(paths)
        self._cpu = procfs.Cpu(self.cpus)
        self._network = procfs.Network()

    def read(self, at: float) -> Dict[str, Any]:
        """The fields ``cpu``, ``memory``, ``network``, ``loopback`` and ``disk``."""
        network, loopback = self._network.read(at)
        return {
            "cpu": self._cpu.read(at),
            "memory": self.memory.used(),
            "network": network,
            "loopback": loopback,
            "disk": self.disks.read(at),
        }


class Ranks:
    """The ranks' part of a sample, each with its whole session."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._census = procfs.Census()
        self._sessions: Dict[int, Tuple[int, procfs.Session]] = {}
        self._unseen = False

    @property
    def pids(self) -> Set[int]:
        """The processes of all ranks."""
        return {pid for _, session in self._sessions.values() for pid in session.pids}

    def enter(self, line: str) -> None:
        """Take in a line ``RANK PID``."""
        try:
            rank, pid = (int(word) for word in line.split())
        except ValueError:
            self._emitter.emit("misread", line=line[:200])
            return
        try:
            self._sessions[rank] = (pid, procfs.Session(pid))
        except (FileNotFoundError, ProcessLookupError):
            self._unseen = True
            self._emitter.emit("ghost", rank=rank, pid=pid)

    def read(self, seconds: float) -> Tuple[Dict[str, List[Any]], Optional[float]]:
        """The field ``ranks``, where a rank that has ended is not in it, and the cores that all use together.

        The latter is None once a rank was named that cannot be seen.
        """
        leaders = dict(self._sessions.values())
        for pid, session_id in self._census.newcomers():
            if session_id in leaders:
                leaders[session_id].adopt(pid)
        looks = {rank: session.read(seconds) for rank, (_, session) in sorted(self._sessions.items())}
        for rank in [rank for rank, usage in looks.items() if usage is None]:
            self._sessions.pop(rank)[1].close()
        usages = {rank: usage for rank, usage in looks.items() if usage is not None}
        cores = [None if usage.cores is None else round(usage.cores, 4) for usage in usages.values()]
        columns: Dict[str, List[Any]] = {
            "rank": list(usages),
            "cores": cores,
            "rss": [usage.rss for usage in usages.values()],
            "threads": [usage.threads for usage in usages.values()],
            "state": [usage.state for usage in usages.values()],
        }
        together = None if self._unseen else procfs.total([0.0, *cores])
        return {name: column[:LISTED_RANKS] for name, column in columns.items()}, together


class Own:
    """What the trial itself uses: the harness, the launcher and this sampler."""

    def __init__(self, pids: Iterable[Optional[int]]) -> None:
        self.pids = {os.getpid(), *(pid for pid in pids if pid is not None)}
        self._processes = [process for process in map(procfs.hold, sorted(self.pids)) if process is not None]
        self._rates = procfs.Rates()

    def read(self, at: float) -> Optional[float]:
        """Cores; None where one of them is gone."""
        stats = {process.pid: process.read() for process in self._processes}
        ticks = {str(pid): stat.ticks for pid, stat in stats.items() if stat is not None}
        rates = self._rates.of(at, ticks)
        together = procfs.total(rates.values()) if len(ticks) == len(self.pids) else None
        return None if together is None else together / procfs.TICKS_PER_SECOND


class Sampler:
    """The loop: waits for a tick, reads, tells."""

    def __init__(self, settings: Mapping[str, Any], emitter: Emitter, gpus: "Union[Gpus, NoGpus]") -> None:
        self._emitter = emitter
        self._gpus = gpus
        self._period = float(settings["period"])
        self._host = Host(settings["paths"])
        self._ranks = Ranks(emitter)
        self._own = Own([settings["harness"], settings["launcher"]])
        self._neighbours = procfs.Neighbours()
        self._samples = 0
        self._last = time.monotonic()

    def run(self) -> None:
        """Sample until standard input ends; then once more."""
        self._announce()
        start = self._last
        gc.freeze()  # What is there by now lives to the end: no need to walk through it again and again.
        schedule, orders = Schedule(self._period, start), Orders(0)
        while not orders.ended:
            due = schedule.next(self._last, time.monotonic())
            for line in orders.until(due):
                self._ranks.enter(line)
            self._sample(schedule.tick, last=orders.ended)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._emitter.emit(
            "sampled",
            samples=self._samples,
            missed=schedule.missed,
            wall=round(time.monotonic() - start, 6),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 6),
            start_cpu_seconds=round(self._start_cpu, 6),
        )

    def _announce(self) -> None:
        self._emitter.emit(
            "sampling",
            period=self._period,
            host=os.uname().nodename,
            cpus=self._host.cpus,
            memory=self._host.memory.bytes,
            disks=self._host.disks.names,
            no_disk=self._host.disks.without,
            **self._gpus.describe(),
        )
        self._last = time.monotonic()
        self._host.read(self._last)
        self._own.read(self._last)
        self._start_cpu = time.process_time()

    def _sample(self, tick: int, last: bool) -> None:
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        host = self._host.read(now)
        ranks, rank_cores = self._ranks.read(seconds)
        cores = self._cores(host["cpu"]["busy"], rank_cores, self._own.read(now))
        if seconds < SHORTEST * self._period:
            host, ranks, cores = _without_rates(host, ranks, cores)
        self._samples += 1
        self._emitter.emit(
            "sample",
            at=round(now, 6),
            dt=round(seconds, 6),
            **{name: _rounded(value) for name, value in host.items()},
            ranks=ranks,
            cores=_rounded(cores),
            neighbour=self._neighbour(cores["others"]),
            **self._gpus.read(tick, every=last or self._samples == 1),
        )

    def _cores(self, busy: Optional[float], ranks: Optional[float], own: Optional[float]) -> Dict[str, Optional[float]]:
        others = None
        if busy is not None and ranks is not None and own is not None:
            others = max(0.0, busy * self._host.cpus - ranks - own)
        return {"ranks": ranks, "own": own, "others": others}

    def _neighbour(self, others: Optional[float]) -> Optional[Tuple[str, float]]:
        """The busiest other name and its cores, where others are busy and it is time to look."""
        if others is None or others < NAMING_CORES:
            return None
        found = self._neighbours.busiest(self._own.pids | self._ranks.pids)
        return None if found is None else (found[0], round(found[1], 3))


def _without_rates(
    host: Dict[str, Any], ranks: Dict[str, List[Any]], cores: Dict[str, Optional[float]]
) -> Tuple[Dict[str, Any], Dict[str, List[Any]], Dict[str, Optional[float]]]:
    bare = {name: dict.fromkeys(value) if isinstance(value, dict) else value for name, value in host.items()}
    return bare, dict(ranks, cores=[None] * len(ranks["rank"])), dict.fromkeys(cores)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value
