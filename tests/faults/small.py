"""A pytest plugin that makes the suites' plans small: seconds, not a minute."""

from seatrial.suites.checkpoint import plan as checkpoint
from seatrial.suites.health import plan as health
from seatrial.suites.nccl import plan
from seatrial.suites.staging import plan as staging

plan.OPS = ("all_reduce", "all_gather")
plan.DTYPES = ("float32",)
plan.SIZES = {"cpu": (64 * plan.KIB, 4 * plan.MIB), "cuda": (1 * plan.MIB, 16 * plan.MIB)}
plan.ITERATIONS = 20

health.DTYPES = {"cpu": ("float32",), "cuda": ("bfloat16",)}
health.MATRIX = {"cpu": 256, "cuda": 2048}
health.REPEATS = 48
health.SOAK_SECONDS = {"cpu": 1.5, "cuda": 3.0}

sizes = {"shards": 3, "shard_bytes": 4 * staging.MIB, "small": 24, "small_bytes": 4 * staging.KIB}
staging.SIZES = {
    "cpu": {**sizes, "weights_bytes": 4 * staging.MIB},
    "cuda": {**sizes, "weights_bytes": 64 * staging.MIB},
}
staging.FEED = {device: {**feed, "steps": 10} for device, feed in staging.FEED.items()}

checkpoint.SMALL = {**checkpoint.SMALL, "width": 64}
checkpoint.CHAINS = {"shards": checkpoint.CHAINS["shards"][:1]}
