"""The map of nodes by metrics: where on the cluster the findings are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seatrial.record import Check, Job, Record
from seatrial.reports.evidence import severity

ROWS = 40
"""So many nodes without a finding are shown, the others counted."""


@dataclass(frozen=True)
class Cell:
    """The worst outcome of one metric on one node, and how many checks stand behind it."""

    outcome: str
    count: int


@dataclass(frozen=True)
class Map:
    """Nodes by metrics; ``folded`` nodes have passes only and are not shown."""

    metrics: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell | None]]]
    folded: int


def node_map(record: Record) -> Map:
    """The map of every check that belongs to one node: by its place, its rank, or its job's only node."""
    jobs = {job.id: job for job in record.jobs}
    by_node: dict[str, dict[str, list[Check]]] = {node.name: {} for node in record.nodes}
    metrics: dict[str, None] = {}
    for check in record.checks:
        node = _node_of(check, jobs)
        if node is not None:
            metrics[check.id] = None
            by_node.setdefault(node, {}).setdefault(check.id, []).append(check)
    rows = [(node, [_cell(found.get(metric, [])) for metric in metrics]) for node, found in by_node.items()]
    troubled = [row for row in rows if _has_finding(row[1])]
    quiet = [row for row in rows if not _has_finding(row[1])]
    return Map(list(metrics), troubled + quiet[:ROWS], max(len(quiet) - ROWS, 0))


def _node_of(check: Check, jobs: Mapping[str, Job]) -> str | None:
    if "node" in check.where:
        return check.where["node"]
    job = jobs.get(check.job or "")
    if job is None:
        return None
    rank = check.where.get("rank", "")
    if rank.isdecimal() and int(rank) in job.placement:
        return job.placement[int(rank)]
    return job.nodes[0] if len(job.nodes) == 1 else None


def _cell(checks: Sequence[Check]) -> Cell | None:
    return Cell(min(checks, key=severity).outcome, len(checks)) if checks else None


def _has_finding(cells: Sequence[Cell | None]) -> bool:
    return any(cell is not None and cell.outcome not in ("pass", "skip") for cell in cells)
