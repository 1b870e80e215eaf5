"""The health suite's pictures, drawn from checks and events alone."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.record import Check, Event, Record
from seatrial.reports import health


def share(rank: int, value: float | None, outcome: str = "pass") -> Check:
    return Check.model_validate(
        {
            "type": "check",
            "t": 1.0,
            "id": "health.device.share",
            "outcome": outcome,
            "observed": value,
            "unit": "share",
            "where": {"rank": str(rank)},
            "detail": f"rank {rank}: core {rank} (a core) of n: gemm float32",
        }
    )


def slice_of(rank: int, at: float, **said: Any) -> Event:
    fields = {"since_s": at, "flop": 2e6, "time_us": [1.0, 2.0, 3.0]} | said
    return Event.model_validate(
        {"type": "event", "t": 1.0, "job": "j", "rank": rank, "seq": 0, "clock": 0.0, "name": "soak", "said": fields}
    )


def test_the_map_has_a_cell_a_device_with_its_share_and_its_outcome() -> None:
    (figure,) = health.figures(Record(checks=(share(0, 1.04), share(1, 0.52, "fail"))))
    assert "rank 0" in figure.svg
    assert "104%" in figure.svg
    assert "✗ rank 1" in figure.svg
    assert 'class="band fail"' in figure.svg
    assert "core 1 (a core) of n: gemm float32 at 52% of its best peer" in figure.caption


def test_a_large_map_keeps_the_weakest() -> None:
    checks = tuple(share(rank, 1 - rank / 1000) for rank in range(200))
    (figure,) = health.figures(Record(checks=checks))
    assert "rank 199<" in figure.svg
    assert "rank 0<" not in figure.svg
    assert "Only the weakest 64 of 200 are shown." in figure.caption


def test_devices_without_a_share_have_no_map() -> None:
    assert health.figures(Record(checks=(share(0, None, "skip"),))) == []


def test_the_soak_is_drawn_over_its_time_for_each_device() -> None:
    events = tuple(slice_of(rank, at * 0.5, time_us=[1.0 + rank]) for rank in (0, 1) for at in range(4))
    (figure,) = health.figures(Record(events=events))
    assert "rank 0" in figure.svg
    assert "From 1 TFLOP/s (rank 1) to 2 TFLOP/s (rank 0)" in figure.caption


@pytest.mark.parametrize(
    "said", [{"time_us": []}, {"time_us": [0.0]}, {"time_us": "fast"}, {"since_s": None}, {"flop": "many"}]
)
def test_an_event_that_tells_no_rate_is_left_out(said: dict[str, Any]) -> None:
    assert health.figures(Record(events=(slice_of(0, 0.0, **said),))) == []
