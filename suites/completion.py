"""What every suite asks of a job before it trusts a number of it: that all its ranks ran to their end, together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.errors import InconclusiveError
from seatrial.fixtures import Check
from seatrial.job import Ending, Result

Done = Mapping[str, Any]
"""What a rank's completion event says."""

TELLING = (Ending.COMPLETED, Ending.DIED, Ending.SILENT)
"""The endings that tell something of the ranks; after any other nothing was measured."""


def rows_done(done: Done) -> str:
    """What is missing of the rows that a rank was asked for; empty where nothing is."""
    if done["rows_done"] + done["rows_unsupported"] == done["rows_asked"]:
        return ""
    return f"did {done['rows_done']} of {done['rows_asked']} rows"


def sound(result: Result) -> None:
    """Refuse the numbers of a job that did not complete, or whose events are damaged.

    Raises:
        InconclusiveError: says why the numbers cannot be judged.
    """
    if result.faults:
        raise InconclusiveError(f"job {result.job}: damaged events: {result.faults[0]}")
    if result.ending is not Ending.COMPLETED:
        raise InconclusiveError(f"job {result.job}: {result.ending.value}: {result.cause}")


def faults(result: Result, work: Callable[[Done], str]) -> list[str]:
    """What is wrong with the completion of each rank that has no good one.

    A completion is good when the rank saw the whole world, its peers are the very processes that were launched, and
    ``work`` finds nothing missing.
    """
    return [fault for rank in range(result.spec.ranks) if (fault := _fault(result, rank, work))]


def judge(check: Check, name: str, result: Result, work: Callable[[Done], str]) -> None:
    """Judge how many ranks have no good completion."""
    missing = faults(result, work)
    measured = result.ending in TELLING and not result.faults
    ended = f"{result.ending.value}: {result.cause}"
    check(
        name,
        len(missing) if measured else None,
        unit="missing ranks",
        n=result.spec.ranks,
        why="; ".join(map(str, result.faults[:3])) or ended,
        detail="; ".join(missing) if result.ending is Ending.COMPLETED and missing else ended,
    )


def _fault(result: Result, rank: int, work: Callable[[Done], str]) -> str:
    """What is wrong with a rank's completion; empty where nothing is."""
    events, world = result.events[rank], result.spec.ranks
    done = next((event.fields for event in reversed(events) if event.name == "done"), None)
    if done is None:
        return f"rank {rank}: no completion event"
    if done["world_size"] != world:
        return f"rank {rank}: saw a world of {done['world_size']}, expected {world}"
    told = [str(peer) for event in events if event.name in ("peers", "done") for peer in event.fields["peers"]]
    seen = [int(peer.rpartition(":")[2]) for peer in told]
    launched = [hello.fields["pid"] for hello in result.of("hello")]
    if seen != launched:
        return f"rank {rank}: saw the peers {seen}, expected the processes {launched}"
    undone = work(done)
    return f"rank {rank}: {undone}" if undone else ""
