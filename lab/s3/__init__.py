"""A real S3 server on this machine: versitygw over a folder, built from its Go module, on the loopback.

Example:
    >>> server = up()
    >>> server.endpoint, server.bucket
    ('http://127.0.0.1:40123', 'trial')
    >>> down()

What it has while it is up lies in one state folder: the objects, the log, and who serves them. The program is kept in a
cache, by its version.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from lab import LabError, cache, state
from seatrial.payload import procs
from seatrial.target.lease import Port
from seatrial.wait import until

VERSION = "v1.8.0"
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
HOST = "127.0.0.1"
BUCKET = "trial"
PROFILE = "lab-s3"

BUILD_SECONDS = 900
"""A cold build takes two minutes on two idle cores."""
START_SECONDS = 20

_started: dict[int, subprocess.Popen[bytes]] = {}
"""The servers that this very process started, and so has to reap."""


@dataclass(frozen=True)
class Server:
    """A server that runs; the credentials are made for it alone and go with it."""

    pid: int
    start: int
    """The process's start in clock ticks since boot: with the pid, it cannot be taken for a later process."""
    endpoint: str
    bucket: str
    access_key_id: str
    secret_access_key: str
    root: str

    @property
    def process(self) -> procs.Process:
        """Its exact identity."""
        return procs.Process(self.pid, self.start)

    @property
    def environment(self) -> dict[str, str]:
        """What a client takes its credentials from."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": "us-east-1",
        }

    @property
    def storage(self) -> dict[str, str]:
        """This server as a profile's storage."""
        return {
            "name": "bucket",
            "kind": "object",
            "uri": f"s3://{self.bucket}",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "credentials": "env",
        }

    def folder(self) -> Path:
        """Where the bucket's objects are files."""
        return Path(self.root) / self.bucket


def build() -> Path:
    """The server's program, built once a version.

    Raises:
        LabError: there is no Go, or the module cannot be fetched or built.
    """
    program = cache() / f"versitygw-{VERSION}"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise LabError("the S3 lab builds versitygw from its Go module: expected go on PATH, observed none")
    program.parent.mkdir(parents=True, exist_ok=True)
    part = program.with_name(f"{program.name}.{os.getpid()}")
    # -mod=readonly: what go.sum does not vouch for is not built.
    argv = [go, "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(part), PACKAGE]
    print(f"lab s3: building versitygw {VERSION}, about two minutes the first time", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            argv,
            cwd=Path(__file__).parent,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv)} did not end within {BUILD_SECONDS} s") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    part.replace(program)
    return program


def _folder() -> Path:
    return state() / "s3"


def running() -> Server | None:
    """The server that is up; None where none is."""
    try:
        said = json.loads((_folder() / "server.json").read_text())
    except FileNotFoundError:
        return None
    server = Server(**said)
    return server if procs.alive(server.process) else None


def up() -> Server:
    """Build and start the server, with an empty bucket; the one that is up already stays as it is.

    Raises:
        LabError: it cannot be built, or does not answer.
    """
    server = running()
    if server is not None:
        return server
    program = build()
    down()
    folder = _folder()
    root = folder / "root"
    (root / BUCKET).mkdir(parents=True, mode=0o700)
    port = Port(HOST)
    server = _start(program, folder, root, port.number)
    _profile_path().write_text(yaml.safe_dump(profile(server), sort_keys=False))
    try:
        until(
            lambda: _answers(server),
            what=f"{server.endpoint}: an answer",
            timeout=START_SECONDS,
            state=lambda: (folder / "log").read_text()[-300:],
        )
    except TimeoutError as error:
        down()
        raise LabError(str(error)) from error
    finally:
        port.release()
    return server


def _start(program: Path, folder: Path, root: Path, port: int) -> Server:
    access, secret = f"lab{secrets.token_hex(6)}", secrets.token_hex(20)
    argv = [str(program), "--quiet", "--port", f"{HOST}:{port}", "posix", str(root)]
    # The secret goes by the environment: a command line can be read by every user.
    env = {**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret}
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
    _started[child.pid] = child
    process = procs.identify(child.pid)
    if process is None:
        raise LabError(f"{' '.join(argv)} ended at once: {(folder / 'log').read_text()[-300:]}")
    endpoint = f"http://{HOST}:{port}"
    server = Server(process.pid, process.start, endpoint, BUCKET, access, secret, str(root))
    _save(folder / "server.json", server)
    return server


def _save(path: Path, server: Server) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(server), file)


def _answers(server: Server) -> bool:
    """Whether the server answers; that it refuses who gives no name is an answer."""
    host = server.endpoint.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status in (200, 403)
    except OSError:
        return False
    finally:
        connection.close()


def profile(server: Server) -> dict[str, object]:
    """A profile of this machine with the server as its object storage."""
    return {
        "name": PROFILE,
        "target": {"kind": "local"},
        "pools": [{"name": "machine"}],
        "storage": [server.storage],
        "require": ["staging"],
    }


def down() -> Sequence[str]:
    """End the server and remove its objects, its log and its credentials; returns what was removed.

    Raises:
        LabError: it does not end.
    """
    removed, folder, server = [], _folder(), running()
    if server is not None:
        procs.kill(server.process, signal.SIGTERM)
        deadline = time.monotonic() + 5
        try:
            until(
                lambda: _ended(server, deadline), what=f"{server.endpoint}: its end", timeout=10, state=lambda: "alive"
            )
        except TimeoutError as error:
            raise LabError(str(error)) from error
        removed.append(procs.describe(server.process).partition(":")[0] + f", {server.endpoint}")
    if folder.exists():
        shutil.rmtree(folder)
        removed.append(str(folder))
    return removed


def _ended(server: Server, deadline: float) -> bool:
    """Whether the server is gone; after the deadline it is killed."""
    child = _started.get(server.pid)
    if child is not None and child.poll() is not None:
        del _started[server.pid]
    if time.monotonic() > deadline:
        procs.kill(server.process)
    return not procs.alive(server.process)


def status() -> str:
    """What is up, in words; no secret is told."""
    server = running()
    if server is None:
        return "s3: down"
    return f"s3: up, {server.endpoint}, bucket {server.bucket}, process {server.pid}, profile {_profile_path()}"


def _profile_path() -> Path:
    return _folder() / f"{PROFILE}.yaml"


def instructions(server: Server) -> str:
    """How a trial of it is started, with its credentials in the environment."""
    variables = " ".join(f"{name}={value}" for name, value in server.environment.items())
    return f"{variables} pytest --cluster={_profile_path()}"
