"""From the events of a health job to numbers: each device's rates, what was wrong, and who its peers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from seatrial.errors import InconclusiveError
from seatrial.job import Event, Result
from seatrial.stats import low_outliers, median_interval

Interval = tuple[float, float]


@dataclass(frozen=True)
class Device:
    """A GPU, or a core of a CPU machine; ``core`` and ``uuid`` are None where it has none."""

    rank: int
    node: str
    index: int
    core: int | None
    uuid: str | None
    name: str

    def __str__(self) -> str:
        what = f"core {self.core}" if self.core is not None else f"GPU {self.index} {self.uuid or '(UUID not told)'}"
        return f"rank {self.rank}: {what} ({self.name}) of {self.node}"


@dataclass(frozen=True)
class Compared:
    """How many elements were compared with their exact values, how many were wrong, and the first of them in words."""

    elements: int
    wrong: int
    first_wrong: str


@dataclass(frozen=True)
class Samples:
    """One kind of work on one device: the rate of each repeat, and what its comparisons found."""

    rates: tuple[float, ...]
    compared: Compared

    @property
    def median(self) -> float:
        """The middle rate."""
        return median(self.rates)

    @property
    def interval(self) -> Interval | None:
        """The 95% confidence interval of the median."""
        return median_interval(self.rates)


@dataclass(frozen=True)
class Share:
    """A device's rate as a share of another rate; ``of`` names the work."""

    of: str
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Soak:
    """A soak of one device: when each slice began, in seconds, and its rates in TFLOP/s."""

    slices: tuple[tuple[float, tuple[float, ...]], ...]
    seconds: float
    compared: Compared

    def third(self, number: int) -> list[float]:
        """The rates of the slices that began in a third of the soak: 0 is the first, 2 the last."""
        first, last = number * self.seconds / 3, (number + 1) * self.seconds / 3
        return [rate for begin, rates in self.slices for rate in rates if first <= begin < last]

    def retained(self) -> Share:
        """The median rate of the last third as a share of the first third's.

        Raises:
            InconclusiveError: a third has too few repeats for an interval of its median.
        """
        first, last = self.third(0), self.third(2)
        before, after = median_interval(first), median_interval(last)
        if before is None or after is None:
            raise InconclusiveError(f"the soak's thirds have {len(first)} and {len(last)} repeats, expected at least 6")
        # Both ends at once: wider than 95%, so that noise is never taken for throttling.
        return Share("soak", median(last) / median(first), (after[0] / before[1], after[1] / before[0]))


class Health:
    """The results of a health job, trusted only as far as every rank confirms them.

    Args:
        result: the job after its end.
    """

    def __init__(self, result: Result) -> None:
        self.result = result

    # The devices.

    def devices(self) -> list[Device]:
        """All devices, by rank.

        Raises:
            InconclusiveError: a rank did not say which device it has, or two have the same.
        """
        found = [
            Device(
                rank=event.rank,
                node=self.result.nodes[event.rank],
                index=int(event.fields["index"]),
                core=event.fields["core"],
                uuid=event.fields["uuid"],
                name=str(event.fields["name"]),
            )
            for event in self.result.of("device")
        ]
        if [device.rank for device in found] != list(range(self.result.spec.ranks)):
            raise InconclusiveError(f"devices were told by the ranks {[device.rank for device in found]}")
        places = [
            (device.node, device.uuid or device.index if device.core is None else device.core) for device in found
        ]
        if len(set(places)) < len(places):
            raise InconclusiveError(f"two ranks had the same device: {'; '.join(map(str, found))}")
        return found

    def peers(self, device: Device) -> list[Device]:
        """The other devices of the same kind on the same node."""
        return [
            other
            for other in self.devices()
            if (other.node, other.name) == (device.node, device.name) and other.rank != device.rank
        ]

    def best_peer(self, device: Device, work: Work) -> float | None:
        """The best median rate that a peer reaches; None where there is no peer."""
        return max((self.samples(peer, work).median for peer in self.peers(device)), default=None)

    # What they did.

    def unsupported(self, phase: str, dtype: str | None = None) -> str | None:
        """Why no device has what a phase needs; None where they have it."""
        return self._said("unsupported", phase, dtype)

    def refuse_short(self, phase: str, dtype: str | None = None) -> None:
        """Refuse a phase for whose buffers there was too little memory: that is no reason to skip it.

        Raises:
            InconclusiveError: the phase was not done.
        """
        why = self._said("short", phase, dtype)
        if why is not None:
            raise InconclusiveError(f"job {self.result.job}: {phase} {dtype or ''} was not measured: {why}")

    def _said(self, name: str, phase: str, dtype: str | None) -> str | None:
        about = [(event.fields["phase"], event.fields["dtype"], event.fields["why"]) for event in self.result.of(name)]
        return next((str(why) for of, form, why in about if (of, form) == (phase, dtype)), None)

    def samples(self, device: Device, work: Work) -> Samples:
        """One kind of work on one device, in the unit of ``work``.

        Raises:
            InconclusiveError: the rank's part is missing, or is not what was asked for.
        """
        events = [event for event in self.result.of(work.event) if event.rank == device.rank and work.is_in(event)]
        self.refuse_short(work.event, work.value if work.key == "dtype" else None)
        if len(events) != 1:
            raise InconclusiveError(f"{device}: {len(events)} events of {work}, expected 1")
        times, asked = events[0].fields["time_us"], int(self.result.spec.settings[work.repeats])
        if len(times) != asked or min(times) <= 0:
            raise InconclusiveError(f"{device}: {work}: {len(times)} times, expected {asked} above 0")
        amount = float(events[0].fields[work.amount]) * work.scale
        return Samples(tuple(amount / time for time in times), _compared(events, device))

    def soak(self, device: Device) -> Soak:
        """One device's soak.

        Raises:
            InconclusiveError: it is missing, or was cut short.
        """
        events = [event for event in self.result.of("soak") if event.rank == device.rank]
        seconds = float(self.result.spec.settings["soak_s"])
        slices = tuple(
            (
                float(event.fields["since_s"]),
                tuple(event.fields["flop"] / time / 1e6 for time in event.fields["time_us"]),
            )
            for event in events
        )
        if not slices or slices[-1][0] < LEAST_SOAK * seconds:
            last = slices[-1][0] if slices else 0.0
            raise InconclusiveError(f"{device}: the soak's last part began at {last:.1f} s of {seconds:g} s")
        return Soak(slices, seconds, _compared(events, device))

    def shares(self, device: Device) -> Iterator[Share]:
        """Each of the device's rates as a share of its best peer's."""
        for work in self.works():
            best, own = self.best_peer(device, work), self.samples(device, work)
            if best is not None:
                low, high = own.interval or (own.median, own.median)
                yield Share(str(work), own.median / best, (low / best, high / best))

    def outliers(self, distance: float, effect: float) -> dict[Device, list[Work]]:
        """The devices that are far below the fleet, each with the work in which it is.

        Args:
            distance: the least modified z-score, counted downwards.
            effect: the least share of the fleet's median by which it is below.

        Raises:
            InconclusiveError: too many devices are exactly alike to tell a distance.
        """
        found = self.devices()
        far: dict[Device, list[Work]] = {}
        for work in self.works():
            rates = [self.samples(device, work).median for device in found]
            for index in low_outliers(rates, distance, effect):
                far.setdefault(found[index], []).append(work)
        return far

    def works(self) -> list[Work]:
        """The work that all devices did at once: products and memory traffic."""
        dtypes = [dtype for dtype in self.result.spec.settings["dtypes"] if self.unsupported("gemm", dtype) is None]
        return [*map(gemm, dtypes), *map(memory, ("copy", "triad"))]


LEAST_SOAK = 0.85
"""The last of a soak's parts must begin after this share of it, or the soak was cut short."""


@dataclass(frozen=True)
class Work:
    """A kind of work: which events tell of it, the field with its amount, and what makes a rate of amount and time.

    ``repeats`` is the setting that says how many times of it there must be.
    """

    event: str
    key: str
    value: str
    amount: str
    scale: float
    repeats: str = "repeats"

    def __str__(self) -> str:
        return f"{self.event} {self.value}"

    def is_in(self, event: Event) -> bool:
        """Whether an event tells of this work."""
        return bool(event.fields[self.key] == self.value)


def gemm(dtype: str) -> Work:
    """Matrix products; rates are in TFLOP/s."""
    return Work("gemm", "dtype", dtype, "flop", 1e-6)


def memory(kind: str) -> Work:
    """Memory traffic; rates are in GB/s."""
    return Work("memory", "kind", kind, "moved", 1e-3)


def copies(direction: str) -> Work:
    """Copies between host and GPU; rates are in GB/s."""
    return Work("copies", "kind", direction, "moved", 1e-3, "copy_repeats")


def _compared(events: Sequence[Event], device: Device) -> Compared:
    first = next((event.fields["first_wrong"] for event in events if event.fields["wrong"]), None)
    return Compared(
        elements=sum(int(event.fields["checked"]) for event in events),
        wrong=sum(int(event.fields["wrong"]) for event in events),
        first_wrong="" if first is None else f"{device}: {_first_wrong(first)}",
    )


def _first_wrong(first: Mapping[str, object]) -> str:
    where = f"row {first['row']}, column {first['column']}" if "row" in first else f"element {first['offset']}"
    return f"{first['what']}, {where}: got {first['got']}, expected {first['expected']}"
