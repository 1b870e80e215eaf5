"""What checkpoints, failures and restarts leave of the time: Young's and Daly's models. All times are in seconds.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY = 86400.0

FAILURES_PER_1000_NODE_DAYS = {
    "Llama 3": 3.79,
    "Meta RSC-1": 6.50,
}
"""Published failure rates: arXiv 2407.21783 (419 failures of 16,384 GPUs in 54 days) and arXiv 2410.21680."""

LLAMA_NODES = 2048
"""The nodes of the published run: 16,384 GPUs, eight a node."""


@dataclass(frozen=True)
class Costs:
    """What was measured: training stands still for ``stall`` at a checkpoint, and for ``restart`` at a failure."""

    stall: float
    restart: float


def mean_time_between_failures(nodes: int, failures_per_1000_node_days: float) -> float:
    """Of a job on so many nodes, any of which ends it."""
    return 1000 * DAY / (failures_per_1000_node_days * nodes)


def young(stall: float, between_failures: float) -> float:
    """The best time between two checkpoints, to first order: sqrt(2 d M)."""
    return math.sqrt(2 * stall * between_failures)


def daly(stall: float, between_failures: float) -> float:
    """The best time between two checkpoints, Daly's equation 37.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d while d < 2M, else M.
    """
    share = stall / (2 * between_failures)
    if share >= 1:
        return between_failures
    return young(stall, between_failures) * (1 + math.sqrt(share) / 3 + share / 9) - stall


def goodput(costs: Costs, interval: float, between_failures: float) -> float:
    """The share of the time that is progress, by Daly's model of exponentially distributed failures (equation 20).

    The expected time for a stretch of ``interval`` useful seconds is M e^(R/M) (e^((interval + d) / M) - 1).
    """
    mean = between_failures
    spent = mean * math.exp(costs.restart / mean) * math.expm1((interval + costs.stall) / mean)
    return interval / spent


def told(costs: Costs, nodes: int) -> str:
    """The best interval and what it leaves, for each published failure rate, here and on LLAMA_NODES."""
    lines = []
    for source, rate in FAILURES_PER_1000_NODE_DAYS.items():
        for count in dict.fromkeys((nodes, LLAMA_NODES)):
            mean = mean_time_between_failures(count, rate)
            best = daly(costs.stall, mean)
            lines.append(
                f"{count} nodes at {source}'s rate ({rate:g} per 1000 node-days): a checkpoint every {best:.0f} s "
                f"(Daly; Young {young(costs.stall, mean):.0f} s) leaves {goodput(costs, best, mean):.3%}"
            )
    return "; ".join(lines)
