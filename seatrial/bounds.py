"""Bounds and the catalogue of checks, read from YAML and held against each other before anything runs.

A catalogue (``suites/*/checks.yaml``, ``telemetry/checks.yaml``) says which checks there are, in which unit, what each
proves and what it cannot. The thresholds (``thresholds/*.yaml``) say which values pass, keyed by what decides them.
Nothing is scaled from another key.
"""

from __future__ import annotations

import datetime
import enum
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from seatrial.errors import UsageError
from seatrial.strict import Mistake, Strict, listing, mistakes, near_miss

SELECTORS = ("device", "accelerator", "topology", "fabric", "workload", "sharing", "nodes", "ranks", "transport")
"""What a bound may be keyed by on every check; beside them each check has its own places (size, dtype, rank)."""

_PLACEHOLDER = re.compile(r"\b(todo|tbd|fixme|xxx|placeholder|unknown|n/?a)\b", re.IGNORECASE)


class Kind(str, enum.Enum):
    """How a bound decides."""

    MIN = "min"
    MAX = "max"
    WITHIN = "within"
    EQUAL = "equal"
    RATIO = "ratio"


class Entry(Strict):
    """One check of the catalogue; ``{op}`` in an id stands for any one word."""

    id: str = Field(pattern=r"^[a-z0-9_{}]+(\.[a-z0-9_{}]+)+$")
    unit: str
    better: Literal["higher", "lower", "equal"]
    where: tuple[str, ...] = ()
    proves: str
    cannot: str
    next: str

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

    check: str
    when: Mapping[str, Annotated[str, BeforeValidator(_as_text)]] = Field(default_factory=dict)
    at_least: float | None = Field(default=None, allow_inf_nan=False)
    at_most: float | None = Field(default=None, allow_inf_nan=False)
    equals: float | None = Field(default=None, allow_inf_nan=False)
    of: str | None = None
    unit: str
    samples: int = Field(default=1, ge=1)
    source: str = Field(min_length=8)
    date: datetime.date
    conditions: str
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
        if _PLACEHOLDER.search(f"{self.source} {self.conditions}"):
            raise ValueError(f"expected a source and conditions, observed a placeholder: {self.source!r}")
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
        """What passes, in words."""
        if self.equals is not None:
            return f"exactly {self.equals:g} {self.unit}"
        told = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        told += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return f"{' and '.join(told)} {'of ' + self.of if self.of is not None else self.unit}"

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
        """The catalogue's entry of a check id."""
        return next((entry for entry in self.entries if fnmatch.fnmatchcase(check, entry.pattern)), None)

    def of(self, entry: Entry) -> list[Bound]:
        """The bounds that can decide a catalogue entry."""
        return [bound for bound in self.bounds if _meet(bound.check, entry.pattern)]

    def find(self, check: str, context: Mapping[str, str]) -> Bound | None:
        """The bound of a check in a context: the selectors of its pool and job, and its own place.

        The most specific bound wins: the one with the most keys, then the one that names the check itself.

        Raises:
            UsageError: two bounds fit equally well.
        """
        fitting = [
            bound
            for bound in self.bounds
            if fnmatch.fnmatchcase(check, bound.check)
            and all(context.get(key) == value for key, value in bound.when.items())
        ]
        if not fitting:
            return None
        ranked = sorted(fitting, key=_specificity, reverse=True)
        if len(ranked) > 1 and _specificity(ranked[0]) == _specificity(ranked[1]):
            raise UsageError(f"thresholds: two bounds fit {check} equally well: {ranked[0]} and {ranked[1]}; keep one")
        return ranked[0]


def _specificity(bound: Bound) -> tuple[int, bool]:
    return len(bound.when), "*" not in bound.check


def _against_catalogue(path: Path, bound: Bound, entries: Sequence[Entry]) -> Iterable[Mistake]:
    """What is wrong with a bound in the light of the checks that exist."""
    named = [entry for entry in entries if _meet(bound.check, entry.pattern)]
    where = f"bound of {bound}"
    if not named:
        hint = near_miss(bound.check, [entry.id for entry in entries])
        yield Mistake(path, 0, where, "a check that some checks.yaml describes", repr(bound.check), hint)
    for entry in named:
        if entry.unit != bound.unit:
            yield Mistake(path, 0, f"{where}: unit", f"that of {entry.id}, {entry.unit!r}", repr(bound.unit))
        known = [*SELECTORS, *entry.where]
        for key in set(bound.when) - set(known):
            expected = f"a place of {entry.id}: {', '.join(known)}"
            yield Mistake(path, 0, f"{where}: when", expected, repr(key), near_miss(key, known))


def _meet(glob: str, pattern: str) -> bool:
    """Whether a bound's id and a check's pattern can name the same check."""
    return fnmatch.fnmatchcase(pattern, glob) or fnmatch.fnmatchcase(glob, pattern)


def load(catalogues: Sequence[Path], thresholds: Sequence[Path]) -> Bounds:
    """Read all checks and bounds.

    Raises:
        UsageError: lists every mistake in every file.
    """
    wrong: list[Mistake] = []
    entries: list[Entry] = []
    for path in catalogues:
        found, errors = mistakes(path, Catalogue)
        wrong += errors
        entries += found.checks if found is not None else []
    bounds: list[Bound] = []
    for path in thresholds:
        file, errors = mistakes(path, Thresholds)
        wrong += errors
        for bound in file.bounds if file is not None else ():
            wrong += _against_catalogue(path, bound, entries)
            bounds.append(bound)
    if wrong:
        raise UsageError(listing(wrong))
    return Bounds(tuple(entries), tuple(bounds))


def load_package() -> Bounds:
    """Read every catalogue and every threshold that this package has.

    Raises:
        UsageError: lists every mistake.
    """
    root = Path(__file__).parent
    catalogues = [*sorted(root.glob("suites/*/checks.yaml")), root / "telemetry" / "checks.yaml"]
    return load(catalogues, sorted(root.glob("thresholds/*.yaml")))
