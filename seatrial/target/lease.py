"""A lease on the hardware of one host, so that two measurements never share it by accident."""

from __future__ import annotations

import errno
import socket
import struct

from seatrial.payload import procs


class Lease:
    """Exclusive use of a host among all jobs of all runs on it, until released.

    An abstract UNIX socket is the lease: it belongs to the host's network namespace, it needs no file, and the kernel
    releases it with the last process that holds it. The launcher inherits it, so a job whose harness was killed still
    holds the hardware until its ranks are gone.
    """

    def __init__(self, name: str) -> None:
        self._address = f"\0seatrial/lease/{name}"
        self._socket: socket.socket | None = None

    def take(self) -> bool:
        """Try to take the lease; returns at once."""
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(self._address)
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        # Each question of holder() takes one place in this queue for good.
        held.listen(4096)
        self._socket = held
        return True

    def holder(self) -> str:
        """Who holds the lease, in words."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self._address)
                size = struct.calcsize("3i")
                pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            except (ConnectionRefusedError, BlockingIOError):
                return "a job that cannot be asked"
        process = procs.identify(pid)
        return "a run that has ended, its job not yet" if process is None else procs.describe(process)

    def fileno(self) -> int:
        """The descriptor that a launcher inherits."""
        assert self._socket is not None
        return self._socket.fileno()

    def release(self) -> None:
        """Give up this process's share of the lease."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Port:
    """A TCP port of this host that nobody else is given while it is held, yet rank 0 can listen on.

    The socket is bound but never listens: the kernel hands the port to no one who asks for any free port, and lets a
    listener with SO_REUSEADDR (as torch's store is) bind beside it.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()
