"""A sound stream gives its events whatever the pieces it comes in, and no damage to it goes unseen."""

from __future__ import annotations

import json
import os
import zlib
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.job import Event
from seatrial.parse.events import EventReader
from seatrial.payload.events import MAX_LINE_BYTES, Emitter

JOB, RANK = "sweep-main-1", 3


def emitted(*events: tuple[str, dict[str, Any]], job: str = JOB, rank: int = RANK) -> bytes:
    """The bytes that an emitter writes."""
    read_end, write_end = os.pipe()
    try:
        emitter = Emitter(job, rank, write_end)
        data = b""
        for name, fields in events:
            emitter.emit(name, **fields)
            data += os.read(read_end, 65536)
        return data
    finally:
        os.close(read_end)
        os.close(write_end)


def signed(**fields: Any) -> bytes:
    """A line with a right checksum, whatever is in it."""
    head = {"seatrial": 1, "job": JOB, "stream": RANK, "seq": 0, "t": 0.5, "event": "beat"} | fields
    body = json.dumps(head, separators=(",", ":")).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


STREAM = emitted(
    ("hello", {"pid": 77, "host": "ä \n {\"seatrial\":1", "argv": ["payload.pyz", "{}"]}),
    ("ready", {"world_size": 2, "uuid": None}),
    *(("beat", {"step": step, "phase": step % 3, "what": f"all_reduce float32 1 MiB #{step}"}) for step in range(4)),
    ("row", {"time_us": [1.5, 2.25], "wrong": 0, "first_wrong": None}),
    ("done", {"world_size": 2, "peers": ["a:1", "b:2"]}),
)  # fmt: skip
LINES = STREAM.splitlines(keepends=True)


def read(*pieces: bytes) -> tuple[list[Event], EventReader]:
    reader = EventReader(JOB, RANK)
    events = [event for piece in pieces for event in reader.feed(piece)]
    reader.close()
    return events, reader


def kinds(reader: EventReader) -> list[str]:
    return [fault.kind for fault in reader.faults]


GOOD, _ = read(STREAM)


def test_a_stream_is_read_as_it_was_written() -> None:
    events, reader = read(STREAM)
    assert [event.name for event in events] == ["hello", "ready", *["beat"] * 4, "row", "done"]
    assert [event.seq for event in events] == list(range(8))
    assert {event.rank for event in events} == {RANK}
    assert events[0].fields == {"pid": 77, "host": 'ä \n {"seatrial":1', "argv": ["payload.pyz", "{}"]}
    assert events[6].fields["time_us"] == [1.5, 2.25]
    assert events[0].t <= events[-1].t
    assert (reader.faults, reader.lines) == ([], 8)


def test_a_stream_without_a_line_has_no_fault() -> None:
    events, reader = read(b"")
    assert (events, reader.faults, reader.lines) == ([], [], 0)


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    events, reader = read(*(STREAM[start:stop] for start, stop in pairwise(edges)))
    assert (events, reader.faults) == (GOOD, [])


def test_byte_for_byte_is_a_way_of_cutting_too() -> None:
    events, reader = read(*(STREAM[at : at + 1] for at in range(len(STREAM))))
    assert (events, reader.faults) == (GOOD, [])


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_any_changed_byte_is_seen(at: int, flip: int) -> None:
    damaged = STREAM[:at] + bytes([STREAM[at] ^ flip]) + STREAM[at + 1 :]
    events, reader = read(damaged)
    assert reader.faults
    assert all(event in GOOD for event in events), "what is delivered is what was written"


def test_every_single_bit_counts() -> None:
    for at, bit in product(range(len(STREAM)), range(8)):
        _, reader = read(STREAM[:at] + bytes([STREAM[at] ^ 1 << bit]) + STREAM[at + 1 :])
        assert reader.faults, f"bit {bit} of byte {at} is turned, and nobody sees it"


@given(st.integers(0, len(STREAM) - 1), st.binary(min_size=1, max_size=3))
def test_any_added_byte_is_seen(at: int, added: bytes) -> None:
    events, reader = read(STREAM[:at] + added + STREAM[at:])
    assert reader.faults
    assert all(event in GOOD for event in events)


@pytest.mark.parametrize("lost", range(len(LINES) - 1))
def test_a_lost_line_is_a_gap(lost: int) -> None:
    events, reader = read(*LINES[:lost], *LINES[lost + 1 :])
    assert kinds(reader) == ["gap"]
    assert reader.faults[0].line == lost + 1
    assert f"seq {lost} expected, {lost + 1} came" in reader.faults[0].detail
    assert events == GOOD[:lost] + GOOD[lost + 1 :]


@pytest.mark.parametrize("twice", range(len(LINES)))
def test_a_doubled_line_is_told_once_and_delivered_once(twice: int) -> None:
    events, reader = read(*LINES[: twice + 1], *LINES[twice:])
    assert kinds(reader) == ["duplicate"]
    assert (reader.faults[0].rank, reader.faults[0].line) == (RANK, twice + 2)
    assert events == GOOD


@given(st.permutations(range(len(LINES))))
def test_lines_in_another_order_are_seen(order: list[int]) -> None:
    events, reader = read(*(LINES[at] for at in order))
    in_order = order == sorted(order)
    assert (reader.faults == []) == in_order
    assert in_order or "gap" in kinds(reader) or "out of order" in kinds(reader)
    assert [event.seq for event in events] == sorted(event.seq for event in events)


def test_a_late_line_is_out_of_order_and_again_a_duplicate() -> None:
    events, reader = read(LINES[0], LINES[2], LINES[1], LINES[1], LINES[3])
    assert kinds(reader) == ["gap", "out of order", "duplicate"]
    assert [fault.line for fault in reader.faults] == [2, 3, 4]
    assert [event.seq for event in events] == [0, 2, 3]


@pytest.mark.parametrize("line", range(len(LINES)))
def test_a_stream_cut_within_a_line_is_truncated(line: int) -> None:
    events, reader = read(*LINES[:line], LINES[line][: len(LINES[line]) // 2])
    assert kinds(reader) == ["truncated"]
    assert reader.faults[0].line == line + 1
    assert events == GOOD[:line]


def test_a_last_line_without_its_end_is_truncated_even_if_whole() -> None:
    events, reader = read(STREAM[:-1])
    assert kinds(reader) == ["truncated"]
    assert events == GOOD[:-1]


def test_a_line_cut_in_the_middle_of_the_stream_is_interleaved_with_the_next() -> None:
    events, reader = read(LINES[0], LINES[1][:20], *LINES[2:])
    assert kinds(reader) == ["interleaved", "gap"]
    assert events == GOOD[:1] + GOOD[3:]


def test_other_output_is_foreign() -> None:
    events, reader = read(LINES[0], b"NCCL WARN something\n", b"\n", *LINES[1:])
    assert kinds(reader) == ["foreign", "foreign"]
    assert [fault.line for fault in reader.faults] == [2, 3]
    assert "NCCL WARN something" in reader.faults[0].detail
    assert events == GOOD


def test_an_event_of_another_rank_or_job_is_foreign() -> None:
    other = ("beat", {"step": 1})
    events, reader = read(LINES[0], emitted(other, rank=4), emitted(other, job="yesterday"), *LINES[1:])
    assert kinds(reader) == ["foreign", "foreign"]
    assert "rank 4" in reader.faults[0].detail
    assert "'yesterday'" in reader.faults[1].detail
    assert events == GOOD


@pytest.mark.parametrize(
    "line",
    [b"warning: " + LINES[0], LINES[0][:-1] + LINES[1], LINES[0][:30] + LINES[1]],
    ids=["after other output", "two in one line", "one within another"],
)
def test_mixed_output_is_interleaved(line: bytes) -> None:
    events, reader = read(line)
    assert kinds(reader) == ["interleaved"]
    assert events == []


@pytest.mark.parametrize("pieces", [1, 7, 4096])
def test_an_overlong_line_is_dropped_and_the_stream_goes_on(pieces: int) -> None:
    overlong = b'{"seatrial":1' + b"x" * 3 * MAX_LINE_BYTES + b"\n"
    data = LINES[0] + overlong + b"".join(LINES[1:])
    step = max(1, len(data) // pieces)
    events, reader = read(*(data[at : at + step] for at in range(0, len(data), step)))
    assert kinds(reader) == ["truncated"]
    assert reader.faults[0].line == 2
    assert events == GOOD
    assert reader.lines == len(LINES) + 1


def test_an_overlong_line_is_not_kept_in_memory() -> None:
    reader = EventReader(JOB, RANK)
    for _ in range(100):
        reader.feed(b"x" * MAX_LINE_BYTES)
    assert len(reader._rest) < MAX_LINE_BYTES
    reader.close()
    assert (kinds(reader), reader.lines) == (["truncated"], 1)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"seatrial": 2}, "version 2"),
        ({"seatrial": None}, "version None"),
        ({"seq": -1}, "below 0"),
        ({"seq": "0"}, "shape"),
        ({"seq": True}, "shape"),
        ({"seq": 0.0}, "shape"),
        ({"stream": None}, "shape"),
        ({"t": "now"}, "shape"),
        ({"t": float("nan")}, "shape"),
        ({"t": True}, "shape"),
        ({"event": 5}, "shape"),
        ({"job": None}, "shape"),
    ],
)
def test_a_wrong_shape_is_garbled_in_spite_of_its_checksum(fields: dict[str, Any], told: str) -> None:
    events, reader = read(signed(**fields))
    assert kinds(reader) == ["garbled"]
    assert told in reader.faults[0].detail
    assert events == []


def test_what_is_not_json_is_garbled_in_spite_of_its_checksum() -> None:
    body = b'{"seatrial":1,,'
    _, reader = read(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    assert kinds(reader) == ["garbled"]
    assert "not JSON" in reader.faults[0].detail


def test_a_closed_reader_takes_nothing_more() -> None:
    _, reader = read(STREAM)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.feed(LINES[0])
    assert reader.faults == []


@given(st.binary(max_size=300))
def test_noise_is_never_an_event(noise: bytes) -> None:
    events, reader = read(noise)
    assert events == []
    assert bool(reader.faults) == bool(noise)


def test_an_emitter_refuses_names_of_the_line_itself() -> None:
    with pytest.raises(ValueError, match="'seq', 't'"):
        emitted(("beat", {"t": 1, "seq": 2}))
