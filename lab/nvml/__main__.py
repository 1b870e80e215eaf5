"""``python -m lab.nvml FOLDER`` compiles the stand-in NVML into a folder and prints the library's path."""

from __future__ import annotations

import sys
from pathlib import Path

from lab.nvml import build

if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("usage: python -m lab.nvml FOLDER (an existing folder)")
    print(build(Path(sys.argv[1])))
