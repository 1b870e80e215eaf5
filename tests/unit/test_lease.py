"""The lease on a host, and the port of a job: nobody else gets them by accident, and a kill gives them back."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.target.lease import Lease, Port
from seatrial.wait import until

HOLD = """
import subprocess, sys
from seatrial.target.lease import Lease
lease = Lease(sys.argv[1])
assert lease.take()
if sys.argv[2] == "job":
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    print(subprocess.Popen(command, pass_fds=[lease.fileno()], stdout=subprocess.DEVNULL).pid, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""
"""Takes a lease, and keeps it until it is killed; or ends, and leaves it to a job that inherited it."""

IP_LOCAL_PORT_RANGE = 51
"""The socket option of Linux 6.3: which ports the kernel may choose from, as high << 16 | low."""


@pytest.fixture
def name() -> str:
    """A lease that nothing else on this host asks for."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def lease(name: str) -> Iterator[Lease]:
    lease = Lease(name)
    yield lease
    lease.release()


def holder(name: str, who: str = "harness") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, name, who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def is_free(lease: Lease) -> None:
    until(lease.take, what="the lease", timeout=5, state=lease.holder)


def test_a_lease_has_one_holder(lease: Lease, name: str) -> None:
    other = Lease(name)
    assert lease.take()
    assert not other.take()
    assert not lease.take()
    lease.release()
    assert other.take()
    other.release()


def test_leases_of_other_names_are_free(lease: Lease, name: str) -> None:
    other = Lease(f"{name}-2")
    assert lease.take()
    assert other.take()
    other.release()


def test_another_process_excludes_us_and_is_named_until_it_is_killed(lease: Lease, name: str) -> None:
    with holder(name) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert not lease.take()
        assert lease.holder().startswith(f"pid {other.pid} ")
        other.kill()
    is_free(lease)


def test_a_job_keeps_the_lease_of_a_harness_that_has_ended(lease: Lease, name: str) -> None:
    with holder(name, "job") as other:
        job = int(other.communicate(timeout=20)[0])
    assert not lease.take()
    assert lease.holder() == "a run that has ended, its job not yet"
    os.kill(job, signal.SIGKILL)
    is_free(lease)


def test_the_holder_is_named_however_often_one_asks(lease: Lease) -> None:
    assert lease.take()
    longest_queue = int(Path("/proc/sys/net/core/somaxconn").read_text())
    told = {lease.holder() for _ in range(min(300, longest_queue))}
    assert len(told) == 1
    assert told.pop().startswith(f"pid {os.getpid()} ")


def test_a_lease_that_nobody_holds_has_no_holder_to_ask(lease: Lease) -> None:
    assert lease.holder() == "a job that cannot be asked"


# The port.


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port("127.0.0.1")
    yield port
    port.release()


def choose_from(sock: socket.socket, number: int) -> None:
    """Leave the kernel no other port to choose."""
    try:
        sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", number << 16 | number))
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        pytest.skip("the kernel cannot be told which ports to choose from (before Linux 6.3)")


@pytest.mark.parametrize("reuse", [0, 1])
def test_nobody_who_asks_for_any_port_is_given_this_one(port: Port, reuse: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        choose_from(other, port.number)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", 0))


def test_no_connection_goes_out_from_it(port: Port) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        choose_from(client, port.number)
        with pytest.raises(OSError, match="assign"):
            client.connect(server.getsockname())


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_rank_0_can_listen_on_it(port: Port, family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind((address, port.number))
        store.listen()
        with socket.create_connection(("127.0.0.1", port.number), timeout=5):
            pass


def test_a_port_that_was_released_is_free(port: Port) -> None:
    port.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))
