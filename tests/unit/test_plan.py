"""The plan: known in full before the first job, within the profile's limits, and told before anything runs."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from seatrial.bounds import Bound, Bounds, Entry
from seatrial.check import Place, Planned
from seatrial.config import Cluster
from seatrial.errors import UsageError
from seatrial.job import Budget, JobSpec
from seatrial.plan import Plan, footprint
from seatrial.site import Site

SELECTORS = {"topology": "any", "fabric": "any", "workload": "training", "sharing": "full-gpu"}
SPEED = Planned("nccl.all_reduce.busbw", Place({"size": "1 MiB"}))
RIGHT = Planned("nccl.all_reduce.correct")


def cluster(**more: Any) -> Cluster:
    pools = [{"name": "train", "accelerator": "h100-80gb", "nodes": 2, "gpus_per_node": 8}]
    return Cluster.model_validate({"name": "acme", "target": {"kind": "local"}, "pools": pools, **more})


def site(profile: Cluster | None = None) -> Site:
    """Two nodes of eight GPUs."""
    return Site(
        cluster=profile or cluster(),
        selectors={"accelerator": "h100-80gb", **SELECTORS},
        device="cuda",
        nodes=2,
        ranks_per_node=8,
        gpus_per_node=8,
        memory_per_rank=80 * 2**30,
        seed=1,
    )


def bound(check: str, unit: str, **more: Any) -> Bound:
    date = datetime.date(2026, 1, 1)
    evidence = {"source": "the datasheet", "date": date, "conditions": "one quiet node", "confidence": "high"}
    return Bound.model_validate({"check": check, "unit": unit, **evidence, **more})


def entry(check: str, unit: str, better: str, *where: str) -> Entry:
    words = {"proves": "something", "cannot": "say more", "next": "look"}
    return Entry.model_validate({"id": check, "unit": unit, "better": better, "where": where, **words})


ENTRIES = (
    entry("nccl.{op}.busbw", "GB/s", "higher", "size"),
    entry("nccl.{op}.correct", "wrong elements", "equal"),
)
EXACT = bound("nccl.*.correct", "wrong elements", equals=0)
FLOOR = bound("nccl.*.busbw", "GB/s", at_least=100, when={"accelerator": "h100-80gb", "size": "1 MiB"})


def plan(*bounds: Bound) -> Plan:
    """A plan of two checks that one test judges."""
    plan = Plan(site(), Bounds(ENTRIES, bounds))
    plan.add(SPEED, "test_speed")
    plan.add(RIGHT, "test_speed")
    return plan


def job(name: str = "sweep", ranks: int = 16, nodes: int = 2, gpus_per_rank: int = 1) -> JobSpec:
    """A job that may hold its hardware for half an hour."""
    budget = Budget(queue=600, start=600, silence=60, total=1100, cleanup=100)
    return JobSpec(name, "collectives", {"seed": 1}, ranks, gpus_per_rank, nodes, budget=budget)


# The checks.


def test_the_record_holds_every_check_with_its_test() -> None:
    assert plan(EXACT).rows() == [
        {"id": "nccl.all_reduce.busbw", "where": {"size": "1 MiB"}, "test": "test_speed", "bound": False},
        {"id": "nccl.all_reduce.correct", "where": {}, "test": "test_speed", "bound": True},
    ]


def test_a_test_has_its_own_checks() -> None:
    known = plan()
    known.add(Planned("nccl.broadcast.correct"), "test_other")
    assert known.of("test_speed") == [SPEED, RIGHT]
    assert [str(planned) for planned in known.of("test_other")] == ["nccl.broadcast.correct"]
    assert known.of("test_nothing") == []


def test_a_check_that_no_catalogue_describes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"test_speed: plans the check 'nccl\.all_reduce\.speed'"):
        plan().add(Planned("nccl.all_reduce.speed"), "test_speed")


def test_a_check_that_two_tests_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="planned by two tests, test_speed and test_other"):
        plan().add(RIGHT, "test_other")


def test_the_same_check_at_another_place_is_another_check() -> None:
    known = plan()
    known.add(Planned(SPEED.id, Place({"size": "8 MiB"})), "test_other")
    assert len(known) == 3


def test_the_bound_is_found_by_the_pool_and_by_the_checks_own_place() -> None:
    known = plan(EXACT, FLOOR)
    assert known.bound(SPEED) == FLOOR
    assert known.bound(Planned(SPEED.id, Place({"size": "8 MiB"}))) is None
    assert (known.armed, known.record_only) == (2, 0)


def test_a_bound_of_low_confidence_is_found_but_decides_nothing() -> None:
    guess = bound("nccl.*.busbw", "GB/s", at_least=100, confidence="low")
    known = plan(guess)
    assert known.bound(SPEED) == guess
    assert known.gate(SPEED) is None
    assert (known.armed, known.record_only) == (0, 2)


def test_what_is_skipped_counts_neither_as_armed_nor_as_bare() -> None:
    known = plan(EXACT)
    known.skip("test_speed", "needs 4 nodes, this cluster has 2")
    assert (known.armed, known.record_only) == (0, 0)
    assert known.notes() == []


def test_unused_bounds_and_checks_without_one_are_told() -> None:
    unused = bound("nccl.broadcast.busbw", "GB/s", at_least=1)
    assert plan(EXACT, unused).notes() == [
        "bound that no check of this run uses: nccl.broadcast.busbw",
        "check that no bound decides: nccl.all_reduce.busbw [size=1 MiB]",
    ]


@pytest.mark.parametrize("when", [{"accelerator": "a100-80gb"}, {"device": "cpu"}, {"ranks": "8"}])
def test_a_bound_for_other_hardware_is_not_called_unused(when: dict[str, str]) -> None:
    assert plan(EXACT, FLOOR, bound("nccl.broadcast.busbw", "GB/s", at_least=1, when=when)).notes() == []


# What it takes.


def test_the_footprint_is_the_largest_job_and_the_sum_of_their_time() -> None:
    profile = cluster(prices={"currency": "USD", "gpu_hour": 2, "node_hour": 10})
    small = job("small", ranks=8, nodes=1)
    assert footprint(profile, [job(), small]) == (16, 12.0, 12 * 2 + 1.5 * 10)
    assert footprint(profile, []) == (0, 0, 0)


def test_a_job_of_cores_costs_its_nodes_only() -> None:
    profile = cluster(prices={"currency": "USD", "gpu_hour": 2, "node_hour": 10})
    assert footprint(profile, [job(gpus_per_rank=0)]) == (0, 0, 10.0)


def test_without_prices_there_is_no_cost() -> None:
    assert footprint(cluster(), [job()]) == (16, 8.0, None)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"gpus": 8}, "gpus: expected at most 8, this run could take 16"),
        ({"gpu_hours": 7}, "gpu_hours: expected at most 7, this run could take 8"),
        ({"cost": 15}, "cost: expected at most 15, this run could take 16"),
    ],
)
def test_a_run_that_could_take_more_than_the_profile_allows_is_refused(limits: dict[str, float], told: str) -> None:
    prices = {"currency": "USD", "gpu_hour": 2}
    with pytest.raises(UsageError, match=told):
        footprint(cluster(limits=limits, prices=prices), [job()])


def test_a_run_just_within_its_limits_is_not_refused() -> None:
    limits = {"gpus": 16, "gpu_hours": 8, "cost": 16}
    prices = {"currency": "USD", "gpu_hour": 2}
    assert footprint(cluster(limits=limits, prices=prices), [job()]) == (16, 8.0, 16.0)


def test_the_paper_tells_jobs_budgets_cost_and_what_decides_each_check() -> None:
    known = plan(EXACT)
    known.add(Planned("nccl.broadcast.correct"), "test_other")
    known.skip("test_other", "needs a switch")
    known.jobs["sweep"] = job()
    profile = cluster(prices={"currency": "USD", "gpu_hour": 2})
    assert list(known.paper(profile)) == [
        "plan for cluster acme: 1 jobs, 3 checks (1 with a bound)",
        "job sweep: 16 ranks on 2 node(s), 16 GPUs; "
        "budgets: queue 10 min, start 10 min, silence 60 s, total 18.3 min, clean-up 100 s",
        '  payload collectives {"seed": 1}',
        "at most 16 GPUs at once, 8.00 GPU-hours if every budget is spent, cost: 16.00 USD",
        "  check nccl.all_reduce.busbw [size=1 MiB]: no bound decides it",
        "  check nccl.all_reduce.correct: exactly 0 wrong elements",
        "  check nccl.broadcast.correct: skipped: needs a switch",
    ]


def test_the_paper_says_that_there_is_no_price() -> None:
    assert "cost: no price in the profile" in "\n".join(plan().paper(cluster()))
