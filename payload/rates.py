"""How fast a shard is written and read, and how fast the same bytes are without it: in turn, all ranks at once.

Both ways end with the bytes on the disk (fsync), and both ways of reading begin with none of them in the page cache
(POSIX_FADV_DONTNEED after the fsync; a tmpfs has no other place for them) and end with all of them in fresh memory.
Event ``rate`` (way: write or read, bytes, shard_us, plain_us): each repeat's times on this rank, in microseconds.
"""

import os
import time
from typing import Callable, Dict, List

import torch

from .events import Emitter
from .group import Group
from .shards import CHUNK, pieces, put, read, view, write

TENSORS = 4
"""The shard has so many, of one size."""
WARMUP = 1
"""So many repeats come first and are not counted: memory and folders are touched for the first time."""


def measure(group: Group, emitter: Emitter, folder: str, size: int, repeats: int) -> None:
    """Emit a ``rate`` event for each way.

    Args:
        group: the group; all its ranks must call this alike.
        emitter: where the events go.
        folder: where the bytes go; this rank's files there are removed in the end.
        size: bytes a rank.
        repeats: of each way.
    """
    part = size // TENSORS // 4
    tensors = {f"ballast.{at}": torch.rand(part, device=group.device) for at in range(TENSORS)}
    plain = torch.cat([tensor.cpu() for tensor in tensors.values()]).view(torch.uint8)
    bench = _Bench(group, os.path.join(folder, f"rate-{group.rank:05d}"), tensors, plain)
    times: Dict[str, List[float]] = {"write shard": [], "write plain": [], "read shard": [], "read plain": []}
    for repeat in range(WARMUP + repeats):
        for way in ("write", "read"):
            kinds = ("shard", "plain") if repeat % 2 else ("plain", "shard")
            for kind in kinds:
                times[f"{way} {kind}"].append(bench.timed(f"{way} {kind}", repeat))
        bench.remove()
    for way in ("write", "read"):
        told = {f"{kind}_us": times[f"{way} {kind}"][WARMUP:] for kind in ("shard", "plain")}
        emitter.emit("rate", way=way, bytes=plain.numel(), **told)


class _Bench:
    """The two files of one rank, and the four things that are timed."""

    def __init__(self, group: Group, path: str, tensors: Dict[str, torch.Tensor], plain: torch.Tensor) -> None:
        self._group = group
        self._shard, self._plain = path + ".shard", path + ".plain"
        self._tensors = tensors
        self._bytes = plain
        self._written = write(self._shard, tensors, None)
        self._work: Dict[str, Callable[[], None]] = {
            "write shard": self._write_shard,
            "write plain": self._write_plain,
            "read shard": self._read_shard,
            "read plain": self._read_plain,
        }

    def timed(self, what: str, repeat: int) -> float:
        """One repeat, in microseconds."""
        if what.startswith("read"):
            _forget(self._shard if what == "read shard" else self._plain)
        self._group.align(f"{what} #{repeat}")
        self._group.enter(f"{what} #{repeat}")
        begin = time.perf_counter_ns()
        self._work[what]()
        self._group.settle()
        self._group.position.phase = 2
        return round((time.perf_counter_ns() - begin) / 1e3, 1)

    def remove(self) -> None:
        """Begin the next repeat without files."""
        os.unlink(self._shard)
        os.unlink(self._plain)

    def _write_shard(self) -> None:
        self._written = write(self._shard, self._tensors, None)

    def _write_plain(self) -> None:
        descriptor = os.open(self._plain, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for piece in pieces(self._bytes):
                put(descriptor, view(piece))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read_shard(self) -> None:
        read(self._shard, self._written.size, self._written.checksum, self._group.device, lambda *_: None)

    def _read_plain(self) -> None:
        fresh = torch.empty_like(self._bytes)
        with open(self._plain, "rb", buffering=0) as file:
            got = sum(file.readinto(view(piece)) for piece in pieces(fresh))
        if got != fresh.numel():
            raise OSError(f"{self._plain}: read {got} of {fresh.numel()} bytes in pieces of {CHUNK}")


def _forget(path: str) -> None:
    """Take a file's pages out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
