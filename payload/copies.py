"""One timed copy of a data set, by the trial's own streams or by ``cp``, and the event that tells of it."""

import os
import resource
import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from . import copying, datasets, pagecache
from .copying import Copier, Report, Source
from .datasets import Differences, Entry, escaped
from .events import Emitter
from .pagecache import Residency

VERIFYING = 2
"""Streams that compare a copy with its manifest."""
NAMED = 10
"""So many wrong files are named in an event; all are counted."""
NAME_CHARACTERS, REASON_CHARACTERS = 160, 600

_BLOCK_BYTES = 512
"""The unit of the kernel's count of blocks read."""

Moved = Callable[[int], None]


def clip(text: str, most: int = NAME_CHARACTERS) -> str:
    """A text as it fits in an event beside others: its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2 - 2]}...{text[1 - most // 2 :]}"


def faults_of(found: Differences, report: Optional[Report] = None) -> Dict[str, Any]:
    """What is wrong with a copy, as an event tells it: counts, and the first names of each kind with the reason."""
    causes = report.failures if report is not None else {}
    told: Dict[str, Any] = {"count": len(found.wrong)}
    for kind, files in found._asdict().items():
        named = sorted(files.items())[:NAMED]
        told[kind] = [[clip(escaped(path)), clip(causes.get(path, why))] for path, why in named]
    return told


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Turn(NamedTuple):
    """Which copy this is: of which data set, from which state of its pages, the how manieth."""

    name: str
    state: str
    number: int


class _Reads:
    """The bytes that this process, or its children, had read from a device."""

    def __init__(self, who: int) -> None:
        self._who = who
        self._before = resource.getrusage(who).ru_inblock

    def since(self) -> int:
        return (resource.getrusage(self._who).ru_inblock - self._before) * _BLOCK_BYTES


def prepare(state: str, paths: Sequence[str], moved: Moved) -> Residency:
    """Bring files into the page cache (``warm``) or out of it (``cold``), and look whether they are.

    Raises:
        OSError: a file cannot be read.
    """
    if state == "cold":
        pagecache.evict(paths)
    else:
        pagecache.warm(paths, moved)
    return pagecache.residency(paths)


class Copies:
    """Makes copies below one folder, compares each with its manifest, tells of it, and removes it.

    Args:
        emitter: where the ``copy`` events go.
        target: the folder of each copy.
        moved: is told of every block.
    """

    def __init__(self, emitter: Emitter, target: str, moved: Moved) -> None:
        self._emitter = emitter
        self._target = target
        self._moved = moved
        self._cp = _cp_command()

    def by_streams(
        self,
        turn: Turn,
        source: Source,
        entries: Sequence[Entry],
        streams: int,
        seen: Residency,
        extra: Sequence[str] = (),
    ) -> None:
        """Copy with the trial's own streams; ``extra`` are files that the source has beside its manifest.

        Raises:
            OSError: the target's folders cannot be made or read.
        """
        copying.discard(self._target)
        reads = _Reads(resource.RUSAGE_SELF)
        report = Copier(source, self._target, entries, streams, self._moved).run()
        read = reads.since()
        found = datasets.compare(self._target, entries, VERIFYING, self._moved)
        found.extra.update(dict.fromkeys(extra, "not in the manifest"))
        latencies = sorted(report.latencies)
        self._tell(
            turn,
            seen,
            faults_of(found, report),
            tool="streams",
            streams=streams,
            bytes=report.copied_bytes,
            seconds=round(report.seconds, 6),
            device_bytes=read,
            p50_ms=round(1e3 * quantile(latencies, 0.50), 3) if latencies else None,
            p99_ms=round(1e3 * quantile(latencies, 0.99), 3) if latencies else None,
            slowest=clip(report.slowest),
            stopped=clip(report.stopped),
        )

    def by_cp(self, turn: Turn, source: str, entries: Sequence[Entry], seen: Residency) -> None:
        """Copy with ``cp -R``, then make it as durable as a staged copy is; ``plain_s`` is cp alone.

        Raises:
            OSError: the target cannot be read.
        """
        copying.discard(self._target)
        os.mkdir(self._target)
        reads = _Reads(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        argv = [*self._cp, os.path.join(source, "."), self._target]
        child = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        plain = time.perf_counter() - begin
        for path, _ in datasets.walk(self._target).files:
            copying.sync(os.path.join(self._target, path))
        seconds = time.perf_counter() - begin
        found = datasets.compare(self._target, entries, VERIFYING, self._moved)
        self._tell(
            turn,
            seen,
            faults_of(found),
            tool="cp",
            streams=1,
            bytes=sum(entry.size for entry in entries),
            seconds=round(seconds, 6),
            plain_s=round(plain, 6),
            device_bytes=reads.since(),
            stopped=clip(child.stderr.decode(errors="replace")) if child.returncode else "",
        )

    def _tell(self, turn: Turn, seen: Residency, faults: Dict[str, Any], **said: object) -> None:
        self._emitter.emit(
            "copy",
            **turn._asdict(),
            resident=seen.resident,
            pages=seen.pages,
            unseen=clip(seen.why),
            faults=faults,
            **said,
        )
        copying.discard(self._target)
        # The next copy is timed: the disk must not still be giving back the blocks of this one.
        copying.sync(os.path.dirname(self._target))


def _cp_command() -> List[str]:
    told = subprocess.run(["cp", "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    # A clone of extents moves no byte: where cp could make one, it is told not to.
    return ["cp", "-R", *(["--reflink=never"] if b"GNU coreutils" in told.stdout else [])]
