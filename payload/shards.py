"""One rank's tensors in one file, written and read in pieces of bounded size, with a checksum over every byte.

A file is a first line (``seatrial shard 1``, the length of the header and its CRC-32), the header as JSON, and the
bytes of each tensor in the header's order. Nothing that is read from it is ever executed.

The checksum is CRC-32: it guards against accidents, not against forgery, and it is three times as fast as SHA-256
where neither has instructions of its own (1.8 against 0.6 GB/s on the machine of docs/bench-checkpoint.md). It runs
on a thread beside the transfer, so that storage, not the checksum, sets the pace.
"""

import collections
import contextlib
import ctypes
import functools
import json
import os
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch

CHUNK = 8 << 20
"""Bytes that are handed on at once: beside its tensors, a shard of any size needs memory for a few of these."""

READERS = 2
"""So many pieces of a shard are read at once."""

PART = ".part"
"""The ending of a file that is still being written: under its final name a shard is whole."""

_FIRST = b"seatrial shard 1 %016d %08x\n"
_FIRST_BYTES = len(_FIRST % (0, 0))
_DTYPES = {str(dtype).split(".")[1]: dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
_DTYPES.update({str(dtype).split(".")[1]: dtype for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)})


class DamageError(Exception):
    """A file of a checkpoint is not what was written: missing, torn, changed, or another run's."""


class Written(NamedTuple):
    """A shard on the disk: its size in bytes, its checksum, and how many seconds it took to be safe there."""

    size: int
    checksum: str
    seconds: float


class Checksum:
    """CRC-32 of a stream, computed on a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._value = 0

    def add(self, piece: memoryview) -> "Future[None]":
        """Take the next bytes; they must not change before the future is done."""
        return self._pool.submit(self._update, piece)

    def _update(self, piece: memoryview) -> None:
        self._value = zlib.crc32(piece, self._value)

    def close(self) -> str:
        """All bytes' checksum, in hexadecimal."""
        self._pool.shutdown()
        return f"{self._value:08x}"


class Bounce:
    """Buffers of the host through which a device's bytes pass, in turn.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._buffers: List[torch.Tensor] = []
        self._busy: List[Optional[Future[None]]] = [None] * count
        self._turn = 0

    def take(self, size: int) -> torch.Tensor:
        """The next buffer, cut to ``size`` bytes, once what it was lent for is done."""
        if not self._buffers:
            pinned = torch.cuda.is_available()
            self._buffers = [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=pinned) for _ in range(self._count)]
        self._turn = (self._turn + 1) % self._count
        busy = self._busy[self._turn]
        if busy is not None:
            busy.result()
        return self._buffers[self._turn][:size]

    def lend(self, until: "Future[None]") -> None:
        """The buffer that was taken last is in use until then."""
        self._busy[self._turn] = until


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes as a flat tensor of uint8: its own memory where that is contiguous, else a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def view(piece: torch.Tensor) -> memoryview:
    """The memory of a flat uint8 tensor of the host, without numpy."""
    memory: Any = (ctypes.c_char * piece.numel()).from_address(piece.data_ptr())
    # The view keeps the array, and the array the tensor, whose memory nobody else may hold any more.
    memory.owner = piece
    return memoryview(memory).cast("B")


def size_of(tensor: torch.Tensor) -> int:
    """A tensor's bytes."""
    return int(tensor.numel() * tensor.element_size())


def pieces(flat: torch.Tensor) -> Iterator[torch.Tensor]:
    """A flat tensor in pieces of CHUNK bytes at most."""
    for begin in range(0, flat.numel(), CHUNK):
        yield flat[begin : begin + CHUNK]


def put(descriptor: int, data: memoryview) -> None:
    """Write all of ``data``: a single call may take less."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(path: str) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replaced(path: str) -> Iterator[int]:
    """A descriptor for a new file that takes the name ``path`` once its bytes are on the disk, and not before.

    Raises:
        OSError: it could not be written; the message has the path, and what was written is removed.
    """
    part = path + PART
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        yield descriptor
        os.fsync(descriptor)
    except OSError as error:
        os.unlink(part)
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} while writing", path) from error
    finally:
        os.close(descriptor)
    os.rename(part, path)
    sync_folder(os.path.dirname(path))


def write(
    path: str, tensors: Mapping[str, torch.Tensor], plain: object, halfway: Callable[[], None] = lambda: None
) -> Written:
    """Write one rank's tensors; when this returns they are on the disk under their final name.

    Args:
        path: where the shard goes.
        tensors: what is written, tensor by tensor, in this order.
        plain: whatever else belongs to it and survives JSON.
        halfway: called once half of the bytes are written.

    Raises:
        OSError: the file cannot be written; the message names it.
    """
    begin = time.perf_counter()
    checksum, bounce = Checksum(), Bounce(2)
    head = _head(tensors, plain)
    total = len(head) + sum(map(size_of, tensors.values()))
    with replaced(path) as descriptor:
        checksum.add(memoryview(head))
        put(descriptor, memoryview(head))
        written, half = len(head), total // 2
        for piece in _host_pieces(tensors, bounce):
            data = view(piece)
            bounce.lend(checksum.add(data))
            put(descriptor, data)
            # Dirty pages are on their way to the disk from now on, not only when fsync asks for all of them at once.
            os.posix_fadvise(descriptor, written, len(data), os.POSIX_FADV_DONTNEED)
            if written < half <= written + len(data):
                halfway()
            written += len(data)
    return Written(total, checksum.close(), time.perf_counter() - begin)


def _head(tensors: Mapping[str, torch.Tensor], plain: object) -> bytes:
    listed = [[name, str(tensor.dtype).split(".")[1], list(tensor.shape)] for name, tensor in tensors.items()]
    header = json.dumps({"tensors": listed, "plain": plain}, separators=(",", ":"), allow_nan=False).encode()
    return _FIRST % (len(header), zlib.crc32(header)) + header


def _host_pieces(tensors: Mapping[str, torch.Tensor], bounce: Bounce) -> Iterator[torch.Tensor]:
    for tensor in tensors.values():
        for piece in pieces(raw(tensor)):
            yield piece if piece.device.type == "cpu" else bounce.take(piece.numel()).copy_(piece)


def read(path: str, size: int, checksum: str, device: torch.device, take: Callable[[str, torch.Tensor], None]) -> Any:
    """Read a shard, tensor by tensor.

    Args:
        path: where the shard is.
        size: the bytes that it must have.
        checksum: what its bytes must add up to.
        device: where the tensors go.
        take: gets each tensor; what it got is worth nothing if this raises.

    Returns:
        What was written as ``plain``.

    Raises:
        DamageError: the file is missing, or is not what was written.
    """
    if not os.path.exists(path):
        raise DamageError("missing")
    found = os.path.getsize(path)
    if found != size:
        raise DamageError(f"{found} bytes, expected {size}: truncated or overwritten")
    with open(path, "rb", buffering=0) as file:
        listed, plain, head = _header(file, size)
        with Ahead(file.fileno(), head) as ahead:
            for name, dtype, shape in listed:
                tensor = torch.empty(shape, dtype=dtype, device=device)
                for piece in pieces(raw(tensor)):
                    ahead.read(piece)
                ahead.then(take, name, tensor)
    if ahead.checksum != checksum:
        raise DamageError(f"checksum {ahead.checksum}, expected {checksum}: its bytes are not those that were written")
    return plain


def _header(file: Any, size: int) -> Tuple[List[Tuple[str, torch.dtype, List[int]]], Any, bytes]:
    """The tensors in their order, the plain object, and the bytes in which they were told."""
    first = file.read(_FIRST_BYTES)
    length = first[-26:-10]
    if len(first) < _FIRST_BYTES or not length.isdigit() or int(length) > size:
        raise DamageError("its first line is not that of a shard")
    header = file.read(int(length))
    if first != _FIRST % (int(length), zlib.crc32(header)):
        raise DamageError("its header is not what was written")
    described: Dict[str, Any] = json.loads(header)
    listed = [(name, _DTYPES[dtype], shape) for name, dtype, shape in described["tensors"]]
    return listed, described["plain"], first + header


class Ahead:
    """Reads a file's next pieces while the checksum of those before them is computed, all in the file's order.

    Args:
        descriptor: the file.
        head: its first bytes, which have been read.

    Attributes:
        checksum: of all bytes so far, in hexadecimal; of all of them after the ``with`` block.
    """

    def __init__(self, descriptor: int, head: bytes) -> None:
        self._descriptor = descriptor
        self._at = len(head)
        self._value = zlib.crc32(head)
        self._pool = ThreadPoolExecutor(READERS)
        self._pending: Deque[Callable[[], None]] = collections.deque()
        self._bounce = Bounce(READERS + 2)

    @property
    def checksum(self) -> str:
        """CRC-32."""
        return f"{self._value:08x}"

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        while self._pending and kind is None:
            self._pending.popleft()()
        self._pool.shutdown()

    def read(self, piece: torch.Tensor) -> None:
        """Have the next bytes in a flat uint8 tensor, now or later."""
        host = piece if piece.device.type == "cpu" else self._bounce.take(piece.numel())
        data = view(host)
        got = self._pool.submit(_read_at, self._descriptor, data, self._at)
        self._at += len(data)
        self.then(self._settle, got, data, host, piece)

    def then(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something once all that was asked for before is there."""
        self._pending.append(functools.partial(work, *arguments))
        while len(self._pending) > READERS + 1:
            self._pending.popleft()()

    def _settle(self, got: "Future[int]", data: memoryview, host: torch.Tensor, piece: torch.Tensor) -> None:
        if got.result() != len(data):
            raise DamageError("it ends within a tensor")
        self._value = zlib.crc32(data, self._value)
        if host is not piece:
            piece.copy_(host)


def _read_at(descriptor: int, data: memoryview, at: int) -> int:
    got = 0
    while got < len(data):
        count = os.preadv(descriptor, [data[got:]], at + got)
        if count == 0:
            break
        got += count
    return got
