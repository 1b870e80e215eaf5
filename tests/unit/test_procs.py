"""Processes by exact identity: what is not exactly the one meant is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from seatrial.payload import procs
from seatrial.payload.procs import Process

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], env={}); child.wait()",
    *SLEEPER,
]


def start(command: list[str], **env: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = start(SLEEPER, SEATRIAL_TAG="run/job")
    yield child
    child.kill()
    child.communicate()


def identity(child: subprocess.Popen[bytes]) -> Process:
    process = procs.identify(child.pid)
    assert process is not None
    return process


@pytest.fixture(params=["by its handle", "without handles"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to signal: by a pidfd, and where the kernel has none."""
    if request.param == "without handles":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.usefixtures("way")
def test_a_signal_reaches_exactly_the_process_that_is_meant(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    assert not procs.kill(Process(process.pid, process.start + 1))
    assert sleeper.poll() is None
    assert procs.kill(process)
    assert sleeper.wait(timeout=5) == -signal.SIGKILL
    assert not procs.kill(process)


@pytest.mark.parametrize("error", [OSError(38, "not implemented"), PermissionError(1, "not permitted")])
def test_a_kernel_that_refuses_handles_still_lets_us_signal(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(_: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert procs.kill(identity(sleeper))
    assert sleeper.wait(timeout=5) == -signal.SIGKILL


def test_a_process_that_only_waits_to_be_reaped_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert procs.identify(sleeper.pid) is None
    assert not procs.alive(process)
    assert procs.tagged("run/job") == []


def test_a_tag_is_matched_as_a_whole(sleeper: subprocess.Popen[bytes]) -> None:
    assert procs.tagged("run/job") == [identity(sleeper)]
    assert procs.tagged("run/jo") == procs.tagged("run/job2") == procs.tagged("un/job") == []


def test_a_tag_in_another_variable_is_none() -> None:
    child = start(SLEEPER, NOTE="SEATRIAL_TAG=run/other", XSEATRIAL_TAG="run/other")
    try:
        assert procs.tagged("run/other") == []
    finally:
        child.kill()
        child.communicate()


def test_descendants_are_found_at_every_depth() -> None:
    parent = start(PARENT)
    try:
        mine = procs.descendants(os.getpid())
        assert identity(parent) in mine
        (child,) = procs.descendants(parent.pid)
        assert child in mine
        assert procs.descendants(child.pid) == []
    finally:
        for process in [*procs.descendants(parent.pid), identity(parent)]:
            procs.kill(process)
        parent.communicate()


def test_a_description_tells_the_identity_and_stays_short(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    told = procs.describe(process)
    assert told.startswith(f"pid {process.pid} (started at tick {process.start}): {sys.executable} -c")
    long = start([*SLEEPER[:2], SLEEPER[2] + "#" * 5000])
    try:
        assert len(procs.describe(identity(long))) < 300
    finally:
        long.kill()
        long.communicate()


def test_a_process_that_is_gone_is_described_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper)
    sleeper.kill()
    sleeper.wait()
    assert procs.describe(process).endswith(": gone")
