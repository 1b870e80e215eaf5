"""Bounds and the catalogue of checks, read from YAML and held against each other before anything runs.

A catalogue (``suites/*/checks.yaml``, ``telemetry/checks.yaml``) says which checks there are, in which unit, what each
proves and what it cannot. The thresholds (``thresholds/*.yaml``) say which values pass, keyed by what decides them.
Nothing is scaled from another key.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from seatrial.errors import UsageError
from seatrial.strict import Finding, Mistake, Strict, Where, listing, mistakes, near_miss

SELECTORS = ("device", "accelerator", "topology", "fabric", "workload", "sharing", "nodes", "ranks", "transport")
"""What a bound may be keyed by on every check; beside them each check has its own places (size, dtype, rank)."""

_PLACEHOLDER = re.compile(r"\b(todo|tbd|fixme|xxx|placeholder|unknown|n/?a)\b", re.IGNORECASE)
_CHECK = re.compile(r"^([a-z0-9_]+|\*)(\.([a-z0-9_]+|\*))+$")
_ENTRY = re.compile(r"^([a-z0-9_]+|\{\w+\})(\.([a-z0-9_]+|\{\w+\}))+$")


def _named(pattern: re.Pattern[str], expected: str) -> Any:
    return Field(pattern=pattern.pattern, json_schema_extra={"x-expected": expected})


def _evidence(text: str) -> str:
    if _PLACEHOLDER.search(text):
        raise ValueError("a placeholder proves nothing")
    return text


Evidence = Annotated[str, Field(min_length=8), AfterValidator(_evidence)]
Text = Annotated[str, Field(min_length=1)]


class Kind(str, enum.Enum):
    """How a bound decides."""

    MIN = "min"
    MAX = "max"
    WITHIN = "within"
    EQUAL = "equal"
    RATIO = "ratio"


class Entry(Strict):
    """One check of the catalogue; ``{op}`` in an id stands for any one word."""

    id: str = _named(_ENTRY, "a check's id such as nccl.{op}.busbw")
    unit: Text
    better: Literal["higher", "lower", "equal"]
    where: tuple[str, ...] = ()
    proves: Text
    cannot: Text
    next: Text

    @property
    def pattern(self) -> str:
        """The id as a glob."""
        return re.sub(r"\{\w+\}", "*", self.id)


class Catalogue(Strict):
    """A file of checks."""

    checks: tuple[Entry, ...]


def _as_text(value: object) -> object:
    """A number of nodes or ranks is a name like any other."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Bound(Strict):
    """One bound with its source. Exactly one of ``equals`` or a limit; with ``of``, the limits are ratios to it."""

    check: str = _named(_CHECK, "a check's id such as nccl.all_reduce.busbw, where * stands for any one word")
    when: Mapping[str, Annotated[str, BeforeValidator(_as_text)]] = Field(default_factory=dict)
    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    of: Text | None = None
    unit: Text
    samples: int = Field(default=1, ge=1)
    source: Evidence
    date: datetime.date
    conditions: Evidence
    confidence: Literal["high", "med", "low"]

    @model_validator(mode="after")
    def _one_kind(self) -> Bound:
        limits = [self.at_least, self.at_most]
        if (self.equals is None) == (limits == [None, None]):
            raise ValueError("expected either equals, or at_least and/or at_most")
        if self.equals is not None and self.of is not None:
            raise ValueError("expected at_least or at_most beside of: an equality has no ratio")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"expected at_least <= at_most, observed {self.at_least} > {self.at_most}")
        return self

    @property
    def kind(self) -> Kind:
        """How this bound decides."""
        if self.of is not None:
            return Kind.RATIO
        if self.equals is not None:
            return Kind.EQUAL
        if self.at_least is not None and self.at_most is not None:
            return Kind.WITHIN
        return Kind.MIN if self.at_least is not None else Kind.MAX

    @property
    def low(self) -> float | None:
        """The least value that passes."""
        return self.equals if self.equals is not None else self.at_least

    @property
    def high(self) -> float | None:
        """The greatest value that passes."""
        return self.equals if self.equals is not None else self.at_most

    @property
    def value(self) -> float | list[float | None] | None:
        """The limit as the record shows it: one number, or [low, high]."""
        if self.kind is Kind.EQUAL or self.at_most is None:
            return self.low
        return self.high if self.at_least is None else [self.low, self.high]

    @property
    def gates(self) -> bool:
        """Whether it decides; a bound of low confidence only reports."""
        return self.confidence != "low"

    def limits(self) -> str:
        """What passes, in words: ``at least 0.95 of smaller size``, ``exactly 0 wrong elements``."""
        limits = (("exactly", self.equals), ("at least", self.at_least), ("at most", self.at_most))
        told = [f"{word} {limit:g}" for word, limit in limits if limit is not None]
        return f"{' and '.join(told)} {self.unit if self.of is None else f'of {self.of}'}"

    def __str__(self) -> str:
        when = " ".join(f"{key}={value}" for key, value in self.when.items())
        return f"{self.check} [{when}]" if when else self.check


class Thresholds(Strict):
    """A file of bounds."""

    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Bounds:
    """All checks that exist and all bounds that are armed."""

    entries: tuple[Entry, ...]
    bounds: tuple[Bound, ...]

    def entry(self, check: str) -> Entry | None:
        """The catalogue's entry of a check id; one that names the check itself comes before a pattern."""
        fitting = [entry for entry in self.entries if _meet(check, entry.pattern)]
        return min(fitting, key=lambda entry: entry.pattern.count("*"), default=None)

    def of(self, entry: Entry) -> list[Bound]:
        """The bounds that can decide a catalogue entry."""
        return [bound for bound in self.bounds if _meet(bound.check, entry.pattern)]

    def find(self, check: str, context: Mapping[str, str]) -> Bound | None:
        """The bound of a check in a context: the selectors of its pool and job, and its own place.

        The most specific bound wins: the one with the most keys, then the one with the fewest wildcards. ``load``
        refuses two bounds that fit one place equally well.
        """
        fitting = [bound for bound in self.bounds if _meet(check, bound.check) and _agree(bound.when, context)]
        return max(fitting, key=_specificity, default=None)


def _meet(one: str, other: str) -> bool:
    """Whether two names of checks, in which ``*`` stands for any one word, can name the same check."""
    ours, theirs = one.split("."), other.split(".")
    return len(ours) == len(theirs) and all(a == b or "*" in (a, b) for a, b in zip(ours, theirs, strict=True))


def _agree(when: Mapping[str, str], context: Mapping[str, str]) -> bool:
    return all(context.get(key) == value for key, value in when.items())


def _specificity(bound: Bound) -> tuple[int, int]:
    return len(bound.when), -bound.check.count("*")


_SIDE = {"higher": "at_least", "lower": "at_most", "equal": "equals"}
"""The side on which a check is bounded, by what is better."""


def _thresholds_of(entries: Sequence[Entry]) -> type[Thresholds]:
    """A file of bounds that are held against the checks that exist, so that each mistake is told with its line."""

    class Known(Thresholds):
        @classmethod
        def cross_check(cls, data: Any) -> Iterator[Finding]:
            listed = data.get("bounds") if isinstance(data, dict) else None
            for index, bound in enumerate(listed if isinstance(listed, list) else ()):
                if isinstance(bound, dict) and _CHECK.fullmatch(str(bound.get("check"))):
                    yield from _against_catalogue(bound, ("bounds", index), entries)

    return Known


def _against_catalogue(bound: Mapping[str, Any], where: Where, entries: Sequence[Entry]) -> Iterator[Finding]:
    """What is wrong with a bound, of which only the name is known to be sound, in the light of the catalogue."""
    check, unit, when = bound["check"], bound.get("unit"), bound.get("when")
    named = [entry for entry in entries if _meet(check, entry.pattern)]
    if not named:
        hint = near_miss(check, [_filled(entry.pattern, check) for entry in entries])
        yield Finding((*where, "check"), "a check that some checks.yaml describes", repr(check), hint)
        return
    limited = {side for side in _SIDE.values() if bound.get(side) is not None}
    for entry in named:
        if isinstance(unit, str) and unit != entry.unit:
            yield Finding((*where, "unit"), f"{entry.unit!r}, the unit of {entry.id}", repr(unit))
        if limited and not limited & {_SIDE[entry.better], "equals"}:
            yield Finding(where, f"{_SIDE[entry.better]}, because {entry.id} is better {entry.better}", "none")
    known = list(dict.fromkeys([*SELECTORS, *(key for entry in named for key in entry.where)]))
    for key in when if isinstance(when, dict) else ():
        if key not in known:
            yield Finding((*where, "when", key), f"one of {', '.join(known)}", repr(key), near_miss(key, known))


def _filled(pattern: str, check: str) -> str:
    """A pattern with a check's own words in place of its wildcards, where it has as many."""
    parts, words = pattern.split("."), check.split(".")
    if len(parts) != len(words):
        return pattern
    return ".".join(word if part == "*" else part for part, word in zip(parts, words, strict=True))


def _rivals(placed: Sequence[tuple[Path, Bound]]) -> Iterator[Mistake]:
    """Bounds of which neither is more specific at a place that both fit."""
    for (first, one), (path, other) in combinations(placed, 2):
        alike = all(other.when.get(key, value) == value for key, value in one.when.items())
        if alike and _meet(one.check, other.check) and _specificity(one) == _specificity(other):
            hint = "keep one, or add a key to when"
            yield Mistake(path, 0, str(other), "one bound for a place", f"{one} of {first.name} fits as well", hint)


def _doubles(placed: Sequence[tuple[Path, Entry]]) -> Iterator[Mistake]:
    """Entries of which neither is more specific for a check that both describe."""
    for (first, one), (path, other) in combinations(placed, 2):
        if _meet(one.pattern, other.pattern) and one.pattern.count("*") == other.pattern.count("*"):
            yield Mistake(path, 0, other.id, "each check once", f"{one.id} of {first.name} too")


def load(catalogues: Sequence[Path], thresholds: Sequence[Path]) -> Bounds:
    """Read all checks and bounds.

    Raises:
        UsageError: lists every mistake in every file.
    """
    wrong: list[Mistake] = []
    checks: list[tuple[Path, Entry]] = []
    for path in catalogues:
        catalogue, found = mistakes(path, Catalogue)
        wrong += found
        checks += [(path, entry) for entry in (catalogue.checks if catalogue is not None else ())]
    entries = tuple(entry for _, entry in checks)
    # Held against a catalogue that could not be read, every bound would look wrong.
    model = Thresholds if wrong else _thresholds_of(entries)
    bounds: list[tuple[Path, Bound]] = []
    for path in thresholds:
        file, found = mistakes(path, model)
        wrong += found
        bounds += [(path, bound) for bound in (file.bounds if file is not None else ())]
    wrong += [*_doubles(checks), *_rivals(bounds)]
    if wrong:
        raise UsageError(listing(wrong))
    return Bounds(entries, tuple(bound for _, bound in bounds))


def load_package() -> Bounds:
    """Read every catalogue and every threshold that this package has.

    Raises:
        UsageError: lists every mistake.
    """
    root = Path(__file__).parent
    catalogues = [*sorted(root.glob("suites/*/checks.yaml")), root / "telemetry" / "checks.yaml"]
    return load(catalogues, sorted(root.glob("thresholds/*.yaml")))
