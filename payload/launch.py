"""Holds the ranks of one job on one node: starts them, tells what happens to them, and ends them.

The launcher reads one line of JSON from standard input, the order::

    {"run": id, "job": id, "tag": tag, "argv": [program, ...], "logs": dir,
     "ranks": [{"rank": 0, "env": {...}}, ...], "sampler": {...} or null, "reserve": seconds}

and then commands, a line each: ``{"kill": {"rank": 0, "signal": 9}}`` and ``{"end": seconds}``. Standard output
carries its own events: ``launched``, ``started``, ``exited``, ``ended`` (with what is still alive: an empty list is
the proof of absence). When standard input ends, because the harness or the line to it is gone, it ends all its ranks;
when the launcher itself is killed, the kernel ends them.

A rank's standard output (its events) goes to ``logs/rank-N.events`` and its standard error to ``logs/rank-N.log``:
files, so that a slow reader never holds up a rank that is being measured, and nothing is lost when the reader dies.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from . import procs
from .events import LAUNCHER, SAMPLER, Emitter, take_stdout

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "prctl(%d): %s" % (option, os.strerror(number)))


def _die_with_launcher() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Launcher:
    """The ranks of one order, and the loop that watches over them."""

    def __init__(self, order: Dict[str, Any], emitter: Emitter) -> None:
        self._order = order
        self._emitter = emitter
        self._ranks: Dict[int, subprocess.Popen[bytes]] = {}
        self._running: Dict[int, subprocess.Popen[bytes]] = {}
        self._sampler: Optional[subprocess.Popen[bytes]] = None
        self._reserve = float(order["reserve"])
        self._commands = b""

    def _tell(self, event: str, **fields: Any) -> None:
        try:
            self._emitter.emit(event, **fields)
        except BrokenPipeError:
            pass  # The harness is gone: the end of standard input says so too, and ends the ranks.

    def _open(self, name: str) -> int:
        return os.open(os.path.join(self._order["logs"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _spawn(self, name: str, argv: List[str], env: Dict[str, str], stdin: int) -> "subprocess.Popen[bytes]":
        out, err = self._open(name + ".events"), self._open(name + ".log")
        try:
            return subprocess.Popen(
                argv,
                env=env,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_die_with_launcher,  # noqa: PLW1509  (the launcher has one thread)
            )
        finally:
            os.close(out)
            os.close(err)

    def _start(self) -> None:
        env = dict(os.environ)
        if self._order["sampler"] is not None:
            settings = json.dumps(dict(self._order["sampler"], launcher=os.getpid()))
            argv = [sys.executable, sys.argv[0], "sample", settings]
            self._sampler = self._spawn("sampler", argv, env, subprocess.PIPE)
        for entry in self._order["ranks"]:
            rank = int(entry["rank"])
            child = self._spawn("rank-%d" % rank, self._order["argv"], dict(env, **entry["env"]), subprocess.DEVNULL)
            self._ranks[rank] = self._running[rank] = child
            self._tell("started", rank=rank, pid=child.pid)
            self._tell_sampler("%d %d\n" % (rank, child.pid))

    def _tell_sampler(self, line: str) -> None:
        if self._sampler is None or self._sampler.stdin is None:
            return
        try:
            self._sampler.stdin.write(line.encode())
            self._sampler.stdin.flush()
        except BrokenPipeError:
            self._tell("sampler-lost", code=self._sampler.poll())
            self._sampler = None

    def _reap(self) -> None:
        for rank, child in list(self._running.items()):
            code = child.poll()
            if code is not None:
                del self._running[rank]
                self._tell("exited", rank=rank, code=code)

    def _command(self, command: Dict[str, Any]) -> bool:
        """Obey one command; True when it was the order to end."""
        if "end" in command:
            self._reserve = float(command["end"])
            return True
        rank, number = int(command["kill"]["rank"]), int(command["kill"]["signal"])
        if rank in self._running:
            self._running[rank].send_signal(number)
        return False

    def _listen(self) -> bool:
        """Read what the harness says; True when the job shall end."""
        data = os.read(0, 65536)
        if not data:
            return True
        self._commands += data
        *lines, self._commands = self._commands.split(b"\n")
        asked = [self._command(json.loads(line)) for line in lines]
        return any(asked)

    def watch(self, wake: int) -> None:
        """Start the ranks and watch until all have ended or the harness asks for the end, or is gone."""
        self._start()
        while self._running:
            ready, _, _ = select.select([0, wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if 0 in ready and self._listen():
                break
        self._end()

    def _mine(self) -> List[procs.Process]:
        kept = {os.getpid()} | ({self._sampler.pid} if self._sampler is not None else set())
        return [process for process in procs.tagged(self._order["tag"]) if process.pid not in kept]

    def _sweep(self, deadline: float) -> List[procs.Process]:
        """Kill every process of the job, again and again until none is left or the reserve is spent."""
        left = self._mine()
        while left:
            for process in left:
                procs.kill(process)
            self._reap()
            # Orphaned grandchildren are re-parented to the launcher; reaping them is what makes them vanish.
            for process in left:
                if process.pid not in {child.pid for child in self._ranks.values()}:
                    _reap_orphan(process.pid)
            if time.monotonic() > deadline:
                break
            select.select([], [], [], 0.01)
            left = self._mine()
        return left

    def _end(self) -> None:
        deadline = time.monotonic() + self._reserve
        ranks = {child.pid for child in self._running.values()}
        strays = [procs.describe(process) for process in self._mine() if process.pid not in ranks]
        left = self._sweep(deadline)
        while self._running and time.monotonic() < deadline:
            self._reap()
            select.select([], [], [], 0.01)
        alive = [procs.describe(process) for process in left]
        self._stop_sampler(deadline)
        self._tell("ended", strays=strays[:16], alive=alive[:16])

    def _stop_sampler(self, deadline: float) -> None:
        """Let the sampler take its last sample; kill it where it does not end by itself."""
        sampler = self._sampler
        if sampler is None or sampler.stdin is None:
            return
        try:
            sampler.stdin.close()
        except BrokenPipeError:
            pass  # It has ended already: its exit status tells.
        try:
            code = sampler.wait(timeout=max(0.1, min(2.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            sampler.kill()
            code = sampler.wait()
        self._tell("exited", rank=SAMPLER, code=code)


def _reap_orphan(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # Not re-parented to us yet, or reaped by its own parent.


def main() -> int:
    """Read the order from standard input and carry it out."""
    head = b""
    while not head.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 0  # The harness died before it gave the order.
        head += byte
    order = json.loads(head)
    emitter = take_stdout(order["job"], LAUNCHER)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A write to a harness that is gone must not end the launcher before it has ended its ranks.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    emitter.emit("launched", pid=os.getpid())
    Launcher(order, emitter).watch(wake)
    return 0
