"""From the events of a collectives job to numbers: busbw, lateness, the first wrong element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from seatrial.errors import InconclusiveError
from seatrial.job import Event, Result
from seatrial.parse.nccl_tests import busbw_factor
from seatrial.suites.completion import sound

# all_reduce and its like let no rank leave before all have come, so that waiting in them tells who came last.
MEETING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Row:
    """One collective at one size on all ranks; ``times`` are seconds, an iteration's time is its slowest rank's."""

    op: str
    dtype: str
    asked: int
    size: int
    ranks: int
    times: tuple[float, ...]
    wrong: int
    checked: int
    first_wrong: str

    @property
    def busbw(self) -> list[float]:
        """Bus bandwidth of each iteration in GB/s: size / time, times the nccl-tests factor of the operation."""
        factor = busbw_factor(self.op, self.ranks)
        return [self.size / seconds * factor / 1e9 for seconds in self.times]


class Sweep:
    """The results of a collectives job, trusted only as far as every rank confirms them.

    Args:
        result: the job after its end.
    """

    def __init__(self, result: Result) -> None:
        self.result = result

    def unsupported(self, op: str, dtype: str) -> dict[int | None, str]:
        """Why the backend could not do this operation, by the size that was asked for; None stands for all sizes."""
        return {
            event.fields["size"]: str(event.fields["why"])
            for event in self.result.of("unsupported")
            if (event.fields["op"], event.fields["dtype"]) == (op, dtype)
        }

    def rows(self, op: str, dtype: str) -> list[Row]:
        """The rows of one collective, by size.

        Raises:
            InconclusiveError: a rank's part is missing or does not fit the others'.
        """
        sound(self.result)
        found: dict[int, list[Event]] = {}
        for event in self.result.of("row"):
            if (event.fields["op"], event.fields["dtype"]) == (op, dtype):
                found.setdefault(int(event.fields["asked"]), []).append(event)
        return [self._row(op, dtype, asked, events) for asked, events in sorted(found.items())]

    def _row(self, op: str, dtype: str, asked: int, events: Sequence[Event]) -> Row:
        where = f"job {self.result.job}: {op} {dtype} {asked} bytes"
        if [event.rank for event in events] != list(range(self.result.spec.ranks)):
            raise InconclusiveError(f"{where}: rows from ranks {[event.rank for event in events]}")
        asked_for = int(self.result.spec.settings["iterations"])
        times = [event.fields["time_us"] for event in events]
        if any(len(own) != asked_for or min(own) <= 0 for own in times):
            raise InconclusiveError(f"{where}: expected {asked_for} positive times of each rank")
        first = next((event for event in events if event.fields["wrong"]), None)
        return Row(
            op=op,
            dtype=dtype,
            asked=asked,
            size=int(events[0].fields["size"]),
            ranks=len(events),
            times=tuple(max(slowest) / 1e6 for slowest in zip(*times, strict=True)),
            wrong=sum(int(event.fields["wrong"]) for event in events),
            checked=sum(int(event.fields["checked"]) for event in events),
            first_wrong="" if first is None else _first_wrong(first),
        )

    def ring(self) -> dict[int, float]:
        """The raw ring's rate in GB/s by size: what the same processes move round the same ring without collectives.

        The yardstick is the median over its repeats, each timed as its slowest rank's.
        """
        found: dict[int, list[Sequence[float]]] = {}
        for event in self.result.of("yardstick"):
            if event.fields["kind"] == "ring":
                found.setdefault(int(event.fields["size"]), []).append(event.fields["time_us"])
        return {
            size: size / (median(max(slowest) for slowest in zip(*times, strict=True)) / 1e6) / 1e9
            for size, times in found.items()
            if len(times) == self.result.spec.ranks
        }

    def lateness(self) -> dict[int, float]:
        """Each rank's lateness: the share of the measured time that the others spent waiting for it, beyond its peers'.

        In a step that all ranks must reach, the rank that waits least came last; how late is the difference to the
        longest wait. Only durations on one clock are compared with durations on another, never times. What a busy host
        adds hits every rank alike, so each rank's share is told beyond the (low) median rank's.

        Raises:
            InconclusiveError: nothing was measured.
        """
        sound(self.result)
        late = dict.fromkeys(range(self.result.spec.ranks), 0.0)
        window = 0.0
        for waits, length in self._meetings():
            window += length
            for rank, wait in enumerate(waits):
                late[rank] += max(waits) - wait
        if window <= 0:
            raise InconclusiveError(f"job {self.result.job}: no step at which the ranks met")
        usual = median_low(late.values())
        return {rank: max(0.0, microseconds - usual) / window for rank, microseconds in late.items()}

    def _meetings(self) -> Iterator[tuple[list[float], float]]:
        """Each step that all ranks had to reach: every rank's wait in it, and how much of the window it stands for."""
        rows: dict[tuple[str, str, int], list[Event]] = {}
        for event in self.result.of("row"):
            key = (str(event.fields["op"]), str(event.fields["dtype"]), int(event.fields["asked"]))
            rows.setdefault(key, []).append(event)
        for (op, _, _), events in rows.items():
            align = zip(*(event.fields["align_us"] for event in events), strict=True)
            times = zip(*(event.fields["time_us"] for event in events), strict=True)
            waits = zip(*(event.fields["wait_us"] for event in events), strict=True)
            for aligned, timed, waited in zip(align, times, waits, strict=True):
                yield list(aligned), max(aligned)
                if op in MEETING:
                    yield list(waited), max(timed)


def _first_wrong(event: Event) -> str:
    first = event.fields["first_wrong"]
    block = "" if first["block"] is None else f" (the block of rank {first['block']})"
    return (
        f"rank {event.rank}: {event.fields['size']} bytes, iteration {first['iteration']}, element {first['offset']}"
        f"{block}: got {first['got']}, expected {first['expected']}"
    )
