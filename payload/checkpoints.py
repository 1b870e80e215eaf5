"""The checkpoints of one run in one folder: what is whole, what may be loaded, what is kept.

::

    FOLDER/step-00000008/rank-00000.shard    one a rank
    FOLDER/step-00000008/manifest.json       written last, by rank 0, once every rank has its shard on the disk

A checkpoint is whole when its manifest is sound: of this run and this world, with every shard there in its size and
with its checksum. The shards may lie on a file system that all nodes share, or each on its own node.
"""

import contextlib
import json
import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from .group import Group
from .shards import DamageError, put, replaced

MANIFEST = "manifest.json"
VERSION = 1
_STEP = re.compile(r"step-(\d{8})")


class Found(NamedTuple):
    """A folder of a checkpoint: its step, and its manifest or why that one is no good."""

    step: int
    manifest: Optional[Dict[str, Any]]
    why: str


class Store:
    """The checkpoints of one run.

    Args:
        group: the group; what says so below must be called by all ranks alike.
        folder: where they are; made if need be.
        run: names the run: another run's checkpoints are refused.
        keep: how many whole ones stay.
    """

    def __init__(self, group: Group, folder: str, run: str, keep: int) -> None:
        self._group = group
        self._folder = folder
        self._run = run
        self._keep = keep
        os.makedirs(folder, exist_ok=True)

    def path(self, step: int) -> str:
        """The folder of one checkpoint."""
        return os.path.join(self._folder, f"step-{step:08d}")

    def shard(self, step: int) -> str:
        """Where this rank's shard of a checkpoint is."""
        return os.path.join(self.path(step), f"rank-{self._group.rank:05d}.shard")

    def begin(self, step: int) -> str:
        """Make room for a checkpoint, on all ranks; returns its folder.

        What a run that was killed left under this step is no checkpoint any more before its first byte changes.
        """
        folder = self.path(step)
        os.makedirs(folder, exist_ok=True)
        if self._group.rank == 0:
            _remove(os.path.join(folder, MANIFEST))
        self._group.share(0, f"begin checkpoint {step}")
        return folder

    def commit(self, step: int, engine: str, mine: Dict[str, Any]) -> None:
        """Write the manifest once all ranks have come here with their shards on the disk, and let older ones go.

        Args:
            step: the checkpoint's step.
            engine: what wrote it.
            mine: what the manifest says of this rank's shard.

        Raises:
            OSError: the manifest could not be written.
        """
        texts = self._group.share_text(json.dumps(mine), f"confirm checkpoint {step}")
        if self._group.rank == 0:
            manifest = {"seatrial": VERSION, "run": self._run, "step": step, "engine": engine}
            shards = [json.loads(text) for text in texts]
            body = json.dumps({**manifest, "world_size": self._group.size, "shards": shards}).encode()
            with replaced(os.path.join(self.path(step), MANIFEST)) as descriptor:
                put(descriptor, memoryview(body))
        self._group.share(0, f"commit checkpoint {step}")
        self._prune()

    def found(self) -> List[Found]:
        """All that lies in the folder, newest first, the same on all ranks: as rank 0 sees it."""
        mine = [list(found) for found in self._look()] if self._group.rank == 0 else []
        text = self._group.share_text(json.dumps(mine), "share the manifests")[0]
        return [Found(*found) for found in json.loads(text)]

    def _look(self) -> Iterator[Found]:
        for step in sorted(self._steps(), reverse=True):
            try:
                yield Found(step, self._sound(step), "")
            except DamageError as damage:
                yield Found(step, None, str(damage))

    def _steps(self) -> List[int]:
        matches = [_STEP.fullmatch(name) for name in os.listdir(self._folder)]
        return [int(match.group(1)) for match in matches if match]

    def _sound(self, step: int) -> Dict[str, Any]:
        """A checkpoint's manifest.

        Raises:
            DamageError: there is none, or it is not of this run and world.
        """
        path = os.path.join(self.path(step), MANIFEST)
        if not os.path.exists(path):
            raise DamageError(f"no {MANIFEST}: it was never finished")
        with open(path, "rb") as file:
            text = file.read()
        try:
            manifest = json.loads(text)
            said = {key: manifest[key] for key in ("seatrial", "run", "step", "world_size")}
            ranks = [shard["rank"] for shard in manifest["shards"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DamageError(f"{MANIFEST} is no manifest: {type(error).__name__}: {error}") from error
        wanted = {"seatrial": VERSION, "run": self._run, "step": step, "world_size": self._group.size}
        wrong = [f"{key} {said[key]!r}, expected {wanted[key]!r}" for key in wanted if said[key] != wanted[key]]
        if wrong or ranks != list(range(self._group.size)):
            raise DamageError(f"{MANIFEST} has {'; '.join(wrong) or f'the ranks {ranks}'}")
        return dict(manifest)

    def _prune(self) -> None:
        """Remove all but the newest whole checkpoints, and what was never finished: each manifest before its shards."""
        found = self.found()
        whole = [one.step for one in found if one.manifest is not None]
        gone = [one.step for one in found if one.step not in whole[: self._keep]]
        for step in gone:
            if self._group.rank == 0:
                _remove(os.path.join(self.path(step), MANIFEST))
        self._group.share(0, "forget old checkpoints")
        for step in gone:
            self._clear(step)

    def _clear(self, step: int) -> None:
        """Remove a checkpoint's files from this node, and then its folder."""
        if os.environ["LOCAL_RANK"] != "0":
            return
        folder = self.path(step)
        with contextlib.suppress(FileNotFoundError):  # Another node that shares the folder was first.
            for name in os.listdir(folder):
                _remove(os.path.join(folder, name))
            os.rmdir(folder)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # Another node was first, or it never was.
        os.unlink(path)
