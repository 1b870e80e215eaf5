"""What NVML's clock event reasons mean for a measurement.

Bits: NVML API reference, group nvmlClocksEventReasons. Classes: HW slowdown, thermal and power brake are faults of
cooling or supply; SW thermal and the settings make a GPU slower than it is sold; a power cap under load and an idle
clock are how every sound GPU works.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class Class(enum.Enum):
    """How a reason is taken."""

    FAIL = "fail"
    WARN = "warn"
    NORMAL = "normal"


@dataclass(frozen=True)
class Reason:
    """One bit."""

    name: str
    kind: Class
    known: bool = True


REASONS = {
    0x001: Reason("GPU idle", Class.NORMAL),
    0x002: Reason("applications clocks setting", Class.WARN),
    0x004: Reason("SW power cap", Class.NORMAL),
    0x008: Reason("HW slowdown", Class.FAIL),
    0x010: Reason("sync boost", Class.WARN),
    0x020: Reason("SW thermal slowdown", Class.WARN),
    0x040: Reason("HW thermal slowdown", Class.FAIL),
    0x080: Reason("HW power brake slowdown", Class.FAIL),
    0x100: Reason("display clock setting", Class.WARN),
}

NORMAL_NAMES = frozenset(reason.name for reason in REASONS.values() if reason.kind is Class.NORMAL)


def decode(bits: int) -> Iterator[Reason]:
    """Every reason that is set, lowest bit first; one that a newer driver added is unknown, and a warning."""
    for place in range(bits.bit_length()):
        bit = 1 << place
        if bits & bit:
            yield REASONS.get(bit) or Reason(f"unknown reason {bit:#x}", Class.WARN, known=False)
