"""The launcher, with real processes: what it tells of its ranks, and that nothing of a job outlives it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial import shipping
from seatrial.job import Event
from seatrial.parse.events import EventReader
from seatrial.payload import procs
from seatrial.payload.events import LAUNCHER, SAMPLER
from seatrial.wait import until

SLEEP = "import time; time.sleep(60)"

ORPHAN = """
    import os, subprocess, sys
    child = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    env = {} if os.environ.get("FORGET_TAG") else None
    orphan = subprocess.Popen(child, start_new_session=True, stdout=subprocess.PIPE, env=env)
    orphan.stdout.readline()
    print("orphan", orphan.pid, flush=True)
"""
"""Leaves behind a process in a session of its own, and says its pid."""


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("payload") / shipping.NAME
    shipping.pack(path)
    return path


class Launched:
    """A launcher that was given an order, seen from the harness's side."""

    def __init__(
        self, payload: Path, logs: Path, script: str, ranks: int, sampler: dict[str, Any] | None = None, **env: str
    ) -> None:
        self.logs = logs
        self.tag = f"contract/{secrets.token_hex(4)}"
        self.events: list[Event] = []
        self._reader = EventReader("job-1", LAUNCHER)
        self._process = subprocess.Popen(
            [sys.executable, str(payload), "launch"],
            env={**os.environ, **env, procs.TAG: self.tag, "SEATRIAL_JOB": "job-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.send(
            run="contract",
            job="job-1",
            tag=self.tag,
            argv=[sys.executable, "-c", textwrap.dedent(script)],
            logs=str(logs),
            ranks=[{"rank": rank, "env": {"RANK": str(rank)}} for rank in range(ranks)],
            sampler=sampler,
            reserve=10.0,
        )

    def send(self, **words: Any) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")

    def hang_up(self) -> None:
        """What happens to the pipes when the harness dies."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def kill(self) -> None:
        """End the launcher itself, at once."""
        self._process.kill()

    def told(self, name: str, count: int = 1) -> list[Event]:
        """The events of this name, once there are so many."""

        def enough() -> list[Event] | None:
            assert self._process.stdout is not None
            self.events += self._reader.feed(self._process.stdout.read() or b"")
            found = [event for event in self.events if event.name == name]
            return found if len(found) >= count else None

        return until(enough, what=f"{count} x {name}", timeout=20, state=lambda: str([e.name for e in self.events]))

    def ended(self) -> Event:
        """Its last event, once it is gone."""
        (event,) = self.told("ended")
        assert self.status() == 0
        assert self._reader.faults == []
        return event

    def status(self) -> int:
        """Its exit status, once it is gone."""
        return self._process.wait(timeout=20)

    def exits(self) -> dict[int, int]:
        """The exit codes that it told."""
        return {e.fields["rank"]: e.fields["code"] for e in self.events if e.name == "exited"}

    def living(self) -> list[procs.Process]:
        """What carries the job's tag, without the launcher."""
        return [process for process in procs.tagged(self.tag) if process.pid != self._process.pid]

    def orphans(self, count: int = 1) -> list[int]:
        """The pids that ORPHAN said on so many ranks."""

        def said() -> list[int] | None:
            texts = [path.read_text() for path in sorted(self.logs.glob("rank-*.events"))]
            pids = [int(text.split()[1]) for text in texts if text.endswith("\n")]
            return pids if len(pids) == count else None

        return until(said, what=f"{count} orphans", timeout=20, state=lambda: str(list(self.logs.iterdir())))

    def vanish(self) -> None:
        """Wait until nothing carries the tag."""
        until(lambda: not procs.tagged(self.tag), what="the job to vanish", timeout=5, state=lambda: str(self.living()))

    def close(self) -> None:
        """End all of it, whatever a test has left."""
        self.kill()
        self.status()
        self.hang_up()
        for process in procs.tagged(self.tag):
            procs.kill(process)


Launch = Callable[..., Launched]


@pytest.fixture
def launch(payload: Path, tmp_path: Path) -> Iterator[Launch]:
    launched: list[Launched] = []

    def launch(script: str, ranks: int = 2, **more: Any) -> Launched:
        launched.append(Launched(payload, tmp_path, script, ranks, **more))
        return launched[-1]

    yield launch
    for one in launched:
        one.close()


# What it tells.


def test_it_tells_of_every_rank_and_ends_by_itself(launch: Launch) -> None:
    job = launch("import os, sys; print('rank', os.environ['RANK']); sys.exit(int(os.environ['RANK']) * 3)")
    ended = job.ended()
    assert ended.fields == {"strays": [], "alive": []}
    assert [event.name for event in job.events][:3] == ["launched", "started", "started"]
    assert job.exits() == {0: 0, 1: 3}
    assert [(job.logs / f"rank-{rank}.events").read_text() for rank in (0, 1)] == ["rank 0\n", "rank 1\n"]


def test_what_a_rank_prints_elsewhere_is_its_log(launch: Launch) -> None:
    job = launch("import sys; sys.stderr.write('warning')", ranks=1)
    job.ended()
    assert (job.logs / "rank-0.log").read_text() == "warning"


def test_a_death_is_told_within_a_second_and_leaves_the_others_running(launch: Launch) -> None:
    job = launch(SLEEP)
    pids = {event.fields["rank"]: event.fields["pid"] for event in job.told("started", 2)}
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    job.told("exited")
    assert time.monotonic() - killed < 1.0
    assert job.exits() == {1: -signal.SIGKILL}
    assert [process.pid for process in job.living()] == [pids[0]]


def test_it_signals_one_rank(launch: Launch) -> None:
    job = launch(SLEEP)
    job.told("started", 2)
    job.send(kill={"rank": 1, "signal": int(signal.SIGTERM)})
    job.told("exited")
    assert job.exits() == {1: -signal.SIGTERM}


def test_a_signal_to_a_rank_that_has_ended_harms_nobody(launch: Launch) -> None:
    job = launch("import os, time; time.sleep(60 * (os.environ['RANK'] == '0'))")
    job.told("exited")
    job.send(kill={"rank": 1, "signal": int(signal.SIGKILL)})
    job.send(end=10)
    assert job.ended().fields["alive"] == []
    assert job.exits() == {1: 0, 0: -signal.SIGKILL}


# Nothing outlives a job.


def test_the_order_to_end_ends_all_ranks_and_their_grandchildren(launch: Launch) -> None:
    job = launch(ORPHAN + "    import time; time.sleep(60)")
    job.orphans(2)
    assert len(job.living()) == 4
    job.send(end=10)
    assert job.ended().fields["alive"] == []
    assert procs.tagged(job.tag) == []


@pytest.mark.parametrize("forget_tag", ["", "1"])
def test_a_stray_after_a_clean_end_is_ended_and_told(launch: Launch, forget_tag: str) -> None:
    job = launch(ORPHAN, ranks=1, FORGET_TAG=forget_tag)
    ended = job.ended()
    (stray,) = ended.fields["strays"]
    (pid,) = job.orphans()
    assert stray.startswith(f"pid {pid} ")
    assert ended.fields["alive"] == []
    assert job.exits() == {0: 0}
    assert procs.identify(pid) is None


def test_what_carries_the_tag_is_ended_wherever_it_came_from(launch: Launch) -> None:
    job = launch(SLEEP, ranks=1)
    job.told("started")
    with subprocess.Popen([sys.executable, "-c", SLEEP], env={procs.TAG: job.tag}) as foreign:
        try:
            job.send(end=10)
            (stray,) = job.ended().fields["strays"]
            assert stray.startswith(f"pid {foreign.pid} ")
            assert foreign.wait(timeout=5) == -signal.SIGKILL
        finally:
            foreign.kill()


def test_a_rank_that_ignores_signals_is_ended_too(launch: Launch) -> None:
    job = launch("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)")
    job.told("started", 2)
    job.send(kill={"rank": 0, "signal": int(signal.SIGSTOP)})
    job.send(end=10)
    assert job.ended().fields["alive"] == []
    assert job.exits() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}


def test_when_the_harness_dies_everything_ends(launch: Launch) -> None:
    job = launch(ORPHAN + "    import time; time.sleep(60)")
    job.orphans(2)
    job.hang_up()
    job.vanish()
    assert job.status() == 0


def test_when_the_launcher_is_killed_its_ranks_die(launch: Launch) -> None:
    job = launch(SLEEP)
    job.told("started", 2)
    assert len(job.living()) == 2
    job.kill()
    job.vanish()


def test_a_launcher_without_an_order_just_ends(payload: Path) -> None:
    done = subprocess.run([sys.executable, str(payload), "launch"], stdin=subprocess.DEVNULL, timeout=20, check=False)
    assert done.returncode == 0


def test_a_program_that_does_not_exist_is_told_in_the_launchers_log(payload: Path, tmp_path: Path) -> None:
    order: dict[str, Any] = {"run": "r", "job": "j", "tag": "contract/none", "logs": str(tmp_path)}
    order |= {"argv": ["/no/such/python"], "ranks": [{"rank": 0, "env": {}}], "sampler": None, "reserve": 1}
    done = subprocess.run(
        [sys.executable, str(payload), "launch"],
        input=json.dumps(order).encode() + b"\n",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1].startswith("FileNotFoundError")


# The sampler.


def test_the_sampler_is_told_the_ranks_and_has_the_last_word(launch: Launch) -> None:
    job = launch("import time; time.sleep(0.6)", sampler={"period": 0.1, "harness": os.getpid(), "paths": []})
    job.ended()
    assert job.exits() == {0: 0, 1: 0, SAMPLER: 0}
    assert list(job.exits())[-1] == SAMPLER
    reader = EventReader("job-1", SAMPLER)
    assert reader.feed((job.logs / "sampler.events").read_bytes())
    assert reader.faults == []
