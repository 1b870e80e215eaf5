"""Faults and clean trials again and again: a false alarm or a missed fault is counted, not explained away.

python -m bench.soak [--clean N] [--faults N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from bench import table, write
from seatrial import record
from seatrial.stats import proven_rate

ROOT = Path(__file__).parent.parent


def clean_trial(folder: Path, suites: Sequence[str]) -> tuple[str, float, list[str]]:
    """One trial of this machine by these suites: its verdict, its seconds, its worst findings."""
    folder.mkdir()
    profile = folder / "soak.yaml"
    profile.write_text("name: soak\ntarget: {kind: local}\npools: [{name: machine}]\n")
    paths = [str(ROOT / "suites" / suite) for suite in suites]
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *paths, f"--cluster={profile}", "--run-dir", str(folder / "run")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    verdict = record.read(folder / "run" / "record.jsonl").verdict
    assert verdict is not None, "the trial wrote no verdict"
    return verdict.verdict, time.monotonic() - begin, list(verdict.worst)


def fault_round() -> tuple[int, int]:
    """Every planted fault once: how many tests ran, how many were red."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "tests/faults", f"--junitxml={report.name}"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )

        suite = ElementTree.parse(report.name).getroot()[0]  # noqa: S314
    return int(suite.attrib["tests"]), int(suite.attrib["failures"]) + int(suite.attrib["errors"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--clean", type=int, default=20, help="clean trials (default 20)")
    parser.add_argument("--faults", type=int, default=5, help="rounds of all planted faults (default 5)")
    every = sorted(path.parent.name for path in (ROOT / "suites").glob("*/checks.yaml"))
    parser.add_argument("--suites", nargs="+", choices=every, default=every, help="which suites (default: all)")
    arguments = parser.parse_args()
    verdicts: Counter[str] = Counter()
    seconds, findings = [], []
    with tempfile.TemporaryDirectory(prefix="seatrial-soak-") as name:
        for number in range(arguments.clean):
            verdict, took, worst = clean_trial(Path(name) / str(number), arguments.suites)
            verdicts[verdict] += 1
            seconds.append(took)
            findings += worst
            print(f"clean trial {number + 1}: {verdict} in {took:.1f} s {' '.join(worst)}", flush=True)
    ran = red = 0
    for number in range(arguments.faults):
        tests, failures = fault_round()
        ran, red = ran + tests, red + failures
        print(f"fault round {number + 1}: {tests} tests, {failures} missed", flush=True)
    alarms = arguments.clean - verdicts["accepted"]
    proven = f"{proven_rate(arguments.clean):.1%}" if alarms == 0 and arguments.clean else "nothing"
    rows = [
        ["clean trials", f"{arguments.clean} of {', '.join(arguments.suites)}"],
        ["false alarms", str(alarms)],
        ["false alarms excluded above (95%)", proven],
        ["seconds a trial, median (range)", f"{median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})"],
        ["fault tests run", str(ran)],
        ["faults missed", str(red)],
        ["findings of clean trials", ", ".join(findings) or "none"],
    ]
    suites = " ".join(arguments.suites)
    command = f"python -m bench.soak --clean {arguments.clean} --faults {arguments.faults} --suites {suites}"
    print(write("soak.md", "Soak", command, table(["figure", "value"], rows)).read_text())
    return 0 if alarms == 0 and red == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
