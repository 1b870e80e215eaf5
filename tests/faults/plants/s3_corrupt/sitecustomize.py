"""An object loses a bit in the storage, after it was put there and before it is staged."""

import os
from pathlib import Path
from typing import Any

VICTIM = "shards/shard-0001"

if os.environ.get("RANK") == "0":
    from obstore.store import S3Store

    real = S3Store.put

    def put(self: S3Store, path: str, *args: Any, **kwargs: Any) -> Any:
        done = real(self, path, *args, **kwargs)
        if path == VICTIM:
            (stored,) = Path(os.environ["SEATRIAL_PLANT_FOLDER"]).glob(f"*/{VICTIM}")
            data = bytearray(stored.read_bytes())
            data[12345] ^= 1
            with stored.open("r+b") as file:
                file.write(data)
        return done

    S3Store.put = put
