"""The image's own nccl-tests, where it has them: a second engine that must give the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seatrial.errors import InconclusiveError
from seatrial.fixtures import Check, Launch
from seatrial.job import Result
from seatrial.parse import nccl_tests
from seatrial.site import Site
from seatrial.suites import completion

from . import plan


@pytest.fixture(scope="module")
def engine(launch: Launch, site: Site) -> Iterator[Result]:
    with launch(plan.engine(site)) as job:
        yield job.wait()


@pytest.mark.trial(job=plan.engine, checks=plan.perf)
@pytest.mark.needs(ranks=2, feature="cuda")
def test_all_reduce_perf(engine: Result, site: Site, check: Check) -> None:
    if absent := engine.of("unsupported"):
        pytest.skip(str(absent[0].fields["why"]))
    completion.sound(engine)
    report = nccl_tests.parse(printed(engine))
    exit_code = engine.of("done")[0].fields["exit"]
    if exit_code != 0:
        raise InconclusiveError(f"job {engine.job}: all_reduce_perf ended with status {exit_code}")
    if report.problems:
        raise InconclusiveError(f"job {engine.job}: all_reduce_perf: {'; '.join(report.problems)}")
    for planned in plan.perf(site):
        row = next((row for row in report.rows if row.size == plan.sizes(site)[-1]), None)
        check(
            planned,
            None if row is None else row.out_of_place.busbw,
            unit="GB/s",
            result=engine,
            why="all_reduce_perf printed no row of this size",
        )


def printed(engine: Result) -> str:
    """What the program printed; a long line came in parts."""
    lines: dict[int, str] = {}
    for event in engine.of("line"):
        number = int(event.fields["n"])
        lines[number] = lines.get(number, "") + str(event.fields["text"])
    return "\n".join(lines[number] for number in sorted(lines))
