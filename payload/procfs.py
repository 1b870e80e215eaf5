"""What a Linux host says of itself in /proc and /sys, read cheaply enough for ten times a second.

Files are opened once and read again in place. Formats: the kernel's Documentation/filesystems/proc.rst, proc(5) and
Documentation/block/stat.rst. A counter that is not there, or that went back, has no rate: None, never zero.
"""

import os
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SECTOR_BYTES = 512
"""The unit of /sys/dev/block/*/stat, whatever the device's own sectors are."""

CENSUS_SHARE = 0.002
"""The share of one core that looking for new processes may cost: a host with thousands is looked through less often."""

NAMING_SECONDS = 1.0
"""The least time between two looks for the busiest neighbour, each of which reads every process."""
NAMING_SHARE = 0.005
"""The share of one core that those looks may cost."""

GONE = "ZX"
"""States of a process that has ended: its threads and memory read as zero, which would be no measurement."""


class ProcFile:
    """One file, opened once and read from its start each time; at most ``size`` bytes."""

    def __init__(self, path: str, size: int) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        """The file's content now."""
        return os.pread(self._fd, self._size, 0)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


class Rates:
    """Rates of counters that only grow, from one reading to the next."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: Dict[str, int] = {}

    def of(self, at: float, counters: Mapping[str, int]) -> Dict[str, Optional[float]]:
        """Units a second since the last reading; ``at`` in seconds.

        None for a counter that is new or went back, which is a reset.
        """
        seconds, before = at - self._at, self._before
        self._at, self._before = at, dict(counters)
        return {name: _rate(before.get(name), value, seconds) for name, value in counters.items()}


def _rate(before: Optional[int], now: int, seconds: float) -> Optional[float]:
    return None if before is None or now < before or seconds <= 0 else (now - before) / seconds


def total(values: Iterable[Optional[float]]) -> Optional[float]:
    """The sum, or None where a part is not known or there is none."""
    known = list(values)
    if not known or None in known:
        return None
    return sum(value for value in known if value is not None)


CPU_PARTS = {"busy": (0, 1, 2), "iowait": (4,), "interrupts": (5, 6), "steal": (7,)}
"""Which columns of the line ``cpu`` of /proc/stat make up each share."""


class Cpu:
    """Shares, 0 to 1, of the time of all cores: busy (user, nice, system), iowait, interrupts (hard, soft), steal."""

    def __init__(self, cpus: int) -> None:
        self._file = ProcFile("/proc/stat", 512)
        self._rates = Rates()
        self._ticks = float(cpus * TICKS_PER_SECOND)

    def read(self, at: float) -> Dict[str, Optional[float]]:
        """Each share since the last reading."""
        words = self._file.read().split(b"\n", 1)[0].split()[1:]
        counters = {name: sum(int(words[place]) for place in places) for name, places in CPU_PARTS.items()}
        rates = self._rates.of(at, counters)
        return {name: None if rate is None else rate / self._ticks for name, rate in rates.items()}


class Memory:
    """Memory in use: what the kernel says is there, less what it says is available."""

    def __init__(self) -> None:
        self._file = ProcFile("/proc/meminfo", 256)
        self.bytes = self._kibibytes("MemTotal") * 1024

    def _kibibytes(self, name: str) -> int:
        for line in self._file.read().decode().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise ValueError(f"/proc/meminfo has no line {name}")

    def used(self) -> int:
        """Bytes in use now."""
        return self.bytes - self._kibibytes("MemAvailable") * 1024


class Network:
    """Bytes a second over the wires and, apart, over loopback.

    The wires are the interfaces with a device behind them; where there is none (a container, a network namespace) they
    are all but loopback. A bridge or a bond would count the same bytes twice.
    """

    def __init__(self) -> None:
        self._file = ProcFile("/proc/net/dev", 16384)
        self._rates = Rates()
        self._is_wire: Dict[str, bool] = {}

    def read(self, at: float) -> Tuple[Dict[str, Optional[float]], Dict[str, Optional[float]]]:
        """``rx`` and ``tx`` of the wires and of loopback since the last reading."""
        counters: Dict[str, int] = {}
        for line in self._file.read().decode().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            words = numbers.split()
            counters["rx " + name.strip()] = int(words[0])
            counters["tx " + name.strip()] = int(words[8])
        rates = self._rates.of(at, counters)
        names = [key[3:] for key in counters if key.startswith("rx ") and key != "rx lo"]
        wires = [name for name in names if self._has_device(name)] or names
        over_wires = {way: total(rates[way + " " + name] for name in wires) for way in ("rx", "tx")}
        return over_wires, {way: rates.get(way + " lo") for way in ("rx", "tx")}

    def _has_device(self, name: str) -> bool:
        if name not in self._is_wire:
            self._is_wire[name] = os.path.exists(f"/sys/class/net/{name}/device")
        return self._is_wire[name]


class Disks:
    """Bytes a second read from and written to the disks that hold some folders.

    Attributes:
        names: the disks, as the kernel calls them.
        without: the folders that no local disk holds (tmpfs, NFS, overlay), so nothing is measured for them.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        numbers = {folder: block_device(folder) for folder in folders}
        self.without = sorted(folder for folder, number in numbers.items() if number is None)
        self._files = {
            number: ProcFile(f"/sys/dev/block/{number}/stat", 512) for number in set(numbers.values()) if number
        }
        self.names = sorted(os.path.basename(os.path.realpath("/sys/dev/block/" + number)) for number in self._files)
        self._rates = Rates()

    def read(self, at: float) -> Dict[str, Optional[float]]:
        """``read`` and ``write`` since the last reading, over all the disks."""
        counters: Dict[str, int] = {}
        for number, file in self._files.items():
            words = file.read().split()
            counters["read " + number] = int(words[2]) * SECTOR_BYTES
            counters["write " + number] = int(words[6]) * SECTOR_BYTES
        rates = self._rates.of(at, counters)
        return {way: total(rates[way + " " + number] for number in self._files) for way in ("read", "write")}


def block_device(folder: str) -> Optional[str]:
    """``MAJOR:MINOR`` of the disk that holds a folder; None where no local disk does."""
    try:
        number = os.stat(folder).st_dev
    except OSError:
        return None
    name = f"{os.major(number)}:{os.minor(number)}"
    if os.path.exists("/sys/dev/block/" + name):
        return name
    return _device_mounted_as(name)


def _device_mounted_as(anonymous: str) -> Optional[str]:
    # btrfs gives each subvolume a number of its own; the mount's source is the disk.
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        sources = [line.split(" - ")[1].split()[1] for line in mounts if line.split()[2] == anonymous]
    for source in sources:
        if source.startswith("/dev/") and os.path.exists(source):
            number = os.stat(source).st_rdev
            return f"{os.major(number)}:{os.minor(number)}"
    return None


class Stat(NamedTuple):
    """What /proc/PID/stat says: CPU times in clock ticks, ``rss`` in bytes."""

    comm: str
    state: str
    session: int
    ticks: int
    """User and system time of the process's own threads."""
    reaped: int
    """The same of its ended children, once it has waited for them."""
    threads: int
    rss: int


class Process:
    """One process, held by an open file, so that another one with the same pid is never taken for it.

    Raises:
        FileNotFoundError, ProcessLookupError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file = ProcFile(f"/proc/{pid}/stat", 1024)

    def read(self) -> Optional[Stat]:
        """Its state now; None once it is gone."""
        try:
            head, _, tail = self._file.read().rpartition(b")")
        except ProcessLookupError:
            return None
        words = tail.split()
        return Stat(
            comm=head.partition(b"(")[2].decode(errors="replace"),
            state=words[0].decode(),
            session=int(words[3]),
            ticks=int(words[11]) + int(words[12]),
            reaped=int(words[13]) + int(words[14]),
            threads=int(words[17]),
            rss=int(words[21]) * PAGE_BYTES,
        )

    def close(self) -> None:
        """Let go of it."""
        self._file.close()


def hold(pid: int) -> Optional[Process]:
    """A process; None where it is gone or hidden."""
    try:
        return Process(pid)
    except OSError:
        return None


def look_at(pid: int) -> Optional[Stat]:
    """A process's state, read once; None where it is gone or hidden."""
    process = hold(pid)
    if process is None:
        return None
    try:
        return process.read()
    finally:
        process.close()


class Usage(NamedTuple):
    """What a rank uses: ``cores``, ``rss`` in bytes, ``threads``, and the rank's own ``state`` letter.

    ``cores`` is None where the account of its processes does not add up. ``rss`` is the sum over processes: pages that
    they share count in each.
    """

    cores: Optional[float]
    rss: int
    threads: int
    state: str


class Session:
    """A rank with everything in its session, counted from now on.

    Work is never lost to a neighbour's account: an ended child's time is found with the parent that waited for it, and
    a child that is found late brings the time it has used.

    Raises:
        FileNotFoundError, ProcessLookupError: the rank is gone already.
    """

    def __init__(self, pid: int) -> None:
        self._leader = Process(pid)
        self._members = {pid: self._leader}
        self._last = self._look()

    @property
    def pids(self) -> Set[int]:
        """The processes known to belong to it."""
        return set(self._members)

    def adopt(self, pid: int) -> None:
        """Count another process of this session in."""
        process = None if pid in self._members else hold(pid)
        if process is not None:
            self._members[pid] = process

    def read(self, seconds: float) -> Optional[Usage]:
        """What it used over the last ``seconds``; None once the rank itself has ended."""
        now = self._look()
        ticks = self._worked(now)
        self._last = now
        leader = now.get(self._leader.pid)
        if leader is None or leader.state in GONE:
            return None
        alive = [stat for stat in now.values() if stat.state not in GONE]
        return Usage(
            cores=ticks / TICKS_PER_SECOND / seconds if ticks >= 0 and seconds > 0 else None,
            rss=sum(stat.rss for stat in alive),
            threads=sum(stat.threads for stat in alive),
            state=leader.state,
        )

    def _look(self) -> Dict[int, Stat]:
        looks = {pid: process.read() for pid, process in self._members.items()}
        for pid in [pid for pid, stat in looks.items() if stat is None]:
            self._members.pop(pid).close()
        return {pid: stat for pid, stat in looks.items() if stat is not None}

    def _worked(self, now: Mapping[int, Stat]) -> int:
        """Clock ticks since the last look, over all members and the children that they waited for."""
        gone = sum(stat.ticks + stat.reaped for pid, stat in self._last.items() if pid not in now)
        reaped = sum(stat.reaped - self._last[pid].reaped for pid, stat in now.items() if pid in self._last)
        before = sum(stat.ticks + stat.reaped for stat in self._last.values())
        waited_for_by_others = max(0, gone - reaped)
        return sum(stat.ticks + stat.reaped for stat in now.values()) - before + waited_for_by_others

    def close(self) -> None:
        """Let go of all its processes."""
        for pid in self.pids:
            self._members.pop(pid).close()


class Census:
    """Finds new processes: looks only after a pid was handed out, and as often as CENSUS_SHARE allows."""

    def __init__(self) -> None:
        self._loadavg = ProcFile("/proc/loadavg", 128)
        self._newest = b""
        self._known: Set[int] = set()
        self._next = 0.0

    def newcomers(self) -> List[Tuple[int, int]]:
        """Pid and session of each process that was not there the last time."""
        begin = time.monotonic()
        newest = self._loadavg.read().rpartition(b" ")[2]
        if newest == self._newest or begin < self._next:
            return []
        pids = all_pids()
        found = [(pid, look_at(pid)) for pid in pids - self._known]
        self._known, self._newest = pids, newest
        self._next = begin + (time.monotonic() - begin) / CENSUS_SHARE
        return [(pid, stat.session) for pid, stat in found if stat is not None]


def all_pids() -> Set[int]:
    """Every process that is there."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


class Neighbours:
    """Names the busiest of the processes that are not ours; looks as seldom as NAMING_SHARE demands."""

    def __init__(self) -> None:
        self._at = 0.0
        self._wait = NAMING_SECONDS
        self._before: Dict[int, int] = {}

    def busiest(self, ours: Set[int]) -> Optional[Tuple[str, float]]:
        """The name that used most cores since the last look, and how many; processes of one name count together.

        None where it is too early to look again, or the last look is too long ago to compare with.
        """
        begin = time.monotonic()
        seconds = begin - self._at
        if seconds < self._wait:
            return None
        looks = {pid: look_at(pid) for pid in all_pids() - ours}
        stats = {pid: stat for pid, stat in looks.items() if stat is not None}
        fresh, before = seconds < 3 * self._wait, self._before
        self._at, self._before = begin, {pid: stat.ticks for pid, stat in stats.items()}
        self._wait = max(NAMING_SECONDS, (time.monotonic() - begin) / NAMING_SHARE)
        return _most_used(stats, before, seconds) if fresh and before else None


def _most_used(stats: Mapping[int, Stat], before: Mapping[int, int], seconds: float) -> Optional[Tuple[str, float]]:
    cores: Dict[str, float] = {}
    for pid, stat in stats.items():
        worked = max(0, stat.ticks - before.get(pid, 0)) / TICKS_PER_SECOND / seconds
        cores[stat.comm] = cores.get(stat.comm, 0.0) + worked
    name = max(cores, key=lambda comm: cores[comm], default="")
    return (name, cores[name]) if cores.get(name) else None
