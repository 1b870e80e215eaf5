"""The checkpoint suite's own arithmetic and judgement, and the payload's store, on one rank and without a kill."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from seatrial import config
from seatrial.errors import InconclusiveError
from seatrial.job import Ending, Event, JobSpec, Moment, Result, StreamFault, Timeline
from seatrial.payload import checkpoint, checkpoints, engines
from seatrial.payload.events import Position
from seatrial.payload.group import Group
from seatrial.payload.settings import SettingsError
from seatrial.payload.shards import DamageError
from seatrial.payload.training import Order, Place, Sizes, Training, mixed
from seatrial.site import Site
from seatrial.suites.checkpoint import goodput, plan
from seatrial.suites.checkpoint.goodput import Costs
from seatrial.suites.checkpoint.trace import Trace, compare, spread

# What checkpoints and failures leave of the time.


@pytest.mark.parametrize(("stall", "mean"), [(5.0, 3600.0), (0.05, 1e6), (60.0, 7200.0), (300.0, 3000.0)])
def test_no_other_interval_leaves_more_than_dalys(stall: float, mean: float) -> None:
    costs = Costs(stall, restart=30.0)
    best = goodput.goodput(costs, goodput.daly(stall, mean), mean)
    tried = [goodput.goodput(costs, factor / 100 * goodput.young(stall, mean), mean) for factor in range(10, 400)]
    assert max(tried) <= best * 1.0005
    assert best < 1


def test_goodput_is_what_a_simulated_run_gets() -> None:
    costs, interval, mean = Costs(stall=10.0, restart=40.0), 200.0, 1500.0
    dice, clock, done = random.Random(4), 0.0, 0.0
    failure = dice.expovariate(1 / mean)
    while done < 3e6:
        attempt = interval + costs.stall
        if failure >= attempt:
            clock, failure, done = clock + attempt, failure - attempt, done + interval
            continue
        clock += failure
        failure = dice.expovariate(1 / mean)
        while failure < costs.restart:
            clock += failure
            failure = dice.expovariate(1 / mean)
        clock, failure = clock + costs.restart, failure - costs.restart
    assert goodput.goodput(costs, interval, mean) == pytest.approx(done / clock, rel=0.02)


def test_the_published_run_fails_every_three_hours() -> None:
    mean = goodput.mean_time_between_failures(goodput.LLAMA_NODES, 3.79)
    assert mean / 3600 == pytest.approx(3.09, rel=0.01)


def test_a_stall_longer_than_two_lives_is_not_worth_a_better_interval() -> None:
    assert goodput.daly(500.0, 200.0) == 200.0


# Two runs held against each other.

DIGESTS = {"weights": "w", "optimizer": "o", "rng.torch": "t", "data": "d"}


def events(rank: int, first: int, last: int, drift: float = 0.0, final: bool = True) -> Iterator[Event]:
    """What a rank says of a run from step ``first`` on, whose losses are off by ``drift``."""

    def event(name: str, **said: Any) -> Event:
        return Event(rank, 0, 0.0, name, said)

    def digests(step: int) -> dict[str, str]:
        return {
            part: f"{digest}{rank}{step}{drift if part in ('weights', 'optimizer') else ''}"
            for part, digest in DIGESTS.items()
        }

    if first:
        yield event("loaded", step=first, digests=digests(first))
    for step in range(first + 1, last + 1):
        loss = (4.0 / step + rank + drift).hex()
        yield event("step", step=step, loss=loss, samples=f"s{rank}{step}", rate=(0.1).hex())
        if step % 4 == 0:
            yield event("saving", step=step, digests=digests(step))
            yield event("saved", step=step, stall_seconds=0.1)
    if final:
        yield event("final", step=last, digests=digests(last))


def result(first: int, last: int, drift: float = 0.0, faults: tuple[StreamFault, ...] = ()) -> Result:
    """A job of two ranks."""
    return Result(
        job="checkpoint-1",
        spec=JobSpec("checkpoint", "checkpoint", {}, ranks=2),
        ending=Ending.COMPLETED,
        cause="",
        culprits=(),
        exits={},
        events={rank: tuple(events(rank, first, last, drift, final=last == 16)) for rank in range(2)},
        faults=faults,
        timeline=Timeline(Moment(0, "")),
        nodes={},
        pids={},
        logs=Path("logs"),
    )


def spoilt(run: Result, rank: int, name: str, at: int, **said: Any) -> Result:
    """The same run, of which one event says something else."""

    def spoil(event: Event) -> Event:
        hit = (event.rank, event.name, event.fields["step"]) == (rank, name, at)
        return Event(event.rank, event.seq, event.t, event.name, {**event.fields, **said}) if hit else event

    return Result(**{**run.__dict__, "events": {r: tuple(map(spoil, own)) for r, own in run.events.items()}})


WHOLE = Trace(result(0, 16))


@pytest.mark.parametrize(("first", "last"), [(4, 8), (8, 16), (0, 6)])
def test_a_right_restore_has_no_difference(first: int, last: int) -> None:
    found = compare(WHOLE, Trace(result(first, last)))
    assert found.differences == ()
    loaded, saved, final = bool(first), last // 4 - first // 4, last == 16
    assert found.compared == 2 * ((last - first) * 3 + len(DIGESTS) * (loaded + saved + final))


@pytest.mark.parametrize(
    ("name", "step", "said", "told"),
    [
        ("step", 6, {"loss": (1.0).hex()}, "step 6, rank 1: loss 1.0, expected 1.66"),
        ("step", 5, {"samples": "other"}, "step 5, rank 1: samples other, expected s15"),
        ("step", 7, {"rate": (0.2).hex()}, "step 7, rank 1: rate 0.2, expected 0.1"),
        ("loaded", 4, {"digests": {}}, "step 4, rank 1: digest of loaded data missing, expected d14"),
        ("final", 16, {"digests": {**DIGESTS, "optimizer": "zero"}}, "rank 1: digest of final"),
    ],
)
def test_the_first_difference_is_named(name: str, step: int, said: dict[str, Any], told: str) -> None:
    found = compare(WHOLE, Trace(spoilt(result(4, 16), 1, name, step, **said)))
    assert found.differences
    assert told in str(found.differences[0])


def test_a_step_that_is_missing_differs() -> None:
    run = result(4, 8)
    fewer = {rank: tuple(e for e in own if e.fields.get("step") != 6) for rank, own in run.events.items()}
    found = compare(WHOLE, Trace(Result(**{**run.__dict__, "events": fewer})))
    assert "step 6, rank 0: loss missing" in str(found.differences[0])


def test_less_than_two_steps_prove_nothing() -> None:
    with pytest.raises(InconclusiveError, match="2 steps are needed"):
        compare(WHOLE, Trace(result(4, 5)))


def test_ranks_that_went_on_from_different_steps_prove_nothing() -> None:
    run = result(4, 8)
    with pytest.raises(InconclusiveError, match=r"different steps: \[4, 8\]"):
        compare(WHOLE, Trace(spoilt(run, 1, "loaded", 4, step=8)))


def test_damaged_events_prove_nothing() -> None:
    with pytest.raises(InconclusiveError, match="damaged events"):
        Trace(result(4, 8, faults=(StreamFault(1, 3, "gap", "1 missing"),)))


def test_the_weaker_proof_allows_the_spread_of_two_runs_and_no_more() -> None:
    allowed = spread(WHOLE, Trace(result(0, 16, drift=0.01)))
    assert allowed == pytest.approx(0.01)
    assert compare(WHOLE, Trace(result(4, 16, drift=0.009)), allowed).differences == ()
    assert compare(WHOLE, Trace(result(4, 16, drift=0.02)), allowed).differences != ()
    other_order = spoilt(result(4, 16, drift=0.009), 0, "step", 9, samples="other")
    assert len(compare(WHOLE, Trace(other_order), allowed).differences) == 1


# The plan.


def site(device: str, memory: int, storage: tuple[object, ...] = ()) -> Site:
    profile = {"name": "x", "target": {"kind": "local"}, "pools": [{"name": "p"}], "storage": storage}
    cluster = config.Cluster.model_validate(profile)
    return Site(cluster, {}, device, 1, 2, 2 if device == "cuda" else 0, memory, seed=1)


@pytest.mark.parametrize("memory", [16, 24, 40, 80, 141, 192])
def test_the_model_fits_the_device(memory: int) -> None:
    sizes = plan.model(site("cuda", memory * 10**9))
    weights = 12 * sizes["layers"] * sizes["width"] ** 2
    assert weights * plan.BYTES_A_WEIGHT < memory * 10**9 / 2
    assert sizes["width"] % sizes["heads"] == 0
    if memory >= 80:
        assert 14e9 < weights * 12 < 15e9, "weights and two moments, as a rank of a large training has"


def test_every_kill_leaves_steps_on_both_sides() -> None:
    for kills in plan.CHAINS.values():
        begin = 0
        for kill in kills:
            whole = kill.step - 1 if kill.where == "step" else kill.step - plan.EVERY
            begin, before = whole // plan.EVERY * plan.EVERY, begin
            assert before + 2 <= kill.step - 1
            assert 0 < begin <= plan.STEPS - 2


def test_the_suite_kills_five_times_and_more() -> None:
    assert sum(map(len, plan.CHAINS.values())) >= 5


def test_a_shared_file_system_comes_before_what_a_node_has() -> None:
    local = {"name": "scratch", "kind": "node-local", "path": "/scratch"}
    shared = {"name": "s", "kind": "shared-filesystem", "path": "/mnt", "minimum": {"write": "20 GB/s"}}
    both = site("cpu", 10**9, (local, shared))
    chosen = plan.storage(both)
    assert chosen is not None
    assert chosen.path == "/mnt"
    assert plan.promises(both) == {"write": 20.0}
    assert [p.id for p in plan.rates(both)][-1] == "checkpoint.write.promised"
    assert plan.storage(site("cpu", 10**9)) is None


# The payload.

SIZES = Sizes(
    layers=1,
    width=16,
    heads=2,
    context=8,
    vocabulary=16,
    batch=2,
    accumulation=2,
    samples=26,
    workers=0,
    steps=8,
    seed=5,
)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group of one rank."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield Group(torch.device("cpu"), Position())
    dist.destroy_process_group()
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def as_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")


def store(group: Group, folder: Path, run: str = "r", keep: int = 2) -> checkpoints.Store:
    return checkpoints.Store(group, str(folder / "data"), run, keep)


def trained(group: Group, steps: int) -> Training:
    training = Training(group, SIZES)
    for _ in range(steps):
        training.step(lambda: None)
    return training


def save(group: Group, store: checkpoints.Store, training: Training) -> None:
    engine = engines.Shards(group, store, lambda *_: None)
    engines.Save(group, store, engine, "shards", training).finish(lambda *_: None)


def test_a_restored_training_is_the_one_that_went_on(group: Group, tmp_path: Path) -> None:
    kept, training = store(group, tmp_path), trained(group, 3)
    save(group, kept, training)
    saved = training.digests()
    went_on = [training.step(lambda: None) for _ in range(5)]
    restored = Training(group, SIZES)
    (found,) = kept.found()
    assert found.manifest is not None
    engines.Shards(group, kept, lambda *_: None).load(3, found.manifest, restored)
    assert restored.digests() == saved
    assert [restored.step(lambda: None) for _ in range(5)] == went_on
    assert restored.digests() == training.digests()


def test_only_the_newest_are_kept_and_no_torn_one(group: Group, tmp_path: Path) -> None:
    kept, training = store(group, tmp_path), trained(group, 0)
    (tmp_path / "data" / "step-00000002").mkdir()
    for step in (3, 4, 5):
        training.done = step
        save(group, kept, training)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": "another"}, "run 'another', expected 'r'"),
        ({"world_size": 4}, "world_size 4, expected 1"),
        ({"step": 9}, "step 9, expected 0"),
        ({"shards": []}, r"the ranks \[\]"),
        ({"shards": None}, "no manifest: TypeError"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(group: Group, tmp_path: Path, change: dict[str, Any], why: str) -> None:
    kept = store(group, tmp_path)
    save(group, kept, trained(group, 0))
    path = Path(kept.path(0)) / checkpoints.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (found,) = kept.found()
    assert found.manifest is None
    with pytest.raises(DamageError, match=why):
        raise DamageError(found.why)


def test_half_a_manifest_is_refused(group: Group, tmp_path: Path) -> None:
    kept = store(group, tmp_path)
    save(group, kept, trained(group, 0))
    path = Path(kept.path(0)) / checkpoints.MANIFEST
    path.write_text(path.read_text()[:-9])
    assert kept.found()[0].manifest is None


def test_what_was_torn_is_no_checkpoint_while_it_is_written_again(group: Group, tmp_path: Path) -> None:
    kept = store(group, tmp_path)
    save(group, kept, trained(group, 0))
    kept.begin(0)
    assert "never finished" in kept.found()[0].why


def test_two_epochs_have_the_same_samples_in_another_order() -> None:
    order = iter(Order(SIZES, 0, 2, Place()))
    batches = SIZES.samples // 2 // SIZES.batch
    first, second = ([next(order) for _ in range(batches)] for _ in range(2))
    assert {epoch for batch in second for epoch, _ in batch} == {1}
    assert first != [[(0, index) for _, index in batch] for batch in second]


def test_an_order_goes_on_within_an_epoch() -> None:
    whole = iter(Order(SIZES, 1, 2, Place()))
    batches = [next(whole) for _ in range(10)]
    rest = iter(Order(SIZES, 1, 2, Place(0, 4)))
    assert [next(rest) for _ in range(6)] == batches[4:]


def test_ranks_share_no_sample() -> None:
    ranks = [iter(Order(SIZES, rank, 2, Place())) for rank in range(2)]
    mine, theirs = ({key for _ in range(6) for key in next(rank)} for rank in ranks)
    assert not mine & theirs


def test_seeds_are_mixed_without_a_clash() -> None:
    assert len({mixed(a, b) for a in range(50) for b in range(50)}) == 2500
    assert all(0 <= mixed(number) < 2**63 for number in range(100))
    assert not math.isclose(mixed(1), mixed(2), rel_tol=1e-6)


def test_all_wrong_settings_are_told_at_once() -> None:
    wrong = {"folder": "here", "engine": "none", "steps": 0, "hold": {"where": "x"}, "device": "tpu", "width": 63}
    with pytest.raises(SettingsError) as caught:
        checkpoint._settle(wrong)
    for word in ("absolute path", "engine 'none'", "steps 0", "hold", "device 'tpu'", "multiple"):
        assert word in str(caught.value)
