"""From checks to the word that the user came for: accepted, rejected or not accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    verdict, reason = _decide(outcomes, missing, trouble, _gaps(planned, judged, deselected, required, certify))
    return Conclusion(
        verdict=verdict,
        reason=reason,
        counts={outcome.value: outcomes[outcome] for outcome in Outcome},
        worst=tuple(_worst(judged)),
        missing=tuple(missing),
    )


def _suite(check: str) -> str:
    return check.partition(".")[0]


def _gaps(
    planned: Sequence[Planned],
    judged: Sequence[Judged],
    deselected: Iterable[str],
    required: Sequence[str],
    certify: bool,
) -> list[str]:
    """What the profile requires and the run did not even try."""
    suites = {_suite(entry.id) for entry in planned}
    gaps = [f"required suite {suite!r} was not run" for suite in required if suite not in suites]
    left_out = sorted({check for check in deselected if _suite(check) in required})
    if left_out:
        gaps.append(f"{len(left_out)} required checks were deselected ({left_out[0]}, ...)")
    skipped = [e for e in judged if certify and e.outcome is Outcome.SKIP and _suite(e.planned.id) in required]
    if skipped:
        gaps.append(f"{len(skipped)} required checks were skipped ({skipped[0].planned})")
    return gaps


def _decide(
    outcomes: Counter[Outcome], missing: Sequence[str], trouble: Sequence[str], gaps: Sequence[str]
) -> tuple[str, str]:
    told = [f"{outcomes[outcome]} {outcome.value}" for outcome in SEVERITY if outcomes[outcome]]
    if outcomes[Outcome.FAIL]:
        return "rejected", ", ".join([*told, *trouble])
    if trouble or missing:
        unjudged = [f"{len(missing)} planned checks without an outcome"] if missing else []
        return "not accepted", ", ".join([*trouble, *told, *unjudged])
    blocking = [o for o in (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.UNCALIBRATED) if outcomes[o]]
    if blocking:
        return "not accepted", ", ".join(told)
    if gaps:
        return "not accepted", "; ".join(gaps)
    if not outcomes[Outcome.PASS]:
        return "not accepted", "nothing was measured"
    waived = f", {outcomes[Outcome.WAIVED]} waived" if outcomes[Outcome.WAIVED] else ""
    return "accepted", f"all {outcomes[Outcome.PASS]} judged checks pass{waived}"


def _worst(judged: Sequence[Judged]) -> list[str]:
    findings = [entry for entry in judged if entry.outcome in SEVERITY]
    findings.sort(key=lambda entry: (SEVERITY.index(entry.outcome), -entry.excess))
    return [str(entry.planned) for entry in findings[:3]]
