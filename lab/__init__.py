"""Clusters and services on one machine, for development and demonstration."""

from __future__ import annotations

import os
from pathlib import Path


class LabError(RuntimeError):
    """A lab cannot be brought up or down on this machine; the message says what it lacks."""


def state() -> Path:
    """Where labs keep what they have while they are up; nobody else may look into it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "seatrial-lab" if base and os.path.isdir(base) else Path(f"/tmp/seatrial-lab-{os.getuid()}")  # noqa: S108
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LabError(f"{folder}: expected a folder of this user's own, observed one that others can write to")
    return folder


def cache() -> Path:
    """Where labs keep the programs that they built: ``$SEATRIAL_CACHE``, else the user's cache."""
    base = os.environ.get("SEATRIAL_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial"
