"""Stands between the launcher and one rank, in place of its interpreter: ``wrapper.py MODE PAYLOAD ARGUMENT...``.

Rank 1 never starts, or its output is damaged on the way; all other ranks run as they are.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

LINE = 6
"""The event line that is damaged, counted from 0."""


def cut(lines: IO[bytes]) -> Iterator[bytes]:
    """The stream ends in the middle of a line."""
    for number, line in enumerate(lines):
        if number < LINE:
            yield line
        elif number == LINE:
            yield line[: len(line) // 2]


def garble(lines: IO[bytes]) -> Iterator[bytes]:
    """One byte of a line is another."""
    for number, line in enumerate(lines):
        yield line if number != LINE else line[:30] + bytes([line[30] ^ 1]) + line[31:]


def double(lines: IO[bytes]) -> Iterator[bytes]:
    """A line comes twice."""
    for number, line in enumerate(lines):
        yield line
        if number == LINE:
            yield line


def drop(lines: IO[bytes]) -> Iterator[bytes]:
    """A line is missing."""
    for number, line in enumerate(lines):
        if number != LINE:
            yield line


DAMAGES = {"cut": cut, "garble": garble, "double": double, "drop": drop}


def main() -> int:
    mode, argv = sys.argv[1], [sys.executable, *sys.argv[2:]]
    if os.environ.get("RANK") != "1":
        os.execv(argv[0], argv)
    if mode == "never_starts":
        os.execvp("sleep", ["sleep", "1000000"])
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert child.stdout is not None
    for line in DAMAGES[mode](child.stdout):
        os.write(1, line)
    return child.wait()


raise SystemExit(main())
