"""The ``seatrial`` command: everything around a trial that needs no pytest."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import seatrial
from seatrial.errors import SeatrialError, UsageError

RUNS = "runs"


class _Parser(argparse.ArgumentParser):
    """Ends with pytest's status of a usage error."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(4, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="seatrial",
        description="The acceptance trial of GPU clusters. A trial itself is `pytest --cluster=NAME`.",
    )
    parser.add_argument("--version", action="version", version=f"seatrial {seatrial.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="draw a run's report again, from its record alone")
    report.add_argument("record", type=Path, help="a record.jsonl, or the run directory that holds it")
    report.add_argument("-o", "--output", type=Path, help="where it goes (default: report.html beside the record)")
    cleanup = commands.add_parser("cleanup", help="remove exactly what a killed run left, and say what")
    cleanup.add_argument("run", nargs="?", help="a run's id or directory (default: every run in ./runs)")
    manifest = commands.add_parser("manifest", help="write the manifest of a data set: path, size and checksum a line")
    manifest.add_argument("folder", type=Path, help="the data set")
    manifest.add_argument("-o", "--output", type=Path, help="the file to write (default: NAME.manifest beside it)")
    commands.add_parser("schema", help="print the JSON Schema of profiles and of the record")
    commands.add_parser("checks", help="print every check: what it proves, what it cannot, and its bounds (Markdown)")
    payload = commands.add_parser("payload", help="write the payload's zip, to be run by hand with torchrun")
    payload.add_argument("output", type=Path, help="the file to write, such as payload.pyz")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 where it did what it was asked for, 1 where something is left undone, 4 for a usage error.
    """
    arguments = _parser().parse_args(argv)
    try:
        return COMMANDS[arguments.command](arguments)
    except UsageError as error:
        print(f"seatrial {arguments.command}: {error}", file=sys.stderr)
        return 4
    except (SeatrialError, OSError) as error:
        print(f"seatrial {arguments.command}: {error}", file=sys.stderr)
        return 1


def _report(arguments: argparse.Namespace) -> int:
    from seatrial import record  # noqa: PLC0415  (each command pays for its own imports)
    from seatrial.reports import files, html  # noqa: PLC0415

    path: Path = arguments.record / "record.jsonl" if arguments.record.is_dir() else arguments.record
    output: Path = arguments.output or path.with_name("report.html")
    _refuse_output(output, path)
    known = record.read(path)
    if known.run is None and not known.checks:
        raise UsageError(f"{path}: expected a run's record, observed no line of one ({'; '.join(known.damage[:1])})")
    for damage in known.damage:
        print(f"{path}: {damage}", file=sys.stderr)
    files.replace(output, html.render(known))
    print(f"report: {output}")
    return 0


def _refuse_output(output: Path, *inputs: Path) -> None:
    """Refuse to write where something else would be lost: an input, a device, a folder that is not there."""
    if output.exists() and not output.is_file():
        raise UsageError(f"{output}: expected a file to write, observed something else; name another")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: expected a folder to write into, observed no {output.parent}; make it first")
    if any(output.exists() and other.exists() and output.samefile(other) for other in inputs):
        raise UsageError(f"{output}: the output is the input; name another")


def _cleanup(arguments: argparse.Namespace) -> int:
    from seatrial import ledger  # noqa: PLC0415

    undone = 0
    for folder in _runs(arguments.run):
        removed = 0
        try:
            for damage in ledger.read(folder).damage:
                print(damage, file=sys.stderr)
            for line in ledger.cleanup(folder):
                print(f"{folder}: {line}")
                removed += 1
        except SeatrialError as error:
            # One run that cannot be cleaned must not keep the others from it.
            print(error, file=sys.stderr)
            undone += 1
        else:
            print(f"{folder}: {removed} removed" if removed else f"{folder}: nothing left")
    return 1 if undone else 0


def _runs(name: str | None) -> list[Path]:
    if name is None:
        found = sorted(path.parent for path in Path(RUNS).glob("*/ledger.jsonl"))
        if not found:
            raise UsageError(f"no run with a ledger in {Path(RUNS).resolve()}; name a run directory")
        return found
    for folder in (Path(RUNS) / name, Path(name)):
        if folder.is_dir():
            return [folder]
    known = ", ".join(sorted(path.name for path in Path(RUNS).glob("*"))) or "none"
    raise UsageError(f"{name}: expected a run's id or directory; runs here: {known}")


def _manifest(arguments: argparse.Namespace) -> int:
    from seatrial import manifest  # noqa: PLC0415

    if arguments.output is not None:
        _refuse_output(arguments.output)
        inside = arguments.output.resolve().is_relative_to(arguments.folder.resolve())
        if inside and arguments.output.exists():
            raise UsageError(f"{arguments.output}: a file of the data set itself; write the manifest beside the folder")
    written = manifest.write(arguments.folder, arguments.output)
    for other in written.others:
        print(f"left out: {other}", file=sys.stderr)
    print(f"{written.path}: {written.files} files, {written.bytes} bytes")
    return 0


def _schema(_: argparse.Namespace) -> int:
    from seatrial import config, record  # noqa: PLC0415

    print(json.dumps({"profile": config.json_schema(), "record": record.json_schema()}, indent=2))
    return 0


def _payload(arguments: argparse.Namespace) -> int:
    from seatrial import shipping  # noqa: PLC0415

    _refuse_output(arguments.output)
    digest = shipping.pack(arguments.output)
    print(f"{arguments.output}: sha256 {digest}")
    print(f"run it with: torchrun --nproc-per-node 2 {arguments.output} collectives")
    return 0


def _checks(_: argparse.Namespace) -> int:
    from seatrial import bounds  # noqa: PLC0415

    known = bounds.load_package()
    print("# Checks\n\nWhat each check proves and what it cannot; printed by `seatrial checks`.")
    for entry in known.entries:
        places = f"; at each {', '.join(entry.where)}" if entry.where else ""
        sense = "must equal its bound" if entry.better == "equal" else f"{entry.better} is better"
        print(f"\n## {entry.id}\n\nUnit: {entry.unit}{places}; {sense}.\n")
        print(f"- Proves: {entry.proves}\n- Cannot: {entry.cannot}\n- When it fails: {entry.next}")
        for bound in known.of(entry):
            when = ", ".join(f"{key} {value}" for key, value in bound.when.items()) or "everywhere"
            print(f"- Bound ({when}): {bound.limits()}; confidence {bound.confidence}. {bound.source}")
    return 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "report": _report,
    "cleanup": _cleanup,
    "manifest": _manifest,
    "schema": _schema,
    "checks": _checks,
    "payload": _payload,
}
