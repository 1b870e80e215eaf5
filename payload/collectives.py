"""Command ``collectives``: each collective at each size and dtype, timed, and every element of every result compared.

Each iteration restores the input and poisons the output, lets the ranks meet in a one-element all_reduce (the align
step), and then times the collective. A rank that waits long in the align step came early, one that does not came late:
lateness is seen without comparing clocks.

Sizes are in bytes and mean what nccl-tests means: the whole buffer of one rank, which for all_gather, reduce_scatter
and all_to_all is that of all blocks together. Times are in microseconds.
"""

import math
import os
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from . import transport, yardstick
from .events import Emitter, Heartbeat, Position
from .exercises import Case, Workbench
from .group import Group, Timing, binary_size, joined
from .pattern import EXACT, Difference
from .settings import refuse, settled

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")

DEFAULTS: Dict[str, Any] = {
    "ops": list(OPS),
    "dtypes": ["float32", "bfloat16"],
    "sizes": [1 << 10, 1 << 20],
    "warmup": 2,
    "iterations": 20,
    "seed": 1,
    "device": "cpu",
    "timeout_s": 1800,
}

MAX_ITERATIONS = 100
"""Above this, the three times of each iteration would not fit in one event."""

_BLOCKED = ("all_gather", "reduce_scatter", "all_to_all")
_BUFFERS = {"all_reduce": 3, "broadcast": 3, "all_gather": 4, "reduce_scatter": 4, "all_to_all": 4, "sendrecv": 4}
_FORMS = {"all_gather": ("tensor", "list"), "reduce_scatter": ("tensor", "list"), "all_to_all": ("tensor", "list")}
_LACKING = ("not support", "no support", "unsupported", "not implemented", "invalid scalar type")


def _lacks(error: RuntimeError) -> bool:
    """Whether an error says that the backend does not have this, which is no fault of anybody."""
    return any(word in str(error).lower() for word in _LACKING)


class Trial:
    """All rows that one rank was asked for."""

    def __init__(self, group: Group, emitter: Emitter, settings: Dict[str, Any]) -> None:
        self._group = group
        self._emitter = emitter
        self._settings = settings
        self._workbench = Workbench(group)
        self.rows_asked = len(settings["ops"]) * len(settings["dtypes"]) * len(settings["sizes"])
        self.rows_done = 0
        self.rows_unsupported = 0
        self.elements_checked = 0

    def run(self) -> None:
        """Work through every operation, dtype and size."""
        for op in self._settings["ops"]:
            for dtype in self._settings["dtypes"]:
                form, why = self._supported_form(op, dtype)
                if form is None:
                    self.rows_unsupported += len(self._settings["sizes"])
                    self._emitter.emit("unsupported", op=op, dtype=dtype, size=None, why=why)
                    continue
                for size in self._settings["sizes"]:
                    self._row(op, dtype, size, form)

    def _supported_form(self, op: str, dtype: str) -> Tuple[Optional[str], str]:
        """The form of the call that the backend has, found by trying each on a few elements; or None, and why."""
        if op == "sendrecv" and self._group.size == 1:
            return None, "a ring needs at least 2 ranks"
        reasons = []
        for form in _FORMS.get(op, ("tensor",)):
            why = self._try(Case(op, dtype, 1, form, self._settings["seed"]))
            able = self._group.share(int(why is None), f"agree on {op} {dtype}")
            if all(able):
                return form, ""
            if any(able):
                unable = [rank for rank, well in enumerate(able) if not well]
                raise RuntimeError(
                    f"ranks {unable} cannot do {op} of {dtype} ({why or 'see their logs'}) but the others can: "
                    "install the same torch and NCCL on all"
                )
            reasons.append(f"{form} form: {why}")
        return None, f"torch {torch.__version__} with {self._group.backend}: {'; '.join(reasons)}"

    def _try(self, case: Case) -> Optional[str]:
        """What the backend says where it lacks the operation."""
        try:
            self._group.timed(f"try {case.op} {case.dtype}", self._workbench.exercise(case).launch)
        except RuntimeError as error:
            if not _lacks(error):
                raise
            return str(error).splitlines()[0][:200]
        return None

    def _row(self, op: str, dtype: str, asked: int, form: str) -> None:
        """Measure one size, or say why not."""
        itemsize = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        blocks = self._group.size if op in _BLOCKED else 1
        count = asked // (blocks * itemsize)
        size = count * blocks * itemsize
        why = f"{asked} bytes are less than {blocks} blocks of one element" if count == 0 else None
        why = why or self._group.too_large(_BUFFERS[op] * size)
        if why is not None:
            self.rows_unsupported += 1
            self._emitter.emit("unsupported", op=op, dtype=dtype, size=asked, why=why)
            return
        case = Case(op, dtype, count, form, self._settings["seed"])
        row = self._measure(case, f"{op} {dtype} {binary_size(size)}")
        self._emitter.emit("row", op=op, dtype=dtype, asked=asked, size=size, count=count, **row)
        self.rows_done += 1

    def _measure(self, case: Case, label: str) -> Dict[str, Any]:
        """Warm-up and iterations of one case; every one is compared, the warm-up too."""
        exercise = self._workbench.exercise(case)
        taken: List[Timing] = []
        aligned: List[Timing] = []
        wrong, first_wrong = 0, None
        warmup, iterations = self._settings["warmup"], self._settings["iterations"]
        for iteration in range(warmup + iterations):
            what = f"{label} #{iteration}"
            exercise.restore()
            aligned.append(self._group.align(what))
            taken.append(self._group.timed(what, exercise.launch))
            found = exercise.check()
            if found is not None:
                wrong += found.wrong
                first_wrong = first_wrong or _place(found, iteration, exercise.block(found.offset))
        checked = exercise.output.numel() * (warmup + iterations)
        self.elements_checked += checked
        return {
            "warmup": warmup,
            "iterations": iterations,
            "time_us": [timing.time_us for timing in taken[warmup:]],
            "wait_us": [timing.wait_us for timing in taken[warmup:]],
            "align_us": [timing.wait_us for timing in aligned[warmup:]],
            "checked": checked,
            "wrong": wrong,
            "first_wrong": first_wrong,
        }


def _place(found: Difference, iteration: int, block: Optional[int]) -> Dict[str, Any]:
    """The first wrong element, as a row tells it."""
    return {
        "iteration": iteration,
        "offset": found.offset,
        "got": _number(found.got),
        "expected": found.expected,
        "block": block,
    }


def _number(value: float) -> Union[float, str]:
    """JSON has no NaN and no infinity: these are told as texts."""
    return value if math.isfinite(value) else str(value)


def _settle(given: Dict[str, Any]) -> Dict[str, Any]:
    settings = settled("collectives", DEFAULTS, given)
    mistakes = [f"unknown op {op!r} (known: {', '.join(OPS)})" for op in settings["ops"] if op not in OPS]
    mistakes += [
        f"unknown dtype {dtype!r} (known: {', '.join(EXACT)})" for dtype in settings["dtypes"] if dtype not in EXACT
    ]
    mistakes += [f"size {size} is not above 0 bytes" for size in settings["sizes"] if size <= 0]
    mistakes += [f"{key!r} must not be empty" for key in ("ops", "dtypes", "sizes") if not settings[key]]
    if settings["device"] not in ("cpu", "cuda"):
        mistakes.append(f"device {settings['device']!r} is neither 'cpu' nor 'cuda'")
    if not 1 <= settings["iterations"] <= MAX_ITERATIONS:
        mistakes.append(f"iterations {settings['iterations']} is not within 1 to {MAX_ITERATIONS}")
    if settings["warmup"] < 0 or settings["timeout_s"] <= 0:
        mistakes.append("warmup must be at least 0, and timeout_s above 0")
    refuse("collectives", mistakes)
    return settings


def run(emitter: Emitter, given: Dict[str, Any]) -> int:
    """Join the group, measure all rows and the yardsticks beside them, and tell of the completion.

    Raises:
        SettingsError: the settings are wrong.
        RuntimeError: the group, the device or a collective failed.
    """
    settings = _settle(given)
    position = Position()
    with Heartbeat(emitter, position):
        if settings["device"] == "cpu":
            _work(emitter, position, settings, transport.gloo(os.environ.get("GLOO_SOCKET_IFNAME")))
            return 0
        log = transport.NcclLog(int(os.environ["RANK"]), os.environ)
        try:
            _work(emitter, position, settings, f"NCCL, log in {log.path}", log)
        finally:
            log.remove()
    return 0


def _work(
    emitter: Emitter, position: Position, settings: Dict[str, Any], known: str, log: Optional[transport.NcclLog] = None
) -> None:
    with joined(emitter, position, settings["device"], settings["timeout_s"], known) as group:
        trial = Trial(group, emitter, settings)
        yardstick.measure(group, emitter, settings["sizes"], settings["timeout_s"])
        trial.run()
        if log is not None:
            log.tell(emitter)
        group.tell_done(
            emitter,
            rows_asked=trial.rows_asked,
            rows_done=trial.rows_done,
            rows_unsupported=trial.rows_unsupported,
            elements_checked=trial.elements_checked,
        )
