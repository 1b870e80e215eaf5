"""What a training job said of itself, step by step, and where two of them are not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.errors import InconclusiveError
from seatrial.job import Result

EXACT_PARTS = ("data", "rng.python", "rng.torch", "schedule")
"""The parts of the state that arithmetic does not touch: they are the same even where a device's sums are not."""

Digests = Mapping[str, str]


@dataclass
class Rank:
    """One rank's word: by step what the step was and what the state was; the state at the end."""

    steps: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    saving: dict[int, Digests] = field(default_factory=dict)
    saved: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    loaded: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    final: Digests | None = None


@dataclass(frozen=True)
class Difference:
    """The first place where a rank's restored run is not the uninterrupted one."""

    step: int
    rank: int
    what: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"step {self.step}, rank {self.rank}: {self.what} {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class Comparison:
    """How many items were compared, and those that differ, in the order of the steps."""

    compared: int
    differences: tuple[Difference, ...]


class Trace:
    """A job's run as its ranks told it.

    Args:
        result: the job after its end, however it ended.
    """

    def __init__(self, result: Result) -> None:
        if result.faults:
            raise InconclusiveError(f"job {result.job}: damaged events: {result.faults[0]}")
        self.job = result.job
        self.ranks = {rank: _rank(result, rank) for rank in range(result.spec.ranks)}

    @property
    def reached(self) -> int:
        """The last step that any rank has done; 0 where none was."""
        return max((max(rank.steps, default=0) for rank in self.ranks.values()), default=0)

    @property
    def loaded(self) -> int:
        """The step that the run went on from; 0 where it began anew.

        Raises:
            InconclusiveError: the ranks do not agree.
        """
        steps = {max(rank.loaded, default=0) for rank in self.ranks.values()}
        if len(steps) != 1:
            raise InconclusiveError(f"job {self.job}: the ranks went on from different steps: {sorted(steps)}")
        return steps.pop()

    def saved(self) -> set[int]:
        """The steps whose checkpoints some rank has told to be whole: after all ranks had confirmed."""
        return {step for rank in self.ranks.values() for step in rank.saved}


def _rank(result: Result, number: int) -> Rank:
    rank = Rank()
    for event in result.events[number]:
        said = event.fields
        if event.name == "step":
            rank.steps[int(said["step"])] = said
        elif event.name == "saving":
            rank.saving[int(said["step"])] = said["digests"]
        elif event.name == "saved":
            rank.saved[int(said["step"])] = said
        elif event.name == "loaded":
            rank.loaded[int(said["step"])] = said
        elif event.name == "final":
            rank.final = said["digests"]
    return rank


def compare(reference: Trace, other: Trace, spread: float | None = None) -> Comparison:
    """Hold a run against the uninterrupted one: the state that it loaded, and all that it did and saved since.

    Args:
        reference: the run that was never killed.
        other: a run that was restored, up to where it was killed in its turn, or to the end.
        spread: how far losses may differ where the device does not give the same bits twice; digests of what its
            arithmetic touches are then left out. None asks for every bit.

    Raises:
        InconclusiveError: there is not enough to compare.
    """
    first, last = other.loaded, other.reached
    if last < first + 2:
        raise InconclusiveError(
            f"job {other.job}: restored at step {first}, it came to step {last}; 2 steps are needed"
        )
    found: list[Difference] = []
    compared = 0
    for number in sorted(reference.ranks):
        for step, what, ours, theirs in _items(reference.ranks[number], other.ranks[number], first, last):
            if spread is not None and what.startswith("digest of ") and not what.endswith(EXACT_PARTS):
                continue
            compared += 1
            if not _alike(what, ours, theirs, spread):
                found.append(Difference(step, number, what, _short(what, theirs), _short(what, ours)))
    return Comparison(compared, tuple(sorted(found, key=lambda difference: difference.step)))


Item = tuple[int, str, object, object]
"""Step, what, the uninterrupted run's, the other's."""


def _items(reference: Rank, other: Rank, first: int, last: int) -> Iterator[Item]:
    if first:
        yield from _digests(first, reference.saving.get(first, {}), other.loaded[first]["digests"], "loaded")
    for step in range(first + 1, last + 1):
        ours, theirs = reference.steps.get(step, {}), other.steps.get(step, {})
        for what in ("loss", "samples", "rate"):
            yield step, what, ours.get(what), theirs.get(what)
    for step in sorted(other.saving):
        yield from _digests(step, reference.saving.get(step, {}), other.saving[step], "saved")
    if other.final is not None and reference.final is not None:
        yield from _digests(last, reference.final, other.final, "final")


def _digests(step: int, ours: Digests, theirs: Digests, when: str) -> Iterator[Item]:
    for part in sorted({*ours, *theirs}):
        yield step, f"digest of {when} {part}", ours.get(part), theirs.get(part)


def _alike(what: str, ours: object, theirs: object, spread: float | None) -> bool:
    if ours is None or theirs is None:
        return False
    if spread is None or what != "loss":
        return ours == theirs
    return abs(float.fromhex(str(ours)) - float.fromhex(str(theirs))) <= spread


def _short(what: str, value: object) -> str:
    if value is None:
        return "missing"
    return f"{float.fromhex(str(value))!r}" if what in ("loss", "rate") else str(value)[:16]


def spread(one: Trace, other: Trace) -> float:
    """The largest difference between the losses of two uninterrupted runs, over all steps and ranks."""
    return max(
        abs(float.fromhex(str(said["loss"])) - float.fromhex(str(other.ranks[rank].steps[step]["loss"])))
        for rank in one.ranks
        for step, said in one.ranks[rank].steps.items()
    )
