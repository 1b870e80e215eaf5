"""Holds the ranks of one job on one node: starts them, tells what happens to them, and ends them.

The launcher reads one line of JSON from standard input, the order::

    {"run": id, "job": id, "tag": tag, "argv": [program, ...], "logs": dir,
     "ranks": [{"rank": 0, "env": {...}}, ...], "sampler": {...} or null, "reserve": seconds}

and then commands, a line each: ``{"kill": {"rank": 0, "signal": 9}}`` and ``{"end": seconds}``. Standard output
carries its own events: ``launched``, ``started``, ``exited``, ``ended`` (with the strays that the ranks left behind,
and with what is still alive: an empty list is the proof of absence). When standard input ends, because the harness or
the line to it is gone, it ends all its ranks; when the launcher itself is killed, the kernel ends them.

A rank's standard output (its events) goes to ``logs/rank-N.events`` and its standard error to ``logs/rank-N.log``:
files, so that a slow reader never holds up a rank that is being measured, and nothing is lost when the reader dies.
"""

import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List

from . import procs
from .events import LAUNCHER, SAMPLER, Emitter, take_stdout

_TOLD = 16
"""How many processes the last event describes; with more it could be longer than an event may be."""


def _die_with(launcher: int) -> None:
    """In a child before it becomes a rank: the kernel kills it when its launcher dies."""
    procs.die_with_parent()
    if os.getppid() != launcher:
        os._exit(1)  # It died before the kernel knew.


class Launcher:
    """The ranks of one order, and the loop that watches over them."""

    def __init__(self, order: Dict[str, Any], emitter: Emitter) -> None:
        self._order = order
        self._emitter = emitter
        self._children: Dict[int, subprocess.Popen[bytes]] = {}
        self._reserve = float(order["reserve"])
        self._commands = b""

    def watch(self, wake: int) -> None:
        """Start the ranks and watch until all have ended or the harness asks for the end, or is gone."""
        self._start()
        while self._running():
            ready, _, _ = select.select([0, wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if 0 in ready and self._listen():
                break
        self._end()

    def _tell(self, event: str, **fields: Any) -> None:
        try:
            self._emitter.emit(event, **fields)
        except BrokenPipeError:
            pass  # The harness is gone: the end of standard input says so too, and ends the ranks.

    def _running(self) -> List[int]:
        """The pids of the ranks that have not ended."""
        return [child.pid for rank, child in self._children.items() if rank != SAMPLER]

    # The beginning.

    def _start(self) -> None:
        if self._order["sampler"] is not None:
            settings = json.dumps(dict(self._order["sampler"], launcher=os.getpid()))
            self._spawn(SAMPLER, "sampler", [sys.executable, sys.argv[0], "sample", settings], {}, subprocess.PIPE)
        for entry in self._order["ranks"]:
            rank = int(entry["rank"])
            self._spawn(rank, f"rank-{rank}", self._order["argv"], entry["env"], subprocess.DEVNULL)
            self._tell("started", rank=rank, pid=self._children[rank].pid)
            self._tell_sampler(f"{rank} {self._children[rank].pid}\n")

    def _spawn(self, rank: int, name: str, argv: List[str], env: Dict[str, str], stdin: int) -> None:
        out, err = self._open(name + ".events"), self._open(name + ".log")
        try:
            self._children[rank] = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                bufsize=0,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=functools.partial(_die_with, os.getpid()),  # noqa: PLW1509  (the launcher has one thread)
            )
        finally:
            os.close(out)
            os.close(err)

    def _open(self, name: str) -> int:
        return os.open(os.path.join(self._order["logs"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _tell_sampler(self, line: str) -> None:
        sampler = self._children.get(SAMPLER)
        if sampler is None or sampler.stdin is None:
            return
        try:
            sampler.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # It has ended: its exit is told as a rank's is.

    # What happens to the ranks, and what the harness says.

    def _reap(self) -> None:
        """Tell of every child that has ended, and bury the orphans: what a rank leaves behind becomes ours."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            rank = next((rank for rank, child in self._children.items() if child.pid == ended.si_pid), None)
            if rank is None:
                os.waitpid(ended.si_pid, 0)
            else:
                self._tell("exited", rank=rank, code=self._children.pop(rank).wait())

    def _listen(self) -> bool:
        """Read what the harness says; True when the job shall end."""
        data = os.read(0, 65536)
        if not data:
            return True
        self._commands += data
        *lines, self._commands = self._commands.split(b"\n")
        asked = [self._command(json.loads(line)) for line in lines]
        return any(asked)

    def _command(self, command: Dict[str, Any]) -> bool:
        """Obey one command; True when it was the order to end."""
        if "end" in command:
            self._reserve = float(command["end"])
            return True
        child = self._children.get(int(command["kill"]["rank"]))
        if child is not None:
            # A child that has not been reaped keeps its pid.
            os.kill(child.pid, int(command["kill"]["signal"]))
        return False

    # The end.

    def _end(self) -> None:
        deadline = time.monotonic() + self._reserve
        ranks = self._running()
        strays = [procs.describe(process) for process in self._mine() if process.pid not in ranks]
        alive = [procs.describe(process) for process in self._sweep(deadline)]
        self._stop_sampler(deadline)
        self._tell("ended", strays=strays[:_TOLD], alive=alive[:_TOLD])

    def _mine(self) -> List[procs.Process]:
        """Every process of the job: what carries its tag, and what came from a rank and lost it."""
        sampler = self._children.get(SAMPLER)
        kept = {os.getpid(), sampler.pid if sampler is not None else 0}
        found = {*procs.tagged(self._order["tag"]), *procs.descendants(os.getpid())}
        return [process for process in sorted(found) if process.pid not in kept]

    def _sweep(self, deadline: float) -> List[procs.Process]:
        """Kill every process of the job, again and again until none is left or the reserve is spent."""
        while True:
            left = self._mine()
            for process in left:
                procs.kill(process)
            self._reap()
            if not (left or self._running()) or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def _stop_sampler(self, deadline: float) -> None:
        """Let the sampler take its last sample; kill it where it does not end by itself."""
        sampler = self._children.get(SAMPLER)
        if sampler is None or sampler.stdin is None:
            return
        sampler.stdin.close()
        try:
            sampler.wait(timeout=max(0.1, min(2.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            sampler.kill()
        self._tell("exited", rank=SAMPLER, code=sampler.wait())


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
    procs.adopt_orphans()
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
