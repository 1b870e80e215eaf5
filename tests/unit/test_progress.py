"""What a waiting user sees: one live line in a terminal, plain lines elsewhere, never a flood."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial import job as j
from seatrial import supervise
from seatrial.progress import LIVE_PERIOD, PLAIN_PERIOD, Progress
from seatrial.supervise import SupervisedJob
from tests.clock import Clock


class Quiet:
    """A carrier that reports one sign at a time, when it is told to."""

    def __init__(self) -> None:
        self.signs: list[j.Sign] = []

    def poll(self) -> Sequence[j.Sign]:
        """What was put here."""
        signs, self.signs = self.signs, []
        return signs

    def kill(self, rank: int, signal: int) -> None:
        """Nothing to kill."""

    def end(self, reserve: float) -> Sequence[str]:  # noqa: ARG002
        """Nothing is left."""
        return []


class Watched:
    """A job, and the screen on which its progress shows."""

    def __init__(self, clock: Clock, live: bool) -> None:
        self.clock, self.screen, self.carrier = clock, io.StringIO(), Quiet()
        began = clock.now
        spec = j.JobSpec("sweep", "collectives", {}, ranks=2, budget=j.Budget(queue=600, start=120))
        self.job = SupervisedJob("sweep-main-1", spec, self.carrier, Path("logs"), lambda: clock.now - began)
        self.job.on_change = Progress(self.screen, live=live, clock=clock.monotonic)

    def after(self, seconds: float, *signs: j.Sign) -> str:
        """What is written when this happens so many seconds later."""
        self.clock.now += seconds
        self.carrier.signs += signs
        before = self.screen.tell()
        self.job.advance()
        return self.screen.getvalue()[before:]

    def end(self) -> str:
        """What is written at the end."""
        before = self.screen.tell()
        self.job.cancel()
        return self.screen.getvalue()[before:]


@pytest.fixture
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((100, 24)))
    return Watched(clock, live=request.param)


plain = pytest.mark.parametrize("watched", [False], indirect=True)
live = pytest.mark.parametrize("watched", [True], indirect=True)


@plain
def test_a_line_tells_what_runs_since_when_and_what_is_left(watched: Watched) -> None:
    assert watched.after(30, j.Waiting("leased by pid 7")) == (
        "seatrial: sweep-main-1: submitted, 30 s since submission, 9.5 min left of the queue budget; leased by pid 7\n"
    )


@plain
def test_plain_lines_come_at_a_change_of_state_and_once_a_period(watched: Watched) -> None:
    assert watched.after(1) != ""
    assert watched.after(1) == ""
    assert watched.after(1, j.Admitted("free")) == (
        "seatrial: sweep-main-1: admitted, 3 s since submission, 2 min left of the start budget; 0 of 2 ranks joined\n"
    )
    assert watched.after(PLAIN_PERIOD - 1) == ""
    assert watched.after(1) != ""


@plain
def test_the_end_is_told_once_with_its_cause(watched: Watched) -> None:
    watched.after(5)
    assert watched.end() == "seatrial: sweep-main-1: ended after 5 s: cancelled by the harness\n"
    assert watched.after(100) == ""


@plain
def test_a_budget_that_is_overdrawn_is_not_told_as_negative(watched: Watched) -> None:
    assert "0 s left of the queue budget" in watched.after(601)


@live
def test_a_live_line_is_rewritten_in_place_and_kept_at_the_end(watched: Watched) -> None:
    first = watched.after(1)
    assert first.startswith("\r\x1b[2Ksweep-main-1: submitted")
    assert "\n" not in first
    assert watched.after(LIVE_PERIOD / 2) == ""
    assert watched.after(LIVE_PERIOD).startswith("\r\x1b[2K")
    assert watched.end().endswith("cancelled by the harness\n")


@live
def test_a_live_line_never_wraps(watched: Watched) -> None:
    line = watched.after(1, j.Waiting("x" * 500))
    assert len(line.removeprefix("\r\x1b[2K")) == 99


@plain
def test_what_a_rank_said_moves_no_cursor(watched: Watched) -> None:
    line = watched.after(1, j.Waiting("first\nsecond \x1b[2J third"))
    assert line.endswith("first second  [2J third\n")
