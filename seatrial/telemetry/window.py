"""What telemetry says of one stretch of time: how much of it was seen, what disturbed it, and numbers for checks.

NEIGHBOUR_SHARE and STEAL_SHARE are policy: they decide what is told as a disturbance of the numbers that were measured
in the window, not whether a check passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from seatrial.job import Event, StreamFault
from seatrial.telemetry import numbers
from seatrial.telemetry.numbers import LEAST_COVERAGE, LEAST_WORK, Count, Seen, Stretch, Throttle
from seatrial.telemetry.readings import Key, Stream, Xid, read
from seatrial.telemetry.reasons import NORMAL_NAMES
from seatrial.telemetry.series import LATE

NEIGHBOUR_SHARE = 0.10
"""The share of the machine's cores from which on others disturb: ranks that leave no core idle lose about as much
speed, three times the least effect that is ever judged (3.5%), while a host at rest uses under 2% for itself."""

STEAL_SHARE = 0.05
"""The share of the cores' time that a hypervisor may give to other guests: each percent is a percent of a rank's speed,
and less than this is near the least effect that is ever judged (3.5%)."""

XID_NAMES = {
    13: "graphics engine exception",
    31: "MMU fault",
    43: "GPU stopped processing",
    45: "preemptive clean-up",
    48: "double-bit ECC error",
    62: "micro-controller halt",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "high single-bit ECC rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "recovery action changed",
    156: "resource retirement",
    158: "GPU fatal timeout",
}
"""Source: docs.nvidia.com/deploy/xid-errors. Which of them condemns a GPU is a profile's to say; here each is told."""


@dataclass(frozen=True)
class Window:
    """What telemetry says of the seconds from ``start`` to ``end`` (the node's clock).

    A number is None where it could not be measured, never zero; ``disturbances`` says in words what qualifies every
    number measured in the window, a lack of telemetry included.
    """

    start: float
    end: float
    disturbances: tuple[str, ...] = ()
    coverage: float | None = None
    """The share of the window that samples cover."""
    samples: int = 0
    missing: int = 0
    cpus: int = 0
    neighbour: float | None = None
    """The share of the machine's cores that processes used which are neither ranks nor the trial's own."""
    neighbour_name: str | None = None
    steal: float | None = None
    """The share of the cores' time that the hypervisor gave to other guests."""
    gpus: tuple[str, ...] = ()
    broken: str | None = None
    """Why GPUs that are there cannot be read."""
    throttle: Mapping[str, Throttle] = field(default_factory=dict)
    xids: tuple[Xid, ...] = ()
    xids_unseen: Mapping[str, str] = field(default_factory=dict)
    """The GPUs whose Xids would not have been seen, and why."""
    ecc: Mapping[str, Count] = field(default_factory=dict)
    """Uncorrected errors."""
    nvlink: Mapping[str, Count] = field(default_factory=dict)
    """Errors over all links; a GPU without links is not in it."""
    remap: Mapping[str, Count] = field(default_factory=dict)
    """1 where rows wait to be remapped or could not be, 2 where both."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def window(events: Sequence[Event], start: float, end: float, faults: Sequence[StreamFault] = ()) -> Window:
    """Look at a stretch of a sampler's stream.

    Args:
        events: all that the sampler said.
        start: seconds on the node's monotonic clock, which is the sampler's.
        end: the same; later than ``start``.
        faults: the damage that the stream's reader found.

    Raises:
        ValueError: the window is empty.
    """
    if not start < end:
        raise ValueError(f"a window must have a length: expected start < end, observed {start} and {end}")
    stream = read(events)
    if stream is None:
        return Window(start, end, ("no telemetry: the sampler never said what it samples", *_of_stream(faults)))
    parts = numbers.seen(stream, start, end)
    found = _measure(stream, parts, start, end)
    words = (
        *_of_coverage(found, stream),
        *_of_stream(faults, stream),
        *_of_host(found, numbers.stretches(parts, stream.cpus)),
        *_of_stopped_ranks(parts),
        *_of_gpus(found, stream),
    )
    return replace(found, disturbances=words)


def _measure(stream: Stream, parts: Sequence[Seen], start: float, end: float) -> Window:
    covered, seconds = sum(part.seconds for part in parts), end - start

    def counts(column: str, metric: str, gpus: Sequence[str]) -> dict[str, Count]:
        return {gpu: numbers.counted(stream, gpu, column, metric, start, end) for gpu in gpus}

    return Window(
        start=start,
        end=end,
        coverage=covered / seconds,
        samples=len(parts),
        missing=round((seconds - covered) / stream.period),
        cpus=stream.cpus,
        neighbour=numbers.share(parts, stream.cpus, seconds, numbers.others),
        neighbour_name=numbers.busiest(parts),
        steal=numbers.share(parts, stream.cpus, seconds, numbers.stolen),
        gpus=stream.gpus,
        broken=stream.absent if stream.broken else None,
        throttle={gpu: numbers.throttle(parts, gpu) for gpu in stream.gpus},
        # An event is noticed at the tick after it.
        xids=tuple(xid for xid in stream.xids if start <= xid.t <= end + LATE * stream.period),
        xids_unseen=_xids_unseen(stream, end),
        ecc=counts("ecc_uncorrected", "gpu.ecc.uncorrected", stream.gpus),
        nvlink=counts("nvlink_errors", "gpu.nvlink.errors", [gpu for gpu in stream.gpus if stream.links[gpu]]),
        remap={gpu: numbers.remapping(stream, gpu, start, end) for gpu in stream.gpus},
    )


def _xids_unseen(stream: Stream, end: float) -> dict[str, str]:
    unseen = {gpu: "the device has no Xid events" for gpu in stream.gpus if (gpu, "xid") in stream.unsupported}
    for fault in stream.faults:
        if fault.metric == "xid" and fault.t <= end:
            unseen.update(dict.fromkeys([fault.uuid] if fault.uuid else stream.gpus, fault.error))
    return unseen


# The same in words.


def _of_coverage(found: Window, stream: Stream) -> Iterator[str]:
    if found.coverage is not None and found.coverage < LEAST_COVERAGE:
        yield (
            f"telemetry covers {found.coverage:.0%} of {found.seconds:.1f} s: "
            f"{found.missing} samples of {stream.period:g} s are missing"
        )
    if not stream.finished:
        yield "the sampler ended without its last word"


def _of_stream(faults: Sequence[StreamFault], stream: Stream | None = None) -> Iterator[str]:
    if faults:
        yield f"the sampler's stream is damaged in {len(faults)} places, first {faults[0]}"
    if stream is not None and stream.damaged:
        yield f"the sampler sent {stream.damaged} values that are no finite numbers; they are left out"


def _of_host(found: Window, stretches: Sequence[Stretch]) -> Iterator[str]:
    def over(cores: float, seconds: float, limit: float) -> bool:
        return cores >= LEAST_WORK and cores > limit * seconds * found.cpus

    crowded = [part for part in stretches if over(part.others, part.seconds, NEIGHBOUR_SHARE)]
    if crowded:
        seconds = sum(part.seconds for part in crowded)
        cores = sum(part.others for part in crowded) / seconds
        named = f" (busiest: {found.neighbour_name})" if found.neighbour_name else ""
        yield f"other processes used {cores:.1f} of {found.cpus} cores for {seconds:.1f} s{named}"
    robbed = [part for part in stretches if over(part.stolen, part.seconds, STEAL_SHARE)]
    if robbed:
        seconds = sum(part.seconds for part in robbed)
        stolen = sum(part.stolen for part in robbed) / seconds / found.cpus
        yield f"the hypervisor stole {stolen:.0%} of the cores' time for {seconds:.1f} s"


def _of_stopped_ranks(parts: Sequence[Seen]) -> Iterator[str]:
    ranks = {key.rank for part in parts for key in part.sample.values if key.rank is not None}
    for rank in sorted(ranks):
        key = Key("rank.stopped", rank=rank)
        seconds = sum(part.seconds for part in parts if part.sample.values.get(key))
        if seconds:
            yield f"rank {rank} was stopped (state T) for {seconds:.1f} s"


def _of_gpus(found: Window, stream: Stream) -> Iterator[str]:
    if found.broken:
        yield f"no GPU telemetry: {found.broken}"
    for fault in (fault for fault in stream.faults if fault.t <= found.end):
        yield f"{fault.uuid or 'NVML'}: {fault.metric} could not be read: {fault.error}"
    for gpu, throttle in found.throttle.items():
        for name, seconds in throttle.by_reason.items():
            if name not in NORMAL_NAMES:
                yield f"{gpu}: {name} for {seconds:.1f} s of {found.seconds:.1f} s"
    for xid in found.xids:
        yield f"Xid {xid.xid} ({XID_NAMES.get(xid.xid, 'see the Xid catalogue')}) on {xid.uuid}"
    for gpu, count in found.ecc.items():
        if count.value:
            yield f"{gpu}: {count.value} uncorrected ECC errors"
    for gpu, count in found.nvlink.items():
        if count.value:
            yield f"{gpu}: {count.value} NVLink errors"
    for gpu, count in found.remap.items():
        if count.value:
            yield f"{gpu}: rows of its memory wait to be remapped, or could not be"
