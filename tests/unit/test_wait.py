"""Every wait is bounded, and its error shows the last state seen."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from seatrial import wait
from seatrial.wait import until
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wait, "time", clock)
    return clock


def after(askings: int) -> Callable[[], str | None]:
    """A condition that is met at the asking of this number."""
    count = itertools.count(1)
    return lambda: "met" if next(count) >= askings else None


def test_what_is_true_at_once_is_returned_without_a_pause(clock: Clock) -> None:
    assert until(lambda: ["it"], what="it", timeout=0, state=str) == ["it"]
    assert clock.sleeps == []


def test_it_asks_again_after_each_period(clock: Clock) -> None:
    assert until(after(4), what="it", timeout=10, state=str, period=0.5) == "met"
    assert clock.sleeps == [0.5, 0.5, 0.5]


def test_it_gives_up_in_time_and_tells_the_last_state(clock: Clock) -> None:
    states = iter(["first", "last"])
    with pytest.raises(TimeoutError, match=r"^node-7 to answer: not within 2 s; last seen: last$"):
        until(lambda: next(states) and None, what="node-7 to answer", timeout=2, state=lambda: "last", period=2)
    assert clock.now == 102.0


def test_what_is_met_at_the_last_moment_counts(clock: Clock) -> None:
    assert until(after(3), what="it", timeout=2, state=str, period=1) == "met"
    assert clock.now == 102.0


def test_an_error_of_the_condition_is_not_taken_for_not_yet(clock: Clock) -> None:
    def refused() -> None:
        raise PermissionError("403")

    with pytest.raises(PermissionError):
        until(refused, what="it", timeout=60, state=str)
    assert clock.sleeps == []


def test_it_runs_on_the_real_clock_too() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        until(lambda: None, what="nothing", timeout=0.1, state=lambda: "nothing", period=0.01)
    assert 0.1 <= time.monotonic() - began < 5
