"""Command ``checkpoint``: a training job that writes checkpoints, and that goes on where a killed one has stopped.

Events beside those of every rank:

- ``rejected`` (step, path, why): a checkpoint that was found and is not loaded; ``loaded`` (step, engine, bytes,
  seconds, digests): the state after it was read back, before the first step.
- ``step`` (step, loss as float.hex(), samples: a digest of their ids in order, rate as float.hex()).
- ``saving`` (step, engine, digests): the live state when the save was called; ``saved`` (step, engine, bytes, seconds,
  stall_seconds): the checkpoint is whole, for how long it was in the making, and for how long training stood still.
- ``held`` (where, step): this rank has come to the point at which it waits to be killed.
- ``rate``: see rates.py; ``final`` (step, digests): the state at the end.
"""

import hashlib
import os
import threading
import time
from typing import Any, Dict, Optional

from . import dcp, rates, transport
from .checkpoints import Store
from .engines import Engine, Save, Shards
from .events import Emitter, Heartbeat, Position
from .group import Group, joined
from .settings import refuse, settled
from .shards import DamageError
from .training import Sizes, Training

DEFAULTS: Dict[str, Any] = {
    "folder": "",
    "run": "by-hand",
    "engine": "shards",
    "restore": False,
    "every": 4,
    "keep": 2,
    "hold": {},
    "rate_bytes": 0,
    "rate_repeats": 10,
    "layers": 2,
    "width": 64,
    "heads": 4,
    "context": 32,
    "vocabulary": 64,
    "batch": 2,
    "accumulation": 2,
    "samples": 1000,
    "workers": 2,
    "steps": 16,
    "seed": 1,
    "device": "cpu",
    "timeout_s": 1800,
}

ENGINES = ("shards", "dcp", "dcp-async")
PLACES = ("step", "write", "commit")
"""Where a rank may wait to be killed: in the middle of a step, of its shard, or when its shard is whole and the
manifest is not yet written."""

PATIENCE_S = 60.0
"""How long a rank waits to be killed."""


class Hold:
    """The point at which one rank waits to be killed, if any: a kill is then where it was meant, however fast the job.

    Args:
        group: the group.
        emitter: where ``held`` goes.
        wanted: ``where``, ``step`` and ``rank``, or nothing.
    """

    def __init__(self, group: Group, emitter: Emitter, wanted: Dict[str, Any]) -> None:
        self._group = group
        self._emitter = emitter
        self._wanted = wanted

    def is_in(self, step: int) -> bool:
        """Whether some rank is to be killed in the middle of this step."""
        return (self._wanted.get("where"), self._wanted.get("step")) == ("step", step)

    def at(self, where: str, step: int) -> None:
        """Wait here, if this is the point.

        Raises:
            RuntimeError: nobody killed this rank.
        """
        if self._wanted != {"where": where, "step": step, "rank": self._group.rank}:
            return
        self._group.position.what = f"held in {where} {step}"
        self._emitter.emit("held", where=where, step=step)
        threading.Event().wait(PATIENCE_S)
        raise RuntimeError(f"held in {where} {step}, and not killed within {PATIENCE_S:g} s")


class Run:
    """One rank's part of the job."""

    def __init__(self, group: Group, emitter: Emitter, settings: Dict[str, Any]) -> None:
        self._group = group
        self._emitter = emitter
        self._settings = settings
        self._sizes = Sizes(**{name: settings[name] for name in Sizes._fields})
        self._hold = Hold(group, emitter, settings["hold"])
        self._store = Store(group, settings["folder"], settings["run"], settings["keep"])
        self._engines: Dict[str, Engine] = {"shards": Shards(group, self._store, self._hold.at)}
        for name in ("dcp", "dcp-async"):
            if settings["engine"].startswith("dcp") and dcp.lacking(name) is None:
                self._engines[name] = dcp.Dcp(group, self._store, is_async=name == "dcp-async")
        self._training = Training(group, self._sizes)
        self._pending: Optional[Save] = None

    def work(self) -> None:
        """Restore if asked, train to the end, and tell of the state there."""
        if self._settings["restore"]:
            self._restore()
        first = self._training.done
        while self._training.done < self._sizes.steps:
            self._step()
        self._finish()
        self._emitter.emit("final", step=self._training.done, digests=self._training.digests())
        self._training.close()
        size = self._settings["rate_bytes"]
        if size:
            rates.measure(self._group, self._emitter, self._settings["folder"], size, self._settings["rate_repeats"])
        self._group.tell_done(self._emitter, steps_asked=self._sizes.steps, steps_done=self._training.done, first=first)

    # Forward.

    def _step(self) -> None:
        number = self._training.done + 1
        if self._hold.is_in(number):
            self._finish()  # The kill shall test what is on the disk, not how fast it came there.
        told = self._training.step(lambda: self._hold.at("step", number))
        used = hashlib.sha256(repr(told.samples).encode()).hexdigest()[:16]
        self._emitter.emit("step", step=number, loss=told.loss.hex(), samples=used, rate=told.rate.hex())
        if self._pending is not None and all(self._group.share(int(self._pending.is_done()), "ask after the save")):
            self._finish()
        if number % self._settings["every"] == 0:
            self._save()

    def _save(self) -> None:
        self._finish()
        name = self._settings["engine"]
        self._emitter.emit("saving", step=self._training.done, engine=name, digests=self._training.digests())
        self._group.align(f"checkpoint {self._training.done}")
        self._pending = Save(self._group, self._store, self._engines[name], name, self._training)
        if name != "dcp-async":
            self._finish()

    def _finish(self) -> None:
        """Wait for the save that is on its way, if any, and make it a checkpoint."""
        if self._pending is not None:
            self._emitter.emit("saved", **self._pending.finish(self._hold.at))
            self._pending = None

    # Back.

    def _restore(self) -> None:
        """Go on from the newest checkpoint that is whole, and say of each newer one why it is not."""
        for found in self._store.found():
            if found.manifest is not None:
                if self._load(found.step, found.manifest):
                    return
            elif self._group.rank == 0:
                self._emitter.emit("rejected", step=found.step, path=self._store.path(found.step), why=found.why)

    def _load(self, step: int, manifest: Dict[str, Any]) -> bool:
        """Whether all ranks have loaded their part of a checkpoint."""
        self._group.align(f"load checkpoint {step}")
        begin, size, why = time.perf_counter(), 0, ""
        try:
            size = self._engines[manifest["engine"]].load(step, manifest, self._training)
        except DamageError as damage:
            why = str(damage)
            self._emitter.emit("rejected", step=step, path=self._store.shard(step), why=why)
        seconds = time.perf_counter() - begin
        if not all(self._group.share(int(not why), f"agree on checkpoint {step}")):
            # What a damaged shard has left in the state must not stay there.
            self._training = Training(self._group, self._sizes)
            return False
        said = {"engine": manifest["engine"], "bytes": size, "seconds": round(seconds, 6)}
        self._emitter.emit("loaded", step=step, digests=self._training.digests(), **said)
        return True


def _settle(given: Dict[str, Any]) -> Dict[str, Any]:
    settings = settled("checkpoint", DEFAULTS, given)
    positive = [name for name in (*Sizes._fields, "every", "keep", "rate_repeats") if name not in ("workers", "seed")]
    mistakes = [f"{name} {settings[name]} is not above 0" for name in positive if settings[name] <= 0]
    mistakes += [f"{name} {settings[name]} is below 0" for name in ("workers", "rate_bytes") if settings[name] < 0]
    if not os.path.isabs(settings["folder"]):
        mistakes.append(f"folder {settings['folder']!r} is not an absolute path")
    if settings["engine"] not in ENGINES:
        mistakes.append(f"engine {settings['engine']!r} is none of {', '.join(ENGINES)}")
    if settings["hold"] and settings["hold"].get("where") not in PLACES:
        mistakes.append(f"hold {settings['hold']} is not in one of {', '.join(PLACES)}")
    if settings["heads"] > 0 and settings["width"] % settings["heads"]:
        mistakes.append(f"width {settings['width']} is no multiple of the {settings['heads']} heads")
    if settings["device"] not in ("cpu", "cuda"):
        mistakes.append(f"device {settings['device']!r} is neither 'cpu' nor 'cuda'")
    refuse("checkpoint", mistakes)
    return settings


def run(emitter: Emitter, given: Dict[str, Any]) -> int:
    """Join the group, train, and tell of the completion.

    Raises:
        SettingsError: the settings are wrong.
        RuntimeError: the group, the device or the training failed.
        OSError: a checkpoint could not be written.
    """
    settings = _settle(given)
    position = Position()
    gloo = transport.gloo(os.environ.get("GLOO_SOCKET_IFNAME"))
    known = gloo if settings["device"] == "cpu" else "NCCL"
    with Heartbeat(emitter, position), joined(
        emitter, position, settings["device"], settings["timeout_s"], known
    ) as group:
        why = dcp.lacking(settings["engine"]) if settings["engine"] != "shards" else None
        if why is not None:
            emitter.emit("unsupported", engine=settings["engine"], why=why)
            group.tell_done(emitter, steps_asked=0, steps_done=0, first=0)
        else:
            Run(group, emitter, settings).work()
    return 0
