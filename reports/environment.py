"""Where the trial ran: the nodes that are alike together, so that a difference between them is seen."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.record import Node, Record
from seatrial.reports import words


@dataclass(frozen=True)
class Kin:
    """Nodes that have everything in common but their names and devices' identities."""

    nodes: Sequence[Node]

    @property
    def names(self) -> str:
        """Their names."""
        return ", ".join(node.name for node in self.nodes)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What they are."""
        return _facts(self.nodes[0])


def kin(record: Record) -> list[Kin]:
    """All nodes, those together that are alike, the largest group first."""
    alike: dict[tuple[tuple[str, str], ...], list[Node]] = {}
    for node in record.nodes:
        alike.setdefault(tuple(_facts(node)), []).append(node)
    return [Kin(nodes) for nodes in sorted(alike.values(), key=len, reverse=True)]


def _facts(node: Node) -> list[tuple[str, str]]:
    gpus = Counter(f"{gpu.name}, {words.memory(gpu.memory)}" for gpu in node.gpus)
    facts = {
        "accelerator": node.accelerator,
        "GPUs": "; ".join(f"{count} {words.TIMES} {name}" for name, count in gpus.items()) or "none",
        "CPU cores": words.number(node.cpus),
        "memory": words.memory(node.memory),
        "kernel": node.kernel,
        "driver": node.driver or "none",
        "CUDA": node.cuda or "none",
        **dict(sorted(node.versions.items())),
    }
    return list(facts.items())


def command(record: Record) -> str:
    """The command line, as a shell would take it."""
    return shlex.join(record.run.argv) if record.run is not None else "unknown"


def profile(record: Record) -> str:
    """The frozen profile, as text."""
    if record.cluster is None:
        return "none in the record"
    return json.dumps(record.cluster.profile, indent=2, ensure_ascii=False)


def head_facts(record: Record) -> list[tuple[str, str]]:
    """The facts that stand beside the verdict."""
    facts = {}
    gpus = sum(len(node.gpus) for node in record.nodes)
    if record.cluster is not None:
        facts["target"] = record.cluster.kind
    facts["nodes"] = words.number(len(record.nodes))
    facts["GPUs"] = words.number(gpus) if gpus else "none, CPU ranks"
    if record.run is not None:
        facts["run"] = record.run.id
        facts["started"] = record.run.started.replace("T", " ").replace("+00:00", " UTC")
    if record.verdict is not None:
        facts["took"] = words.seconds(record.verdict.seconds)
        facts["GPU-hours"] = words.number(record.verdict.gpu_hours)
        facts["cost"] = _cost(record, record.verdict.cost)
    return list(facts.items())


def _cost(record: Record, cost: float | None) -> str:
    if cost is None:
        return "no price in the profile"
    prices = record.cluster.profile.get("prices") if record.cluster is not None else None
    currency = prices.get("currency", "") if isinstance(prices, dict) else ""
    return f"{words.number(cost)} {currency}".strip()
