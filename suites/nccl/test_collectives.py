"""All ranks talk to each other: every collective is right, fast enough, and no rank keeps the others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pytest

from seatrial.check import Planned
from seatrial.fixtures import Check, Launch, Telemetry
from seatrial.job import Result
from seatrial.parse.nccl_log import transport_of
from seatrial.site import Site
from seatrial.stats import median_interval
from seatrial.suites import completion, window

from . import plan
from .sweep import Row, Sweep


@pytest.fixture(scope="module")
def sweep(launch: Launch, site: Site) -> Iterator[Sweep]:
    with launch(plan.sweep(site)) as job:
        yield Sweep(job.wait())


@pytest.mark.trial(job=plan.sweep, checks=plan.completion)
@pytest.mark.needs(ranks=2)
def test_every_rank_completes(sweep: Sweep, check: Check) -> None:
    completion.judge(check, "nccl.job.complete", sweep.result, completion.rows_done)


@pytest.mark.trial(job=plan.sweep, checks=plan.collective)
@pytest.mark.needs(ranks=2)
@pytest.mark.parametrize("dtype", plan.DTYPES)
@pytest.mark.parametrize("op", plan.OPS)
def test_collective(sweep: Sweep, site: Site, check: Check, op: str, dtype: str) -> None:
    rows = {row.asked: row for row in sweep.rows(op, dtype)}
    lacking = sweep.unsupported(op, dtype)
    if None in lacking:
        pytest.skip(f"{op} of {dtype}: {lacking[None]}")
    judge_results(sweep, check, op, dtype, list(rows.values()))
    ring = sweep.ring()
    for planned in plan.collective(site, op, dtype)[1:]:
        size = plan.size_of(planned, site)
        if size in lacking:
            check.skip(planned, lacking[size])
        elif size not in rows:
            check(planned, None, unit="GB/s", result=sweep.result, n=0, why="no row of this size")
        else:
            smaller = max((row for row in rows.values() if row.asked < size), key=lambda row: row.asked, default=None)
            judge_speed(sweep.result, check, planned, rows[size], ring.get(size), smaller)


def judge_results(sweep: Sweep, check: Check, op: str, dtype: str, rows: list[Row]) -> None:
    wrong, checked = sum(row.wrong for row in rows), sum(row.checked for row in rows)
    detail = next(
        (row.first_wrong for row in rows if row.wrong), f"{checked} elements compared, each with its exact value"
    )
    value = wrong if checked else None
    check(
        f"nccl.{op}.correct",
        value,
        unit="wrong elements",
        result=sweep.result,
        n=checked,
        why="no element was compared",
        detail=detail,
        dtype=dtype,
    )


def judge_speed(
    result: Result, check: Check, planned: Planned, row: Row, ring: float | None, smaller: Row | None
) -> None:
    samples = row.busbw
    check(
        planned,
        median(samples),
        unit="GB/s",
        result=result,
        n=len(samples),
        interval=median_interval(samples),
        references={"ring": ring, "smaller size": None if smaller is None else median(smaller.busbw)},
        detail=f"slowest rank's time: median {median(row.times) * 1e6:.1f} us over {len(samples)} iterations",
    )


@pytest.mark.trial(job=plan.sweep, checks=plan.lateness)
@pytest.mark.needs(ranks=2)
def test_no_rank_is_late(sweep: Sweep, check: Check) -> None:
    for rank, share in sweep.lateness().items():
        detail = f"the others spent {share:.1%} of the measured time waiting for rank {rank}"
        check("nccl.rank.lateness", share, unit="share", result=sweep.result, detail=detail, rank=str(rank))


@pytest.mark.trial(job=plan.sweep, checks=plan.transport)
@pytest.mark.needs(ranks=2, feature="cuda")
def test_transport(sweep: Sweep, site: Site, check: Check) -> None:
    completion.sound(sweep.result)
    lines = [line for event in sweep.result.of("transport") for line in event.fields["lines"]]
    chosen = transport_of("\n".join(lines))
    unexpected = sorted(chosen.kinds - plan.expected_transports(site))
    check(
        "nccl.transport.kind",
        len(unexpected) if chosen.kinds else None,
        unit="unexpected transports",
        result=sweep.result,
        why="NCCL's log names no transport",
        detail=f"chosen: {', '.join(sorted(chosen.kinds))}; unexpected: {', '.join(unexpected) or 'none'}",
    )


@pytest.mark.trial(job=plan.sweep, checks=plan.quiet)
@pytest.mark.needs(ranks=2)
def test_the_window_was_quiet(sweep: Sweep, site: Site, telemetry: Telemetry, check: Check) -> None:
    window.judge(check, site, sweep.result, telemetry(sweep.result))
