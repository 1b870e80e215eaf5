"""What writes and reads a checkpoint's state: our own shards, or torch.distributed.checkpoint in dcp.py."""

import os
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict

from . import shards
from .checkpoints import Store
from .group import Group
from .training import Training

Hold = Callable[[str, int], None]
"""Called at a place and step at which a rank may wait to be killed."""


class Engine:
    """Writes the state of a training, and reads it back."""

    def save(self, step: int, training: Training) -> "Future[Any]":
        """Begin to write; the state may change once this returns. The future is done when all of it is on the disk."""
        raise NotImplementedError

    def entry(self, step: int, result: Any) -> Dict[str, Any]:
        """What the manifest says of this rank's part, with its ``bytes``, given the future's result."""
        raise NotImplementedError

    def load(self, step: int, manifest: Dict[str, Any], training: Training) -> int:
        """Put a checkpoint into a training; returns the bytes read.

        Raises:
            DamageError: it is not what was written; the training is then of no use any more.
        """
        raise NotImplementedError


class Shards(Engine):
    """One file a rank, which holds all of the rank's state."""

    def __init__(self, group: Group, store: Store, hold: Hold) -> None:
        self._group = group
        self._store = store
        self._hold = hold

    def save(self, step: int, training: Training) -> "Future[Any]":
        """Write the shard; the future is done already."""
        path = self._store.shard(step)
        done: Future[Any] = Future()
        done.set_result(
            shards.write(path, training.tensors(), training.plain(), halfway=lambda: self._hold("write", step))
        )
        return done

    def entry(self, step: int, result: Any) -> Dict[str, Any]:
        """File, size and checksum."""
        name = os.path.basename(self._store.shard(step))
        return {"rank": self._group.rank, "file": name, "bytes": result.size, "checksum": result.checksum}

    def load(self, step: int, manifest: Dict[str, Any], training: Training) -> int:
        """Read the shard of this rank."""
        entry = manifest["shards"][self._group.rank]
        path = self._store.shard(step)
        plain = shards.read(path, entry["bytes"], entry["checksum"], self._group.device, training.adopt)
        training.adopt_plain(plain)
        return int(entry["bytes"])


class Save:
    """One checkpoint in the making.

    Attributes:
        step: its step.
    """

    def __init__(self, group: Group, store: Store, engine: Engine, name: str, training: Training) -> None:
        self.step = training.done
        self._store = store
        self._engine = engine
        self._name = name
        self._group = group
        self._begin = time.perf_counter()
        store.begin(self.step)
        group.enter(f"write checkpoint {self.step}")
        self._future = engine.save(self.step, training)
        self._stall = time.perf_counter() - self._begin

    def is_done(self) -> bool:
        """Whether this rank's part is on the disk, or has failed."""
        return self._future.done()

    def finish(self, hold: Hold) -> Dict[str, Any]:
        """Wait until all ranks' parts are on the disk, and make them a checkpoint.

        Returns:
            What ``saved`` tells: seconds from the call to the whole checkpoint, of which training stood still in some.

        Raises:
            OSError: the disk is full, or broken.
        """
        waited = time.perf_counter()
        entry = self._engine.entry(self.step, self._future.result())
        hold("commit", self.step)
        self._store.commit(self.step, self._name, entry)
        now = time.perf_counter()
        self._stall += now - waited
        return {
            "step": self.step,
            "engine": self._name,
            "bytes": entry["bytes"],
            "seconds": round(now - self._begin, 6),
            "stall_seconds": round(self._stall, 6),
        }
