"""From events to numbers and verdicts: peers, shares, thirds of a soak, outliers, and what is no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import InconclusiveError
from seatrial.job import Ending, Event, JobSpec, Moment, Result, Timeline
from seatrial.stats import low_outliers, robust_distances
from seatrial.suites.health.devices import Health, Soak, gemm

REPEATS = 8


def events(rank: int, speed: float, **changes: Any) -> list[Event]:
    """What one rank says whose device makes ``speed`` TFLOP/s and GB/s."""
    device = {"index": rank, "core": rank, "uuid": None, "name": "a core", "host": "n"} | changes
    right = {"checked": 10, "wrong": 0, "first_wrong": None}
    told: list[tuple[str, dict[str, Any]]] = [
        ("hello", {"pid": 100 + rank}),
        ("device", device),
        ("gemm", {"dtype": "float32", "n": 1, "flop": 1e6, "time_us": [1 / speed] * REPEATS, **right}),
    ]
    told += [
        ("memory", {"kind": kind, "moved": 1e3, "time_us": [1 / speed] * REPEATS, **right})
        for kind in ("copy", "triad")
    ]
    told += [
        ("soak", {"slice": at, "since_s": at / 2, "flop": 1e6, "time_us": [1 / speed] * 4, **right}) for at in range(20)
    ]
    return [Event(rank, seq, float(seq), name, fields) for seq, (name, fields) in enumerate(told)]


def result(streams: Sequence[list[Event]], nodes: Sequence[str] | None = None) -> Result:
    settings = {"dtypes": ["float32"], "repeats": REPEATS, "soak_s": 10.0}
    return Result(
        job="j",
        spec=JobSpec("health", "health", settings, ranks=len(streams)),
        ending=Ending.COMPLETED,
        cause="",
        culprits=(),
        exits={},
        events={rank: tuple(stream) for rank, stream in enumerate(streams)},
        faults=(),
        timeline=Timeline(Moment(0, "")),
        nodes=dict(enumerate(nodes or ["n"] * len(streams))),
        pids={},
        logs=Path(),
    )


def health(*speeds: float) -> Health:
    return Health(result([events(rank, speed) for rank, speed in enumerate(speeds)]))


def test_rates_are_amounts_over_times() -> None:
    one = health(2.0, 4.0)
    assert [one.samples(device, work).median for device in one.devices() for work in one.works()] == pytest.approx(
        [2, 2, 2, 4, 4, 4]
    )


def test_a_device_is_held_against_the_best_of_the_others() -> None:
    three = health(1.0, 2.0, 4.0)
    best = [three.best_peer(device, gemm("float32")) for device in three.devices()]
    assert best == pytest.approx([4, 4, 2])
    assert [share.value for share in three.shares(three.devices()[0])] == pytest.approx([0.25] * 3)


def test_only_the_same_kind_on_the_same_node_is_a_peer() -> None:
    streams = [events(0, 1), events(1, 1), events(2, 1, name="an efficiency core"), events(3, 1)]
    mixed = Health(result(streams, ["n", "n", "n", "other"]))
    peers = {device.rank: [peer.rank for peer in mixed.peers(device)] for device in mixed.devices()}
    assert peers == {0: [1], 1: [0], 2: [], 3: []}
    assert mixed.best_peer(mixed.devices()[2], gemm("float32")) is None
    assert list(mixed.shares(mixed.devices()[2])) == []


def test_two_ranks_on_one_device_are_no_measurement() -> None:
    with pytest.raises(InconclusiveError, match="the same device"):
        Health(result([events(0, 1), events(1, 1, core=0)])).devices()


def test_a_rank_that_tells_no_device_is_no_measurement() -> None:
    streams = [events(0, 1), [event for event in events(1, 1) if event.name != "device"]]
    with pytest.raises(InconclusiveError, match=r"told by the ranks \[0\]"):
        Health(result(streams)).devices()


@pytest.mark.parametrize("times", [[1.0] * (REPEATS - 1), [1.0] * (REPEATS - 1) + [0.0]])
def test_too_few_or_impossible_times_are_no_measurement(times: list[float]) -> None:
    stream = [
        replace(event, fields={**event.fields, "time_us": times}) if event.name == "gemm" else event
        for event in events(0, 1)
    ]
    broken = Health(result([stream]))
    with pytest.raises(InconclusiveError, match="times, expected 8 above 0"):
        broken.samples(broken.devices()[0], gemm("float32"))


def test_a_phase_without_memory_is_no_skip() -> None:
    stream = [event for event in events(0, 1) if event.name != "memory"]
    stream.append(Event(0, 99, 9.0, "short", {"phase": "memory", "dtype": None, "why": "needs 1 GiB"}))
    short = Health(result([stream]))
    assert short.unsupported("memory") is None
    with pytest.raises(InconclusiveError, match="needs 1 GiB"):
        [short.samples(short.devices()[0], work) for work in short.works()]


def test_the_first_wrong_element_names_the_device() -> None:
    first = {"wrong": 2, "row": 3, "column": 5, "got": 1.0, "expected": 2.0, "what": "gemm float32 512 #4"}
    stream = [
        replace(event, fields={**event.fields, "wrong": 2, "first_wrong": first}) if event.name == "gemm" else event
        for event in events(0, 1)
    ]
    one = Health(result([stream]))
    compared = one.samples(one.devices()[0], gemm("float32")).compared
    assert compared.wrong == 2
    assert (
        compared.first_wrong
        == "rank 0: core 0 (a core) of n: gemm float32 512 #4, row 3, column 5: got 1.0, expected 2.0"
    )


# The soak.


def soak(*rates: float) -> Soak:
    slices = tuple((at * 0.5, (rate,) * 4) for at, rate in enumerate(rates))
    return Soak(slices, len(rates) * 0.5, Health(result([events(0, 1)])).soak(health(1).devices()[0]).compared)


def test_the_last_third_is_held_against_the_first() -> None:
    retained = soak(2, 2, 9, 9, 1, 1).retained()
    assert retained.value == pytest.approx(0.5)
    assert retained.interval == pytest.approx((0.5, 0.5))


def test_noise_within_the_thirds_widens_the_interval() -> None:
    slices = tuple((at * 0.5, (1.0, 2.0, 1.0, 2.0, 1.5, 1.5)) for at in range(6))
    retained = replace(soak(1), slices=slices, seconds=3.0).retained()
    assert retained.interval is not None
    assert retained.interval[0] < 1 < retained.interval[1]


def test_a_soak_with_too_few_repeats_is_no_measurement() -> None:
    with pytest.raises(InconclusiveError, match="expected at least 6"):
        soak(1, 1, 1).retained()


def test_a_soak_that_was_cut_short_is_no_measurement() -> None:
    stream = [event for event in events(0, 1) if event.name != "soak" or event.fields["slice"] < 16]
    cut = Health(result([stream]))
    with pytest.raises(InconclusiveError, match=r"began at 7\.5 s of 10 s"):
        cut.soak(cut.devices()[0])


# Outliers.


def test_one_slow_device_of_eight_is_an_outlier() -> None:
    fleet = health(1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 0.9)
    (device,) = fleet.outliers(3.0, 0.035)
    assert device.rank == 7


def test_a_distance_without_an_effect_is_no_outlier() -> None:
    assert low_outliers([1.0, 1.0001, 0.9999, 1.00005, 0.99995, 0.98], 3.0, 0.035) == []


def test_an_effect_without_a_distance_is_no_outlier() -> None:
    assert low_outliers([0.8, 0.9, 1.0, 1.1, 1.2, 0.95], 3.0, 0.035) == []


def test_a_fast_device_is_no_outlier() -> None:
    assert low_outliers([1.0, 1.01, 0.99, 1.005, 0.995, 2.0], 3.0, 0.035) == []


def test_distances_are_the_modified_z_scores() -> None:
    """Median 3, deviations 2 1 0 1 97, MAD 1."""
    assert robust_distances([1, 2, 3, 4, 100]) == pytest.approx([-1.349, -0.6745, 0, 0.6745, 97 * 0.6745])


def test_no_scale_is_no_measurement() -> None:
    with pytest.raises(InconclusiveError, match="MAD is zero"):
        low_outliers([1.0, 1.0, 1.0, 1.0, 0.1], 3.0, 0.035)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [1.0, float("inf")]])
def test_no_sample_or_no_number_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        robust_distances(samples)


@given(st.lists(st.integers(1, 1000), min_size=5, max_size=40, unique=True), st.floats(0.1, 10))
def test_the_unit_does_not_matter(values: list[int], unit: float) -> None:
    assert robust_distances([value * unit for value in values]) == pytest.approx(robust_distances(values), abs=1e-6)
