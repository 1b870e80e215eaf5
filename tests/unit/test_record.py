"""The run record: what is written can be read, and what cannot be read is told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import record
from seatrial.errors import UsageError
from tests import samples

RUN = {
    "schema": 1,
    "id": "r1",
    "argv": ["pytest"],
    "seatrial": "0.1.0",
    "python": "3.11.2",
    "started": "2026-12-01T00:00:00+00:00",
    "host": "h",
}
EVENT = {"job": "j", "rank": 0, "clock": 1.0, "name": "beat", "said": {}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def started(path: Path) -> record.Writer:
    writer = record.Writer(path)
    writer.write("run", 0.0, **RUN)
    return writer


def test_reads_back_every_type(path: Path) -> None:
    read = record.read(samples.rejected(path))
    assert read.damage == ()
    assert read.run is not None
    assert read.run.schema_version == record.SCHEMA
    assert read.cluster is not None
    assert read.cluster.name == "lab-hosts"
    assert read.plan is not None
    assert len(read.plan.checks) == 60
    assert [node.name for node in read.nodes] == ["node-0", "node-1"]
    assert read.jobs[1].exit[5] == -9
    assert read.jobs[1].exit[7] is None
    assert read.jobs[1].timeline.ended == record.Moment(t=20.1, cause="rank 5 was ended by SIGKILL")
    assert read.series[0].t[:2] == (0.1, 0.2)
    assert read.waivers[0].owner == "j.doe"
    assert read.verdict is not None
    assert read.verdict.counts == read.counts()
    assert set(read.counts()) == {"pass", "fail", "inconclusive", "uncalibrated", "skip", "waived", "error"}
    assert record.read(samples.accepted(path.with_name("other.jsonl"))).events[0].said == {"loopback": 2.6}


def test_reads_back_the_exact_numbers(path: Path) -> None:
    with started(path) as writer:
        writer.write("series", [0.1, 0.2], job="j", node="n", metric="m", unit="W", v=[0.1 + 0.2, 1e-300], gaps=0)
    assert record.read(path).series[0].v == (0.1 + 0.2, 1e-300)


def test_a_line_is_on_its_way_when_write_returns(path: Path) -> None:
    writer = started(path)
    assert path.read_bytes().endswith(b"\n")
    writer.write("event", 1.0, seq=0, **EVENT)
    assert path.read_bytes().count(b"\n") == 2
    writer.close()


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("event", EVENT | {"seq": 0, "said": {"time_us": [1.0, float("nan")]}}, r"event\.said\.time_us\[1\] is nan"),
        ("event", EVENT | {"seq": 0, "clock": float("inf")}, r"event\.clock is inf"),
        ("event", EVENT, r"seq: Field required"),
        ("event", EVENT | {"seq": "0"}, r"seq: Input should be a valid integer"),
        ("event", EVENT | {"seq": 0, "sed": 1}, r"unknown fields \['sed'\]"),
        ("event", EVENT | {"seq": 0, "said": {"path": Path("x")}}, r"is not JSON"),
        ("evnet", EVENT, r"unknown type 'evnet'; expected one of run, plan"),
        ("check", {"id": "a.b", "outcome": "passed", "unit": ""}, r"outcome: Input should be 'pass'"),
    ],
)
def test_refuses_what_it_could_not_read(path: Path, kind: str, fields: dict[str, object], said: str) -> None:
    with started(path) as writer:
        before = path.read_bytes()
        with pytest.raises(ValueError, match=said):
            writer.write(kind, 1.0, **fields)
        assert path.read_bytes() == before


def test_refuses_times_without_values(path: Path) -> None:
    with started(path) as writer, pytest.raises(ValueError, match="2 times for 1 values"):
        writer.write("series", [0.0, 1.0], job="j", node="n", metric="m", unit="W", v=[1.0], gaps=0)


def test_refuses_a_time_that_is_not_finite(path: Path) -> None:
    with started(path) as writer, pytest.raises(ValueError, match=r"event\.t is nan"):
        writer.write("event", float("nan"), seq=0, **EVENT)


def test_threads_share_a_writer(path: Path) -> None:
    def write(rank: int) -> None:
        for seq in range(100):
            writer.write("event", 1.0, **(EVENT | {"rank": rank, "seq": seq, "said": {"pad": "x" * 3000}}))

    with started(path) as writer:
        threads = [threading.Thread(target=write, args=(rank,)) for rank in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    read = record.read(path)
    assert read.damage == ()
    for rank in range(8):
        assert [event.seq for event in read.events if event.rank == rank] == list(range(100))


KILLED = """
import sys
from pathlib import Path
from tests.unit.test_record import EVENT, started
writer = started(Path(sys.argv[1]))
for seq in range(10**9):
    writer.write("event", 1.0, seq=seq, **EVENT)
    if seq == 50:
        print("running", flush=True)
"""


def test_survives_a_kill(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.kill()
    read = record.read(path)
    assert read.verdict is None
    assert [event.seq for event in read.events] == list(range(len(read.events)))
    assert len(read.events) > 50
    assert all("torn" in fault for fault in read.damage)


def test_tells_a_torn_last_line(path: Path) -> None:
    read = record.read(samples.unfinished(path))
    assert read.damage == ("line 26, the last, is torn after 41 bytes: its writer was killed",)
    assert read.verdict is None
    assert len(read.checks) == 20
    assert len(read.missing()) == 32


def test_every_cut_is_seen(path: Path) -> None:
    samples.accepted(path)
    whole = path.read_bytes()
    for end in [*range(0, len(whole) - 1, 997), len(whole) - 2]:
        path.write_bytes(whole[:end])
        read = record.read(path)
        assert read.verdict is None
        assert len(read.checks) < 52 or read.damage


def test_a_writer_leaves_a_torn_line_on_its_own_line(path: Path) -> None:
    samples.unfinished(path)
    with record.Writer(path) as writer:
        writer.write("event", 30.0, seq=0, **EVENT)
    read = record.read(path)
    assert len(read.events) == 1
    assert len(read.damage) == 1
    assert read.damage[0].startswith("line 26: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"type":"check"', "line 2: Expecting"),
        (b'{"type":"event","t":1.0}', "line 2: job: Field required"),
        (b'{"type":"event","t":NaN,"job":"j"}', "line 2: NaN is not a finite number"),
        (b'{"type":"event","t":1e999,"job":"j"}', "line 2: 1e999 is not a finite number"),
        (b"[1]", "line 2: expected an object with a type"),
        (b'{"t":1.0}', "line 2: expected an object with a type"),
        (b'{"type":"ev\xffent","t":1.0}', "line 2: 'utf-8' codec"),
        (b"[" * 100_000, "line 2: "),
    ],
)
def test_tells_damage_with_its_line(path: Path, line: bytes, said: str) -> None:
    with started(path) as writer:
        pass
    path.write_bytes(path.read_bytes() + line + b"\n")
    with record.Writer(path) as writer:
        writer.write("event", 1.0, seq=7, **EVENT)
    read = record.read(path)
    assert [event.seq for event in read.events] == [7]
    assert len(read.damage) == 1
    assert read.damage[0].startswith(said)


def test_skips_types_of_a_later_version(path: Path) -> None:
    started(path).close()
    path.write_bytes(path.read_bytes() + b'{"type":"weather","t":1.0,"sky":"blue"}\n')
    assert record.read(path).damage == ()


def test_refuses_a_later_schema(path: Path) -> None:
    with record.Writer(path) as writer:
        writer.write("run", 0.0, **(RUN | {"schema": 2, "seatrial": "3.0"}))
    with pytest.raises(UsageError, match=r"has schema 2, this seatrial reads 1; read it with .* 3\.0"):
        record.read(path)


def test_refuses_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(UsageError, match=r"record\.jsonl cannot be read: No such file"):
        record.read(path)


def test_tells_what_is_out_of_place(path: Path) -> None:
    samples.accepted(path)
    run, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*rest, rest[-1], run]))
    faults = "\n".join(record.read(path).damage)
    assert "the first line is cluster, expected run" in faults
    assert "2 lines of type verdict, expected one" in faults
    assert "2 lines after the verdict" in faults


def without(path: Path, index: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[index]
    path.write_bytes(b"".join(lines))


def test_tells_a_check_that_vanished(path: Path) -> None:
    samples.accepted(path)
    without(path, -2)
    assert record.read(path).damage == (
        "the verdict counts 52 checks as pass, the record holds 51",
        "the verdict is accepted beside 1 planned checks without an outcome",
    )


def test_tells_an_acceptance_beside_a_failure(path: Path) -> None:
    samples.rejected(path)
    path.write_bytes(path.read_bytes().replace(b'"verdict":"rejected"', b'"verdict":"accepted"'))
    assert "the verdict is accepted beside 10 checks that did not pass" in record.read(path).damage


def part(path: Path, name: str, times: list[float]) -> Path:
    own = path.with_name(f"record.{name}.jsonl")
    with record.Writer(own) as writer:
        for seq, t in enumerate(times):
            writer.write("event", t, **(EVENT | {"seq": seq, "name": name}))
    return own


def test_merges_in_order_of_time(path: Path) -> None:
    started(path).close()
    parts = [part(path, "gw0", [1.0, 5.0, 6.0]), part(path, "gw1", [2.0, 5.5, 7.0])]
    assert record.parts_of(path) == parts
    record.merge(parts, path)
    read = record.read(path)
    assert read.damage == ()
    assert read.run is not None
    assert [event.t for event in read.events] == [1.0, 2.0, 5.0, 5.5, 6.0, 7.0]
    assert sorted(path.parent.iterdir()) == [path]


def test_a_merge_never_removes_the_record_itself(path: Path) -> None:
    started(path).close()
    before = path.read_bytes()
    record.merge([path], path)
    assert path.read_bytes() == before


def test_a_waiver_covers_its_own_place(path: Path) -> None:
    read = record.read(samples.rejected(path))
    here = read.waivers[0].model_copy(update={"where": {"dtype": "float32"}})
    covered = [check for check in read.checks if here.covers(check)]
    assert {str(check) for check in covered} == {
        f"nccl.broadcast.busbw [dtype=float32 size={size} nodes=1]" for size in ("256 KiB", "1 MiB", "8 MiB")
    }


def test_a_merge_keeps_the_order_of_each_part(path: Path) -> None:
    started(path).close()
    own = part(path, "gw0", [9.0])
    with record.Writer(own) as writer:
        writer.write("series", [3.0, 4.0], job="j", node="n", metric="m", unit="W", v=[1.0, 2.0], gaps=0)
        writer.write("event", 8.9, seq=1, **EVENT)
    expected = path.read_bytes() + own.read_bytes()
    record.merge([own], path)
    assert path.read_bytes() == expected


def test_a_merge_that_fails_removes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    started(path).close()
    before = path.read_bytes()
    own = part(path, "gw0", [1.0])
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        record.merge([own], path)
    assert own.exists()
    assert path.read_bytes() == before
    assert record.read(path).damage == ("record.gw0.jsonl beside the record is not merged into it",)


def test_a_merge_killed_before_the_removal_adds_nothing_twice(path: Path) -> None:
    started(path).close()
    own = part(path, "gw0", [1.0, 2.0])
    again = own.read_bytes()
    record.merge([own], path)
    once = path.read_bytes()
    own.write_bytes(again)
    record.merge([own], path)
    assert path.read_bytes() == once


def test_a_merge_keeps_a_dead_workers_torn_line(path: Path) -> None:
    started(path).close()
    parts = [part(path, "gw0", [1.0, 2.0]), part(path, "gw1", [3.0])]
    parts[0].write_bytes(parts[0].read_bytes()[:-9])
    record.merge(parts, path)
    read = record.read(path)
    assert [event.t for event in read.events] == [1.0, 3.0]
    assert len(read.damage) == 1
    assert read.damage[0].startswith("line 3: ")


def test_the_schema_names_every_type() -> None:
    schema = record.json_schema()
    assert set(schema["discriminator"]["mapping"]) == set(record.LINES)
    assert "schema" in schema["$defs"]["Run"]["required"]
    json.dumps(schema)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400) | st.text(alphabet='{}[]":,tye0123456789.eE-runchkNa\n', max_size=400).map(str.encode))
def test_any_bytes_are_read_or_told(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(data)
    read = record.read(path)
    assert read.damage
    assert read.verdict is None
