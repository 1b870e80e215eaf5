"""The node's own storage flips a bit of one shard, once, after it was made durable and renamed."""

import os
from typing import Any

VICTIM = "/copy/shards/shard-0001"

if os.environ.get("RANK") == "0":
    real = os.rename
    done = []

    def rename(source: str, target: str, *args: Any, **kwargs: Any) -> None:
        real(source, target, *args, **kwargs)
        if target.endswith(VICTIM) and not done:
            done.append(target)
            with open(target, "r+b") as file:
                file.seek(54321)
                byte = file.read(1)
                file.seek(54321)
                file.write(bytes([byte[0] ^ 0x10]))

    os.rename = rename
