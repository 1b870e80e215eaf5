"""The CUDA paths on a machine with a GPU, within eight minutes; the figures go to docs/measured.md.

python -m bench.gpu
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench import table, write
from seatrial import record
from seatrial.payload import nvml

ROOT = Path(__file__).parent.parent
MINUTES = 8


def main() -> int:
    found = nvml.find()
    if not found.gpus:
        print("make gpu: this machine has no GPU that NVML knows; nothing was run", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="seatrial-gpu-") as name:
        folder = Path(name) / "run"
        argv = [sys.executable, "-m", "pytest", "--cluster=local", "--run-dir", str(folder)]
        subprocess.run(argv, cwd=ROOT, timeout=MINUTES * 60, check=False)
        known = record.read(folder / "record.jsonl")
    rows = [
        [
            str(check),
            check.outcome,
            "" if check.observed is None else f"{check.observed:.4g} {check.unit}",
            check.reason,
        ]
        for check in known.checks
    ]
    devices = ", ".join(f"{gpu.name} ({gpu.memory / 2**30:.0f} GiB)" for gpu in found.gpus)
    body = f"Devices: {devices}; driver {found.driver}.\n\n" + table(["check", "outcome", "observed", "reason"], rows)
    print(write("measured.md", "Measured on GPUs", "make gpu", body).read_text())
    return 0 if known.verdict is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
