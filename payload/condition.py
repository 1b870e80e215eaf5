"""What NVML says of one GPU's condition: errors of its memory, and the width and speed of its links.

Each call and its unit: NVML API reference, docs.nvidia.com/deploy/nvml-api. Links save power at rest, so that their
width and speed mean something only while the device works.
"""

from typing import Any, Callable, Dict, Optional, Tuple

from . import nvml
from .devices import SLOW, Device, Metric, Nvml, Value


def _ecc_mode(device: Device) -> Tuple[Value, ...]:
    """1 where ECC is on."""
    return (device._nvml.nvmlDeviceGetEccMode(device.handle)[0],)


def _pages_pending(device: Device) -> Tuple[Value, ...]:
    """1 where pages of its memory wait for a reset to be retired; GPUs that remap rows retire no pages."""
    return (device._nvml.nvmlDeviceGetRetiredPagesPendingStatus(device.handle),)


def _pcie_width(device: Device) -> Tuple[Value, ...]:
    """Lanes in use, and those that device and slot can use."""
    width, most = device._nvml.nvmlDeviceGetCurrPcieLinkWidth, device._nvml.nvmlDeviceGetMaxPcieLinkWidth
    return width(device.handle), most(device.handle)


def _pcie_generation(device: Device) -> Tuple[Value, ...]:
    """The generation in use, and the newest that device and slot can use."""
    now, most = device._nvml.nvmlDeviceGetCurrPcieLinkGeneration, device._nvml.nvmlDeviceGetMaxPcieLinkGeneration
    return now(device.handle), most(device.handle)


def _nvlinks(device: Device) -> Tuple[Value, ...]:
    """NVLinks that are up."""
    return (len(device.links()),)


def _nvlink_speed(device: Device) -> Tuple[Value, ...]:
    """MB/s of one NVLink, which all that are up have in common."""
    found = device._fields([(device._nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)])
    return (found[0] if found else None,)


_COUNTED = ("ecc_uncorrected", "ecc_corrected", "remap_pending")

METRICS = (
    Metric(("ecc_mode",), _ecc_mode),
    *(metric for metric in SLOW if metric.columns[0] in _COUNTED),
    Metric(("pages_pending",), _pages_pending),
    Metric(("pcie_width", "pcie_width_most"), _pcie_width),
    Metric(("pcie_generation", "pcie_generation_most"), _pcie_generation),
    Metric(("nvlinks",), _nvlinks),
    Metric(("nvlink_speed",), _nvlink_speed),
)


def read(library: Nvml, uuid: str) -> Dict[str, Any]:
    """The fields of the event ``condition`` for one GPU of an opened NVML.

    Returns:
        ``values`` by column, null where there is none; the columns that the device does not have (``unsupported``),
        and what went wrong with the others (``faults``).
    """
    gpus = library.inventory.gpus
    found = [device for device, gpu in zip(library.devices, gpus) if gpu.uuid.lower() == uuid.lower()]
    if not found:
        return unread(f"NVML knows no {uuid}, only {', '.join(gpu.uuid for gpu in gpus)}")
    values: Dict[str, Value] = {}
    for metric in METRICS:
        values.update(zip(metric.columns, found[0].read(metric)))
    return {"values": values, "unsupported": found[0].unsupported, "faults": found[0].faults}


def unread(why: str) -> Dict[str, Any]:
    """The same fields where nothing could be read."""
    columns = [column for metric in METRICS for column in metric.columns]
    return {"values": dict.fromkeys(columns), "unsupported": [], "faults": dict.fromkeys(columns, why)}


def under(load: Callable[[], None], uuid: str) -> Dict[str, Any]:
    """The fields of the event ``condition``.

    Args:
        load: hands work to the GPU and returns at once; called when NVML is open, just before the reading.
        uuid: the GPU's.
    """
    try:
        with nvml.session() as library:
            load()
            return read(library, uuid)
    except nvml.AbsentError as absent:
        return unread(absent.detail)


def address(uuid: str) -> Optional[str]:
    """A GPU's PCI address; None where NVML does not know it."""
    try:
        gpus = nvml.inventory().gpus
    except nvml.AbsentError:
        return None
    return next((gpu.pci for gpu in gpus if gpu.uuid.lower() == uuid.lower()), None)
