"""What a run started, on disk before it exists, so that a killed run can be cleaned up by exact identity."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import LeakError, UsageError
from seatrial.payload import procs
from seatrial.wait import until

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
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line)
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
            # A kill between write and flush can tear the last line; the job that it names was not started yet.
            account.damage.append(f"{path}:{number}: not a ledger entry ({error})")
    return account


def _enter(account: Account, entry: dict[str, Any]) -> None:
    if entry["do"] == "begin":
        account.run_id, account.host, account.boot = entry["run"], entry["host"], entry["boot"]
        account.harness.append(procs.Process(*entry["harness"]))
    elif entry["do"] == "intend":
        account.open[entry["job"]] = Entry(entry["job"], entry["tag"], Path(entry["scratch"]))
    elif entry["do"] == "gone":
        account.open.pop(entry["job"], None)


def cleanup(folder: Path) -> Iterator[str]:
    """Remove exactly what a killed run left, and say what.

    Yields:
        A line for each thing removed.

    Raises:
        UsageError: the run is still alive, or it ran on another host.
        LeakError: something did not go away.
    """
    account = read(folder)
    yield from account.damage
    if account.host and account.host != socket.gethostname():
        raise UsageError(
            f"{folder}: this run was started on host {account.host!r}, this is {socket.gethostname()!r}; clean up there"
        )
    same_boot = account.boot == boot_id()
    living = [process for process in account.harness if same_boot and procs.alive(process)]
    if living:
        raise UsageError(f"{folder}: the run is still alive ({procs.describe(living[0])}); stop it first (Ctrl-C)")
    ledger = Ledger(folder, account.run_id)
    for entry in list(account.open.values()):
        if same_boot:
            yield from _end(entry)
        if entry.scratch.is_dir():
            shutil.rmtree(entry.scratch)
            yield f"{entry.job}: removed {entry.scratch}"
        ledger.gone(entry.job)


def _end(entry: Entry) -> Iterator[str]:
    removed: dict[procs.Process, str] = {}

    def none_left() -> bool:
        living = list(procs.tagged(entry.tag))
        for process in living:
            removed.setdefault(process, procs.describe(process))
            procs.kill(process)
        return not living

    try:
        until(
            none_left,
            what=f"{entry.job}: its processes to end",
            timeout=20,
            state=lambda: "; ".join(map(procs.describe, procs.tagged(entry.tag))),
        )
    except TimeoutError as error:
        raise LeakError(str(error)) from error
    for text in removed.values():
        yield f"{entry.job}: ended {text}"
