"""Command ``nccl-tests``: runs a program of nccl-tests where the image has one, and passes on every line it prints.

It runs in one process, whose own options (``-g``, ``-t``) spread it over the GPUs of the node.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import IO, Any, Dict, Iterator, List, Tuple

from . import procs
from .events import Emitter, Heartbeat, Position
from .settings import SettingsError, settled

DEFAULTS: Dict[str, Any] = {
    "program": "all_reduce_perf",
    "args": ["-b", "8", "-e", "128M", "-f", "2"],
    "timeout_s": 1800,
}

PART_CHARACTERS = 600
"""A longer line is split; so many characters fit in one event even when JSON escapes every one of them."""


def run(emitter: Emitter, given: Dict[str, Any]) -> int:
    """Run the program; ``done`` carries its exit code, which is None where the image does not have it.

    Raises:
        SettingsError: the settings are wrong, or more than one rank was started.
    """
    settings = settled("nccl-tests", DEFAULTS, given)
    if os.environ["WORLD_SIZE"] != "1":
        ranks = os.environ["WORLD_SIZE"]
        raise SettingsError(f"nccl-tests: runs as 1 rank, not {ranks}: give it -g GPUS instead")
    path = shutil.which(settings["program"])
    emitter.emit(
        "ready",
        world_size=1,
        rank=0,
        backend="nccl",
        device="cuda",
        torch=None,
        uuid=None,
        transport=None,
        program=path,
    )
    code, lines = None, 0
    if path is None:
        why = f"no {settings['program']} in PATH ({os.environ.get('PATH')})"
        emitter.emit("unsupported", op=settings["program"], dtype=None, size=None, why=why[:2000])
    else:
        code, lines = _run([path, *settings["args"]], emitter, settings["timeout_s"])
    peers = [f"{socket.gethostname()}:{os.getpid()}"]
    emitter.emit("done", world_size=1, peers=peers, exit=code, lines=lines)
    return 0


def _run(argv: List[str], emitter: Emitter, timeout_s: int) -> Tuple[int, int]:
    """Run ``argv`` and emit its lines; returns its exit code and how many lines it printed."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=procs.die_with_parent,  # noqa: PLW1509 - no thread runs yet
    )
    assert child.stdout is not None
    deadline = time.monotonic() + timeout_s
    position = Position()
    position.what = f"run {os.path.basename(argv[0])}"
    try:
        with Heartbeat(emitter, position), child.stdout as output:
            for text in _lines(output, deadline):
                position.step += 1
                _tell(emitter, position.step, text)
            return child.wait(timeout=max(0.0, deadline - time.monotonic())), position.step
    finally:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End what the program may have left behind: its session is its own."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _lines(output: IO[bytes], deadline: float) -> Iterator[str]:
    """The lines as they come, the last one even without its end.

    Raises:
        TimeoutError: the deadline passed before the output ended.
    """
    rest = b""
    while True:
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError("the program's output did not end within timeout_s")
        data = os.read(output.fileno(), 65536)
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines.append(rest)
        for line in lines:
            yield line.decode(errors="backslashreplace")
        if not data:
            return


def _tell(emitter: Emitter, n: int, text: str) -> None:
    """Emit a line as one event, or a long one as several that say so."""
    parts = [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]
    if len(parts) < 2:
        emitter.emit("line", n=n, text=text)
        return
    for part, piece in enumerate(parts, 1):
        emitter.emit("line", n=n, text=piece, part=part, parts=len(parts))
