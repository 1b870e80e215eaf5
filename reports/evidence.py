"""What the checks of a record say, grouped as a reader takes them in: findings first, passes folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from seatrial.record import Check, Record
from seatrial.reports import checkpoint, health, nccl, staging, words
from seatrial.reports.plots import Figure, margin

FIGURES: Mapping[str, Callable[[Record], list[Figure]]] = {
    "nccl": nccl.figures,
    "health": health.figures,
    "checkpoint": checkpoint.figures,
    "staging": staging.figures,
}
"""What each suite draws beside its tables."""
_NUMBER = re.compile(r"\d[\d.,]*")

SHOWN = 12
"""So many places of one finding are listed openly, the others folded."""
OPEN = 30
"""So many findings of one suite are shown openly, the others folded."""
LISTED = 1000
"""So many passes of one check are listed, the nearest to their bounds; the others are counted."""


@dataclass(frozen=True)
class Headline:
    """The verdict as the report gives it, and why."""

    verdict: str
    reason: str


def headline(record: Record) -> Headline:
    """The record's verdict; without one, or with damaged evidence for one, the cluster is not accepted."""
    verdict = record.verdict
    if verdict is None:
        return Headline("not accepted", "the run did not finish")
    if record.damage and verdict.verdict == "accepted":
        return Headline("not accepted", "the record is damaged; undamaged, it would say accepted")
    return Headline(verdict.verdict, verdict.reason)


def counts(checks: Iterable[Check]) -> list[tuple[str, int]]:
    """How many checks had each outcome, passes first, outcomes without any left out."""
    count = Counter[str](check.outcome for check in checks)
    return [(outcome, count[outcome]) for outcome in ("pass", *words.SEVERITY[:-1]) if count[outcome]]


@dataclass(frozen=True)
class Finding:
    """Checks of one id that did not pass, for one reason and with one next step."""

    checks: Sequence[Check]

    @property
    def first(self) -> Check:
        """The worst of them, which speaks for all."""
        return self.checks[0]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What is said of single places: the detail, and the reason where it is not the first one's."""
        noted = []
        for check in self.open:
            reason = check.reason if check.reason != self.first.reason else ""
            text = ". ".join(_filled(reason, check.detail))
            noted += [(check.place, text)] if text else []
        return noted

    @property
    def steps(self) -> list[str]:
        """What to do next."""
        return _once(words.next_step(check) for check in self.checks)

    @property
    def tests(self) -> list[str]:
        """The tests that judged them."""
        return _once(check.test for check in self.checks)

    @property
    def jobs(self) -> list[str]:
        """The jobs that measured them."""
        return _once(check.job or "" for check in self.checks)

    @property
    def open(self) -> Sequence[Check]:
        """The places that are listed openly."""
        return self.checks[:SHOWN]

    @property
    def folded(self) -> Sequence[Check]:
        """The other places."""
        return self.checks[SHOWN:]


def severity(check: Check) -> tuple[int, float]:
    """A key that sorts checks worst first."""
    return words.SEVERITY.index(check.outcome), margin(check)


def _sameness(check: Check) -> tuple[str, ...]:
    """What checks of one finding share: everything that is said of them, but for the numbers in it."""
    source = words.provenance(check.bound) if check.bound is not None else ""
    said = (_NUMBER.sub("#", text) for text in (check.reason, check.next, *check.qualified))
    return check.outcome, check.id, source, *said


def findings(checks: Iterable[Check]) -> list[Finding]:
    """Everything but passes and skips, worst first."""
    grouped: dict[tuple[str, ...], list[Check]] = {}
    for check in checks:
        if check.outcome not in ("pass", "skip"):
            grouped.setdefault(_sameness(check), []).append(check)
    found = [Finding(sorted(group, key=severity)) for group in grouped.values()]
    return sorted(found, key=lambda finding: severity(finding.first))


def worst(record: Record, most: int = 3) -> list[Finding]:
    """The worst findings: those that the verdict names, else those that the checks show."""
    bad = sorted((check for check in record.checks if check.outcome not in ("pass", "skip")), key=severity)
    named = record.verdict.worst if record.verdict is not None else ()
    chosen: list[Check] = []
    for name in named:
        chosen += [check for check in bad if name in (check.id, str(check)) and check not in chosen][:1]
    return [Finding([check]) for check in (chosen or bad[:most])]


@dataclass(frozen=True)
class Group:
    """All checks of one id."""

    checks: Sequence[Check]

    @property
    def id(self) -> str:
        """The check's id."""
        return self.checks[0].id

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Its outcomes."""
        return counts(self.checks)

    @property
    def observed(self) -> str:
        """From the least to the greatest value."""
        values = [check.observed for check in self.checks if check.observed is not None]
        if not values:
            return "not measured"
        low, high = words.number(min(values)), words.number(max(values))
        return f"{low if low == high else f'{low} … {high}'} {self.checks[0].unit}".strip()

    @property
    def bound(self) -> str:
        """From the least to the greatest bound."""
        limits = [words.limits_of(check.bound) for check in self.checks if check.bound is not None]
        return words.limits(limits, self.checks[0].unit) or ("a ratio" if self.rules else "none")

    @property
    def rules(self) -> list[str]:
        """The ratios behind the bounds."""
        return _once(words.rule(check.bound) for check in self.checks if check.bound is not None)

    @property
    def sources(self) -> list[str]:
        """Where the bounds come from."""
        return _once(words.source(check.bound) for check in self.checks if check.bound is not None)

    @property
    def confidences(self) -> list[str]:
        """How far the bounds are trusted."""
        return _once(check.bound.confidence for check in self.checks if check.bound is not None)

    @property
    def passes(self) -> Sequence[Check]:
        """The passes to list, in the order of the run."""
        passed = [check for check in self.checks if check.outcome == "pass"]
        nearest = sorted(passed, key=margin)[:LISTED]
        return passed if len(passed) <= LISTED else [check for check in passed if margin(check) <= margin(nearest[-1])]

    @property
    def unlisted(self) -> int:
        """How many passes are only counted."""
        return sum(check.outcome == "pass" for check in self.checks) - len(self.passes)


def _filled(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _once(texts: Iterable[str]) -> list[str]:
    return _filled(*dict.fromkeys(texts))


@dataclass(frozen=True)
class Suite:
    """One suite's evidence."""

    name: str
    checks: Sequence[Check]
    figures: Sequence[Figure]

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Its outcomes."""
        return counts(self.checks)

    @property
    def groups(self) -> list[Group]:
        """Its checks by id, in the order of the run."""
        by_id: dict[str, list[Check]] = {}
        for check in self.checks:
            by_id.setdefault(check.id, []).append(check)
        return [Group(group) for group in by_id.values()]

    @property
    def sources(self) -> list[str]:
        """Where its bounds come from, each once; the tables refer to them by number."""
        return _once(source for group in self.groups for source in group.sources)

    @property
    def findings(self) -> list[Finding]:
        """What did not pass."""
        return findings(self.checks)

    @property
    def open(self) -> list[Finding]:
        """The worst of what did not pass."""
        return self.findings[:OPEN]

    @property
    def folded(self) -> list[Finding]:
        """The rest of what did not pass."""
        return self.findings[OPEN:]

    @property
    def skips(self) -> list[tuple[str, Sequence[Check]]]:
        """What does not apply here, by reason."""
        skipped = sorted((check for check in self.checks if check.outcome == "skip"), key=lambda check: check.reason)
        return [(reason, list(group)) for reason, group in groupby(skipped, key=lambda check: check.reason)]


def suites(record: Record) -> list[Suite]:
    """The suites in the order in which they were first judged."""
    by_suite: dict[str, list[Check]] = {}
    for check in record.checks:
        by_suite.setdefault(check.suite, []).append(check)
    return [Suite(name, checks, _figures(name, record)) for name, checks in by_suite.items()]


def _figures(suite: str, record: Record) -> list[Figure]:
    return FIGURES[suite](record) if suite in FIGURES else []


def qualifications(record: Record) -> list[tuple[str, int]]:
    """What disturbed a measurement, and how many checks it touches."""
    return list(Counter(reason for check in record.checks for reason in check.qualified).items())


def near_misses(record: Record) -> list[Check]:
    """Passes close to their bound, the closest first."""
    return sorted((check for check in record.checks if check.near), key=margin)
