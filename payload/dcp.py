"""torch.distributed.checkpoint as a second engine, synchronous and asynchronous.

What all ranks hold alike is written once, by the rank that torch chooses; what is a rank's own bears its number.
"""

import json
import os
from concurrent.futures import Future
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist

from .checkpoints import Store
from .engines import Engine
from .group import Group
from .shards import DamageError, view
from .training import Training

METADATA = ".metadata"


def lacking(engine: str) -> Optional[str]:
    """Why this torch has no such engine; None where it has."""
    wanted = {"dcp": "save", "dcp-async": "async_save"}[engine]
    try:
        import torch.distributed.checkpoint as module  # noqa: PLC0415  (torch 1.13 has none)
    except ImportError:
        return f"torch {torch.__version__} has no torch.distributed.checkpoint"
    has = hasattr(module, wanted)
    return None if has else f"torch {torch.__version__} has no torch.distributed.checkpoint.{wanted}"


class Dcp(Engine):
    """A state dict through torch.distributed.checkpoint, over a gloo group of its own.

    The group is its own because an asynchronous save talks between ranks while training does.
    """

    def __init__(self, group: Group, store: Store, is_async: bool) -> None:
        self._group = group
        self._store = store
        self._is_async = is_async
        self._talk = dist.new_group(backend="gloo")

    def save(self, step: int, training: Training) -> "Future[Any]":
        """Save; asynchronously, only the copy of the state has been made when this returns."""
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415

        state, folder = self._state(training), self._store.path(step)
        if self._is_async:
            pending: Future[Any] = dcp.async_save(state, checkpoint_id=folder, process_group=self._talk)
            return pending
        done: Future[Any] = Future()
        done.set_result(dcp.save(state, checkpoint_id=folder, process_group=self._talk))
        return done

    def _state(self, training: Training) -> Dict[str, torch.Tensor]:
        text = json.dumps(training.plain()).encode()
        own = {"plain": torch.tensor(list(text), dtype=torch.uint8)}
        shared: Dict[str, torch.Tensor] = {}
        for name, tensor in training.tensors().items():
            (own if name.startswith("rng.") else shared)[name] = tensor
        return {**shared, **{self._own(name): tensor for name, tensor in own.items()}}

    def _own(self, name: str) -> str:
        return f"rank-{self._group.rank}.{name}"

    def entry(self, step: int, result: Any) -> Dict[str, Any]:  # noqa: ARG002
        """The files that this rank wrote, each with its size: torch gives them no checksum."""
        folder, mine = self._store.path(step), [f"__{self._group.rank}_"]
        mine += [METADATA] if self._group.rank == 0 else []
        names = [name for name in sorted(os.listdir(folder)) if name.startswith(tuple(mine))]
        files = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
        return {"rank": self._group.rank, "files": files, "bytes": sum(files.values())}

    def load(self, step: int, manifest: Dict[str, Any], training: Training) -> int:
        """Read all that this rank needs; every rank looks at every file first, so that all refuse alike."""
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415

        folder = self._store.path(step)
        for shard in manifest["shards"]:
            for name, size in shard["files"].items():
                _refuse_damage(os.path.join(folder, name), size, shard["rank"])
        described = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        mine = [name for name in described if not name.startswith("rank-") or name.startswith(self._own(""))]
        state = {name: self._empty(name, described[name]) for name in mine}
        dcp.load(state, checkpoint_id=folder, process_group=self._talk)
        plain = bytes(view(state.pop(self._own("plain"))))
        for name, tensor in state.items():
            training.adopt(name[len(self._own("")) :] if name.startswith("rank-") else name, tensor)
        training.adopt_plain(json.loads(plain))
        return int(sum(tensor.numel() * tensor.element_size() for tensor in state.values()) + len(plain))

    def _empty(self, name: str, described: Any) -> torch.Tensor:
        device = torch.device("cpu") if name.startswith("rank-") else self._group.device
        return torch.empty(described.size, dtype=described.properties.dtype, device=device)


def _refuse_damage(path: str, size: int, rank: int) -> None:
    if not os.path.exists(path):
        raise DamageError(f"rank {rank}'s file {os.path.basename(path)} is missing")
    found = os.path.getsize(path)
    if found != size:
        raise DamageError(f"rank {rank}'s file {os.path.basename(path)} has {found} bytes, expected {size}")
