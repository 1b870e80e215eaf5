"""What this machine is, before anything is launched on it."""

from __future__ import annotations

import pytest

from seatrial.errors import AccessError
from seatrial.payload import nvml
from seatrial.target.local import find_node


def test_a_gpu_that_cannot_be_opened_is_no_cpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> nvml.Inventory:
        raise nvml.AbsentError(nvml.Kind.BROKEN, "driver and library differ")

    monkeypatch.setattr(nvml, "find", broken)
    with pytest.raises(AccessError, match="driver and library differ"):
        find_node()
