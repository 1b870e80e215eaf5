"""What the harness costs: the job through it against the payload by hand, the time before the first launch, telemetry.

python -m bench
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench import table, write
from seatrial import config, shipping
from seatrial.ledger import Ledger
from seatrial.site import Site, survey
from seatrial.suites.nccl import plan
from seatrial.target.lease import Port
from seatrial.target.local import LocalTarget, Workshop

PAIRS = 3
STARTS = 5


def by_hand(payload: Path, settings: Mapping[str, object], ranks: int) -> float:
    """Seconds of the same payload, its ranks started directly with torchrun's environment."""
    port = Port("127.0.0.1")
    common = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port.number), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, str(payload), "collectives", json.dumps(settings)]
    begin = time.monotonic()
    children = [
        subprocess.Popen(argv, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.DEVNULL)
        for r in range(ranks)
    ]
    codes = [child.wait() for child in children]
    seconds = time.monotonic() - begin
    port.release()
    if any(codes):
        raise SystemExit(f"the payload by hand ended with {codes}")
    return seconds


def through_harness(folder: Path, site: Site) -> tuple[float, float]:
    """Seconds of the job from submission to its proven absence, and the sampler's share of one core."""
    begin = time.monotonic()
    ledger = Ledger(folder, f"bench-{time.time_ns()}")
    target = LocalTarget(
        Workshop(folder, folder / shipping.NAME, ledger, lambda: time.monotonic() - begin, ledger.run_id)
    )
    with target.submit(plan.sweep(site)) as job:
        result = job.wait()
    seconds = time.monotonic() - begin
    sampled = next(event for event in result.samples if event.name == "sampled")
    worked = float(sampled.fields["cpu_seconds"]) - float(sampled.fields["start_cpu_seconds"])
    return seconds, worked / float(sampled.fields["wall"])


def start_up() -> float:
    """Seconds of imports, profile, bounds, collection and plan: all that comes before the first launch."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "pytest", "--cluster=local", "--plan"], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def main() -> int:
    site = survey(config.load_cluster("local", Path.cwd()), seed=1)
    with tempfile.TemporaryDirectory(prefix="seatrial-bench-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        payload = folder / shipping.NAME
        shipping.pack(payload)
        spec = plan.sweep(site)
        hand, harness, shares = [], [], []
        for _ in range(PAIRS):
            hand.append(by_hand(payload, spec.settings, spec.ranks))
            seconds, share = through_harness(folder, site)
            harness.append(seconds)
            shares.append(share)
    starts = [start_up() for _ in range(STARTS)]
    ratio = median(harness) / median(hand)
    rows = [
        ["nccl job through the harness / by hand", f"{ratio:.3f}", "<= 1.05", f"{PAIRS} interleaved pairs"],
        ["  by hand (median, range)", f"{median(hand):.2f} s ({min(hand):.2f}-{max(hand):.2f})", "", ""],
        ["  through the harness", f"{median(harness):.2f} s ({min(harness):.2f}-{max(harness):.2f})", "", ""],
        ["start, imports and collection (`--plan`)", f"{median(starts):.2f} s", "<= 1.0 s", f"median of {STARTS}"],
        ["telemetry, share of one core", f"{median(shares):.2%}", "<= 1%", "10 Hz, the whole job"],
    ]
    path = write("bench.md", "What the harness costs", "make bench", table(["figure", "measured", "aim", "how"], rows))
    print(path.read_text())
    return 0 if ratio <= 1.05 and median(starts) <= 1.0 and median(shares) <= 0.01 else 1


raise SystemExit(main())
