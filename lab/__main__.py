"""Brings labs up and down: ``python -m lab up KIND``, ``down KIND``, ``status [KIND]``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab import LabError

KINDS: Mapping[str, str] = {"s3": "lab.s3"}
"""What can be brought up, each with the module that does it: up(), down(), status() and instructions()."""


def _lab(kind: str) -> Any:
    return importlib.import_module(KINDS[kind])


def _up(kind: str) -> None:
    lab = _lab(kind)
    lab_is = lab.up()
    print(lab.status())
    print(f"try it: {lab.instructions(lab_is)}")


def _down(kind: str) -> None:
    removed = _lab(kind).down()
    print(f"{kind}: " + ("; ".join(f"removed {what}" for what in removed) or "nothing was up"))


def _status(kind: str) -> None:
    print(_lab(kind).status())


COMMANDS: Mapping[str, Callable[[str], None]] = {"up": _up, "down": _down, "status": _status}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, or 1 where the lab cannot do it."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in (
        ("up", "start one"),
        ("down", "end one and remove all that it has"),
        ("status", "what is up"),
    ):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("kind", choices=sorted(KINDS), nargs="?" if name == "status" else None, help="which lab")
    arguments = parser.parse_args(argv)
    try:
        for kind in [arguments.kind] if arguments.kind else sorted(KINDS):
            COMMANDS[arguments.command](kind)
    except LabError as error:
        print(f"lab {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
