"""The source gives one shard slowly to whoever reads it in one process; cp, another process, is not held up."""

import os
import time
from typing import Any

VICTIM = "/set/shards/shard-0001"

if os.environ.get("RANK") == "0":
    real = os.preadv

    def preadv(file: int, *args: Any) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(VICTIM):
            time.sleep(0.05)
        return real(file, *args)

    os.preadv = preadv
