"""The node's own storage forgets, between two runs, that a whole file is there."""

import os
import sys
from typing import Any

VICTIM = "/shards/shard-0000"

if "stage" in sys.orig_argv:
    real = os.lstat

    def lstat(path: str, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith(VICTIM):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *args, **kwargs)

    os.lstat = lstat
