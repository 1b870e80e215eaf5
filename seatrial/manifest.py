"""Writes the manifest of a data set: path, size and SHA-256 of every file, a line each."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from seatrial.errors import SeatrialError, UsageError
from seatrial.payload import datasets
from seatrial.payload.datasets import Entry
from seatrial.quantity import format_bytes, format_rate

STREAMS = 4
"""Files that are read at once; more gain nothing where a core hashes about as fast as a disk reads."""
PLAIN_PERIOD, LIVE_PERIOD = 10.0, 0.2
"""Seconds between two lines of progress: into a file, and in a terminal, where a line replaces the one before."""


@dataclass(frozen=True)
class Written:
    """What was written; ``others`` are links and special files, which no manifest holds."""

    path: Path
    files: int
    bytes: int
    others: Sequence[str]


class Progress:
    """Says how far the reading has come; any thread may add to it.

    Args:
        stream: where it goes.
        files: how many there are.
        total: their bytes.
    """

    def __init__(self, stream: TextIO, files: int, total: int) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._total = total
        self._files = files
        self._done = 0
        self._begin = time.monotonic()
        self._next = self._begin + (LIVE_PERIOD if self._live else PLAIN_PERIOD)
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Add bytes; tells of them where a period is over."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now >= self._next:
                self._next = now + (LIVE_PERIOD if self._live else PLAIN_PERIOD)
                self._tell(now, "\r" if self._live else "\n")

    def end(self) -> None:
        """Tell of the whole."""
        self._tell(time.monotonic(), "\n")

    def _tell(self, now: float, end: str) -> None:
        rate = format_rate(self._done / max(1e-6, now - self._begin))
        share = f"{format_bytes(self._done)} of {format_bytes(self._total)}"
        self._stream.write(f"{self._files} files: {share} read, {rate}".ljust(72) + end)
        self._stream.flush()


def write(folder: Path, out: Path | None = None, stream: TextIO | None = None) -> Written:
    """Read every file of a data set and write its manifest, which is replaced at once.

    Args:
        folder: the data set.
        out: the manifest; by default ``NAME.manifest`` beside the folder, where a profile's ``datasets`` look for it.
        stream: where progress goes; by default standard error.

    Raises:
        UsageError: the folder is none.
        SeatrialError: files could not be read, or changed while they were; each is named, and nothing was written.
        OSError: the manifest cannot be written.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder, observed {'a file' if folder.exists() else 'nothing'}")
    root = folder.resolve()
    path = out if out is not None else root.with_name(f"{root.name}.manifest")
    found = datasets.walk(str(root))
    own = {os.path.relpath(path.resolve(), root), os.path.relpath(_fresh(path).resolve(), root)}
    files = [(name, size) for name, size in found.files if name not in own]
    progress = Progress(stream if stream is not None else sys.stderr, len(files), sum(size for _, size in files))
    entries = _entries(str(root), [name for name, _ in files], progress)
    progress.end()
    _save(path, entries)
    return Written(path, len(entries), sum(entry.size for entry in entries), found.others)


def _entries(root: str, names: Sequence[str], tell: Callable[[int], None]) -> list[Entry]:
    errors: list[str] = []
    entries: list[Entry] = []
    with ThreadPoolExecutor(STREAMS) as pool:
        for entry in pool.map(lambda name: _entry(root, name, tell), names):
            if isinstance(entry, str):
                errors.append(entry)
            else:
                entries.append(entry)
    if errors:
        more = f"\n  and {len(errors) - 10} more" if len(errors) > 10 else ""
        listed = "".join(f"\n  {error}" for error in errors[:10])
        raise SeatrialError(f"{root}: {len(errors)} files are in no manifest, so none was written:{listed}{more}")
    return entries


def _entry(root: str, name: str, tell: Callable[[int], None]) -> Entry | str:
    """A file's entry, or why there is none."""
    path, shown = os.path.join(root, name), datasets.escaped(name)
    try:
        before = os.stat(path)
        digest = datasets.digest_of(path, tell)
        after = os.stat(path)
    except OSError as error:
        return f"{shown}: {error.strerror}"
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        return f"{shown}: changed while it was read; make the manifest when nothing writes to the data set"
    return Entry(name, after.st_size, digest)


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.writing")


def _save(path: Path, entries: Sequence[Entry]) -> None:
    fresh = _fresh(path)
    with fresh.open("w", encoding="utf-8") as file:
        file.write(datasets.HEAD + "\n")
        file.writelines(datasets.line(entry) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
