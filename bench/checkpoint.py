"""What a checkpoint costs: shards against plain writes and reads of the same bytes, and memory over many of them.

python -m bench.checkpoint
"""

from __future__ import annotations

import argparse
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
from seatrial.stats import median_interval
from seatrial.target.local import LocalTarget, Workshop

MIB = 2**20
SIZES = (32 * MIB, 128 * MIB, 512 * MIB)
"""Bytes of a shard; one rank, so that a checksum has a core of its own, as on any training node."""
REPEATS = 20
LEAST = 0.95

MEMORY = """
import resource, sys, torch
from seatrial.payload import shards
tensors = {"ballast": torch.rand(16 * shards.CHUNK // 4)}
for count in (3, 30):
    for _ in range(count):
        known = shards.write(sys.argv[1], tensors, None)
        shards.read(sys.argv[1], known.size, known.checksum, torch.device("cpu"), lambda *_: None)
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def measure(folder: Path, size: int) -> Result:
    """A short training job whose rates are taken with shards of ``size`` bytes."""
    begin = time.monotonic()
    ledger = Ledger(folder, f"bench-{time.time_ns()}")
    workshop = Workshop(folder, folder / shipping.NAME, ledger, lambda: time.monotonic() - begin, ledger.run_id)
    settings = {"folder": str(folder / "data"), "steps": 4, "rate_bytes": size, "rate_repeats": REPEATS}
    spec = JobSpec("bench", "checkpoint", settings, ranks=1, budget=Budget())
    with LocalTarget(workshop).submit(spec) as job:
        result = job.wait()
    if result.ending is not Ending.COMPLETED:
        raise SystemExit(f"{result.ending.value}: {result.cause}")
    return result


def ratios(result: Result, way: str) -> tuple[list[float], list[float]]:
    """Shards' rate over the plain one's, a pair of neighbours each, and shards' rate in GB/s."""
    (event,) = [event for event in result.of("rate") if event.fields["way"] == way]
    pairs = list(zip(event.fields["shard_us"], event.fields["plain_us"], strict=True))
    return [plain / shard for shard, plain in pairs], [event.fields["bytes"] / shard / 1e3 for shard, _ in pairs]


def row(size: int, way: str, result: Result) -> tuple[list[str], bool]:
    """A line of the table, and whether it is as good as it should be."""
    found, rates = ratios(result, way)
    low, high = median_interval(found) or (min(found), max(found))
    text = f"{median(found):.3f} ({low:.3f}-{high:.3f})"
    return [f"{way}, {size // MIB} MiB", text, f">= {LEAST}", f"{median(rates):.2f} GB/s"], median(found) >= LEAST


def memory(folder: Path) -> Sequence[str]:
    """Peak memory in MiB after 3 and after 33 checkpoints."""
    argv = [sys.executable, "-c", MEMORY, str(folder / "memory.shard")]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\n")
    return [line.split()[1] for line in lines if line]


def main() -> int:
    argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__).parse_args()
    rows, good = [], []
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        shipping.pack(folder / shipping.NAME)
        for size in SIZES:
            result = measure(folder, size)
            for way in ("write", "read"):
                line, is_good = row(size, way, result)
                rows.append(line)
                good.append(is_good)
        few, many = memory(folder)
    rows.append(["peak memory, shards of 128 MiB", f"{few} MiB after 3, {many} MiB after 33", "flat", ""])
    head = ["shard against plain", "ratio, median (95% interval)", "aim", "shard"]
    how = f"{REPEATS} interleaved pairs, one rank, fsync on, page cache dropped before each read.\n\n"
    page = write("bench-checkpoint.md", "Checkpoints", "python -m bench.checkpoint", how + table(head, rows))
    print(page.read_text())
    return 0 if all(good) and int(many) <= int(few) * 1.05 else 1


if __name__ == "__main__":
    raise SystemExit(main())
