"""Copies a data set onto this node with several streams, so that it survives being killed at any moment.

A file is written under another name in a folder beside the target, made durable, and only then renamed: under its final
name it is whole or absent. A journal says which files are whole, so that a second run copies only what is missing.
"""

import ctypes
import errno
import json
import os
import queue
import shutil
import threading
import time
from array import array
from typing import Callable, Dict, List, NamedTuple, Protocol, Sequence, Tuple

from .datasets import BLOCK, Entry, digest_of, escaped, unescaped

PART_BYTES = 64 << 20
"""A larger file is copied in parts, so that several streams share it."""
BATCH_FILES, BATCH_BYTES = 32, 4 << 20
"""So much is written by a stream before it is made durable at once: small files share the disk's journal commits."""
FAILURES = 100
"""With so many files that cannot be read, the source is gone, and the copy ends."""

_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]


class Reader(Protocol):
    """An open file of a source."""

    size: int

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on; returns how many bytes were read, 0 at the end."""

    def close(self) -> None:
        """Release it."""


class Source(Protocol):
    """Where a data set comes from; ``block`` is how many bytes a request should ask for."""

    block: int

    def open(self, path: str) -> Reader:
        """Open a file by its path in the data set.

        Raises:
            OSError: it cannot be opened.
        """


class FolderReader:
    """A file below a folder."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._file).st_size

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on."""
        return os.preadv(self._file, [buffer], offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Folder:
    """A data set below a folder."""

    block = BLOCK

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, path: str) -> FolderReader:
        """Open a file of the data set."""
        return FolderReader(os.path.join(self._root, path))


class Report(NamedTuple):
    """What a copy did.

    ``latencies`` are seconds a file, from its first byte until it stands under its final name. ``failures`` says of
    each file that could not be copied why; ``stopped`` why the copy ended before its end.
    """

    copied_files: int
    copied_bytes: int
    kept_files: int
    seconds: float
    latencies: "array[float]"
    slowest: str
    failures: Dict[str, str]
    stopped: str


class _File:
    """A file on its way: its descriptor, and how many parts are still to come."""

    def __init__(self, entry: Entry, number: int, staging: str) -> None:
        self.entry = entry
        self.temporary = os.path.join(staging, f"{number}.part")
        self.parts = max(1, -(-entry.size // PART_BYTES))
        self.left = self.parts
        self.handle = -1
        self.began = 0.0
        self.failed = False
        self.lock = threading.Lock()

    def open(self) -> int:
        """The descriptor that its bytes go to, opened by the first stream that comes."""
        with self.lock:
            if self.handle < 0:
                self.began = time.perf_counter()
                self.handle = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            return self.handle

    def close(self) -> None:
        """Close the descriptor, where there is one."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def end_part(self) -> bool:
        """Whether that was the last part."""
        with self.lock:
            self.left -= 1
            return self.left == 0


class _Part(NamedTuple):
    file: _File
    offset: int
    length: int


class _TargetError(Exception):
    """The target cannot take what is written to it: no file can be copied any more."""


def staging_folder(target: str) -> str:
    """Where a target's journal and half files are: beside it, on the same file system."""
    return target.rstrip("/") + ".staging"


class Copier:
    """One copy of a data set.

    Args:
        source: where it comes from.
        target: the folder that it goes to.
        entries: its manifest.
        streams: how many threads copy at once.
        moved: is told of the bytes of each block, by any stream.
        whole: is told of each file that now stands under its final name.
    """

    def __init__(
        self,
        source: Source,
        target: str,
        entries: Sequence[Entry],
        streams: int,
        moved: Callable[[int], None] = lambda _: None,
        whole: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._entries = entries
        self._streams = streams
        self._moved = moved
        self._whole = whole
        self._staging = staging_folder(target)
        self._parts: queue.SimpleQueue[_Part] = queue.SimpleQueue()
        self._files: List[_File] = []
        self._lock = threading.Lock()
        self._latencies = array("d")
        self._slowest: Tuple[float, str] = (0.0, "")
        self._failures: Dict[str, str] = {}
        self._stopped = ""
        self._bytes = 0
        self._journal = -1

    def run(self) -> Report:
        """Copy what is missing.

        Raises:
            OSError: the target's folders cannot be made.
        """
        begin = time.perf_counter()
        wanted = self._prepare()
        self._journal = os.open(self._journal_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(self._journal, b"\n")  # A line that a kill cut stays a line of its own.
            self._plan(wanted)
            self._run_streams()
            self._sync_names(wanted)
        finally:
            os.close(self._journal)
            for file in self._files:
                file.close()
        return Report(
            copied_files=len(self._latencies),
            copied_bytes=self._bytes,
            kept_files=len(self._entries) - len(wanted),
            seconds=time.perf_counter() - begin,
            latencies=self._latencies,
            slowest=f"{escaped(self._slowest[1])}: {self._slowest[0]:.3f} s" if self._latencies else "",
            failures=self._failures,
            stopped=self._stopped,
        )

    def _sync_names(self, wanted: Sequence[Entry]) -> None:
        """Make the names of the files durable, as their contents are."""
        try:
            for folder in sorted({os.path.dirname(os.path.join(self._target, entry.path)) for entry in wanted}):
                sync(folder)
        except OSError as error:
            self._stopped = self._stopped or _told(error, "a folder's names")

    # What is to be done.

    def _journal_path(self) -> str:
        return os.path.join(self._staging, "journal")

    def _prepare(self) -> List[Entry]:
        """Make the folders, drop the half files of an earlier run, and tell what is not whole yet."""
        os.makedirs(self._staging, exist_ok=True)
        for name in os.listdir(self._staging):
            if name.endswith(".part"):
                os.unlink(os.path.join(self._staging, name))
        known = _read_journal(self._journal_path())
        wanted = [entry for entry in self._entries if not self._is_whole(entry, known)]
        for folder in {os.path.dirname(entry.path) for entry in wanted}:
            os.makedirs(os.path.join(self._target, folder), exist_ok=True)
        return wanted

    def _is_whole(self, entry: Entry, known: Dict[str, List[int]]) -> bool:
        path = os.path.join(self._target, entry.path)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        if found.st_size != entry.size:
            return False
        # Between the rename and the journal's line a kill leaves a whole file that only its digest can prove.
        return known.get(entry.path) == stamp(found) or digest_of(path) == entry.digest

    def _plan(self, wanted: Sequence[Entry]) -> None:
        """Cut the files into parts, the largest first: a large one that begins last would run alone."""
        for number, entry in enumerate(sorted(wanted, key=lambda entry: (-entry.size, entry.path))):
            file = _File(entry, number, self._staging)
            self._files.append(file)
            for part in range(file.parts):
                offset = part * PART_BYTES
                self._parts.put(_Part(file, offset, min(PART_BYTES, entry.size - offset)))

    # The streams.

    def _run_streams(self) -> None:
        threads = [threading.Thread(target=self._stream, name=f"stream-{at}") for at in range(self._streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _stream(self) -> None:
        buffer = memoryview(bytearray(self._source.block))
        written: List[_File] = []
        try:
            while not self._stopped:
                try:
                    part = self._parts.get_nowait()
                except queue.Empty:
                    break
                if self._copy_part(part, buffer):
                    written.append(part.file)
                if len(written) >= BATCH_FILES or sum(file.entry.size for file in written) >= BATCH_BYTES:
                    self._settle(written)
            self._settle(written)
        except _TargetError as error:
            self._stopped = str(error)

    def _copy_part(self, part: _Part, buffer: memoryview) -> bool:
        """Copy one part; returns whether its file is now written."""
        file = part.file
        try:
            handle = file.open()
        except OSError as error:
            raise _TargetError(_told(error, file.entry.path)) from error
        try:
            why = self._pour(part, handle, buffer)
        except OSError as error:
            raise _TargetError(_told(error, file.entry.path)) from error
        if why:
            self._fail(file, why)
        last = file.end_part()
        if last and file.failed:
            file.close()
            os.unlink(file.temporary)
        return last and not file.failed

    def _pour(self, part: _Part, handle: int, buffer: memoryview) -> str:
        """Move the bytes of a part; returns why the source could not give them.

        Raises:
            OSError: the target could not take them.
        """
        path = part.file.entry.path
        try:
            reader = self._source.open(path)
        except OSError as error:
            return f"source: {error.strerror}"
        try:
            if reader.size != part.file.entry.size:
                return f"source: has {reader.size} bytes, the manifest {part.file.entry.size}"
            done = 0
            while done < part.length:
                try:
                    count = reader.readinto(buffer[: part.length - done], part.offset + done)
                except OSError as error:
                    return f"source: {error.strerror} at byte {part.offset + done}"
                if not count:
                    return f"source: ended at byte {part.offset + done} of {part.file.entry.size}"
                _write(handle, buffer[:count], part.offset + done)
                done += count
                self._moved(count)
        finally:
            reader.close()
        # The disk writes while the next bytes are read; this is a hint, and the fsync below is the promise.
        _libc.sync_file_range(handle, part.offset, part.length, _SYNC_FILE_RANGE_WRITE)
        return ""

    def _fail(self, file: _File, why: str) -> None:
        with self._lock:
            file.failed = True
            self._failures.setdefault(file.entry.path, why)
            if len(self._failures) >= FAILURES:
                self._stopped = f"{FAILURES} files could not be read"

    def _settle(self, written: List[_File]) -> None:
        """Make files durable and give them their final names, then say so in the journal."""
        lines = []
        while written:
            file = written[-1]
            final = os.path.join(self._target, file.entry.path)
            try:
                os.fsync(file.handle)
                os.rename(file.temporary, final)
                lines.append(_journal_line(file.entry.path, os.fstat(file.handle)))
            except OSError as error:
                raise _TargetError(_told(error, file.entry.path)) from error
            written.pop().close()
            self._count(file)
        try:
            os.write(self._journal, b"".join(lines))
        except OSError as error:
            raise _TargetError(_told(error, "the journal")) from error

    def _count(self, file: _File) -> None:
        seconds = time.perf_counter() - file.began
        with self._lock:
            self._latencies.append(seconds)
            self._bytes += file.entry.size
            self._slowest = max(self._slowest, (seconds, file.entry.path))
        self._whole(file.entry)


def _write(handle: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(handle, data, offset)
        data, offset = data[count:], offset + count


def _told(error: OSError, path: str) -> str:
    name = errno.errorcode.get(error.errno or 0, "?")
    return f"{escaped(path)}: {os.strerror(error.errno or 0)} ({name})"


def sync(path: str) -> None:
    """Make a file, or the names in a folder, durable.

    Raises:
        OSError: it cannot be opened or written out.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# The journal: a line a file that is whole, with what tells it from another file of that name.


def stamp(found: os.stat_result) -> List[int]:
    """What tells a file from another one of the same name."""
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _journal_line(path: str, found: os.stat_result) -> bytes:
    return json.dumps([escaped(path), stamp(found)]).encode() + b"\n"


def _read_journal(path: str) -> Dict[str, List[int]]:
    """The files that the journal calls whole; a line that a kill cut says nothing."""
    known: Dict[str, List[int]] = {}
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return known
    for line in lines:
        try:
            name, stamp = json.loads(line)
        except ValueError:
            continue  # Cut by a kill, or empty: the file's digest decides.
        known[unescaped(name)] = stamp
    return known


def discard(target: str) -> None:
    """Remove a copy with its journal and half files, where they are.

    Raises:
        OSError: something cannot be removed.
    """
    for folder in (target, staging_folder(target)):
        if os.path.isdir(folder):
            shutil.rmtree(folder)
