"""A job's numbers are trusted only when all ranks ran to their end, in one world, among those that were launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import InconclusiveError
from seatrial.job import Ending, Event, JobSpec, Moment, Result, StreamFault, Timeline
from seatrial.suites import completion

DONE = {"world_size": 2, "peers": ["n:100", "n:101"], "rows_asked": 4, "rows_done": 3, "rows_unsupported": 1}


def result(*changes: Mapping[str, Any] | None) -> Result:
    """A job of two ranks, each with a completion event but for these changes, or without one."""
    events = {}
    for rank, change in enumerate(changes):
        hello = Event(rank, 0, 0.0, "hello", {"pid": 100 + rank})
        done = () if change is None else (Event(rank, 1, 1.0, "done", {**DONE, **change}),)
        events[rank] = (hello, *done)
    return Result(
        job="job-1",
        spec=JobSpec("job", "payload", {}, ranks=2),
        ending=Ending.COMPLETED,
        cause="all 2 ranks told of their completion",
        culprits=(),
        exits={0: 0, 1: 0},
        events=events,
        faults=(),
        timeline=Timeline(Moment(0.0, "submitted")),
        nodes={0: "n", 1: "n"},
        pids={0: 100, 1: 101},
        logs=Path("logs"),
    )


def test_two_good_completions_have_no_fault() -> None:
    assert completion.faults(result({}, {}), completion.rows_done) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (None, "rank 1: no completion event"),
        ({"world_size": 1}, "rank 1: saw a world of 1, expected 2"),
        ({"peers": ["n:101", "n:101"]}, "rank 1: saw the peers [101, 101], expected the processes [100, 101]"),
        ({"rows_done": 2}, "rank 1: did 2 of 4 rows"),
    ],
)
def test_each_way_to_an_incomplete_rank_is_told(change: Mapping[str, Any] | None, told: str) -> None:
    assert completion.faults(result({}, change), completion.rows_done) == [told]


def test_a_sound_job_is_trusted() -> None:
    completion.sound(result({}, {}))


@pytest.mark.parametrize(
    "change", [{"ending": Ending.SILENT}, {"faults": (StreamFault(0, 1, "gap", "3 events are missing"),)}]
)
def test_a_broken_job_has_no_numbers(change: dict[str, Any]) -> None:
    with pytest.raises(InconclusiveError):
        completion.sound(replace(result({}, {}), **change))
