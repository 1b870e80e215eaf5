"""The GPUs that an opened NVML lists: readings that are a value or None, never a zero, and Xid events.

Each call and its unit: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

from .nvml import REPAIR, AbsentError, Binding, Gpu, Inventory, Kind, Slice

Value = Optional[float]
Handle = Any
"""NVML's own pointer to a device or to an event set."""
T = TypeVar("T")


def _refuses(nvml: Binding, error: Any) -> bool:
    """Whether an error means: this device, or this driver, does not have that."""
    return error.value in (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        nvml.NVML_ERROR_DEPRECATED,
    )


class Device:
    """One GPU, or one of its slices, that is read again and again; what it does not support is asked once.

    Attributes:
        unsupported: the columns that it does not have.
        faults: the last error of each call that it should answer, by the call's first column.
    """

    def __init__(self, nvml: Binding, handle: Handle) -> None:
        self._nvml = nvml
        self.handle = handle
        self.unsupported: List[str] = []
        self.faults: Dict[str, str] = {}
        self._links: Optional[List[int]] = None

    def read(self, metric: "Metric") -> Tuple[Value, ...]:
        """One value a column, each None where it could not be read."""
        nothing: Tuple[Value, ...] = (None,) * len(metric.columns)
        if metric.columns[0] in self.unsupported:
            return nothing
        try:
            return metric.read(self)
        except self._nvml.NVMLError as error:
            if _refuses(self._nvml, error):
                self.unsupported.extend(metric.columns)
            else:
                self.faults[metric.columns[0]] = str(error)
            return nothing

    def optional(self, ask: Callable[[], T]) -> Optional[T]:
        """An answer, or None where the device does not have that."""
        try:
            return ask()
        except self._nvml.NVMLError as error:
            if _refuses(self._nvml, error):
                return None
            raise

    # Who it is.

    def uuid(self) -> str:
        """GPU-... or MIG-..."""
        return str(self._nvml.nvmlDeviceGetUUID(self.handle))

    def name(self) -> str:
        """The product."""
        return str(self._nvml.nvmlDeviceGetName(self.handle))

    def memory(self) -> int:
        """All of it, in bytes."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self.handle).total)

    def describe(self, index: int) -> Gpu:
        """What does not change while it is read."""
        mig = self.optional(lambda: bool(self._nvml.nvmlDeviceGetMigMode(self.handle)[0]))
        pci = str(self._nvml.nvmlDeviceGetPciInfo(self.handle).busId)
        slices = tuple(self._slices()) if mig else ()
        return Gpu(index, self.uuid(), self.name(), self.memory(), pci, mig, slices, len(self.links()))

    def _slices(self) -> Iterator[Slice]:
        for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle)):
            part = self._slice(place)
            if part is not None:
                yield Slice(part.uuid(), part.name(), part.optional(part.memory))

    def _slice(self, place: int) -> Optional["Device"]:
        try:
            return Device(self._nvml, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, place))
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_FOUND:
                return None
            raise

    # What it does now.

    def reasons(self) -> Tuple[Value, ...]:
        """The bits of what holds its clocks down."""
        newer = self._nvml.nvmlDeviceGetCurrentClocksEventReasons
        return (self._either(newer, self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, self.handle),)

    def utilisation(self) -> Tuple[Value, ...]:
        """Percent of the time in which a kernel ran, and in which memory was read or written."""
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self.handle)
        return rates.gpu, rates.memory

    def power(self) -> Tuple[Value, ...]:
        """Watts."""
        return (self._nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000.0,)

    def temperature(self) -> Tuple[Value, ...]:
        """Degrees Celsius of the die."""
        newer, older = self._nvml.nvmlDeviceGetTemperatureV, self._nvml.nvmlDeviceGetTemperature
        return (self._either(newer, older, self.handle, self._nvml.NVML_TEMPERATURE_GPU),)

    def sm_clock(self) -> Tuple[Value, ...]:
        """MHz."""
        return (self._nvml.nvmlDeviceGetClockInfo(self.handle, self._nvml.NVML_CLOCK_SM),)

    def memory_clock(self) -> Tuple[Value, ...]:
        """MHz."""
        return (self._nvml.nvmlDeviceGetClockInfo(self.handle, self._nvml.NVML_CLOCK_MEM),)

    def memory_used(self) -> Tuple[Value, ...]:
        """Bytes."""
        return (self._nvml.nvmlDeviceGetMemoryInfo(self.handle).used,)

    def _either(self, newer: Callable[..., int], older: Callable[..., int], *arguments: object) -> int:
        answer = self.optional(lambda: newer(*arguments))
        return older(*arguments) if answer is None else answer

    # What it has counted since the driver was loaded.

    def uncorrected(self) -> Tuple[Value, ...]:
        """ECC errors that could not be corrected."""
        return (self._ecc_errors(self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),)

    def corrected(self) -> Tuple[Value, ...]:
        """ECC errors that were corrected."""
        return (self._ecc_errors(self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),)

    def _ecc_errors(self, kind: int) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEccErrors(self.handle, kind, self._nvml.NVML_VOLATILE_ECC))

    def remapped_rows(self) -> Tuple[Value, ...]:
        """1 where a row waits for a reset to be remapped, 1 where remapping failed."""
        _, _, pending, failure = self._nvml.nvmlDeviceGetRemappedRows(self.handle)
        return pending, failure

    def pcie_replays(self) -> Tuple[Value, ...]:
        """Packets sent again."""
        return (self._nvml.nvmlDeviceGetPcieReplayCounter(self.handle),)

    def headroom(self) -> Tuple[Value, ...]:
        """Degrees Celsius left before the device slows itself down."""
        return (self._nvml.nvmlDeviceGetMarginTemperature(self.handle),)

    def nvlink_errors(self) -> Tuple[Value, ...]:
        """Errors over all NVLinks."""
        for fields in (self._totals_up_to_nvlink4(), self._counters_of_nvlink5()):
            counts = self._fields(fields)
            if counts:
                return (sum(counts),)
        return (self._errors_link_by_link(),)

    def links(self) -> List[int]:
        """The NVLinks that were up when it was first asked."""
        if self._links is None:
            self._links = [link for link in range(self._nvml.NVML_NVLINK_MAX_LINKS) if self._is_up(link)]
        return self._links

    def _is_up(self, link: int) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetNvLinkState(self.handle, link) == self._nvml.NVML_FEATURE_ENABLED)
        except self._nvml.NVMLError as error:
            # A number beyond the last link is an invalid argument.
            if error.value == self._nvml.NVML_ERROR_INVALID_ARGUMENT or _refuses(self._nvml, error):
                return False
            raise

    def _totals_up_to_nvlink4(self) -> List[Tuple[int, int]]:
        return [
            (self._nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
            (self._nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0),
            (self._nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
            (self._nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0),
        ]

    def _counters_of_nvlink5(self) -> List[Tuple[int, int]]:
        kinds = (
            self._nvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
            self._nvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
            self._nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
            self._nvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
            self._nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
        )
        return [(kind, link) for link in self.links() for kind in kinds]

    def _errors_link_by_link(self) -> int:
        kinds = (
            self._nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
            self._nvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
            self._nvml.NVML_NVLINK_ERROR_DL_REPLAY,
            self._nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        )
        links = self.links()
        if not links:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        count = self._nvml.nvmlDeviceGetNvLinkErrorCounter
        return sum(count(self.handle, link, kind) for link in links for kind in kinds)

    def _fields(self, fields: List[Tuple[int, int]]) -> List[int]:
        """The values of those fields, each with its link, that the device has."""
        if not fields:
            return []
        answers = self.optional(lambda: self._nvml.nvmlDeviceGetFieldValues(self.handle, fields)) or ()
        return [self._number(answer) for answer in answers if answer.nvmlReturn == self._nvml.NVML_SUCCESS]

    def _number(self, answer: Any) -> int:
        members = {
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            self._nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        if answer.valueType not in members:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_UNKNOWN)
        return int(getattr(answer.value, members[answer.valueType]))


class Metric(NamedTuple):
    """One question to a device and the columns that its answer fills."""

    columns: Tuple[str, ...]
    read: Callable[[Device], Tuple[Value, ...]]


FAST = (
    Metric(("reasons",), Device.reasons),
    Metric(("utilisation", "memory_utilisation"), Device.utilisation),
    Metric(("sm_clock",), Device.sm_clock),
    Metric(("memory_clock",), Device.memory_clock),
    Metric(("temperature",), Device.temperature),
    Metric(("power",), Device.power),
    Metric(("memory_used",), Device.memory_used),
)
"""Read at every tick: first what explains a slow number, last what costs most."""

SLOW = (
    Metric(("ecc_uncorrected",), Device.uncorrected),
    Metric(("ecc_corrected",), Device.corrected),
    Metric(("remap_pending", "remap_failure"), Device.remapped_rows),
    Metric(("nvlink_errors",), Device.nvlink_errors),
    Metric(("pcie_replays",), Device.pcie_replays),
    Metric(("headroom",), Device.headroom),
)
"""Read once a second: counters, of which the difference matters, and what changes slowly."""


class Xid(NamedTuple):
    """A driver error of a device, as NVML's event set told it."""

    uuid: str
    xid: int


MOST_XIDS = 16
"""Events taken from the set at one tick; a storm is told over several."""


class Nvml:
    """An NVML that works, with its devices in the order of ``inventory.gpus``.

    Attributes:
        faults: errors of the event set, which concern no single device.

    Raises:
        AbsentError: it lists no device, or one that cannot be opened.
    """

    def __init__(self, binding: Binding, hardware: Optional[str]) -> None:
        self._nvml = binding
        self.faults: Dict[str, str] = {}
        found = [self._open(index) for index in range(self._ask(binding.nvmlDeviceGetCount))]
        if not found:
            kind = Kind.NO_DEVICE if hardware is None else Kind.BROKEN
            raise AbsentError(
                kind, "NVML lists no device" + (f", but {hardware} is there; {REPAIR}" if hardware else "")
            )
        self.devices = tuple(device for device, _ in found)
        self.inventory = Inventory(
            gpus=tuple(gpu for _, gpu in found),
            driver=self._ask(binding.nvmlSystemGetDriverVersion),
            cuda=_version(self._ask(binding.nvmlSystemGetCudaDriverVersion_v2)),
            nvml=self._ask(binding.nvmlSystemGetNVMLVersion),
        )

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._nvml.NVMLError as error:
            raise AbsentError(Kind.BROKEN, f"NVML does not say what is here: {error}; {REPAIR}") from error

    def _open(self, index: int) -> Tuple[Device, Gpu]:
        try:
            device = Device(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index))
            return device, device.describe(index)
        except self._nvml.NVMLError as error:
            raise AbsentError(Kind.BROKEN, f"NVML cannot open GPU {index}: {error}; {REPAIR}") from error

    @contextlib.contextmanager
    def xids(self) -> Iterator[Callable[[], List[Xid]]]:
        """Listen for Xid events; the function that it gives returns, at once, those since its last call.

        A device that has no such events says so in ``unsupported``, under ``xid``.
        """
        events = self._nvml.nvmlEventSetCreate()
        try:
            for device in self.devices:
                device.read(Metric(("xid",), lambda device: self._register(device, events)))
            yield lambda: list(self._arrived(events))
        finally:
            self._nvml.nvmlEventSetFree(events)

    def _register(self, device: Device, events: Handle) -> Tuple[Value, ...]:
        self._nvml.nvmlDeviceRegisterEvents(device.handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        return (None,)

    def _arrived(self, events: Handle) -> Iterator[Xid]:
        if all("xid" in device.unsupported for device in self.devices):
            return
        try:
            for _ in range(MOST_XIDS):
                event = self._nvml.nvmlEventSetWait_v2(events, 0)
                yield Xid(self._uuid(event.device), int(event.eventData))
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                self.faults["xid"] = str(error)

    def _uuid(self, handle: Handle) -> str:
        for device, gpu in zip(self.devices, self.inventory.gpus):
            if _address(device.handle) == _address(handle):
                return gpu.uuid
        return Device(self._nvml, handle).uuid()


def _address(handle: Handle) -> Optional[int]:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _version(number: int) -> str:
    """NVML gives 1000 times the major version plus 10 times the minor one."""
    return f"{number // 1000}.{number % 1000 // 10}"
