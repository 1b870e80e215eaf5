"""A pytest plugin that gives the checkpoint suite the chains of kills that SEATRIAL_CHAINS names."""

import os

from seatrial.suites.checkpoint import plan
from seatrial.suites.checkpoint.plan import Kill


def _killed(name: str, step: int) -> Kill:
    return Kill(name, "step", step, -1)


CHAINS: dict[str, dict[str, tuple[Kill, ...]]] = {
    "damage": {
        "shards": tuple(_killed(name, 11) for name in ("truncated", "flipped", "missing", "foreign", "unsynced"))
    },
    "forget": {name: (_killed(name, 7),) for name in ("optimizer", "torch", "python", "place")},
    "forge": {"shards": (Kill("uncommitted", "commit", 8, 0),)},
    "late": {"dcp": (Kill("late", "step", 7, -1, engine="dcp-async"),)},
    "full": {"shards": (_killed("full", 7),)},
}

if "SEATRIAL_CHAINS" in os.environ:
    plan.CHAINS = CHAINS[os.environ["SEATRIAL_CHAINS"]]
