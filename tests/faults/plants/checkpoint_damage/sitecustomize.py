"""Rank 1's newest shard comes to harm between a kill and the restore, in another way for each job that restores."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from _checkpoint import JOB, is_training, newest
from _plant import here


def truncate(step: Path) -> None:
    """The shard's last byte is gone."""
    shard = step / "rank-00001.shard"
    os.truncate(shard, shard.stat().st_size - 1)


def flip(step: Path) -> None:
    """One bit of the shard is another."""
    with (step / "rank-00001.shard").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def remove(step: Path) -> None:
    """The shard is gone."""
    (step / "rank-00001.shard").unlink()


def change_run(step: Path) -> None:
    """The manifest is another run's."""
    manifest = json.loads((step / "manifest.json").read_text())
    (step / "manifest.json").write_text(json.dumps({**manifest, "run": "another"}))


def lose_power(step: Path) -> None:
    """What rank 1 was told to be on the disk, and was not, is gone."""
    for path in (step.parent / "unsynced").read_text().splitlines():
        renamed = Path(path.removesuffix(".part"))
        if renamed.parent == step:
            os.truncate(renamed, 4096)


def lie() -> None:
    """An fsync that does nothing, and a list of the files that it was asked for."""

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".shard.part"):
            with (Path(path).parent.parent / "unsynced").open("a") as file:
                file.write(path + "\n")

    os.fsync = fsync


HARM: dict[str, Callable[[Path], None]] = {
    "checkpoint-flipped": truncate,
    "checkpoint-missing": flip,
    "checkpoint-foreign": remove,
    "checkpoint-unsynced": change_run,
    "checkpoint-shards-end": lose_power,
}
"""By the job that restores: what happened to the checkpoint of the one before, which bears the harm's name."""

if here() and is_training():
    if JOB in HARM:
        HARM[JOB](newest())
    if JOB == "checkpoint-unsynced":
        lie()
