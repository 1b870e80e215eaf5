"""The folders that a rank makes: in the job's scratch, or on a storage that is tried, where they are claimed first.

``elsewhere`` in the job's scratch names, a line each, the folders outside it, before they exist: whoever ends the job
removes them with the scratch.
"""

import os
import shutil
import tempfile
from typing import Iterator, List

from .procs import TAG

LIST = "elsewhere"
_PREFIX = "seatrial-"


def claim(parent: str, role: str) -> str:
    """Make a folder of this rank's own.

    Args:
        parent: the folder that it is made in; empty for the job's scratch.
        role: what it is for, a part of its name.

    Raises:
        OSError: it cannot be made there.
    """
    scratch = os.environ.get("SEATRIAL_SCRATCH")
    rank = os.environ.get("RANK", "0")
    if not parent and scratch is None:
        return tempfile.mkdtemp(prefix=f"{_PREFIX}{role}-")
    if not parent:
        folder = os.path.join(str(scratch), f"rank-{rank}-{role}")
    else:
        tag = os.environ.get(TAG, f"by-hand-{os.getpid()}").replace("/", "-")
        folder = os.path.join(parent, f"{_PREFIX}{tag}-rank-{rank}-{role}")
        if scratch is not None:
            _enter(os.path.join(scratch, LIST), folder)
    os.mkdir(folder)
    return folder


def give_back(folder: str) -> None:
    """Remove a claimed folder.

    Raises:
        OSError: something in it cannot be removed.
    """
    shutil.rmtree(folder)


def _enter(path: str, folder: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, os.fsencode(folder) + b"\0")
        os.fsync(handle)
    finally:
        os.close(handle)


def elsewhere(scratch: str) -> Iterator[str]:
    """The folders outside a job's scratch that its ranks claimed."""
    try:
        with open(os.path.join(scratch, LIST), "rb") as file:
            claimed = file.read().split(b"\0")[:-1]
    except FileNotFoundError:
        return
    for name in claimed:
        folder = os.fsdecode(name)
        # The list is a file that others could write to: nothing else than a claimed folder is ever removed.
        if os.path.basename(folder).startswith(_PREFIX) and os.path.isabs(folder):
            yield folder


def remove(scratch: str) -> List[str]:
    """Remove a job's scratch and the folders that its ranks claimed elsewhere; returns what was removed.

    Raises:
        OSError: something cannot be removed.
    """
    removed = []
    for folder in (*elsewhere(scratch), scratch):
        if os.path.lexists(folder):
            shutil.rmtree(folder)
            removed.append(folder)
    return removed
