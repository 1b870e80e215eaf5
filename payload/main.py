"""The payload's command line: ``python payload.pyz COMMAND [SETTINGS_JSON]``."""

import functools
import importlib
import json
import os
import platform
import socket
import sys
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type

from . import procs
from .events import SAMPLER, Emitter, take_stdout
from .settings import SettingsError

USAGE = 2
"""Exit status where the command line, the settings or the environment are wrong."""

_RANK_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_ARGUMENT_CHARACTERS = 300
_MESSAGE_CHARACTERS = 500

Settings = Dict[str, Any]


def main(argv: Optional[List[str]] = None) -> int:
    """Do one command; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in ("-h", "--help"):
        print(_help())
        return 0
    try:
        name, settings = _parsed(words)
        _follow_launcher()
        return COMMANDS[name].run(settings)
    except SettingsError as error:
        print(f"seatrial payload: {error}", file=sys.stderr)
        return USAGE


def _help() -> str:
    lines = ["usage: python payload.pyz COMMAND [SETTINGS_JSON]", ""]
    lines += [f"  {name:12} {command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join(lines)


def _parsed(words: List[str]) -> Tuple[str, Optional[Settings]]:
    known = f"known commands: {', '.join(COMMANDS)}; --help tells what they do"
    if not words:
        raise SettingsError("no command; " + known)
    if words[0] not in COMMANDS:
        raise SettingsError(f"unknown command {words[0]!r}; {known}")
    if len(words) > 2:
        raise SettingsError(f"{words[0]}: one argument with settings is read, not {len(words) - 1}")
    if len(words) == 1:
        return words[0], None
    try:
        settings = json.loads(words[1])
    except json.JSONDecodeError as error:
        raise SettingsError(f"{words[0]}: the settings are not JSON: {error}: {words[1]}") from error
    if not isinstance(settings, dict):
        raise SettingsError(f"{words[0]}: the settings must be a JSON object, not {words[1]}")
    return words[0], settings


def _follow_launcher() -> None:
    """Under a launcher, die when it dies, even if that was before this line."""
    launcher = os.environ.get("SEATRIAL_LAUNCHER")
    if launcher is None:
        return
    procs.die_with_parent()
    if str(os.getppid()) != launcher:
        raise SystemExit(f"seatrial payload: the launcher, process {launcher}, is gone: the parent is {os.getppid()}")


def _refuse_rankless() -> None:
    """Without these each rank would form a world of its own, in which every result is right."""
    wrong = [f"{key}={os.environ.get(key)}" for key in _RANK_NUMBERS if not os.environ.get(key, "").isdigit()]
    if not os.environ.get("MASTER_ADDR"):
        wrong.append("no MASTER_ADDR")
    if wrong:
        raise SettingsError(f"the environment has {', '.join(wrong)}; start the ranks with torchrun")


def _launch(settings: Optional[Settings]) -> int:
    """The launcher gets its order on standard input."""
    if settings is not None:
        raise SettingsError("launch: takes no settings; the order is read from standard input")
    return int(_module("launch").main())


def _sample(settings: Optional[Settings]) -> int:
    if settings is None:
        raise SettingsError("sample: needs settings; see sampler.py")
    return int(_module("sampler").main(settings, take_stdout(_job(), SAMPLER)))


def _stage(settings: Optional[Settings]) -> int:
    if settings is None:
        raise SettingsError("stage: needs settings; see stage.py")
    return int(_module("stage").main(settings))


def _job() -> str:
    return os.environ.get("SEATRIAL_JOB", "by-hand")


def _module(name: str) -> Any:
    """A module of the payload, imported now: only the command that needs torch shall wait for it."""
    return importlib.import_module("." + name, __package__)


def _as_rank(module: str, settings: Optional[Settings]) -> int:
    """Run a module's command as one rank of a job: its first event is ``hello``, an exception is told as ``failed``."""
    _refuse_rankless()
    emitter = take_stdout(_job(), int(os.environ["RANK"]))
    emitter.emit(
        "hello",
        pid=os.getpid(),
        host=socket.gethostname(),
        argv=[word[:_ARGUMENT_CHARACTERS] for word in sys.argv[:8]],
        python=platform.python_version(),
    )
    sys.excepthook = functools.partial(_last_words, emitter)
    try:
        status = int(_module(module).run(emitter, settings or {}))
    except SettingsError as error:
        _tell_failure(emitter, error)
        raise
    sys.stderr.flush()
    # The work is done and told: what torch's threads do while an interpreter is taken down can only spoil the status.
    os._exit(status)


class Command(NamedTuple):
    """A command: what does it with its settings, and what it is for."""

    run: Callable[[Optional[Settings]], int]
    purpose: str


COMMANDS = {
    "checkpoint": Command(
        functools.partial(_as_rank, "checkpoint"),
        "Train, write checkpoints, and go on where a killed job has stopped. Each rank of a job runs it.",
    ),
    "collectives": Command(
        functools.partial(_as_rank, "collectives"),
        "Time every collective and compare every element of every result. Each rank of a job runs it.",
    ),
    "health": Command(
        functools.partial(_as_rank, "health"),
        "Measure one device a rank: products, memory, host copies, a soak, and compare the results.",
    ),
    "nccl-tests": Command(
        functools.partial(_as_rank, "nccl_tests"),
        "Run a program of nccl-tests and pass on what it prints. The one rank of a job runs it.",
    ),
    "staging": Command(
        functools.partial(_as_rank, "staging"),
        "Copy a data set onto this node, cold and warm, kill and resume it, and read it back. One rank a node runs it.",
    ),
    "stage": Command(_stage, "Copy the files of a manifest that are missing; may be killed at any moment."),
    "launch": Command(_launch, "Start the ranks of one job on this node and watch over them."),
    "sample": Command(_sample, "Sample the host and its GPUs beside a job."),
}


def _last_words(
    emitter: Emitter, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
) -> None:
    """What happens to an exception that nothing handled: an event, the traceback, and the end at once."""
    # Not sys.stderr: torch.distributed puts a buffer of its own there while a hook runs.
    log = sys.__stderr__
    try:
        _tell_failure(emitter, error)
    except OSError as lost:
        print(f"seatrial payload: nobody reads the events: {lost}", file=log)
    traceback.print_exception(kind, error, trace, file=log)
    if log is not None:
        log.flush()
    # An orderly exit could wait in the backend's destructors for peers that never come.
    os._exit(1)


def _tell_failure(emitter: Emitter, error: BaseException) -> None:
    ours = os.path.dirname(__file__)
    last = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(ours)][-1]
    emitter.emit(
        "failed",
        type=type(error).__name__,
        message=str(error)[:_MESSAGE_CHARACTERS],
        where=f"{os.path.basename(last.filename)}:{last.lineno or 0} in {last.name}",
    )
