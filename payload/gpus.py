"""The GPUs' part of a sample, read so that slow NVML calls never hold up a tick."""

import math
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from .devices import FAST, SLOW, Metric, Nvml, Xid
from .events import Emitter

FAST_SHARE = 0.4
"""The share of a tick that the quick readings may take; what did not get its turn is first at the next tick."""
SLOW_SHARE = 0.2
"""The share of a tick that the counters may take beside them; at least one is read."""
SLOW_SECONDS = 1.0
"""How often each device's counters are read, where they answer in time."""


class Gpus:
    """The GPUs' part of a sample.

    Args:
        emitter: where what is said once goes.
        library: NVML, opened.
        xids: gives the Xid events since its last call.
        period: seconds of a tick.
    """

    def __init__(self, emitter: Emitter, library: Nvml, xids: Callable[[], List[Xid]], period: float) -> None:
        self._emitter = emitter
        self._library = library
        self._xids = xids
        self._period = period
        self._ticks = max(1, round(SLOW_SECONDS / period))
        self._turn = 0
        self._due = list(range(len(library.devices)))
        self._waiting: List[Tuple[Metric, int]] = []
        self._said: Set[Tuple[Optional[str], str]] = set()

    def describe(self) -> Dict[str, Any]:
        """The fields ``gpus`` and ``nvml`` of the event ``sampling``."""
        found = self._library.inventory
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory": gpu.memory,
                "pci": gpu.pci,
                "mig": gpu.mig,
                "links": gpu.links,
            }
            for gpu in found.gpus
        ]
        return {"gpus": gpus, "nvml": {"version": found.nvml, "driver": found.driver, "cuda": found.cuda}}

    def read(self, tick: int, every: bool) -> Dict[str, Any]:
        """The fields ``gpus`` and ``counters`` of a sample.

        Args:
            tick: its number; the devices' counters are spread over the ticks of a second.
            every: read the counters of all devices now.
        """
        for uuid, xid in self._xids():
            self._emitter.emit("xid", uuid=uuid, xid=xid)
        fields: Dict[str, Any] = {"gpus": self._fast(time.monotonic() + FAST_SHARE * self._period)}
        due = [index for index, moment in enumerate(self._due) if every or tick >= moment]
        for index in due:
            self._due[index] = tick + self._ticks - (tick - index) % self._ticks
        counters = self._slow(due, time.monotonic() + (math.inf if every else SLOW_SHARE * self._period))
        if counters["gpu"]:
            fields["counters"] = counters
        self._say_once()
        return fields

    def _fast(self, deadline: float) -> Dict[str, List[Optional[float]]]:
        """What is read at each tick; where time runs out, the rest is null now and first at the next tick."""
        count = len(self._library.devices)
        columns: Dict[str, List[Optional[float]]] = {name: [None] * count for metric in FAST for name in metric.columns}
        questions = [(metric, index) for metric in FAST for index in range(count)]
        for number in range(self._turn, self._turn + len(questions)):
            self._turn = number % len(questions)
            if time.monotonic() > deadline:
                return columns
            metric, index = questions[self._turn]
            for name, value in zip(metric.columns, self._library.devices[index].read(metric)):
                columns[name][index] = value
        self._turn = 0
        return columns

    def _slow(self, due: Iterable[int], deadline: float) -> Dict[str, List[Optional[float]]]:
        """The counters that are due, and those that waited; where time runs out, the rest waits for the next tick."""
        questions = [(metric, index) for index in due for metric in SLOW]
        self._waiting += [question for question in questions if question not in self._waiting]
        answers: Dict[int, Dict[str, Optional[float]]] = {}
        while self._waiting:
            metric, index = self._waiting.pop(0)
            values = self._library.devices[index].read(metric)
            answers.setdefault(index, {}).update(zip(metric.columns, values))
            if time.monotonic() > deadline:
                break
        columns: Dict[str, List[Optional[float]]] = {"gpu": list(answers)}
        for metric in SLOW:
            columns.update({name: [answer.get(name) for answer in answers.values()] for name in metric.columns})
        return columns

    def _say_once(self) -> None:
        self._say_faults(None, self._library.faults)
        for device, gpu in zip(self._library.devices, self._library.inventory.gpus):
            self._say_faults(gpu.uuid, device.faults)
            new = [name for name in device.unsupported if (gpu.uuid, name) not in self._said]
            if new:
                self._said.update((gpu.uuid, name) for name in new)
                self._emitter.emit("unsupported", uuid=gpu.uuid, metrics=new)

    def _say_faults(self, uuid: Optional[str], faults: Mapping[str, str]) -> None:
        for metric, error in faults.items():
            if (uuid, metric + error) not in self._said:
                self._said.add((uuid, metric + error))
                self._emitter.emit("nvml_fault", uuid=uuid, metric=metric, error=error)
