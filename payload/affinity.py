"""Which cores a rank runs on: one of its own on a CPU machine, those next to its GPU elsewhere."""

import os
from typing import List, Optional, Set

PCI = "/sys/bus/pci/devices"
EFFICIENCY_CORES = "/sys/devices/cpu_atom/cpus"
CAPACITY = "/sys/devices/system/cpu/cpu{}/cpu_capacity"
CPUINFO = "/proc/cpuinfo"


def claim_core(local_rank: int) -> int:
    """Pin this thread, and all that it starts from now on, to the core that is this rank's.

    Raises:
        RuntimeError: there is no core for this rank alone.
    """
    cores = sorted(os.sched_getaffinity(0))
    if local_rank >= len(cores):
        raise RuntimeError(
            f"LOCAL_RANK {local_rank} has no core of its own: this process may run on {cores}; "
            "start at most one rank a core"
        )
    os.sched_setaffinity(0, {cores[local_rank]})
    return cores[local_rank]


def stay_near(pci: str, devices: str = PCI) -> None:
    """Keep this thread to those of its cores that are next to a PCI device, so that copies take the shortest way.

    Where the kernel does not say which they are, or none of them is open to this process, nothing changes.

    Args:
        pci: the device's address as NVML writes it, with a domain of eight digits.
        devices: where the kernel lists PCI devices.
    """
    domain, _, rest = pci.lower().partition(":")
    try:
        near = cores_in(_word(os.path.join(devices, f"{domain[-4:]}:{rest}", "local_cpulist")))
    except FileNotFoundError:
        return
    mine = near & os.sched_getaffinity(0)
    if mine:
        os.sched_setaffinity(0, mine)


def core_name(core: int) -> str:
    """What a core is, with its kind where the cores of a machine are not all of one: peers have the same name."""
    parts = [_model(), _kind(core), _capacity(core)]
    return ", ".join(part for part in parts if part)


def cores_in(listed: str) -> Set[int]:
    """The cores of a list as the kernel writes it: ``0-3,8``."""
    cores: Set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _model() -> str:
    """The processor's name; ``cpu`` where the kernel tells none."""
    with open(CPUINFO) as file:
        names: List[str] = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "cpu"


def _kind(core: int) -> Optional[str]:
    try:
        return "efficiency core" if core in cores_in(_word(EFFICIENCY_CORES)) else "performance core"
    except FileNotFoundError:
        return None


def _capacity(core: int) -> Optional[str]:
    try:
        return f"capacity {_word(CAPACITY.format(core))}"
    except FileNotFoundError:
        return None


def _word(path: str) -> str:
    with open(path) as file:
        return file.read().strip()
