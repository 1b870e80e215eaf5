"""This machine as a cluster of one node: ranks are processes, held by the payload's launcher."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial import job as j
from seatrial.errors import AccessError
from seatrial.ledger import Ledger
from seatrial.parse.events import EventReader
from seatrial.payload import nvml, procs, scratch
from seatrial.payload.events import LAUNCHER, SAMPLER
from seatrial.supervise import SupervisedJob
from seatrial.sweep import sweep
from seatrial.target.lease import Lease, Port

ADDRESS = "127.0.0.1"
SWEEP = 2.0
"""Seconds within which killed processes must be gone."""


@dataclass(frozen=True)
class Workshop:
    """What a target needs of the run that uses it."""

    folder: Path
    """The run directory."""
    payload: Path
    """The payload's zip."""
    ledger: Ledger
    since: Callable[[], float]
    """The trial's clock."""
    worker: str = "main"
    """Which process of the run this is; part of every job id, so that two workers never use one id."""


class LocalTarget:
    """This machine: its GPUs, or its CPU cores where it has none.

    Args:
        workshop: the run that uses the target.
        python: the interpreter that runs the payload; it must have torch.
        env: variables added to each rank's environment.
    """

    def __init__(self, workshop: Workshop, python: str = sys.executable, env: Mapping[str, str] | None = None) -> None:
        self._workshop = workshop
        self._python = python
        self._env = dict(env or {})
        self._count = 0
        self._node = find_node()

    def nodes(self) -> Sequence[j.Node]:
        """This machine."""
        return (self._node,)

    def features(self) -> frozenset[str]:
        """``cuda`` where there are GPUs, else ``cpu``."""
        return frozenset({"cuda" if self._node.gpus else "cpu"})

    def submit(self, spec: j.JobSpec) -> SupervisedJob:
        """Launch a job; it waits in its queue until this host's hardware is free."""
        self._count += 1
        id_ = f"{spec.name}-{self._workshop.worker}-{self._count}"
        logs = self._workshop.folder / "logs" / id_
        logs.mkdir(parents=True)
        run = _Run(id_, spec, self._workshop, logs, [self._python, str(self._workshop.payload)], self._env, self._node)
        return SupervisedJob(id_, spec, run, logs, self._workshop.since)

    def run(self, node: str, argv: Sequence[str], timeout: float) -> j.Completed:  # noqa: ARG002
        """Run one command on this machine.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds; it and whatever it started have been killed.
        """
        self._count += 1
        tag = f"{self._workshop.ledger.run_id}/run-{self._workshop.worker}-{self._count}"
        with subprocess.Popen(
            argv,
            env={**_inherited(), procs.TAG: tag},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as child:
            try:
                out, err = child.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise TimeoutError(f"{argv[0]}: still running after {timeout:g} s on {self._node.name}") from error
            finally:
                sweep(tag, SWEEP)
        return j.Completed(child.returncode, out, err)

    def leftovers(self, run_id: str) -> Sequence[j.Leftover]:
        """Processes that still carry a tag of this run."""
        return [
            j.Leftover("process", procs.describe(process))
            for process, tag in procs.tags()
            if tag.startswith(f"{run_id}/")
        ]

    def close(self) -> None:
        """Nothing is held between jobs."""


def accelerator_slug(name: str, memory: int) -> str:
    """A GPU's selector name from NVML's: ``NVIDIA H100 80GB HBM3`` with 80 GiB is ``h100-80gb``.

    Args:
        name: NVML's product name.
        memory: bytes as NVML counts them, a little less than the size on the box; used where the name does not tell it.
    """
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    model = next((word for word in words if re.fullmatch(r"[a-z]{1,3}\d{1,4}[a-z]*", word)), "-".join(words) or "gpu")
    size = next((word for word in words if re.fullmatch(r"\d+gb", word)), f"{math.ceil(memory / 2**30)}gb")
    return f"{model}-{size}"


def find_node() -> j.Node:
    """What this machine is.

    Raises:
        seatrial.errors.AccessError: it has a GPU that NVML cannot open.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        found = nvml.find()
    except nvml.AbsentError as error:
        raise AccessError(f"{platform.node()}: this machine has a GPU that cannot be opened: {error}") from error
    accelerator = accelerator_slug(found.gpus[0].name, found.gpus[0].memory) if found.gpus else "cpu"
    return j.Node(
        name=platform.node(),
        cpus=len(os.sched_getaffinity(0)),
        memory=memory,
        kernel=platform.release(),
        accelerator=accelerator,
        gpus=tuple(j.Gpu(gpu.index, gpu.uuid, gpu.name, gpu.memory, gpu.pci) for gpu in found.gpus),
        driver=found.driver,
        cuda=found.cuda,
        versions={"python": platform.python_version()},
    )


class _Tail:
    """Reads what was added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return b""  # The launcher has not come so far yet.
        self._offset += len(data)
        return data


class _Run:
    """The carrier of one local job: its lease, its launcher, and the files that its ranks write."""

    def __init__(
        self,
        id_: str,
        spec: j.JobSpec,
        workshop: Workshop,
        logs: Path,
        argv: list[str],
        env: dict[str, str],
        node: j.Node,
    ) -> None:
        self._id = id_
        self._spec = spec
        self._workshop = workshop
        self._logs = logs
        self._argv = argv
        self._env = env
        self._node = node
        self._tag = f"{workshop.ledger.run_id}/{id_}"
        self._scratch = Path(tempfile.gettempdir()) / f"seatrial-{workshop.ledger.run_id}-{id_}"
        self._lease = Lease("host")
        self._held = ExitStack()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._reader = EventReader(id_, LAUNCHER)
        self._tails: dict[int, _Tail] = {}
        self._alive: Sequence[str] | None = None
        self._asked = 0.0
        self._intended = False
        self._last_signs: list[j.Sign] | None = None

    # What the job asks.

    def poll(self) -> Sequence[j.Sign]:
        """What happened since the last call; after the end, what was heard until then."""
        if self._last_signs is not None:
            signs, self._last_signs = self._last_signs, []
            return signs
        if self._launcher is not None:
            return self._news(self._launcher)
        if not self._lease.take():
            return self._still_waiting()
        self._held.callback(self._lease.release)
        self._launch()
        return [j.Admitted("this host's hardware is free")]

    def kill(self, rank: int, signal: int) -> None:
        """Send a signal to one rank, through its launcher.

        Raises:
            ProcessLookupError: the job is not running.
        """
        if self._launcher is None or self._last_signs is not None:
            raise ProcessLookupError(f"{self._id}: rank {rank} cannot be signalled, the job is not running")
        _order(self._launcher, {"kill": {"rank": rank, "signal": signal}})

    def end(self, reserve: float) -> Sequence[str]:
        """End all processes of the job and look for any that is left."""
        left: list[str] = []
        if self._launcher is not None:
            _order(self._launcher, {"end": reserve})
            try:
                self._launcher.wait(timeout=reserve + SWEEP)
            except subprocess.TimeoutExpired:
                self._launcher.kill()
                self._launcher.wait()
            _, left = sweep(self._tag, SWEEP)
        self._last_signs = self._news(self._launcher) if self._launcher is not None else []
        if self._intended and not left:
            left = self._clear()
        self._held.close()
        return left

    # How it is done.

    def _still_waiting(self) -> list[j.Sign]:
        """Why it waits, asked once a second: each question is a connection to the holder."""
        if time.monotonic() < self._asked + 1.0:
            return []
        self._asked = time.monotonic()
        return [j.Waiting(f"this host's hardware is leased by {self._lease.holder()}")]

    def _launch(self) -> None:
        self._workshop.ledger.intend(self._id, self._tag, self._scratch)
        self._intended = True
        self._scratch.mkdir(mode=0o700)
        port = Port(ADDRESS)
        self._held.callback(port.release)
        python, payload = self._argv
        with (self._logs / "launcher.log").open("wb") as log:
            launcher = subprocess.Popen(
                [sys.executable, payload, "launch"],
                env={**_inherited(), **self._job_env()},
                bufsize=0,  # An order that a dead launcher never read must not come up again at close.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lease.fileno()],
            )
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        self._launcher = launcher
        self._held.enter_context(launcher.stdin)
        self._held.enter_context(launcher.stdout)
        os.set_blocking(launcher.stdout.fileno(), False)
        self._tails = {rank: _Tail(self._logs / f"rank-{rank}.events") for rank in range(self._spec.ranks)}
        self._tails[SAMPLER] = _Tail(self._logs / "sampler.events")
        _order(launcher, self._first_order(python, payload, port.number))

    def _first_order(self, python: str, payload: str, port: int) -> dict[str, Any]:
        sampler = {"period": 0.1, "harness": os.getpid(), "paths": [str(self._workshop.folder)]}
        return {
            "run": self._workshop.ledger.run_id,
            "job": self._id,
            "tag": self._tag,
            "argv": [python, payload, self._spec.payload, json.dumps(dict(self._spec.settings))],
            "logs": str(self._logs),
            "ranks": [{"rank": rank, "env": self._rank_env(rank, port)} for rank in range(self._spec.ranks)],
            "sampler": sampler,
            "reserve": self._spec.budget.cleanup,
        }

    def _job_env(self) -> dict[str, str]:
        scratch = str(self._scratch)
        return {procs.TAG: self._tag, "SEATRIAL_JOB": self._id, "SEATRIAL_SCRATCH": scratch, "TMPDIR": scratch}

    def _rank_env(self, rank: int, port: int) -> dict[str, str]:
        """Torchrun's environment; gloo is bound to the loopback, where all ranks of one host are."""
        world = str(self._spec.ranks)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": self._tag,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **self._env,
            **self._spec.env,
        }

    def _news(self, launcher: subprocess.Popen[bytes]) -> list[j.Sign]:
        signs = self._hear(launcher)
        # A rank's last words come before its exit.
        outputs = [j.Output(rank, data) for rank, tail in self._tails.items() if (data := tail.read())]
        early = [sign for sign in signs if isinstance(sign, j.Started)]
        return [*early, *outputs, *(sign for sign in signs if not isinstance(sign, j.Started))]

    def _hear(self, launcher: subprocess.Popen[bytes]) -> list[j.Sign]:
        assert launcher.stdout is not None
        gone = launcher.poll()
        signs = [self._sign(event) for event in self._reader.feed(launcher.stdout.read() or b"")]
        if gone is not None and self._alive is None:
            signs.append(j.Lost(f"the launcher ended with status {gone}: {self._last_line()}"))
        return [sign for sign in signs if sign is not None]

    def _last_line(self) -> str:
        log = self._logs / "launcher.log"
        lines = log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), f"{log} is empty")

    def _sign(self, event: j.Event) -> j.Sign | None:
        if event.name == "started":
            return j.Started(int(event.fields["rank"]), self._node.name, int(event.fields["pid"]))
        if event.name == "exited":
            return j.Exited(int(event.fields["rank"]), int(event.fields["code"]))
        if event.name == "ended":
            self._alive = event.fields["alive"]
        return None

    def _clear(self) -> list[str]:
        """Remove the job's scratch folder and enter its absence; what cannot be removed is left behind."""
        try:
            if self._scratch.exists():
                scratch.remove(str(self._scratch))
        except OSError as error:
            return [f"scratch folder {self._scratch}: {error}"]
        self._workshop.ledger.gone(self._id)
        return []


def _order(launcher: subprocess.Popen[bytes], order: dict[str, Any]) -> None:
    assert launcher.stdin is not None
    try:
        launcher.stdin.write(json.dumps(order).encode() + b"\n")
    except BrokenPipeError:
        pass  # The launcher is gone: that is reported as Lost, and the sweep proves what is left.


def _inherited() -> dict[str, str]:
    """This process's environment without what belongs to pytest."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
