"""Processes by exact identity: a pid and its start time, or a tag in the environment; never a name or a pattern."""

import os
import signal
from typing import Iterator, List, NamedTuple, Optional

TAG = "SEATRIAL_TAG"
"""The environment variable whose exact value marks every process of one job."""


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid: ``start`` is in clock ticks since boot."""

    pid: int
    start: int


def identify(pid: int) -> Optional[Process]:
    """The identity of a living process; None where it is gone or only waits to be reaped."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    state, start = fields[0], int(fields[19])
    return None if state in (b"Z", b"X") else Process(pid, start)


def alive(process: Process) -> bool:
    """Whether this very process still lives."""
    return identify(process.pid) == process


def environment(pid: int) -> bytes:
    """The environment of a process as the kernel holds it; empty where it is gone or not ours to read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Another user's process cannot be one of ours: a job's processes run as its harness does.
        return b""


def tagged(tag: str) -> Iterator[Process]:
    """All living processes whose environment holds exactly this tag."""
    wanted = ("%s=%s" % (TAG, tag)).encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and wanted in environment(int(name)).split(b"\0"):
            process = identify(int(name))
            if process is not None:
                yield process


def kill(process: Process, number: int = signal.SIGKILL) -> bool:
    """Send a signal to exactly this process; False where it is gone."""
    if not hasattr(os, "pidfd_open"):
        if not alive(process):
            return False
        os.kill(process.pid, number)
        return True
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle holds the pid in place, so the start time that is read now belongs to what gets the signal.
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def describe(process: Process) -> str:
    """One line that tells which process this is."""
    try:
        with open("/proc/%d/cmdline" % process.pid, "rb") as file:
            words: List[str] = [word.decode(errors="replace") for word in file.read().split(b"\0")[:3]]
    except (FileNotFoundError, ProcessLookupError):
        words = ["gone"]
    return "pid %d (started at tick %d): %s" % (process.pid, process.start, " ".join(words).strip())
