"""No way to a false pass: what judge() decides, for every kind of bound and every defect of a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seatrial.bounds import Bound, Kind
from seatrial.check import Measurement, Outcome, Place, Planned, Verdict, explain, judge, qualify

CHECK = Planned("nccl.all_reduce.busbw", Place({"size": "1 MiB"}))
NOT_NUMBERS = [math.nan, math.inf, -math.inf]


def bound(**limits: Any) -> Bound:
    """A bound in GB/s with a source."""
    evidence = {"source": "the datasheet", "date": "2026-01-01", "conditions": "one quiet node", "confidence": "high"}
    return Bound.model_validate({"check": CHECK.id, "unit": "GB/s", **evidence, **limits})


def measured(value: float | None, **more: Any) -> Measurement:
    """A measurement in GB/s, of enough samples unless told otherwise."""
    return Measurement(CHECK, value, **{"unit": "GB/s", "n": 20, **more})


def outcome(value: float | None, against: Bound | None, **more: Any) -> Outcome:
    return judge(measured(value, **more), against).outcome


numbers = st.floats(-1e12, 1e12)
positive = st.floats(1e-6, 1e12)
bad_numbers = st.sampled_from(NOT_NUMBERS)


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    """Any bound that a thresholds file can hold."""
    kind = draw(st.sampled_from(Kind))
    low, high = sorted((draw(numbers), draw(numbers)))
    ratio: Mapping[str, Any] = {"of": "ring"} if kind is Kind.RATIO else {}
    limits = {
        Kind.MIN: {"at_least": low},
        Kind.MAX: {"at_most": high},
        Kind.WITHIN: {"at_least": low, "at_most": high},
        Kind.EQUAL: {"equals": low},
        Kind.RATIO: draw(st.sampled_from([{"at_least": low}, {"at_most": high}, {"at_least": low, "at_most": high}])),
    }[kind]
    return bound(**limits, **ratio, samples=draw(st.integers(1, 20)))


@st.composite
def intervals(draw: st.DrawFn) -> tuple[float, tuple[float, float] | None]:
    """A value, and an interval around it or none."""
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return value, draw(st.sampled_from([None, (low, high)]))


def is_outside(value: float, against: Bound, reference: float) -> bool:
    """The definition of outside, written once more and plainly."""
    scale = reference if against.of is not None else 1.0
    low = -math.inf if against.low is None else against.low * scale
    high = math.inf if against.high is None else against.high * scale
    return value < low or value > high


@given(bounds(), intervals(), positive)
def test_a_value_outside_its_bound_never_passes(
    against: Bound, drawn: tuple[float, tuple[float, float] | None], reference: float
) -> None:
    value, interval = drawn
    assume(is_outside(value, against, reference))
    assert outcome(value, against, interval=interval, references={"ring": reference}) in (
        Outcome.FAIL,
        Outcome.INCONCLUSIVE,
    )


@given(bounds(), intervals(), positive)
def test_the_interval_decides(
    against: Bound, drawn: tuple[float, tuple[float, float] | None], reference: float
) -> None:
    value, interval = drawn
    ends = interval or (value, value)
    decided = outcome(value, against, interval=interval, references={"ring": reference})
    outside = [is_outside(end, against, reference) for end in ends]
    if decided is Outcome.PASS:
        assert not any(outside)
    if decided is Outcome.FAIL:
        assert all(outside)
    if any(outside) and not all(outside):
        assert decided is Outcome.INCONCLUSIVE


@given(bounds(), bad_numbers)
def test_what_is_not_a_number_is_inconclusive(against: Bound, value: float) -> None:
    assert outcome(value, against, references={"ring": 1.0}) is Outcome.INCONCLUSIVE


@given(bounds(), numbers, bad_numbers, st.booleans())
def test_an_interval_that_is_not_of_numbers_is_inconclusive(
    against: Bound, value: float, bad: float, low: bool
) -> None:
    interval = (bad, value) if low else (value, bad)
    assert outcome(value, against, interval=interval, references={"ring": 1.0}) is Outcome.INCONCLUSIVE


@given(bounds())
def test_what_was_not_measured_is_inconclusive_and_says_why(against: Bound) -> None:
    verdict = judge(measured(None, why="rank 1 printed no row"), against)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "rank 1 printed no row")


@given(bounds(), numbers, st.integers(0, 20))
def test_too_few_samples_are_inconclusive(against: Bound, value: float, n: int) -> None:
    assume(n < against.samples)
    assert outcome(value, against, n=n, references={"ring": 1.0}) is Outcome.INCONCLUSIVE


@given(bounds(), numbers)
def test_no_sample_at_all_is_inconclusive(against: Bound, value: float) -> None:
    assert outcome(value, against, n=0, references={"ring": 1.0}) is Outcome.INCONCLUSIVE


@given(bounds(), numbers)
def test_another_unit_is_inconclusive(against: Bound, value: float) -> None:
    verdict = judge(measured(value, unit="Gbit/s", references={"ring": 1.0}), against)
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("references", [{}, {"Ring": 9.0}, *({"ring": v} for v in [None, 0.0, -1.0, *NOT_NUMBERS])])
@pytest.mark.parametrize("limits", [{"at_least": 0.5}, {"at_most": 2.0}, {"at_least": -1.0, "at_most": 2.0}])
def test_a_ratio_without_its_reference_is_inconclusive(
    references: Mapping[str, float | None], limits: Mapping[str, float]
) -> None:
    assert outcome(1.0, bound(of="ring", **limits), references=references) is Outcome.INCONCLUSIVE


def test_a_ratio_whose_limit_is_beyond_all_numbers_is_inconclusive() -> None:
    assert outcome(1.0, bound(of="ring", at_most=10.0), references={"ring": 1e308}) is Outcome.INCONCLUSIVE


@given(numbers)
def test_without_a_bound_a_number_is_uncalibrated(value: float) -> None:
    assert outcome(value, None) is Outcome.UNCALIBRATED


def test_without_a_bound_what_is_no_number_is_still_inconclusive() -> None:
    assert outcome(math.nan, None) is Outcome.INCONCLUSIVE
    assert outcome(None, None) is Outcome.INCONCLUSIVE


def test_a_value_outside_its_own_interval_is_inconclusive() -> None:
    assert outcome(5.0, bound(at_least=1.0), interval=(6.0, 7.0)) is Outcome.INCONCLUSIVE
    assert outcome(5.0, bound(at_least=1.0), interval=(7.0, 3.0)) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("limits", "value", "expected"),
    [
        ({"at_least": 10}, 10, Outcome.PASS),
        ({"at_least": 10}, 9.999, Outcome.FAIL),
        ({"at_most": 10}, 10, Outcome.PASS),
        ({"at_most": 10}, 10.001, Outcome.FAIL),
        ({"at_least": 1, "at_most": 2}, 1.5, Outcome.PASS),
        ({"at_least": 1, "at_most": 2}, 0.9, Outcome.FAIL),
        ({"at_least": 1, "at_most": 2}, 2.1, Outcome.FAIL),
        ({"equals": 0}, 0, Outcome.PASS),
        ({"equals": 0}, 1, Outcome.FAIL),
        ({"equals": 0}, -1, Outcome.FAIL),
        ({"at_least": 0.5, "of": "ring"}, 4, Outcome.PASS),
        ({"at_least": 0.5, "of": "ring"}, 3.9, Outcome.FAIL),
        ({"at_most": 2, "of": "ring"}, 16, Outcome.PASS),
        ({"at_most": 2, "of": "ring"}, 16.1, Outcome.FAIL),
    ],
)
def test_each_kind_passes_up_to_its_limit_and_no_further(
    limits: Mapping[str, Any], value: float, expected: Outcome
) -> None:
    assert outcome(value, bound(**limits), references={"ring": 8.0}) is expected


def test_noise_wider_than_the_bound_is_inconclusive_whichever_side_the_median_is_on() -> None:
    for value in (9.0, 11.0):
        verdict = judge(measured(value, interval=(8.0, 12.0)), bound(at_least=10))
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert verdict.reason.startswith("noise wider than the bound")


def test_a_pass_close_to_its_bound_is_near_and_an_equality_never_is() -> None:
    assert judge(measured(10.4), bound(at_least=10)).near
    assert not judge(measured(10.6), bound(at_least=10)).near
    assert not judge(measured(9.9), bound(at_least=10)).near
    assert not judge(measured(100.0), bound(equals=100)).near


def failed(**limits: Any) -> Verdict:
    """A measurement of 5 GB/s that is outside."""
    verdict = judge(measured(5.0, references={"ring": 100.0}), bound(**limits))
    assert verdict.outcome is Outcome.FAIL
    return verdict


def test_a_disturbed_window_excuses_a_speed_but_not_an_equality() -> None:
    excused = qualify(failed(at_least=10), ("gpu 3 throttled",))
    assert excused.outcome is Outcome.INCONCLUSIVE
    assert "gpu 3 throttled" in excused.reason
    assert qualify(failed(equals=0), ("gpu 3 throttled",)).outcome is Outcome.FAIL


def test_a_disturbance_makes_nothing_a_pass_and_marks_what_passed() -> None:
    passed = qualify(judge(measured(20.0), bound(at_least=10)), ("a busy neighbour",))
    assert passed.outcome is Outcome.PASS
    assert passed.measurement.qualified == ("a busy neighbour",)
    assert qualify(failed(at_least=10), ()).outcome is Outcome.FAIL


def test_a_failure_is_explained_from_what_was_seen_to_the_next_step() -> None:
    verdict = judge(measured(5.0, interval=(4.0, 6.0), detail="rank 3 was the slowest"), bound(at_least=10))
    assert explain(verdict, "look at rank 3's link").splitlines() == [
        "fail: nccl.all_reduce.busbw [size=1 MiB]: outside its bound",
        "  observed: 5 GB/s (n=20, 95% interval [4, 6])",
        "  bound: at least 10 GB/s; confidence high",
        "  source: the datasheet (2026-01-01; one quiet node)",
        "  rank 3 was the slowest",
        "  next: look at rank 3's link",
    ]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"at_least": 10}, "at least 10 GB/s"),
        ({"at_least": 6, "at_most": 9}, "at least 6 and at most 9 GB/s"),
        ({"equals": 0}, "exactly 0 GB/s"),
        ({"at_least": 0.5, "of": "ring"}, "at least 0.5 of ring, in this run at least 50 GB/s (ring: 100 GB/s)"),
    ],
)
def test_an_explanation_tells_the_bound_of_every_kind(limits: Mapping[str, Any], told: str) -> None:
    assert f"  bound: {told}; confidence" in explain(failed(**limits), "")


@pytest.mark.parametrize(
    ("limits", "told"), [({"at_least": 10}, "at least 10 GB/s"), ({"at_most": 2, "of": "ring"}, "at most 2 of ring")]
)
def test_an_explanation_tells_the_bound_even_where_it_could_not_be_applied(
    limits: Mapping[str, Any], told: str
) -> None:
    text = explain(judge(measured(None), bound(**limits)), "")
    assert f"  bound: {told}; confidence" in text
    assert "observed" not in text


def test_places_compare_by_what_they_hold_not_by_its_order() -> None:
    one, other = Place({"rank": "1", "node": "a"}), Place({"node": "a", "rank": "1"})
    assert one.key() == other.key()
    assert Planned("a.b", one).key() != Planned("a.b", Place({"node": "a"})).key()
