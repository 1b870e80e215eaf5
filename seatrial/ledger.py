"""What a run started, on disk before it exists, so that a killed run can be cleaned up by exact identity."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import LeakError, UsageError
from seatrial.payload import procs, scratch
from seatrial.sweep import sweep

FILE = "ledger.jsonl"


def boot_id() -> str:
    """The kernel's name for this boot: pids and start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Ledger:
    """Appends to a run's ledger; each entry is on disk when the call returns. Safe across processes."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.run_id = run_id
        self._path = folder / FILE

    def _append(self, **entry: Any) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            # Where a killed process has left half a line, this entry must not become its other half.
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, b"\n" + line if is_torn else line)
            os.fsync(handle)
        finally:
            os.close(handle)

    def begin(self) -> None:
        """Enter this harness process."""
        me = procs.identify(os.getpid())
        assert me is not None
        self._append(do="begin", run=self.run_id, harness=me, host=socket.gethostname(), boot=boot_id())

    def intend(self, job: str, tag: str, scratch: Path) -> None:
        """Enter a job that is about to exist."""
        self._append(do="intend", job=job, tag=tag, scratch=str(scratch))

    def gone(self, job: str) -> None:
        """Enter the proven absence of a job."""
        self._append(do="gone", job=job)


@dataclass(frozen=True)
class Entry:
    """A job that was started and whose absence was never entered."""

    job: str
    tag: str
    scratch: Path


@dataclass
class Account:
    """A ledger as read: who ran, what is open, what is damaged."""

    run_id: str = ""
    host: str = ""
    boot: str = ""
    harness: list[procs.Process] = field(default_factory=list)
    open: dict[str, Entry] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)


def read(folder: Path) -> Account:
    """Read a run's ledger.

    Raises:
        UsageError: there is none.
    """
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"{path}: no ledger there; expected a run directory, such as runs/ID")
    account = Account()
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            _enter(account, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            # A kill in the middle of a write tears a line; the job that it names was not started yet.
            account.damage.append(f"{path}:{number}: not a ledger entry: {error!r}")
    return account


def _enter(account: Account, entry: dict[str, Any]) -> None:
    if entry["do"] == "begin":
        account.run_id, account.host, account.boot = entry["run"], entry["host"], entry["boot"]
        account.harness.append(procs.Process(*entry["harness"]))
    elif entry["do"] == "intend":
        account.open[entry["job"]] = Entry(entry["job"], entry["tag"], Path(entry["scratch"]))
    elif entry["do"] == "gone":
        account.open.pop(entry["job"], None)
    else:
        raise ValueError(f"it does {entry['do']!r}")


def cleanup(folder: Path) -> Iterator[str]:
    """Remove exactly what a killed run left, and say what.

    Yields:
        A line for each thing removed.

    Raises:
        UsageError: the run is still alive, it ran on another host, or its ledger does not say so.
        LeakError: something did not go away.
    """
    account = read(folder)
    if not account.harness and not account.open:
        if account.damage:
            raise LeakError(f"{folder / FILE}: damaged, it cannot tell what was left; look for the run's tags yourself")
        return  # Killed before it had begun.
    same_boot = account.boot == boot_id()
    _refuse(folder, account, same_boot)
    if same_boot:
        yield from _end_processes(account)
    ledger = Ledger(folder, account.run_id)
    for entry in account.open.values():
        if entry.scratch.is_dir():
            _refuse_folder(folder, entry, account.run_id)
            _remove(entry)
            yield f"{entry.job}: removed {entry.scratch}"
        ledger.gone(entry.job)


def _refuse(folder: Path, account: Account, same_boot: bool) -> None:
    """Refuse a run that this process must not touch."""
    here = socket.gethostname()
    if not account.harness:
        raise UsageError(f"{folder / FILE}: no entry says who ran it; nothing is removed of a run that may be alive")
    if account.host != here:
        raise UsageError(f"{folder}: this run was started on host {account.host!r}, this is {here!r}; clean up there")
    living = [process for process in account.harness if same_boot and procs.alive(process)]
    if living:
        raise UsageError(f"{folder}: the run is still alive ({procs.describe(living[0])}); stop it first (Ctrl-C)")


def _end_processes(account: Account) -> Iterator[str]:
    """End what carries a tag of an open job, or another tag of this very run, such as a command run on a node."""
    tags = {entry.tag for entry in account.open.values()}
    tags |= {tag for _, tag in procs.tags() if tag.startswith(f"{account.run_id}/")}
    for tag in sorted(tags):
        ended, left = sweep(tag, seconds=20)
        yield from (f"{tag}: ended {text}" for text in ended)
        if left:
            raise LeakError(f"{tag}: still alive after 20 s: {'; '.join(left)}")


def _refuse_folder(folder: Path, entry: Entry, run_id: str) -> None:
    """Refuse to remove what no run makes: a ledger is a file that others can write to."""
    if not entry.scratch.is_absolute() or not entry.scratch.name.startswith(f"seatrial-{run_id}-"):
        expected = f"a folder named seatrial-{run_id}-..."
        raise UsageError(f"{folder / FILE}: {entry.job}: expected {expected}, observed {entry.scratch}; not removed")


def _remove(entry: Entry) -> None:
    try:
        scratch.remove(str(entry.scratch))
    except OSError as error:
        raise LeakError(f"{entry.job}: {entry.scratch} cannot be removed: {error}") from error
