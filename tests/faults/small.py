"""A pytest plugin that makes the nccl suite's sweep small: seconds, not a minute."""

from seatrial.suites.nccl import plan

plan.OPS = ("all_reduce", "all_gather")
plan.DTYPES = ("float32",)
plan.SIZES = {"cpu": (64 * plan.KIB, 256 * plan.KIB), "cuda": (1 * plan.MIB, 16 * plan.MIB)}
plan.ITERATIONS = 20
