"""Command ``health``: what each device can do, with the results compared: products, memory, host copies, a soak.

One rank is one device: a GPU, or on a CPU machine one core, to which the rank is pinned. All devices work at once, as a
job would load them, and start each phase together; only the copies between host and GPU take turns, because the GPUs of
a node share the ways to its memory. Times are in microseconds, each repeat's own; the number of repeats is fixed.
"""

import functools
import math
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from . import affinity, condition, transport
from .events import Emitter, Heartbeat, Position
from .gemm import FORMS, GREATEST, LEAST, Product, Wrong, forbid_reduced_sums
from .group import Group, joined
from .membw import HostCopies, Stream, Traffic, beyond_cache
from .pattern import Difference
from .settings import refuse, settled

DEFAULTS: Dict[str, Any] = {
    "dtypes": ["float32"],
    "matrix": 512,
    "memory": 128 << 20,
    "parts": 8,
    "copies": 512 << 20,
    "warmup": 2,
    "repeats": 96,
    "copy_repeats": 10,
    "soak_s": 5.0,
    "soak_dtype": "float32",
    "seed": 1,
    "device": "cpu",
    "timeout_s": 1800,
}

MAX_REPEATS = 100
"""Above this, the times of a phase would not fit in one event."""

SLICES = 20
"""A soak is told in so many parts of equal length."""
_SLICE_REPEATS = 40
"""A repeat of the soak is made so long that a slice holds about this many, and never more than MAX_REPEATS."""

_LOAD_BURSTS = 8
"""Repeats that keep a GPU busy while its condition is read."""

LEAST_REPEAT_S = 0.002
"""A shorter product is repeated within one timing, so that the call itself does not count."""

PROBE, PROBES = 256, 3
EMULATED = 1 / 20
"""A dtype that reaches less than this share of float32's rate on a small product is emulated, not supported."""


class Checkup:
    """All phases of one device."""

    def __init__(self, group: Group, emitter: Emitter, settings: Dict[str, Any], core: Optional[int]) -> None:
        self._group = group
        self._emitter = emitter
        self._settings = settings
        self._core = core
        self._uuid: Optional[str] = None
        self._seed = settings["seed"] * group.size + group.rank
        self.rows_asked = len(settings["dtypes"]) + 3 + (2 if group.device.type == "cuda" else 0)
        self.rows_done = 0
        self.rows_unsupported = 0

    def run(self) -> None:
        """Say which device this is, and work through every phase."""
        self._introduce()
        forbid_reduced_sums()
        for form in self._settings["dtypes"]:
            self._gemm(form)
        self._memory()
        if self._group.device.type == "cuda":
            self._host_copies()
        self._soak(self._settings["soak_dtype"])

    # Products.

    def _gemm(self, form: str) -> None:
        """One multiplication, again and again; the product with which a repeat ends is compared."""
        n = self._settings["matrix"]
        if not self._begins("gemm", form, Product.buffers(form, n)):
            return
        label = f"gemm {form} {n}"
        product = Product(form, n, self._seed, self._group.device)
        one = self._rehearse(product, label)
        burst = max(1, math.ceil(LEAST_REPEAT_S / one))
        tally = Tally()
        self._group.align(label)
        times = [
            self._multiply(product, burst, f"{label} #{repeat}", tally) for repeat in range(self._settings["repeats"])
        ]
        self._emitter.emit(
            "gemm",
            dtype=form,
            n=n,
            burst=burst,
            flop=burst * product.flop,
            time_us=_microseconds(times),
            **tally.told(),
        )
        self.rows_done += 1

    def _rehearse(self, product: Product, label: str) -> float:
        """Warm up; returns the seconds of the last product."""
        seconds = 0.0
        for repeat in range(max(1, self._settings["warmup"])):
            seconds = self._timed(f"{label} warm-up #{repeat}", product.multiply)
        return seconds

    def _multiply(self, product: Product, burst: int, what: str, tally: "Tally") -> float:
        product.poison()
        seconds = self._timed(what, lambda: product.multiply(burst))
        tally.count(product.n**2, product.check(), what)
        return seconds

    def _lacks(self, form: str) -> Optional[str]:
        """Why no device of the job can do this multiplication; None where any can, and so all must."""
        why = self._try(form)
        able = self._group.share(int(why is None), f"agree on {form}")
        return None if any(able) else f"torch {torch.__version__}: {why}"

    def _try(self, form: str) -> Optional[str]:
        if form == "tf32" and torch.cuda.get_device_capability(self._group.device) < (8, 0):
            return "a GPU of compute capability below 8.0 has no TF32"
        try:
            share = self._probe("float32") / self._probe(form)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            return str(error).splitlines()[0][:200]
        return f"it runs at {share:.1%} of float32's speed: emulated" if share < EMULATED else None

    def _probe(self, form: str) -> float:
        """Seconds of a small product: the best of a few, because only the order of magnitude matters."""
        product = Product(form, PROBE, self._seed, self._group.device)
        return min(self._timed(f"probe {form}", product.multiply) for _ in range(PROBES))

    # Memory.

    def _memory(self) -> None:
        """Copy and triad over buffers that no cache holds."""
        size = beyond_cache(self._settings["memory"], self._core)
        if not self._begins("memory", None, (Stream.BUFFERS + 1) * size, rows=2):
            return
        parts = self._settings["parts"]
        passes = self._settings["repeats"] // parts
        stream = Stream(size, parts, self._settings["seed"], self._group.rank, self._group.device)
        for kind, traffic in stream.kinds().items():
            self._group.align(f"memory {kind}")
            self._traffic("memory", kind, traffic, size, parts, passes)

    def _host_copies(self) -> None:
        """Both directions between host and GPU, one GPU of a node after the other."""
        size = self._settings["copies"]
        if not self._begins("copies", None, (HostCopies.BUFFERS + 1) * size, rows=2):
            return
        copies = HostCopies(size, self._settings["seed"], self._group.rank, self._group.device)
        mine = int(os.environ["LOCAL_RANK"])
        for turn in range(max(self._group.share(mine, "take turns")) + 1):
            self._group.align(f"turn {turn}")
            if turn == mine:
                for kind, traffic in copies.kinds().items():
                    self._traffic("copies", kind, traffic, size, 1, self._settings["copy_repeats"])
        self._group.align("end of turns")

    def _traffic(self, phase: str, kind: str, traffic: Traffic, size: int, parts: int, passes: int) -> None:
        tally = Tally()
        times: List[float] = []
        warmup = self._settings["warmup"]
        for number in range(warmup + passes):
            what = f"{phase} {kind} #{number}"
            traffic.poison()
            taken = [self._timed(what, functools.partial(traffic.work, part)) for part in range(parts)]
            times += taken if number >= warmup else []
            tally.count(size // 4, traffic.check(), what)
        self._emitter.emit(
            phase, kind=kind, size=size, moved=traffic.moved, time_us=_microseconds(times), **tally.told()
        )
        self.rows_done += 1

    # The soak.

    def _soak(self, form: str) -> None:
        """Products without a pause for a while, told slice by slice; on a GPU its condition is read under this load."""
        n = self._settings["matrix"]
        if not self._begins("soak", form, Product.buffers(form, n)):
            return
        product = Product(form, n, self._seed, self._group.device)
        length = self._settings["soak_s"] / SLICES
        one = self._rehearse(product, "soak")
        burst = max(1, math.ceil(length / _SLICE_REPEATS / one))
        self._group.align("soak")
        begin = time.monotonic()
        for index in range(SLICES):
            self._slice(product, burst, index, begin, begin + (index + 1) * length)
        if self._group.device.type == "cuda":
            self._condition(product, burst)
        self.rows_done += 1

    def _slice(self, product: Product, burst: int, index: int, begin: float, end: float) -> None:
        tally = Tally()
        times: List[float] = []
        what = f"soak slice {index}"
        self._group.enter(what)
        since = time.monotonic() - begin
        while not times or (time.monotonic() < end and len(times) < MAX_REPEATS):
            product.poison()
            times.append(self._measured(lambda: product.multiply(burst)))
            tally.count(product.n**2, product.check(), what)
        self._group.position.phase = 2
        self._emitter.emit(
            "soak",
            dtype=product.form,
            slice=index,
            since_s=round(since, 3),
            flop=burst * product.flop,
            time_us=_microseconds(times),
            **tally.told(),
        )

    def _condition(self, product: Product, burst: int) -> None:
        """Read NVML while products are under way."""
        why = "torch does not tell the GPU's UUID, so that NVML cannot be asked about it"
        load = functools.partial(product.multiply, _LOAD_BURSTS * burst)
        told = condition.unread(why) if self._uuid is None else condition.under(load, self._uuid)
        self._emitter.emit("condition", **told)
        self._group.settle()

    # What all phases do.

    def _introduce(self) -> None:
        """Emit ``device``: which device this rank's numbers are of."""
        device = self._group.device
        if device.type == "cuda":
            name, self._uuid = torch.cuda.get_device_name(device), _uuid(device)
            pci = condition.address(self._uuid) if self._uuid else None
            if pci is not None:
                affinity.stay_near(pci)
        else:
            name = affinity.core_name(self._core or 0)
        self._emitter.emit(
            "device",
            index=int(os.environ["LOCAL_RANK"]),
            core=self._core,
            uuid=self._uuid,
            name=name,
            host=socket.gethostname(),
        )

    def _begins(self, phase: str, form: Optional[str], needed: int, rows: int = 1) -> bool:
        """Whether a phase can be done; where it cannot, say why: ``unsupported``, or ``short`` of memory."""
        lacks = self._lacks(form) if form is not None else None
        short = self._group.too_large(needed) if lacks is None else None
        if lacks is None and short is None:
            return True
        self.rows_unsupported += rows
        self._emitter.emit("short" if lacks is None else "unsupported", phase=phase, dtype=form, why=lacks or short)
        return False

    def _timed(self, what: str, work: Callable[[], None]) -> float:
        """Seconds of a piece of work that counts as a step of its own."""
        self._group.enter(what)
        seconds = self._measured(work)
        self._group.position.phase = 2
        return seconds

    def _measured(self, work: Callable[[], None]) -> float:
        self._group.settle()
        begin = time.perf_counter()
        work()
        self._group.settle()
        return time.perf_counter() - begin


class Tally:
    """What was compared in a phase, and what was wrong."""

    def __init__(self) -> None:
        self._checked = 0
        self._wrong = 0
        self._first: Optional[Dict[str, Any]] = None

    def count(self, elements: int, found: Union[Wrong, Difference, None], what: str) -> None:
        """Enter the outcome of one comparison."""
        self._checked += elements
        if found is not None:
            self._wrong += found.wrong
            self._first = self._first or dict(found._asdict(), what=what, got=_number(found.got))

    def told(self) -> Dict[str, Any]:
        """The fields of an event."""
        return {"checked": self._checked, "wrong": self._wrong, "first_wrong": self._first}


def _number(value: float) -> Union[float, str]:
    """JSON has no NaN and no infinity: these are told as texts."""
    return value if math.isfinite(value) else str(value)


def _microseconds(seconds: Sequence[float]) -> List[float]:
    return [round(value * 1e6, 1) for value in seconds]


def _uuid(device: torch.device) -> Optional[str]:
    """As NVML writes it; None where this torch does not tell it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _settle(given: Dict[str, Any]) -> Dict[str, Any]:
    settings = settled("health", DEFAULTS, given)
    forms = [*settings["dtypes"], settings["soak_dtype"]]
    mistakes = [f"unknown dtype {form!r} (known: {', '.join(FORMS)})" for form in forms if form not in FORMS]
    n = settings["matrix"]
    if not LEAST <= n <= GREATEST or n & (n - 1):
        mistakes.append(f"matrix {n} is not a power of two from {LEAST} to {GREATEST}")
    mistakes += [
        f"{key} {settings[key]} is not a number of bytes that {parts} parts of float32 elements fill"
        for key, parts in (("memory", max(1, settings["parts"])), ("copies", 1))
        if settings[key] <= 0 or settings[key] % (4 * parts)
    ]
    if "tf32" in forms and settings["device"] == "cpu":
        mistakes.append("tf32 is a multiplication of GPUs")
    if settings["device"] not in ("cpu", "cuda"):
        mistakes.append(f"device {settings['device']!r} is neither 'cpu' nor 'cuda'")
    mistakes += [
        f"{key} {settings[key]} is not within 1 to {MAX_REPEATS}"
        for key in ("repeats", "copy_repeats")
        if not 1 <= settings[key] <= MAX_REPEATS
    ]
    if settings["parts"] < 1 or settings["repeats"] % max(1, settings["parts"]):
        mistakes.append(f"repeats {settings['repeats']} are not whole passes over {settings['parts']} parts")
    if settings["warmup"] < 0 or settings["soak_s"] <= 0 or settings["timeout_s"] <= 0:
        mistakes.append("warmup must be at least 0, soak_s and timeout_s above 0")
    refuse("health", mistakes)
    return settings


def run(emitter: Emitter, given: Dict[str, Any]) -> int:
    """Join the group, measure the device, and tell of the completion.

    Raises:
        SettingsError: the settings are wrong.
        RuntimeError: there is no device for this rank, or the group or the device failed.
    """
    settings = _settle(given)
    on_cpu = settings["device"] == "cpu"
    # Before the first thread is started: threads inherit where they may run.
    core = affinity.claim_core(int(os.environ["LOCAL_RANK"])) if on_cpu else None
    known = transport.gloo(os.environ.get("GLOO_SOCKET_IFNAME")) if on_cpu else "NCCL, to start phases together"
    position = Position()
    place = joined(emitter, position, settings["device"], settings["timeout_s"], known)
    with Heartbeat(emitter, position), place as group:
        checkup = Checkup(group, emitter, settings, core)
        checkup.run()
        group.tell_done(
            emitter,
            rows_asked=checkup.rows_asked,
            rows_done=checkup.rows_done,
            rows_unsupported=checkup.rows_unsupported,
        )
    return 0
