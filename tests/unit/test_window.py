"""What telemetry says of a window: every way to call a window quiet that was not seen to be quiet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from seatrial import bounds
from seatrial.bounds import Bound
from seatrial.check import Measurement, Outcome, judge
from seatrial.job import Event, StreamFault
from seatrial.telemetry import measure, numbers
from seatrial.telemetry.measure import does_not_apply, measurements
from seatrial.telemetry.readings import read
from seatrial.telemetry.reasons import REASONS, Class, decode
from seatrial.telemetry.series import missing, series
from seatrial.telemetry.window import Window, window

A, B = "GPU-a", "GPU-b"
START = 1000.0


class Recording:
    """A sampler's stream, written by hand: 2 cores, two ranks of 0.9 cores, all quiet, at 10 Hz from START on."""

    def __init__(self, *gpus: str, links: int = 18, absent: dict[str, str] | None = None) -> None:
        self.gpus = gpus
        self.events: list[Event] = []
        nvml = {"version": "13"} if gpus else absent or {"absent": "no library: not found", "kind": "no library"}
        listed = [{"uuid": uuid, "links": links} for uuid in gpus]
        self.add(START, "sampling", period=0.1, cpus=2, gpus=listed, nvml=nvml)

    def add(self, moment: float, event: str, /, **fields: Any) -> None:
        """Any event."""
        self.events.append(Event(-2, len(self.events), moment, event, fields))

    def sample(self, moment: float, /, **changes: Any) -> None:
        """A sample, with changes to its fields."""
        fields: dict[str, Any] = {
            "at": moment,
            "dt": 0.1,
            "cpu": {"busy": 0.92, "steal": 0.0, "iowait": 0.0, "interrupts": 0.01},
            "cores": {"ranks": 1.8, "own": 0.01, "others": 0.03},
            "memory": 2**30,
            "ranks": {"rank": [0, 1], "cores": [0.9, 0.9], "rss": [1, 2], "threads": [4, 4], "state": ["R", "S"]},
            "neighbour": None,
        }
        if self.gpus:
            fields["gpus"] = self.columns(reasons=0)
            if round((moment - START) * 10) % 10 == 1:
                fields["counters"] = self.counters()
        self.add(moment, "sample", **{**fields, **changes})

    def columns(self, **values: Any) -> dict[str, list[Any]]:
        """Columns with one value for every GPU, or a list."""
        return {k: v if isinstance(v, list) else [v] * len(self.gpus) for k, v in values.items()}

    def counters(self, **values: Any) -> dict[str, list[Any]]:
        """Every GPU's counters, all 0 but for these."""
        quiet = {"ecc_uncorrected": 0, "remap_pending": 0, "remap_failure": 0, "nvlink_errors": 0}
        return {"gpu": list(range(len(self.gpus))), **self.columns(**{**quiet, **values})}

    def run(self, ticks: Iterable[int], **changes: Any) -> None:
        """A sample at each tick, counted from START."""
        for tick in ticks:
            self.sample(START + tick / 10, **changes)

    def end(self) -> list[Event]:
        """The last word, and all events."""
        self.add(START + 100, "sampled", samples=len(self.events) - 1, missed=0)
        return self.events


def quiet(*gpus: str, seconds: int = 8) -> list[Event]:
    recording = Recording(*gpus)
    recording.run(range(1, 10 * seconds + 2))
    return recording.end()


def look(events: list[Event], seconds: float = 8.0) -> Window:
    return window(events, START, START + seconds)


def measured(found: Window, check: str, **settings: bool) -> Measurement:
    (one,) = [made for made in measurements(found, "job-1", **settings) if made.planned.id == check]
    return one


# Seen, or not seen.


def test_a_quiet_window_has_no_disturbance_and_every_number() -> None:
    found = look(quiet(A, B))
    assert found.disturbances == ()
    assert found.coverage == pytest.approx(1.0)
    assert found.missing == 0
    assert found.steal == 0.0
    assert found.neighbour == pytest.approx((0.92 * 2 - 1.8 - 0.01) / 2)
    assert {made.planned.id: made.value for made in measurements(found, "job-1")} == {
        "telemetry.window.coverage": pytest.approx(1.0),
        "telemetry.host.neighbour": pytest.approx(0.015),
        "telemetry.host.steal": 0.0,
        "telemetry.gpu.throttle": 0.0,
        "telemetry.gpu.xid": 0,
        "telemetry.gpu.ecc": 0,
        "telemetry.gpu.nvlink": 0,
        "telemetry.gpu.remap": 0,
    }


@pytest.mark.parametrize("events", [[], quiet(A)[1:]], ids=["nothing", "no first word"])
def test_no_stream_is_never_a_quiet_window(events: list[Event]) -> None:
    found = look(events)
    assert "no telemetry" in found.disturbances[0]
    made = measurements(found, "job-1", gpus=True)
    assert [one.planned.id for one in made] == list(measure.UNITS)
    for one in made:
        assert one.value is None
        assert one.why
        bound = Bound(check=one.planned.id, at_least=0, at_most=1e9, unit=one.unit, **SOURCE)
        assert judge(one, bound).outcome is Outcome.INCONCLUSIVE


SOURCE: dict[str, Any] = {
    "source": "made for this test",
    "date": "2026-01-01",
    "conditions": "any conditions",
    "confidence": "high",
}


def test_a_stream_of_another_time_is_never_a_quiet_window() -> None:
    found = window(quiet(A), START + 500, START + 508)
    assert found.disturbances == ("telemetry covers 0% of 8.0 s: 80 samples of 0.1 s are missing",)
    assert [one.value for one in measurements(found, "job-1")] == [None] * 8


def test_a_sampler_that_stops_midway_is_told_and_its_means_are_not_used() -> None:
    recording = Recording(A)
    recording.run(range(1, 41))
    found = look(recording.events)
    assert found.coverage == pytest.approx(0.5)
    assert found.missing == 40
    assert found.disturbances[0].startswith("telemetry covers 50% of 8.0 s: 40 samples")
    assert "the sampler ended without its last word" in found.disturbances
    values = {made.planned.id: made.value for made in measurements(found, "job-1")}
    assert values.pop("telemetry.window.coverage") == pytest.approx(0.5)
    assert set(values.values()) == {None}


def test_a_gap_is_counted_and_a_late_sample_is_not() -> None:
    recording = Recording()
    recording.run(range(1, 11))
    recording.sample(START + 1.5, dt=0.5)
    recording.sample(START + 1.64, dt=0.14)
    found = look(recording.end(), seconds=1.64)
    assert found.missing == 4
    assert found.coverage == pytest.approx(1 - 0.4 / 1.64)
    assert missing([0.0, 0.1, 0.24, 0.3, 0.8], 0.1) == 4
    assert missing([], 0.1) == 0


def test_only_the_window_is_looked_at() -> None:
    recording = Recording(A)
    recording.run(range(1, 21), gpus=recording.columns(reasons=0x40))
    recording.run(range(21, 61))
    recording.run(range(61, 81), gpus=recording.columns(reasons=0x40))
    found = window(recording.end(), START + 1.95, START + 6.05)
    assert found.throttle[A].fail == pytest.approx(0.1)
    assert found.throttle[A].seen == pytest.approx(4.1)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a length"):
        window(quiet(), START, START)


def test_damage_of_the_stream_is_a_disturbance() -> None:
    faults = [StreamFault(-2, 7, "gap", "seq 9 after 6")]
    found = window(quiet(), START, START + 8, faults)
    (told,) = found.disturbances
    assert "damaged in 1 places" in told
    assert "line 7" in told


@pytest.mark.parametrize("bad", [math.nan, math.inf, "0.9", True, {"a": 1}])
def test_what_is_no_finite_number_is_left_out_and_told(bad: object) -> None:
    recording = Recording(A)
    recording.run(range(1, 82), cpu={"busy": bad, "steal": bad}, gpus=recording.columns(reasons=bad))
    found = look(recording.end())
    assert (found.neighbour, found.steal) == (None, None)
    assert found.throttle[A].seen == 0
    assert any("no finite numbers" in told for told in found.disturbances)
    assert measured(found, "telemetry.gpu.throttle").value is None
    assert all(math.isfinite(v) for one in series("job-1", "node", recording.events) for v in one.v)


def test_a_sample_without_its_time_covers_nothing() -> None:
    recording = Recording()
    recording.run(range(1, 82), at=None)
    assert look(recording.end()).coverage == 0


# The host.


def crowded(others: float, ticks: range, name: str = "cc1plus") -> list[Event]:
    """Eight seconds in which others use so many cores during some ticks."""
    recording = Recording()
    for tick in range(1, 82):
        busy = (1.8 + 0.01 + (others if tick in ticks else 0.0)) / 2
        seen = [name, others] if tick in ticks and tick % 10 == 0 else None
        recording.run([tick], cpu={"busy": busy, "steal": 0.0}, neighbour=seen)
    return recording.end()


def test_a_busy_neighbour_is_told_with_its_name_and_for_how_long() -> None:
    found = look(crowded(0.7, range(21, 51)))
    assert found.disturbances == ("other processes used 0.7 of 2 cores for 3.0 s (busiest: cc1plus)",)
    assert found.neighbour == pytest.approx(0.7 * 3 / 8 / 2)
    assert measured(found, "telemetry.host.neighbour").detail == "busiest: cc1plus"


def test_a_neighbour_under_the_share_is_not_told_but_measured() -> None:
    found = look(crowded(0.18, range(1, 82)))
    assert found.disturbances == ()
    assert found.neighbour == pytest.approx(0.09)


def test_rounding_of_the_kernels_ticks_is_no_neighbour() -> None:
    recording = Recording()
    for tick in range(1, 82):
        recording.run([tick], cpu={"busy": (1.81 + (0.3 if tick % 2 else -0.3)) / 2, "steal": 0.0})
    found = look(recording.end())
    assert found.disturbances == ()
    assert found.neighbour == pytest.approx(0.0, abs=0.002)


def test_one_tick_in_a_short_window_is_no_neighbour() -> None:
    recording = Recording()
    recording.run([1], cpu={"busy": (1.81 + 0.4) / 2, "steal": 0.0})
    assert look(recording.end(), seconds=0.1).disturbances == ()


@pytest.mark.parametrize("hidden", ["ranks", "own"])
def test_an_unknown_part_leaves_the_neighbour_unknown(hidden: str) -> None:
    recording = Recording()
    recording.run(range(1, 82), cores={"ranks": 1.8, "own": 0.01, "others": None, hidden: None})
    found = look(recording.end())
    assert found.neighbour is None
    assert "CPU accounts" in measured(found, "telemetry.host.neighbour").why
    assert found.steal == 0.0


def test_steal_is_told_and_measured() -> None:
    recording = Recording()
    recording.run(range(1, 41))
    recording.run(range(41, 82), cpu={"busy": 0.9, "steal": 0.12})
    found = look(recording.end())
    assert found.disturbances == ("the hypervisor stole 12% of the cores' time for 4.0 s",)
    assert found.steal == pytest.approx(0.06)


def test_a_stopped_rank_is_named() -> None:
    recording = Recording()
    ranks = {"rank": [0, 1], "cores": [0.9, 0.0], "rss": [1, 2], "threads": [4, 4], "state": ["R", "T"]}
    recording.run(range(1, 21), ranks=ranks)
    recording.run(range(21, 82))
    assert look(recording.end()).disturbances == ("rank 1 was stopped (state T) for 2.0 s",)


# The GPUs' clocks.


@pytest.mark.parametrize(("bit", "reason"), REASONS.items(), ids=[reason.name for reason in REASONS.values()])
def test_each_reason_alone(bit: int, reason: Any) -> None:
    recording = Recording(A, B)
    recording.run(range(1, 13), gpus=recording.columns(reasons=[0, bit]))
    recording.run(range(13, 82))
    found = look(recording.end())
    throttle = found.throttle[B]
    assert throttle.by_reason == {reason.name: pytest.approx(1.2)}
    seconds = {kind: pytest.approx(1.2 if reason.kind is kind else 0.0) for kind in Class}
    assert {Class.FAIL: throttle.fail, Class.WARN: throttle.warn, Class.NORMAL: throttle.normal} == seconds
    assert found.throttle[A].by_reason == {}
    told = () if reason.kind is Class.NORMAL else (f"{B}: {reason.name} for 1.2 s of 8.0 s",)
    assert found.disturbances == told
    check = measured(found, "telemetry.gpu.throttle")
    assert check.value == pytest.approx(1.2 if reason.kind is Class.FAIL else 0.0)
    assert (B in check.detail) == (reason.kind is Class.FAIL)


def test_the_classes_are_those_of_the_facts() -> None:
    kinds = {kind: sum(bit for bit, reason in REASONS.items() if reason.kind is kind) for kind in Class}
    assert kinds == {Class.FAIL: 0x8 | 0x40 | 0x80, Class.WARN: 0x20 | 0x10 | 0x2 | 0x100, Class.NORMAL: 0x4 | 0x1}


def test_two_reasons_at_once_are_both_told_and_their_time_counts_once() -> None:
    recording = Recording(A)
    recording.run(range(1, 11), gpus=recording.columns(reasons=0x8 | 0x40 | 0x4))
    recording.run(range(11, 82))
    found = look(recording.end())
    assert found.throttle[A].fail == pytest.approx(1.0)
    assert found.throttle[A].normal == pytest.approx(1.0)
    assert found.disturbances == (
        f"{A}: HW slowdown for 1.0 s of 8.0 s",
        f"{A}: HW thermal slowdown for 1.0 s of 8.0 s",
    )


def test_an_unknown_reason_is_told_as_unknown_and_taken_as_a_warning() -> None:
    recording = Recording(A)
    recording.run(range(1, 82), gpus=recording.columns(reasons=0x400))
    found = look(recording.end())
    assert found.throttle[A].unknown == pytest.approx(8.0)
    assert found.throttle[A].warn == pytest.approx(8.0)
    assert found.throttle[A].fail == 0
    assert found.disturbances == (f"{A}: unknown reason 0x400 for 8.0 s of 8.0 s",)
    assert [reason.name for reason in decode(1 << 63 | 1)] == ["GPU idle", "unknown reason 0x8000000000000000"]


def test_reasons_that_were_not_read_are_not_no_throttle() -> None:
    recording = Recording(A, B)
    recording.run(range(1, 82), gpus=recording.columns(reasons=[0, None]))
    recording.add(START + 0.1, "unsupported", uuid=B, metrics=["reasons"])
    check = measured(look(recording.end()), "telemetry.gpu.throttle")
    assert check.value is None
    assert B in check.why
    assert A not in check.why


def test_a_throttle_that_was_seen_counts_though_another_gpu_was_not() -> None:
    recording = Recording(A, B)
    recording.run(range(1, 82), gpus=recording.columns(reasons=[0x80, None]))
    check = measured(look(recording.end()), "telemetry.gpu.throttle")
    assert check.value == pytest.approx(8.0)
    assert f"not seen on {B}" in check.detail


# Their errors.


def test_an_xid_is_told_with_its_gpu_and_meaning() -> None:
    events = quiet(A, B)
    events.append(Event(-2, 999, START + 3, "xid", {"uuid": B, "xid": 79}))
    events.append(Event(-2, 1000, START + 90, "xid", {"uuid": A, "xid": 31}))
    found = look(events)
    assert found.disturbances == (f"Xid 79 (fallen off the bus) on {B}",)
    check = measured(found, "telemetry.gpu.xid")
    assert check.value == 1
    assert "79" in check.detail


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("unsupported", {"uuid": B, "metrics": ["xid"]}),
        ("nvml_fault", {"uuid": None, "metric": "xid", "error": "GPU is lost"}),
    ],
)
def test_xids_that_nobody_listens_for_are_not_zero(event: str, fields: dict[str, Any]) -> None:
    events = quiet(A, B)
    events.append(Event(-2, 999, START + 0.1, event, fields))
    check = measured(look(events), "telemetry.gpu.xid")
    assert check.value is None
    assert B in check.why


COUNTERS = {
    "telemetry.gpu.ecc": ("ecc_uncorrected", "uncorrected ECC errors"),
    "telemetry.gpu.nvlink": ("nvlink_errors", "NVLink errors"),
}


def counting(column: str, *values: object) -> list[Event]:
    """A quiet recording in which GPU B's counter is read once a second with these values."""
    recording = Recording(A, B)
    readings = iter(values)
    for tick in range(1, 82):
        changes = {"counters": recording.counters(**{column: [5, next(readings)]})} if tick % 10 == 1 else {}
        recording.run([tick], **changes)
    return recording.end()


@pytest.mark.parametrize("check", COUNTERS)
def test_a_counter_that_grows_is_told_and_its_past_is_not(check: str) -> None:
    column, words = COUNTERS[check]
    found = look(counting(column, 7, 7, 7, 7, 9, 9, 9, 10, 10))
    assert found.disturbances == (f"{B}: 3 {words}",)
    assert measured(found, check).value == 3
    assert measured(found, check).detail == f"{B}: 3"


@pytest.mark.parametrize("check", COUNTERS)
def test_a_counter_that_went_back_has_no_value(check: str) -> None:
    found = look(counting(COUNTERS[check][0], 7, 7, 7, 0, 0, 7, 8, 9, 9))
    assert measured(found, check).value is None
    assert "reset" in measured(found, check).why


@pytest.mark.parametrize("check", COUNTERS)
@pytest.mark.parametrize("values", [[None] * 9, [3, *[None] * 8], [3, 3, 3, *[None] * 6], [*[None] * 6, 3, 3, 3]])
def test_a_counter_that_was_not_read_all_through_has_no_value(check: str, values: list[int | None]) -> None:
    found = look(counting(COUNTERS[check][0], *values))
    assert measured(found, check).value is None
    assert B in measured(found, check).why


def test_readings_just_outside_the_window_count_for_it() -> None:
    events = counting("ecc_uncorrected", 7, 7, 7, 8, 8, 9, 9, 9, 9)
    assert window(events, START + 2.5, START + 4.5).ecc[B].value == 2
    assert window(events, START + 3.2, START + 4.0).ecc[B].value == 0


def test_a_gpu_without_nvlink_is_left_out_with_a_word() -> None:
    recording = Recording(A, links=0)
    recording.run(range(1, 82), counters=recording.counters(nvlink_errors=None))
    found = look(recording.end())
    left_out = {planned.id: why for planned, why in does_not_apply(found, "job-1").items()}
    assert left_out == {"telemetry.gpu.nvlink": "no GPU of this node has NVLink"}
    assert "telemetry.gpu.nvlink" not in {made.planned.id for made in measurements(found, "job-1")}


@pytest.mark.parametrize(("pending", "failure", "value"), [(1, 0, 1), (0, 1, 1), (1, 1, 2)])
def test_remapping_is_told(pending: int, failure: int, value: int) -> None:
    recording = Recording(A, B)
    recording.run(range(1, 71))
    recording.run(range(71, 82), counters=recording.counters(remap_pending=[0, pending], remap_failure=[0, failure]))
    found = look(recording.end())
    assert found.disturbances == (f"{B}: rows of its memory wait to be remapped, or could not be",)
    assert measured(found, "telemetry.gpu.remap").value == value


def test_a_lost_gpu_is_told() -> None:
    events = quiet(A)
    events.append(Event(-2, 999, START + 3, "nvml_fault", {"uuid": A, "metric": "power", "error": "GPU is lost"}))
    assert look(events).disturbances == (f"{A}: power could not be read: GPU is lost",)


def test_broken_nvml_is_told_and_no_gpu_check_has_a_value() -> None:
    recording = Recording(absent={"absent": "library broken: version mismatch", "kind": "library broken"})
    recording.run(range(1, 82))
    found = look(recording.end())
    assert found.disturbances == ("no GPU telemetry: library broken: version mismatch",)
    made = measurements(found, "job-1")
    assert len(made) == len(measure.UNITS)
    assert {one.why for one in made if one.value is None} == {"library broken: version mismatch"}


def test_gpus_that_the_sampler_does_not_see_have_no_value() -> None:
    check = measured(look(quiet()), "telemetry.gpu.throttle", gpus=True)
    assert (check.value, check.why) == (None, "the sampler saw no GPU")


def test_a_node_without_gpus_has_no_gpu_checks() -> None:
    found = look(quiet())
    made = [one.planned.id for one in measurements(found, "job-1")]
    left_out = does_not_apply(found, "job-1")
    assert {*made, *(planned.id for planned in left_out)} == set(measure.UNITS)
    assert set(left_out.values()) == {"no GPU on this node"}
    assert all(check.startswith("telemetry.gpu.") == (check not in made) for check in measure.UNITS)


# Series and catalogue.


def test_series_are_on_the_trials_clock_with_their_gaps() -> None:
    recording = Recording(A, B)
    recording.run([*range(1, 11), *range(14, 22)])
    found = {
        (one.metric, one.gpu, one.rank): one for one in series("job-1", "node-7", recording.end(), clock=START - 5)
    }
    busy = found["host.cpu.busy", None, None]
    assert (busy.t[0], busy.t[-1], busy.gaps, busy.unit) == (5.1, 7.1, 3, "share")
    assert (busy.job, busy.node) == ("job-1", "node-7")
    assert found["rank.cpu", None, 1].v == (0.9,) * 18
    assert found["gpu.reasons", B, None].gaps == 3
    assert (found["gpu.ecc.uncorrected", A, None].t, found["gpu.ecc.uncorrected", A, None].gaps) == ((5.1, 7.1), 1)


def test_a_value_that_was_not_read_leaves_a_gap_not_a_zero() -> None:
    recording = Recording()
    recording.run(range(1, 4))
    recording.run(range(4, 7), memory=None)
    recording.run(range(7, 9))
    (memory,) = [one for one in series("job-1", "node", recording.end()) if one.metric == "host.memory.used"]
    assert (len(memory.v), memory.gaps) == (5, 3)
    assert 0.0 not in memory.v


def test_no_stream_has_no_series() -> None:
    assert series("job-1", "node", []) == ()


@pytest.mark.parametrize(("ticks", "lengths"), [(34, [1.0, 1.0, 1.4]), (36, [1.0, 1.0, 1.0, 0.6]), (3, [0.3]), (0, [])])
def test_stretches_keep_all_seconds(ticks: int, lengths: list[float]) -> None:
    recording = Recording()
    recording.run(range(1, ticks + 1))
    stream = read(recording.end())
    assert stream is not None
    parts = numbers.seen(stream, START, START + 100)
    assert [part.seconds for part in numbers.stretches(parts, cpus=2)] == pytest.approx(lengths)


def test_the_catalogue_and_the_measurements_are_of_one_mind() -> None:
    path = Path(measure.__file__).with_name("checks.yaml")
    entries = bounds.load([path], []).entries
    assert {entry.id: entry.unit for entry in entries} == measure.UNITS
    assert all(entry.where == ("job",) for entry in entries)
