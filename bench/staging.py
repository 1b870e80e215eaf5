"""What staging costs: its streams against cp of the same files, and its memory from 1 GB to 10 GB.

python -m bench.staging
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import table, write
from seatrial import shipping
from seatrial.job import Budget, Ending, JobSpec, Result
from seatrial.ledger import Ledger
from seatrial.payload import copying, datasets
from seatrial.stats import median_interval
from seatrial.suites.staging import plan
from seatrial.suites.staging.staged import Staged
from seatrial.target.local import LocalTarget, Workshop

MIB, GB = 2**20, 10**9
SETS = {
    "4 shards of 128 MiB": {"shards": 4, "shard_bytes": 128 * MIB, "small": 1, "small_bytes": 1024},
    "4 shards of 32 MiB, 400 files of 16 KiB": {
        "shards": 4,
        "shard_bytes": 32 * MIB,
        "small": 400,
        "small_bytes": 16 * 1024,
    },
    "2000 files of 64 KiB": {"shards": 1, "shard_bytes": MIB, "small": 2000, "small_bytes": 64 * 1024},
}
ROUNDS = 15
LEAST = 0.95
STEPS = (1 * GB, 3 * GB, 10 * GB)
FLAT = 1.10
"""The most that the memory may grow over a tenfold data set: a tenth is allocator noise and the list of files."""


def measure(folder: Path, sizes: dict[str, int]) -> Result:
    """A staging job with one data set."""
    begin = time.monotonic()
    ledger = Ledger(folder, f"bench-{time.time_ns()}")
    workshop = Workshop(folder, folder / shipping.NAME, ledger, lambda: time.monotonic() - begin, ledger.run_id)
    settings = {"rounds": ROUNDS, "scaling_rounds": 1, "steps": 5, **sizes}
    with LocalTarget(workshop).submit(JobSpec("bench", "staging", settings, ranks=1, budget=Budget())) as job:
        result = job.wait()
    if result.ending is not Ending.COMPLETED:
        raise SystemExit(f"{result.ending.value}: {result.cause}")
    return result


def ratio(result: Result, state: str) -> tuple[float, str]:
    """The median of the streams' rate over cp's of the same round, and the rates in words."""
    staged = Staged(result)
    own = staged.rates(0, state, "streams", plan.JUDGED_STREAMS, ROUNDS)
    cp = staged.rates(0, state, "cp", 1, ROUNDS)
    if own.why or cp.why:
        raise SystemExit(own.why or cp.why)
    pairs = [mine / theirs for mine, theirs in zip(own.samples, cp.samples, strict=True)]
    low, high = median_interval(pairs) or (min(pairs), max(pairs))
    plain = [one["bytes"] / one["plain_s"] / 1e9 for one in staged.of(0, "copy", state=state, tool="cp")]
    words = f"{low:.2f}-{high:.2f}; {median(own.samples):.2f} and {median(cp.samples):.2f} GB/s"
    return median(pairs), f"{words}; cp before it is on disk {median(plain):.2f} GB/s"


def stage_one(source: Path, target: Path, manifest: Path) -> int:
    """Stage a data set in a process of its own; returns the most memory that it had, in bytes."""
    settings = {"source": str(source), "target": str(target), "manifest": str(manifest), "streams": plan.JUDGED_STREAMS}
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.staging", "--stage", json.dumps(settings)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        text=True,
    )
    told, _ = child.communicate(timeout=1800)
    if child.returncode != 0:
        raise SystemExit(f"the staging ended with {child.returncode}")
    return int(told.splitlines()[-1])


def stage(settings: dict[str, str]) -> int:
    """What ``--stage`` does: the payload's own command, then the whole comparison, then the memory of both."""
    from seatrial.payload import stage as command  # noqa: PLC0415

    status = command.main(settings)
    entries = datasets.parse(Path(settings["manifest"]).read_text(), settings["manifest"])
    wrong = datasets.compare(settings["target"], entries, plan.JUDGED_STREAMS, lambda _: None).wrong
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return 1 if wrong else status


def memory(folder: Path, total: int) -> int:
    """Bytes of memory that staging ``total`` bytes took."""
    source, target, manifest = folder / "source", folder / "target", folder / "manifest"
    source.mkdir()
    recipe = datasets.Recipe(seed=1, shards=8, shard_bytes=total // 8 - 25_000_000 // 8, small=400, small_bytes=62_500)
    entries = datasets.make(recipe, str(source), lambda _: None)
    manifest.write_text(datasets.HEAD + "\n" + "".join(datasets.line(entry) + "\n" for entry in entries))
    peak = stage_one(source, target, manifest)
    copying.discard(str(source))
    copying.discard(str(target))
    return peak


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.staging", description=__doc__)
    parser.add_argument("--stage", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage is not None:
        return stage(arguments.stage)
    rows, passed = [], True
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        shipping.pack(folder / shipping.NAME)
        for words, sizes in SETS.items():
            result = measure(folder, sizes)
            for state in plan.STATES:
                value, detail = ratio(result, state)
                passed = passed and value >= LEAST
                rows.append([f"streams over cp, {words}, {state}", f"{value:.2f}", f">= {LEAST}", detail])
        peaks = {total: memory(folder, total) for total in STEPS}
    growth = peaks[STEPS[-1]] / peaks[STEPS[0]]
    passed = passed and growth <= FLAT
    for total, peak in peaks.items():
        rows.append([f"memory of the staging, {total // GB} GB", f"{peak / 1e6:.1f} MB", "", "copy and comparison"])
    rows.append(["  10 GB over 1 GB", f"{growth:.3f}", f"<= {FLAT}", ""])
    body = (
        table(["figure", "measured", "aim", "how"], rows)
        + f"\nA ratio is the median of {ROUNDS} rounds, in each of which cp and {plan.JUDGED_STREAMS} streams copy the "
        "same files from pages in the same, proven state; its 95% interval and both rates stand beside it. Both end "
        "when all is on disk: after cp every file is fsynced. The load of the machine in the end was "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    path = write("bench-staging.md", "What staging costs", "python -m bench.staging", body)
    print(path.read_text())
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
