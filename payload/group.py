"""The group of ranks that a payload joins, and the small exchanges around what it measures."""

import json
import os
import socket
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from .events import Emitter, Position

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_PEERS_BYTES = 6000


class Timing(NamedTuple):
    """How long a collective took, in microseconds: from the call, and from the call's return (the waiting alone)."""

    time_us: float
    wait_us: float


class Group:
    """One rank's place among all ranks.

    Attributes:
        rank: this rank.
        size: the world size, as the backend sees it.
        device: the device that this rank works on.
        backend: ``gloo`` or ``nccl``.
        position: kept up to date with every collective that the rank enters.
    """

    def __init__(self, device: torch.device, position: Position) -> None:
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.backend: str = dist.get_backend()
        self.device = device
        self.position = position
        self._token = torch.ones(1, device=device)

    def enter(self, what: str) -> None:
        """Say which collective comes next."""
        self.position.what = what
        self.position.phase = 0
        self.position.step += 1

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, what: str, launch: Callable[[], List[Any]]) -> Timing:
        """Do one collective and wait for it.

        Args:
            what: the position that a hang would be told by.
            launch: hands the work to the backend (``async_op=True``) and returns its handles.
        """
        self.enter(what)
        begin = time.perf_counter_ns()
        works = launch()
        handed_over = time.perf_counter_ns()
        self.position.phase = 1
        for work in works:
            work.wait()
        self.settle()
        end = time.perf_counter_ns()
        self.position.phase = 2
        return Timing(round((end - begin) / 1e3, 1), round((end - handed_over) / 1e3, 1))

    def align(self, what: str) -> Timing:
        """Let the ranks meet before ``what``: the longer this one waits, the earlier it came."""
        self._token.fill_(1)
        self.settle()
        return self.timed("align of " + what, lambda: [dist.all_reduce(self._token, async_op=True)])

    def share(self, number: int, what: str) -> List[int]:
        """Every rank's number, by rank."""
        mine = torch.tensor([number], dtype=torch.int64, device=self.device)
        return [int(theirs.item()) for theirs in self._gather(mine, what)]

    def share_text(self, text: str, what: str) -> List[str]:
        """Every rank's text, by rank."""
        data = text.encode()
        lengths = self.share(len(data), what)
        # Neither numpy nor pickle: an image with torch need not have the first, and bytes need not the second.
        mine = torch.zeros(max(lengths) + 1, dtype=torch.uint8, device=self.device)
        mine[: len(data)] = torch.tensor(list(data), dtype=torch.uint8, device=self.device)
        texts = self._gather(mine, what)
        return [bytes(theirs.tolist()[:length]).decode() for theirs, length in zip(texts, lengths)]

    def too_large(self, needed: int) -> Optional[str]:
        """Why ``needed`` bytes a rank are not there, where any rank says so."""
        free = min(self.share(_free_memory(self.device), "compare free memory"))
        if needed <= free:
            return None
        return f"needs {binary_size(needed)} for its buffers, the rank with the least has {binary_size(free)} free"

    def _gather(self, mine: torch.Tensor, what: str) -> List[torch.Tensor]:
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        self.timed(what, lambda: [dist.all_gather(theirs, mine, async_op=True)])
        return theirs

    def tell_done(self, emitter: Emitter, **fields: object) -> None:
        """Emit ``done``, with the peers by rank ("host:pid") as the group itself tells them.

        Where the peers do not fit in one event, ``peers`` events carry the first of them, and ``done`` the last.
        """
        peers = self.share_text(f"{socket.gethostname()}:{os.getpid()}", "gather the peers")
        *parts, last = _parts(peers)
        for part in parts:
            emitter.emit("peers", peers=part)
        emitter.emit("done", world_size=self.size, peers=last, **fields)


def _parts(peers: List[str]) -> List[List[str]]:
    """The list cut so that each part fits in one event."""
    parts: List[List[str]] = [[]]
    room = _PEERS_BYTES
    for peer in peers:
        needed = len(json.dumps(peer)) + 1
        if needed > room:
            parts.append([])
            room = _PEERS_BYTES
        parts[-1].append(peer)
        room -= needed
    return parts


@contextmanager
def joined(emitter: Emitter, position: Position, device: str, timeout_s: int, transport: str) -> Iterator[Group]:
    """Join the group that torchrun's environment describes, emit ``ready``, and leave it in the end.

    After an exception the group is not taken down: that could wait for peers which will never come.

    Args:
        emitter: where ``ready`` goes.
        position: the rank's position, for its heartbeat.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        timeout_s: how long a collective may take.
        transport: what is known so far of how the ranks will talk.

    Raises:
        RuntimeError: there is no device for this rank, the group does not come together, or its ranks run different
            releases of torch.
    """
    position.what = "join the group"
    mine = _own_device(device)
    dist.init_process_group(_BACKENDS[device], timeout=timedelta(seconds=timeout_s))
    group = Group(mine, position)
    _refuse_mixture(group.share_text(torch.__version__, "compare versions"))
    emitter.emit(
        "ready",
        world_size=group.size,
        rank=group.rank,
        backend=group.backend,
        device=_device_name(mine),
        torch=torch.__version__,
        uuid=_uuid(mine),
        transport=transport,
    )
    yield group
    dist.destroy_process_group()


def _refuse_mixture(versions: List[str]) -> None:
    """Ranks of different releases may each hold another operation to be supported, and then wait for ever."""
    if len(set(versions)) > 1:
        told = "; ".join(f"torch {one}: ranks {_holders(versions, one)}" for one in sorted(set(versions)))
        raise RuntimeError(f"the ranks run different releases: {told}; use one image on all nodes")


def _holders(versions: List[str], version: str) -> List[int]:
    return [rank for rank, theirs in enumerate(versions) if theirs == version][:16]


def _own_device(device: str) -> torch.device:
    """The device of this rank: its LOCAL_RANK among all, or the only one that it is shown."""
    if device == "cpu":
        # One thread a rank: ranks that share cores must not fight over them while they are measured.
        torch.set_num_threads(1)
        return torch.device("cpu")
    local, shown = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= shown and shown != 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise RuntimeError(
            f"LOCAL_RANK {local} has no GPU: torch {torch.__version__} sees {shown} (CUDA_VISIBLE_DEVICES={visible}); "
            "check the driver, and how many GPUs the node has"
        )
    mine = torch.device("cuda", 0 if shown == 1 else local)
    torch.cuda.set_device(mine)
    return mine


def _device_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"{device} {torch.cuda.get_device_name(device)}"


def _uuid(device: torch.device) -> Optional[str]:
    """The GPU's UUID as NVML writes it; None on a CPU, and where this torch does not tell it."""
    if device.type == "cpu":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _free_memory(device: torch.device) -> int:
    """Bytes that one rank may use: the GPU's free memory, or its share of what the host has available."""
    if device.type == "cuda":
        # What torch keeps for itself of former tensors counts as used until it is given back.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return available * 1024 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def binary_size(count: int) -> str:
    """``1 MiB``; bytes where the count is no whole number of a unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count and count % 1024 == 0 and len(units) > 1:
        count //= 1024
        units.pop(0)
    return f"{count} {units[0]}"
