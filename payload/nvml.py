"""Opens NVML (``pynvml``) and says which GPUs this machine has, or why that cannot be said.

Devices are told apart by UUID and PCI address, because CUDA numbers them differently. What reads them again and again
is ``devices``, which is loaded only where there is a library: a machine without a GPU does not pay for it.
"""

import contextlib
import ctypes
import enum
import glob
import os
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from .devices import Nvml

LIBRARY = "libnvidia-ml.so.1"
PCI_VENDOR = "0x10de"
PCI_CLASS_DISPLAY = "0x03"
"""The PCI base class of display and 3D controllers; NVIDIA's audio, USB and switch functions are of other classes."""

REPAIR = "see what nvidia-smi says here: driver and library must be of one version"

Binding = Any
"""The module ``pynvml``, which has no types."""


class Kind(enum.Enum):
    """Why NVML cannot be read."""

    NO_LIBRARY = "no library"
    NO_DEVICE = "no device"
    BROKEN = "library broken"


class AbsentError(Exception):
    """NVML cannot be read. NO_LIBRARY and NO_DEVICE say that there is no GPU; BROKEN says that one is out of reach.

    Attributes:
        kind: which of the three.
        detail: what was asked, what came back, and what to do.
    """

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind.value}: {detail}")
        self.kind = kind
        self.detail = detail


class Slice(NamedTuple):
    """A MIG device; ``memory`` in bytes."""

    uuid: str
    name: str
    memory: Optional[int]


class Gpu(NamedTuple):
    """A whole GPU: ``memory`` in bytes, ``pci`` as DOMAIN:BUS:DEVICE.FUNCTION.

    ``mig`` is None where it cannot be cut into slices. ``links`` counts its NVLinks that are up; 0 where it has none.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    uuid: str
    name: str
    memory: int
    pci: str
    mig: Optional[bool] = None
    slices: Tuple[Slice, ...] = ()
    links: int = 0


class Inventory(NamedTuple):
    """The GPUs of this machine and the versions of what drives them; ``cuda`` is the newest that the driver runs."""

    gpus: Tuple[Gpu, ...] = ()
    driver: Optional[str] = None
    cuda: Optional[str] = None
    nvml: Optional[str] = None


def inventory(dev: str = "/dev", pci: str = "/sys/bus/pci/devices") -> Inventory:
    """The GPUs of this machine.

    Args:
        dev: where the device nodes are.
        pci: where the kernel lists PCI devices.

    Raises:
        AbsentError: there is none, or NVML does not work.
    """
    with session(dev, pci) as nvml:
        return nvml.inventory


def find(dev: str = "/dev", pci: str = "/sys/bus/pci/devices") -> Inventory:
    """The GPUs of this machine; an empty inventory where it has none.

    Raises:
        AbsentError: of kind BROKEN: there is a GPU, or its driver, that NVML cannot open.
    """
    try:
        return inventory(dev, pci)
    except AbsentError as absent:
        if absent.kind is Kind.BROKEN:
            raise
        return Inventory()


@contextlib.contextmanager
def session(dev: str = "/dev", pci: str = "/sys/bus/pci/devices") -> Iterator["Nvml"]:
    """NVML, opened and closed again.

    Raises:
        AbsentError: there is no GPU, or NVML does not work.
    """
    hardware = evidence(dev, pci)
    try:
        binding = _initialised()
    except AbsentError as absent:
        if hardware is None:
            raise
        detail = f"{hardware} is there, but NVML cannot open it ({absent.detail}); {REPAIR}"
        raise AbsentError(Kind.BROKEN, detail) from absent
    from .devices import Nvml  # noqa: PLC0415  (only where there is a library)

    try:
        yield Nvml(binding, hardware)
    finally:
        binding.nvmlShutdown()


def evidence(dev: str, pci: str) -> Optional[str]:
    """A sign of NVIDIA hardware that does not need NVML: a device node or a PCI device; None where there is none."""
    node = os.path.join(dev, "nvidia0")
    if os.path.exists(node):
        return node
    for folder in sorted(glob.glob(os.path.join(pci, "*"))):
        if _word(folder, "vendor") == PCI_VENDOR and _word(folder, "class").startswith(PCI_CLASS_DISPLAY):
            return f"the PCI device {os.path.basename(folder)}"
    return None


def _word(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _initialised() -> Binding:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = LIBRARY in str(error) and "No such file" in str(error)
        raise AbsentError(Kind.NO_LIBRARY if missing else Kind.BROKEN, str(error)) from error
    try:
        import pynvml  # noqa: PLC0415, TID251  (read here alone, and only where there is a library)
    except ImportError as error:
        raise AbsentError(Kind.BROKEN, f"{LIBRARY} loads, but the module pynvml does not: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        idle = error.value in (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_GPU_NOT_FOUND)
        raise AbsentError(Kind.NO_DEVICE if idle else Kind.BROKEN, f"nvmlInit answers {error}") from error
    return pynvml
