"""From checks to the word that the user came for: accepted, rejected or not accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from seatrial.check import Outcome, Planned

SEVERITY = (Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.UNCALIBRATED, Outcome.WAIVED)
"""Findings, the worst first."""


@dataclass(frozen=True)
class Judged:
    """A check with its outcome; ``excess`` is how far outside its bound it lies, as a share of the bound."""

    planned: Planned
    outcome: Outcome
    excess: float = 0.0


@dataclass(frozen=True)
class Conclusion:
    """The verdict of a session."""

    verdict: str
    reason: str
    counts: Mapping[str, int]
    worst: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """Whether the cluster is accepted."""
        return self.verdict == "accepted"


def conclude(
    planned: Sequence[Planned],
    judged: Sequence[Judged],
    *,
    trouble: Sequence[str] = (),
    deselected: Iterable[str] = (),
    required: Sequence[str] = (),
    certify: bool = False,
) -> Conclusion:
    """Decide a session.

    Args:
        planned: what the run meant to judge.
        judged: what has an outcome.
        trouble: what kept the session from its end (an interruption, a leak, an error outside the checks).
        deselected: planned check ids that the command line left out.
        required: suites without which there is no acceptance.
        certify: count a skip of a required suite's check as not accepted.
    """
    done = {entry.planned.key() for entry in judged}
    missing = [str(entry) for entry in planned if entry.key() not in done]
    outcomes = Counter(entry.outcome for entry in judged)
    gaps = [*_out_of_plan(planned, judged, missing), *_short_of(planned, judged, deselected, required, certify)]
    verdict, reason = _decide(outcomes, [*trouble, *gaps])
    return Conclusion(
        verdict=verdict,
        reason=reason,
        counts={outcome.value: outcomes[outcome] for outcome in Outcome},
        worst=tuple(_worst(judged)),
        missing=tuple(missing),
    )


def _suite(check: str) -> str:
    return check.partition(".")[0]


def _out_of_plan(planned: Sequence[Planned], judged: Sequence[Judged], missing: Sequence[str]) -> Iterator[str]:
    """Where the plan and what was judged are not the same."""
    if missing:
        yield f"{_count(missing, 'planned check')} without an outcome ({missing[0]})"
    plan = {entry.key() for entry in planned}
    unplanned = [entry.planned for entry in judged if entry.planned.key() not in plan]
    if unplanned:
        yield f"{_count(unplanned, 'check')} judged without being planned ({unplanned[0]})"


def _short_of(
    planned: Sequence[Planned],
    judged: Sequence[Judged],
    deselected: Iterable[str],
    required: Sequence[str],
    certify: bool,
) -> Iterator[str]:
    """What the profile requires and the run did not do."""
    suites = {_suite(entry.id) for entry in planned}
    yield from (f"required suite {suite!r} was not run" for suite in required if suite not in suites)
    left_out = sorted({check for check in deselected if _suite(check) in required})
    if left_out:
        yield f"{_count(left_out, 'required check')} deselected ({left_out[0]})"
    skipped = [e.planned for e in judged if e.outcome is Outcome.SKIP and _suite(e.planned.id) in required]
    if certify and skipped:
        yield f"{_count(skipped, 'required check')} skipped ({skipped[0]})"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _decide(outcomes: Counter[Outcome], gaps: Sequence[str]) -> tuple[str, str]:
    """Only a pass is a pass, and only a waiver excuses: everything else stands against acceptance."""
    findings = [outcome for outcome in SEVERITY if outcomes[outcome]]
    told = [f"{outcomes[outcome]} {outcome.value}" for outcome in findings]
    if outcomes[Outcome.FAIL]:
        return "rejected", ", ".join([*told, *gaps])
    if gaps or set(findings) - {Outcome.WAIVED}:
        return "not accepted", ", ".join([*gaps, *told])
    if not outcomes[Outcome.PASS]:
        return "not accepted", ", ".join(["nothing was measured", *told])
    waived = f", {outcomes[Outcome.WAIVED]} waived" if outcomes[Outcome.WAIVED] else ""
    return "accepted", f"all {outcomes[Outcome.PASS]} judged checks pass{waived}"


def _worst(judged: Sequence[Judged]) -> list[str]:
    findings = [entry for entry in judged if entry.outcome in SEVERITY]
    findings.sort(key=lambda entry: (SEVERITY.index(entry.outcome), -entry.excess))
    return [str(entry.planned) for entry in findings[:3]]
