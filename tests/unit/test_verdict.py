"""First law: what was not measured is never a pass, whatever else is green."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.check import Outcome, Place, Planned
from seatrial.verdict import Conclusion, Judged, conclude

PASSES = ("nccl.all_reduce.busbw", "nccl.job.complete", "health.gemm.tflops")


def plan(*ids: str) -> list[Planned]:
    return [Planned(id_) for id_ in ids]


def judged(**outcomes: Outcome) -> list[Judged]:
    """Checks with their outcomes; ``__`` in a name stands for the dot."""
    return [Judged(Planned(name.replace("__", ".")), outcome) for name, outcome in outcomes.items()]


def green(*ids: str) -> list[Judged]:
    return [Judged(Planned(id_), Outcome.PASS) for id_ in ids]


def concluded(*, also: list[Judged] | None = None, **more: Any) -> Conclusion:
    """A run whose three checks pass, with more checks (which were planned) or more circumstances."""
    extra = also or []
    planned = [*plan(*PASSES), *(entry.planned for entry in extra)]
    return conclude(planned, [*green(*PASSES), *extra], **more)


def test_a_run_whose_planned_checks_all_pass_is_accepted() -> None:
    conclusion = concluded(required=["nccl", "health"], certify=True)
    assert conclusion.accepted
    assert conclusion.reason == "all 3 judged checks pass"
    assert conclusion.counts["pass"] == 3
    assert (conclusion.worst, conclusion.missing) == ((), ())


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome.FAIL, "rejected"),
        (Outcome.INCONCLUSIVE, "not accepted"),
        (Outcome.UNCALIBRATED, "not accepted"),
        (Outcome.ERROR, "not accepted"),
        (Outcome.SKIP, "accepted"),
        (Outcome.WAIVED, "accepted"),
    ],
)
def test_each_outcome_has_its_verdict(outcome: Outcome, verdict: str) -> None:
    conclusion = concluded(also=judged(mig__slice__size=outcome))
    assert conclusion.verdict == verdict
    assert conclusion.counts[outcome.value] == 1


def test_a_planned_check_without_an_outcome_is_named() -> None:
    late = Planned("nccl.rank.lateness", Place({"rank": "3"}))
    conclusion = conclude([*plan(*PASSES), late], green(*PASSES))
    assert not conclusion.accepted
    assert conclusion.missing == ("nccl.rank.lateness [rank=3]",)
    assert conclusion.reason == "1 planned check without an outcome (nccl.rank.lateness [rank=3])"


def test_the_same_check_at_another_place_is_no_outcome() -> None:
    asked, answered = (Planned("a.b", Place({"rank": rank})) for rank in "01")
    conclusion = conclude([asked], [Judged(answered, Outcome.PASS)])
    assert not conclusion.accepted
    assert conclusion.missing == ("a.b [rank=0]",)


def test_a_check_that_was_not_planned_proves_nothing() -> None:
    conclusion = conclude(plan(*PASSES), green(*PASSES, "nccl.surprise.busbw"))
    assert not conclusion.accepted
    assert "1 check judged without being planned (nccl.surprise.busbw)" in conclusion.reason


def test_nothing_measured_is_not_accepted() -> None:
    assert not conclude([], []).accepted
    assert conclude([], []).reason == "nothing was measured"


@pytest.mark.parametrize("outcome", [Outcome.SKIP, Outcome.WAIVED])
def test_only_skips_or_only_waivers_are_not_accepted(outcome: Outcome) -> None:
    only = judged(a__b=outcome, a__c=outcome)
    conclusion = conclude([entry.planned for entry in only], only)
    assert not conclusion.accepted
    assert "nothing was measured" in conclusion.reason


def test_trouble_is_not_accepted_and_comes_first_in_the_reason() -> None:
    conclusion = concluded(trouble=["interrupted"], also=judged(a__b=Outcome.ERROR))
    assert (conclusion.verdict, conclusion.reason) == ("not accepted", "interrupted, 1 error")


def test_a_failure_rejects_whatever_else_went_wrong() -> None:
    conclusion = concluded(trouble=["interrupted"], also=judged(a__b=Outcome.FAIL, a__c=Outcome.INCONCLUSIVE))
    assert conclusion.verdict == "rejected"
    assert conclusion.reason == "1 fail, 1 inconclusive, interrupted"


def test_a_required_suite_that_did_not_run_is_not_accepted() -> None:
    conclusion = concluded(required=["nccl", "checkpoint"])
    assert (conclusion.verdict, conclusion.reason) == ("not accepted", "required suite 'checkpoint' was not run")


def test_a_required_check_that_the_command_line_left_out_is_not_accepted() -> None:
    left_out = ["nccl.broadcast.busbw", "mig.slice.size"]
    assert concluded(required=["health"], deselected=left_out).accepted
    conclusion = concluded(required=["nccl"], deselected=left_out)
    assert (conclusion.verdict, conclusion.reason) == (
        "not accepted",
        "1 required check deselected (nccl.broadcast.busbw)",
    )


def test_a_skip_of_a_required_check_counts_only_for_a_certificate() -> None:
    skipped = judged(nccl__all_to_all__busbw=Outcome.SKIP)
    assert concluded(also=skipped, required=["nccl"]).accepted
    assert concluded(also=skipped, required=["health"], certify=True).accepted
    conclusion = concluded(also=skipped, required=["nccl"], certify=True)
    assert not conclusion.accepted
    assert "1 required check skipped (nccl.all_to_all.busbw)" in conclusion.reason


def test_the_waived_are_told_with_the_acceptance() -> None:
    conclusion = concluded(also=judged(a__b=Outcome.WAIVED))
    assert conclusion.reason == "all 3 judged checks pass, 1 waived"
    assert conclusion.worst == ("a.b",)


def test_the_three_worst_are_the_gravest_and_among_these_the_farthest_outside() -> None:
    findings = [
        Judged(Planned("a.waived"), Outcome.WAIVED, excess=9.0),
        Judged(Planned("a.inconclusive"), Outcome.INCONCLUSIVE, excess=9.0),
        Judged(Planned("a.slightly"), Outcome.FAIL, excess=0.1),
        Judged(Planned("a.badly"), Outcome.FAIL, excess=0.5),
    ]
    assert concluded(also=findings).worst == ("a.badly", "a.slightly", "a.inconclusive")


outcomes = st.dictionaries(st.sampled_from([f"a.c{n}" for n in range(6)]), st.sampled_from(Outcome))


@given(st.sets(st.sampled_from([f"a.c{n}" for n in range(6)])), outcomes, st.booleans(), st.booleans())
def test_whatever_is_accepted_was_planned_and_measured(
    planned: set[str], found: dict[str, Outcome], trouble: bool, certify: bool
) -> None:
    conclusion = conclude(
        plan(*planned),
        [Judged(Planned(id_), outcome) for id_, outcome in found.items()],
        trouble=["a leak"] if trouble else [],
        required=["a"],
        certify=certify,
    )
    if conclusion.accepted:
        assert planned == set(found)
        assert Outcome.PASS in found.values()
        assert set(found.values()) <= {Outcome.PASS, Outcome.SKIP, Outcome.WAIVED}
        assert not trouble
        assert not (certify and Outcome.SKIP in found.values())
    assert (conclusion.verdict == "rejected") == (Outcome.FAIL in found.values())
