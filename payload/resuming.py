"""Proves that a killed staging goes on where it was: one is killed on purpose, looked at, and started again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from . import copying, datasets
from .datasets import Entry, escaped

STREAMS = 2
ATTEMPTS = 5
"""A kill between two files, or after the last, proves little; so often it is tried again to find a half file."""


class _Killed(NamedTuple):
    """What a killed staging left: each file under a final name with its stamp, and the half ones with their bytes."""

    stamps: Dict[str, List[int]]
    half: Dict[str, int]


def measure(source: str, target: str, entries: Sequence[Entry], moved: Callable[[int], None]) -> Dict[str, Any]:
    """Kill a staging, look, and resume it.

    Returns:
        The fields of the ``resume`` event: ``attempts``; ``why`` where no kill came while a file was half there, or the
        resumed run failed; else ``whole_files`` and ``whole_bytes`` at the kill, ``half`` (bytes of the files on their
        way, none of them under a final name), ``half_named`` (files under a final name that were not whole),
        ``missing_bytes``, ``copied_bytes`` of the resumed run, ``again_bytes`` (of files that were whole and are others
        now), and ``wrong_files`` of the result.

    Raises:
        OSError: the target cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as folder:
        manifest = os.path.join(folder, "manifest")
        with open(manifest, "w", encoding="utf-8") as file:
            file.write(datasets.HEAD + "\n" + "".join(datasets.line(entry) + "\n" for entry in entries))
        settings = json.dumps({"source": source, "target": target, "manifest": manifest, "streams": STREAMS})
        for attempt in range(1, ATTEMPTS + 1):
            copying.discard(target)
            if _kill_one(settings, moved) and _look(target).half:
                return dict(_resumed(settings, target, entries, moved), attempts=attempt)
    return {"attempts": ATTEMPTS, "why": "no kill came while a file was half there"}


def _child(settings: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, sys.argv[0], "stage", settings]
    # The child follows this process, as a rank follows its launcher.
    env = dict(os.environ, SEATRIAL_LAUNCHER=str(os.getpid()))
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _kill_one(settings: str, moved: Callable[[int], None]) -> bool:
    """Start a staging and kill it when one file is whole; whether the signal is what ended it.

    The largest files come first, so that the others are still on their way.
    """
    with _child(settings) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        moved(1)
    return child.returncode == -signal.SIGKILL


def _look(target: str) -> _Killed:
    stamps = {}
    for path, _ in datasets.walk(target).files:
        stamps[path] = copying.stamp(os.lstat(os.path.join(target, path)))
    staging = copying.staging_folder(target)
    half = {
        name: os.lstat(os.path.join(staging, name)).st_size for name in os.listdir(staging) if name.endswith(".part")
    }
    return _Killed(stamps, half)


def _resumed(settings: str, target: str, entries: Sequence[Entry], moved: Callable[[int], None]) -> Dict[str, Any]:
    killed = _look(target)
    left = datasets.compare(target, entries, STREAMS, moved)
    sizes = {entry.path: entry.size for entry in entries}
    whole = [path for path in killed.stamps if path in sizes and path not in left.changed]
    report = _finish(settings, moved)
    if "copied_bytes" not in report or report["stopped"]:
        return {"why": f"the resumed staging ended with status {report['status']}: {report.get('stopped', '')}"[:300]}
    after = _look(target)
    again = [path for path in whole if after.stamps.get(path) != killed.stamps[path]]
    half_named = sorted({**left.changed, **left.extra})
    found = datasets.compare(target, entries, STREAMS, moved)
    return {
        "why": "",
        "whole_files": len(whole),
        "whole_bytes": sum(sizes[path] for path in whole),
        "half": sorted(killed.half.values())[:16],
        "half_named": len(half_named),
        "half_named_files": [escaped(path)[:160] for path in half_named[:10]],
        "missing_bytes": sum(sizes.values()) - sum(sizes[path] for path in whole),
        "copied_bytes": report["copied_bytes"],
        "again_bytes": sum(sizes[path] for path in again),
        "again_files": [escaped(path)[:160] for path in again[:10]],
        "wrong_files": len(found.wrong),
        "wrong": [escaped(path)[:160] for path in sorted(found.wrong)[:10]],
    }


def _finish(settings: str, moved: Callable[[int], None]) -> Dict[str, Any]:
    """Run the staging to its end; returns the last that it said."""
    last = b"{}"
    with _child(settings) as child:
        assert child.stdout is not None
        for line in child.stdout:
            moved(1)
            last = line
    report: Dict[str, Any] = json.loads(last)
    return dict(report, status=child.returncode)
