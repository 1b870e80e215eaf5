"""What of a file lies in this node's page cache: shown by mincore, emptied by posix_fadvise, filled by reading.

A copy is called cold only when the pages of its source were shown to be absent, and warm when shown to be present. What
a file server holds in a cache of its own is not seen here.
"""

import ctypes
import mmap
import os
from typing import Callable, Iterable, NamedTuple, Optional

from .datasets import BLOCK

_WINDOW = 1 << 30
"""So much of a file is looked at in one call, for a vector of a byte a page."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


class Residency(NamedTuple):
    """How many pages of some files are in memory, of how many; ``why`` says why that could not be seen."""

    resident: int
    pages: int
    why: str = ""

    @property
    def share(self) -> Optional[float]:
        """The share that is in memory; None where it could not be seen."""
        return None if self.why or not self.pages else self.resident / self.pages


def evict(paths: Iterable[str]) -> None:
    """Ask the kernel to drop the pages of these files; what is not on disk yet is written first.

    Raises:
        OSError: a file cannot be opened or written out.
    """
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def warm(paths: Iterable[str], tell: Callable[[int], None]) -> None:
    """Read these files, so that their pages are in memory.

    Raises:
        OSError: a file cannot be read.
    """
    block = bytearray(BLOCK)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while True:
                count = file.readinto(block)
                if not count:
                    break
                tell(count)


def residency(paths: Iterable[str]) -> Residency:
    """How much of these files is in memory.

    Raises:
        OSError: a file cannot be opened or mapped.
    """
    resident = pages = 0
    for path in paths:
        if not _told_truly(path):
            # For a file of somebody else the kernel answers that every page is there, whatever is true.
            return Residency(0, 0, f"mincore tells only of one's own files, and {path} is another user's")
        seen = _pages(path)
        resident, pages = resident + seen.resident, pages + seen.pages
    return Residency(resident, pages)


def _told_truly(path: str) -> bool:
    return os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)


def _pages(path: str) -> Residency:
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        parts = [_window(file, at, min(_WINDOW, size - at)) for at in range(0, size, _WINDOW)]
    finally:
        os.close(file)
    return Residency(sum(part.resident for part in parts), sum(part.pages for part in parts))


def _window(file: int, at: int, length: int) -> Residency:
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, at)
    if address == _FAILED:
        raise _error("mmap")
    try:
        pages = -(-length // mmap.PAGESIZE)
        vector = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, length, vector) != 0:
            raise _error("mincore")
        # Only the lowest bit of each byte has a meaning.
        return Residency(sum(flags & 1 for flags in vector.raw[:pages]), pages)
    finally:
        _libc.munmap(address, length)


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
