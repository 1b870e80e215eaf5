"""What a GPU said of itself, as findings: what it does not have is a skip, what was not read is never a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.job import Event, Result

from .devices import Device

UNITS = {
    "health.ecc.uncorrected": "count",
    "health.remap.pending": "count",
    "health.remap.failure": "count",
    "health.pages.pending": "count",
    "health.pcie.width": "lanes",
    "health.pcie.generation": "generation",
    "health.nvlink.down": "links",
    "health.nvlink.speed": "MB/s",
}
"""Every check and its unit."""


@dataclass(frozen=True)
class Finding:
    """What is known of one check of one GPU: a value, or why there is none, or why it does not apply (``skip``)."""

    value: float | None = None
    why: str = ""
    skip: str = ""
    references: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """One GPU's ``condition`` event; None where it never came."""

    device: Device
    event: Event | None

    def value(self, column: str) -> float | None:
        """What was read; None where nothing was."""
        value = self.event.fields["values"].get(column) if self.event is not None else None
        return None if value is None else float(value)

    def lacks(self, column: str) -> bool:
        """Whether the device answered that it does not have this."""
        return self.event is not None and column in self.event.fields["unsupported"]

    def finding(self, column: str, *, most: str | None = None) -> Finding:
        """One column as a finding; ``most`` is the column with the greatest value that the device can have."""
        value = self.value(column)
        if value is None:
            lacks = self.lacks(column)
            return Finding(skip=f"NVML: this GPU has no {column}") if lacks else Finding(why=self.fault(column))
        return Finding(value, references={} if most is None else {"what it can": self.value(most)})

    def fault(self, column: str) -> str:
        """Why a column was not read."""
        if self.event is None:
            return f"{self.device}: its condition was never told"
        faults = self.event.fields["faults"]
        return f"{self.device}: {column}: {faults.get(column, 'NVML gave no value')}"


def conditions(result: Result, devices: Sequence[Device]) -> dict[int, Condition]:
    """What each device said of itself, by rank."""
    told = {event.rank: event for event in result.of("condition")}
    return {device.rank: Condition(device, told.get(device.rank)) for device in devices}


def judge_memory(condition: Condition) -> dict[str, Finding]:
    """Errors of a GPU's memory."""
    ecc = condition.finding("ecc_uncorrected")
    if condition.value("ecc_mode") == 0:
        ecc = Finding(why=f"{condition.device}: ECC is off: errors are neither corrected nor counted; turn it on")
    return {
        "health.ecc.uncorrected": ecc,
        "health.remap.pending": condition.finding("remap_pending"),
        "health.remap.failure": condition.finding("remap_failure"),
        "health.pages.pending": condition.finding("pages_pending"),
    }


def judge_pcie(condition: Condition) -> dict[str, Finding]:
    """A GPU's link to its host against what it can be."""
    return {
        "health.pcie.width": condition.finding("pcie_width", most="pcie_width_most"),
        "health.pcie.generation": condition.finding("pcie_generation", most="pcie_generation_most"),
    }


def judge_nvlink(condition: Condition, peers: Sequence[Condition], *, promised: bool) -> dict[str, Finding]:
    """A GPU's NVLinks against those of its peers.

    Args:
        condition: the GPU's.
        peers: its peers', which are of the same product on the same node.
        promised: the profile's topology says that there are NVLinks.
    """
    up = condition.finding("nvlinks")
    if up.value is None:
        return {"health.nvlink.down": up, "health.nvlink.speed": up}
    most = max([up.value, *(value for peer in peers if (value := peer.value("nvlinks")) is not None)])
    if most == 0 and promised:
        none = Finding(why="no GPU of this node has an NVLink that is up, but the profile's topology promises them")
        return {"health.nvlink.down": none, "health.nvlink.speed": none}
    if most == 0:
        none = Finding(skip="no GPU of this node has NVLink")
        return {"health.nvlink.down": none, "health.nvlink.speed": none}
    return {"health.nvlink.down": Finding(most - up.value), "health.nvlink.speed": _nvlink_speed(condition, peers)}


def _nvlink_speed(condition: Condition, peers: Sequence[Condition]) -> Finding:
    speeds = [value for peer in peers if (value := peer.value("nvlink_speed")) is not None]
    if not peers:
        return Finding(skip="the only GPU of its kind on its node: no peer to compare the speed of its NVLinks with")
    own = condition.finding("nvlink_speed")
    return Finding(own.value, own.why, own.skip, {"best peer": max(speeds, default=None)})
