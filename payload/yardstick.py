"""What the same ranks reach without torch.distributed, in the same job: the measure that ratios are held against.

``memory`` is a copy of a buffer, all ranks at once: ``size`` bytes are copied, ``moved`` is twice that (each is read
and written). ``ring`` is a raw transfer: each rank sends ``size`` bytes to the next rank over a plain TCP connection
while it receives as many from the one before. Every repeat's time is kept, in microseconds, as this rank's own.
"""

import json
import os
import select
import socket
import time
from contextlib import ExitStack
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .events import Emitter
from .group import Group, binary_size

WARMUP = 2
REPEATS = 10
MEMORY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""What is copied: well above the last cache of common parts, which would be faster than memory."""

_TOKEN_BYTES = 16


def measure(group: Group, emitter: Emitter, sizes: Sequence[int], timeout_s: float) -> None:
    """Emit a ``yardstick`` event for memory and one for the ring at each size, or ``unsupported`` with the reason.

    Args:
        group: the group; all its ranks must call this alike.
        emitter: where the events go.
        sizes: bytes that a rank sends around the ring.
        timeout_s: how long one transfer may take.
    """
    _memory(group, emitter)
    why = _no_ring(group)
    if why is not None:
        emitter.emit("unsupported", op="ring", dtype=None, size=None, why=why)
        return
    with Ring(group, timeout_s) as ring:
        for size in sizes:
            why = group.too_large(2 * size)
            if why is None:
                times = _repeat(group, f"ring {binary_size(size)}", ring.exchange(size))
                _tell(emitter, "ring", times, size=size, over=ring.over)
            else:
                emitter.emit("unsupported", op="ring", dtype=None, size=size, why=why)


def _no_ring(group: Group) -> Optional[str]:
    if group.device.type != "cpu":
        return "between GPUs there is no raw transfer without the library that is measured"
    return "a ring needs at least 2 ranks" if group.size == 1 else None


def _memory(group: Group, emitter: Emitter) -> None:
    size = MEMORY_BYTES[group.device.type]
    why = group.too_large(2 * size)
    if why is not None:
        emitter.emit("unsupported", op="memory", dtype=None, size=size, why=why)
        return
    source = torch.ones(size, dtype=torch.uint8, device=group.device)
    target = torch.zeros_like(source)

    def copy() -> None:
        target.copy_(source)
        group.settle()

    _tell(emitter, "memory", _repeat(group, "memory copy", copy), size=size, moved=2 * size)


def _repeat(group: Group, what: str, work: Callable[[], None]) -> List[float]:
    """The times of all repeats, all ranks at once in each."""
    times = []
    for repeat in range(WARMUP + REPEATS):
        label = f"{what} #{repeat}"
        group.align(label)
        group.enter(label)
        begin = time.perf_counter_ns()
        work()
        times.append(round((time.perf_counter_ns() - begin) / 1e3, 1))
        group.position.phase = 2
    return times[WARMUP:]


def _tell(emitter: Emitter, kind: str, times: List[float], **fields: object) -> None:
    emitter.emit("yardstick", kind=kind, warmup=WARMUP, repeats=REPEATS, time_us=times, **fields)


class _Seat(NamedTuple):
    """Where a rank sits: hosts that share a network namespace reach each other over the loopback."""

    namespace: str
    address: str


class Ring:
    """One TCP connection to the next rank and one from the rank before.

    Raises:
        OSError: a neighbour cannot be reached.
        RuntimeError: somebody else connected.
    """

    def __init__(self, group: Group, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        seats = [_Seat(*json.loads(text)) for text in group.share_text(json.dumps(_seat()), "share the seats")]
        with ExitStack() as held:
            listener = held.enter_context(socket.socket())
            listener.bind((_address_for(seats[before], seats[group.rank]), 0))
            listener.listen(1)
            listener.settimeout(timeout_s)
            token = os.urandom(_TOKEN_BYTES)
            mine = json.dumps([*listener.getsockname(), token.hex()])
            doors = [json.loads(text) for text in group.share_text(mine, "share the addresses")]
            self._to = held.enter_context(_connected(doors[after], timeout_s))
            self._from, caller = listener.accept()
            held.enter_context(self._from)
            listener.close()
            self._admit(token, caller)
            self._held = held.pop_all()
        self.over = f"TCP {self._to.getsockname()[0]} -> {self._to.getpeername()[0]}"
        for connection in (self._to, self._from):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _admit(self, token: bytes, caller: Tuple[str, int]) -> None:
        """Only the rank before knows the token."""
        self._from.settimeout(self._timeout_s)
        said = self._from.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
        if said != token:
            raise RuntimeError(f"{caller} connected to the ring without its token: not a rank of this job")

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()

    def exchange(self, size: int) -> Callable[[], None]:
        """A call that sends ``size`` bytes to the next rank and receives ``size`` from the one before, at once."""
        outgoing, incoming = memoryview(bytearray(size)), memoryview(bytearray(size))

        def work() -> None:
            sent = received = 0
            while sent < size or received < size:
                moved = self._send(outgoing[sent:])
                sent += moved
                got = self._receive(incoming[received:])
                received += got
                if not moved and not got:
                    self._wait(sent < size, received < size)

        return work

    def _send(self, data: memoryview) -> int:
        try:
            return self._to.send(data) if data else 0
        except BlockingIOError:
            return 0

    def _receive(self, data: memoryview) -> int:
        if not data:
            return 0
        try:
            got = self._from.recv_into(data)
        except BlockingIOError:
            return 0
        if got == 0:
            raise ConnectionError(f"the rank before closed its ring connection with {len(data)} bytes to come")
        return got

    def _wait(self, sending: bool, receiving: bool) -> None:
        """Wait until a direction that has bytes left can go on."""
        wanted: Dict[bool, List[socket.socket]] = {True: [self._to] * sending, False: [self._from] * receiving}
        ready = select.select(wanted[False], wanted[True], [], self._timeout_s)
        if not any(ready):
            raise TimeoutError(f"the ring's transfer did not go on within {self._timeout_s:g} s")


def _seat() -> _Seat:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    namespace = boot + os.readlink("/proc/self/ns/net")
    return _Seat(namespace, _route_to(os.environ["MASTER_ADDR"]))


def _route_to(address: str) -> str:
    """This host's own address on the way to another one; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(address, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _address_for(peer: _Seat, mine: _Seat) -> str:
    """The address at which ``peer`` can reach this rank."""
    if peer.namespace == mine.namespace:
        return "127.0.0.1"
    # The master's own route to itself may be the loopback, which is of no use to another host.
    return _route_to(peer.address) if mine.address.startswith("127.") else mine.address


def _connected(door: List[str], timeout_s: float) -> socket.socket:
    address, port, token = door
    connection = socket.create_connection((address, int(port)), timeout_s)
    connection.sendall(bytes.fromhex(token))
    return connection
