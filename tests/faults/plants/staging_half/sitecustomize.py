"""The node's own storage shows a shard under its final name as soon as it is begun under another."""

import os
import sys
from typing import Any

if "stage" in sys.orig_argv:
    real = os.open

    def begin(path: str, *args: Any, **kwargs: Any) -> int:
        file = real(path, *args, **kwargs)
        folder, name = os.path.split(path)
        final = os.path.join(folder[: -len(".staging")], f"shards/shard-000{name[0]}")
        if name in ("0.part", "1.part", "2.part") and not os.path.exists(final):
            os.link(path, final)
        return file

    os.open = begin
