"""Processes by exact identity: a pid and its start time, or a tag in the environment; never a name or a pattern."""

import ctypes
import errno
import os
import signal
from typing import Dict, Iterator, List, NamedTuple, Optional

TAG = "SEATRIAL_TAG"
"""The environment variable whose exact value marks every process of one job."""

_DESCRIPTION_CHARACTERS = 200

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid: ``start`` is in clock ticks since boot."""

    pid: int
    start: int


def _read(pid: int, name: str) -> bytes:
    """A file of a process in /proc; empty where the process is gone, or not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Another user's process cannot be one of ours: a job's processes run as its harness does.
        return b""


def _stat(pid: int) -> List[bytes]:
    """The fields of a living process's stat file from the state on; empty where it is gone or waits to be reaped."""
    stat = _read(pid, "stat")
    fields = stat[stat.rfind(b")") + 1 :].split()
    return [] if fields[:1] in ([], [b"Z"], [b"X"]) else fields


def _pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def identify(pid: int) -> Optional[Process]:
    """The identity of a living process; None where it is gone or only waits to be reaped."""
    fields = _stat(pid)
    return Process(pid, int(fields[19])) if fields else None


def alive(process: Process) -> bool:
    """Whether this very process still lives."""
    return identify(process.pid) == process


def tags() -> Iterator["tuple[Process, str]"]:
    """All living processes that carry a tag, with it."""
    mark = f"{TAG}=".encode()
    for pid in _pids():
        for entry in _read(pid, "environ").split(b"\0"):
            process = identify(pid) if entry.startswith(mark) else None
            if process is not None:
                yield process, entry[len(mark) :].decode(errors="replace")


def tagged(tag: str) -> List[Process]:
    """All living processes whose environment holds exactly this tag."""
    return [process for process, found in tags() if found == tag]


def descendants(pid: int) -> List[Process]:
    """All living processes below one, as the kernel has them now: children, their children, and so on."""
    children: Dict[int, List[Process]] = {}
    for child in _pids():
        fields = _stat(child)
        if fields:
            children.setdefault(int(fields[1]), []).append(Process(child, int(fields[19])))
    found = list(children.get(pid, ()))
    for process in found:
        found += [child for child in children.get(process.pid, ()) if child not in found]
    return found


def kill(process: Process, number: int = signal.SIGKILL) -> bool:
    """Send a signal to exactly this process; False where it is gone, or not ours to signal."""
    handle = _hold(process.pid)
    try:
        # The handle holds the pid in place, so the start time that is read now belongs to what gets the signal.
        if not alive(process):
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _hold(pid: int) -> Optional[int]:
    """A descriptor of a process; None where there is none: before Python 3.9 or Linux 5.3, in a strict container."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.ENOSYS, errno.EPERM):
            raise
        return None


def describe(process: Process) -> str:
    """One line that tells which process this is."""
    words = [word.decode(errors="replace") for word in _read(process.pid, "cmdline").split(b"\0")[:3]]
    what = " ".join(words).strip()[:_DESCRIPTION_CHARACTERS] or "gone"
    return f"pid {process.pid} (started at tick {process.start}): {what}"
