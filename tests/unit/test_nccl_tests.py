"""What nccl-tests prints is read by its own header, and whatever keeps it from being evidence is a named problem."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seatrial.parse.nccl_tests import (
    Report,
    busbw_factor,
    implied_ranks,
    parse,
    parse_json,
    rank_mismatch,
)

HEAD = """\
# nccl-tests version 2.19.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
"""  # noqa: E501
DEVICES = "".join(
    f"#  Rank {rank:2} Group  0 Pid {4000 + rank:6} on    node-07 device {rank:2} [0000:{rank:02x}:00] NVIDIA H200\n"
    for rank in range(8)
)
TITLES = "#       size         count      type   redop    root"
SIDE = "     time   algbw   busbw  #wrong"
SPREAD = "    i_min    i_max    i_p99    i_cv%"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
HEADER = f"#\n#{'':60}out-of-place{'':20}in-place\n{TITLES}{SIDE}{SIDE}\n{UNITS}\n"
ROWS = (
    " 1048576      262144    float     sum    -1    30.00   34.95   61.17       0    29.50   35.54   62.20       0\n",
    " 2097152      524288    float     sum    -1    36.10   58.09  101.66       0    36.02   58.22  101.89       0\n",
    " 4194304     1048576    float     sum    -1    45.20   92.79  162.39       0    45.10   93.00  162.75       0\n",
)
FOOTER = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 108.677
#
# Collective test concluded: all_reduce_perf
"""
TEXT = HEAD + DEVICES + HEADER + "".join(ROWS) + FOOTER


def swapped(old: str, new: str) -> Report:
    assert old in TEXT
    return parse(TEXT.replace(old, new, 1))


def problem(report: Report) -> str:
    """The only problem."""
    assert len(report.problems) == 1, report.problems
    assert not report.conclusive
    return report.problems[0]


def test_a_whole_report_is_read() -> None:
    report = parse(TEXT)
    assert report.problems == ()
    assert report.conclusive
    assert (report.op, report.version) == ("all_reduce", "2.19.6")
    assert (report.out_of_bounds, report.average) == (0, 108.677)
    assert [row.size for row in report.rows] == [1048576, 2097152, 4194304]
    last = report.rows[-1]
    assert (last.count, last.dtype, last.redop, last.root) == (1048576, "float", "sum", -1)
    assert (last.out_of_place.time_us, last.out_of_place.algbw, last.out_of_place.busbw) == (45.2, 92.79, 162.39)
    assert (last.in_place.busbw, last.in_place.wrong, last.in_place.spread) == (162.75, 0, {})
    assert len(report.devices) == 8
    seventh = report.devices[7]
    assert (seventh.rank, seventh.pid, seventh.host, seventh.device) == (7, 4007, "node-07", 7)
    assert seventh.name == "NVIDIA H200"


def test_unchecked_results_are_not_zero_wrong_ones() -> None:
    report = parse(TEXT.replace("       0\n", "     N/A\n").replace("       0 ", "     N/A "))
    assert report.conclusive
    assert {side.wrong for row in report.rows for side in (row.out_of_place, row.in_place)} == {None}


def test_time_stamps_are_two_words_under_one_title() -> None:
    stamped = TEXT.replace(SIDE + "\n", SIDE + "           timestamp\n")
    for row in ROWS:
        stamped = stamped.replace(row, row.rstrip() + "  2026-03-01 10:11:12\n")
    assert parse(stamped).problems == ()
    assert parse(stamped).rows == parse(TEXT).rows


def test_the_columns_of_each_iteration_are_kept_by_name() -> None:
    spread = "    29.00    33.00    32.00     2.50"
    text = HEAD + DEVICES + f"{TITLES}{SIDE}{SPREAD}{SIDE}{SPREAD}\n"
    for row in ROWS:
        words = row.split()
        text += "  ".join(words[:9]) + spread + "  " + "  ".join(words[9:]) + spread + "\n"
    report = parse(text + FOOTER)
    assert report.problems == ()
    assert report.rows[0].out_of_place.spread == {"i_min": 29.0, "i_max": 33.0, "i_p99": 32.0, "i_cv%": 2.5}
    assert report.rows[0].in_place.busbw == 62.2


def test_an_old_release_without_version_and_domain_is_read() -> None:
    old = TEXT.replace(HEAD.splitlines(keepends=True)[0], "").replace("[0000:07:00]", "[0x1a]")
    old = "".join(line for line in old.splitlines(keepends=True) if "Collective test" not in line)
    report = parse(old)
    assert report.problems == ()
    assert (report.op, report.version, len(report.devices)) == (None, None, 8)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 0: ", "[1,0][node-07]<stdout>:"])
def test_a_launchers_prefix_is_taken_off(prefix: str) -> None:
    report = parse("".join(prefix + line for line in TEXT.splitlines(keepends=True)))
    assert report == parse(TEXT)


def test_other_output_in_the_table_does_no_harm() -> None:
    chatter = "node-07:4000:4100 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 - Init COMPLETE\n"
    stamp = "2026-03-01 10:11:12 kernel: something\n"
    assert parse(TEXT.replace(ROWS[1], chatter + ROWS[1] + stamp)) == parse(TEXT)


def test_wrong_results_are_counted_not_hidden() -> None:
    text = TEXT.replace("162.39       0", "162.39   1e+06").replace(": 0 OK", ": 1000000 FAILED")
    report = parse(text)
    assert report.problems == ()
    assert (report.rows[-1].out_of_place.wrong, report.out_of_bounds) == (1_000_000, 1_000_000)


def test_rows_and_footer_that_contradict_each_other_are_a_problem() -> None:
    assert "the rows count 3 wrong results, the footer 0" in problem(swapped("162.39       0", "162.39       3"))
    assert "the rows count 0 wrong results, the footer 7" in problem(swapped(": 0 OK", ": 7 FAILED"))


def test_a_missing_row_is_a_problem() -> None:
    assert "2 rows of float sum root -1, the sweep that the head announces has 3" in problem(swapped(ROWS[1], ""))


def test_a_missing_row_behind_a_doubled_one_is_a_problem() -> None:
    assert "a row is missing, another one double" in problem(swapped(ROWS[1], ROWS[0]))


def test_two_types_are_two_sweeps() -> None:
    half = "".join(row.replace("float", " half") for row in ROWS)
    assert parse(TEXT.replace(FOOTER, half + FOOTER)).problems == ()
    assert "2 rows of half" in problem(parse(TEXT.replace(FOOTER, half.replace(half.splitlines()[0], "") + FOOTER)))


def test_a_sweep_by_bytes_and_one_cut_for_memory_are_understood() -> None:
    by_bytes = TEXT.replace("step: 2(factor)", "step: 1048576(bytes)")
    assert "has 4" in problem(parse(by_bytes))
    assert parse(by_bytes.replace(ROWS[2], "").replace("maxBytes 4194304", "maxBytes 2097152")).problems == ()
    reduced = TEXT.replace(ROWS[2], "").replace(
        HEADER, "# Reducing maxBytes to 3000000 due to memory limitation\n" + HEADER
    )
    assert parse(reduced).problems == ()


def test_a_sweep_with_a_step_that_goes_nowhere_is_a_problem() -> None:
    assert "has 0" in problem(swapped("step: 2(factor)", "step: 1(factor)"))


@pytest.mark.parametrize("footer", FOOTER.splitlines(keepends=True)[:2])
def test_a_missing_footer_is_a_problem(footer: str) -> None:
    assert "0 lines" in problem(swapped(footer, ""))


def test_a_footer_that_is_no_number_is_a_problem() -> None:
    assert "nan is no measurement" in problem(swapped("108.677", "nan"))
    assert "could not convert" in problem(swapped("108.677", "---"))


def test_a_cut_anywhere_in_the_table_is_a_problem() -> None:
    start, stop = TEXT.index(ROWS[0]), TEXT.index("# Avg") + len("# Avg")
    for end in range(start, stop):
        assert not parse(TEXT[:end]).conclusive, TEXT[end - 20 : end]


def test_a_text_without_a_table_is_a_problem() -> None:
    for text in ("", "all_reduce_perf: command not found\n", HEAD):
        assert "no table" in parse(text).problems


def test_a_table_without_rows_is_a_problem() -> None:
    assert parse(TEXT.replace("".join(ROWS), "")).problems == ("a table without rows",)


@pytest.mark.parametrize("number", ["nan", "inf", "-1.0", "0.00", "fast", "-nan"])
def test_a_row_with_an_impossible_time_is_a_problem(number: str) -> None:
    report = swapped("36.10", number.rjust(5))
    assert any("not a whole row" in told for told in report.problems)
    assert len(report.rows) == 2


def test_rows_that_ran_into_each_other_are_a_problem() -> None:
    report = parse(TEXT.replace(ROWS[0] + ROWS[1], ROWS[0].rstrip() + ROWS[1]))
    assert "26 words, the header has 13" in report.problems[0]


def test_a_row_broken_by_other_output_is_a_problem() -> None:
    broken = ROWS[1][:60] + "node-07:4000:4100 [0] NCCL INFO Connected all trees\n" + ROWS[1][60:]
    report = parse(TEXT.replace(ROWS[1], broken))
    assert sum("not a whole row" in told for told in report.problems) == 2


def test_a_row_behind_other_output_is_a_problem() -> None:
    glued = "node-07:4000:4100 [0] NCCL INFO Connected all trees" + ROWS[1]
    assert any("not a whole row" in told for told in parse(TEXT.replace(ROWS[1], glued)).problems)


def test_a_row_before_the_header_is_a_problem() -> None:
    assert "before the table's header" in problem(swapped(DEVICES, ROWS[0] + DEVICES))


def test_ranks_that_each_ran_alone_are_a_problem() -> None:
    alone = TEXT.replace(DEVICES, DEVICES.splitlines(keepends=True)[0])
    report = parse(alone + alone)
    assert any("2 tables" in told for told in report.problems)
    assert any("2 lines 'Avg bus bandwidth'" in told for told in report.problems)


def test_bandwidths_of_other_ranks_than_those_listed_are_a_problem() -> None:
    seven = TEXT.replace(DEVICES.splitlines(keepends=True)[7], "")
    assert "7 ranks give busbw = 1.7143 * algbw" in problem(parse(seven))


def test_the_ranks_of_one_group_are_counted() -> None:
    second = "".join(
        line.replace("Group  0", "Group  1").replace(f"Rank {at:2}", f"Rank {at + 8:2}")
        for at, line in enumerate(DEVICES.splitlines(keepends=True))
    )
    assert parse(TEXT.replace(DEVICES, DEVICES + second)).problems == ()


def test_cpu_times_are_a_problem() -> None:
    assert "the times are the CPU's" in parse(TEXT.replace("     time", "  cputime")).problems[0]


def test_an_unknown_header_is_a_problem() -> None:
    for old, new in (
        ("  #wrong", "   error"),
        ("redop    root", "redop"),
        ("busbw  #wrong\n", "busbw\n"),
        ("#wrong\n", "#errors\n"),
    ):
        assert any("not a table's header" in told for told in swapped(old, new).problems), new


def test_a_program_of_another_kind_is_a_problem() -> None:
    assert "program" in problem(parse(TEXT.replace("all_reduce_perf", "my_perf")))
    assert "program" in problem(swapped("concluded: all_reduce_perf", "concluded: all_gather_perf"))


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("sendrecv", 1.0),
        ("hypercube", 1.0),
    ],
)
def test_the_factor_of_each_operation(op: str, factor: float) -> None:
    assert busbw_factor(op, 8) == factor


def test_the_factor_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operation 'alltoall'"):
        busbw_factor("alltoall", 8)
    with pytest.raises(ValueError, match="0 ranks"):
        busbw_factor("all_reduce", 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64, 1024])
def test_the_ranks_follow_from_the_two_bandwidths(ranks: int) -> None:
    assert implied_ranks(100.0, 100.0 * busbw_factor("all_reduce", ranks)) == pytest.approx(ranks)


@pytest.mark.parametrize(
    ("algbw", "busbw"), [(0.0, 0.0), (1.0, 2.0), (1.0, -0.1), (float("nan"), 1.0), (1.0, float("nan"))]
)
def test_bandwidths_of_no_number_of_ranks_are_refused(algbw: float, busbw: float) -> None:
    with pytest.raises(ValueError, match="no number of ranks"):
        implied_ranks(algbw, busbw)


def test_a_mismatch_of_ranks_is_told_beyond_the_printed_digits_only() -> None:
    row = parse(TEXT).rows[-1]
    assert rank_mismatch("all_reduce", 8, row) is None
    assert "16 ranks give busbw = 1.8750 * algbw" in str(rank_mismatch("all_reduce", 16, row))
    assert "1 ranks give" in str(rank_mismatch("all_reduce", 1, row))


SIDE_JSON = {"time": 45.2, "alg_bw": 92.79, "bus_bw": 162.39, "nwrong": 0.0}
DOCUMENT: dict[str, Any] = {
    "version": 3,
    "start_time": "2026-03-01 10:11:12",
    "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
    "env": ["API_TOKEN=hunter2", "PATH=/bin"],
    "nccl_version": 22807,
    "config": {"nthreads": 1, "ngpus": 8, "parallel_init": "false"},
    "results": [
        {
            "size": 4194304,
            "count": 1048576,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": SIDE_JSON,
            "in_place": SIDE_JSON,
            "actual_iterations": 20,
            "experiment_name": "all_reduce_perf",
        }
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 162.39, "okay": "unchecked"},
    "end_time": "2026-03-01 10:11:20",
}


def changed(**fields: Any) -> Report:
    return parse_json(json.dumps({**DOCUMENT, **fields}))


def with_side(**fields: Any) -> Report:
    return changed(results=[{**DOCUMENT["results"][0], "in_place": {**SIDE_JSON, **fields}}])


def test_json_gives_the_same_rows() -> None:
    report = parse_json(json.dumps(DOCUMENT))
    assert report.problems == ()
    assert (report.op, report.out_of_bounds, report.average) == ("all_reduce", 0, 162.39)
    (row,) = report.rows
    assert (row.size, row.root, row.in_place.busbw, row.in_place.wrong) == (4194304, -1, 162.39, 0)


def test_the_environment_in_json_is_not_kept() -> None:
    assert "hunter2" not in repr(parse_json(json.dumps(DOCUMENT)))
    assert "hunter2" not in repr(parse_json(json.dumps(DOCUMENT)[:-1]))


def test_json_keeps_the_columns_of_each_iteration() -> None:
    spread = {"min_us": 44.0, "cv_pct": 1.5, "times_us": [44.0, 46.0]}
    report = changed(results=[{**DOCUMENT["results"][0], "in_place_per_iter": spread}])
    assert report.rows[0].in_place.spread == {"min_us": 44.0, "cv_pct": 1.5}
    assert report.rows[0].out_of_place.spread == {}


def test_json_without_a_check_of_results() -> None:
    report = with_side(nwrong=None)
    assert report.problems == ()
    assert report.rows[0].in_place.wrong is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"time": "nan"}, "nan is no measurement"),
        ({"time": 0.0}, "time 0.0"),
        ({"bus_bw": None}, "TypeError"),
        ({"cpu_time": 3.0}, "the times are the CPU's"),
    ],
)
def test_a_bad_side_in_json_is_a_problem(fields: dict[str, Any], told: str) -> None:
    report = with_side(**fields)
    assert told in report.problems[0]
    assert report.rows == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"version": 9}, "schema version 9"),
        ({"results": []}, "no results"),
        ({"results": None}, "no results"),
        ({"out_of_bounds": None}, "out_of_bounds.count"),
        ({"out_of_bounds": {"count": 0, "okay": True}}, "okay is True for 0 wrong results, expected 'true'"),
        ({"out_of_bounds": {"count": 0, "okay": "false"}}, "okay is 'false' for 0"),
        ({"out_of_bounds": {"count": 4, "okay": "false"}}, "the rows count 0 wrong results, the footer 4"),
        ({"average_bus_bandwidth": {"bandwidth": "nan"}}, "nan is no measurement"),
    ],
)
def test_a_bad_document_is_a_problem(fields: dict[str, Any], told: str) -> None:
    assert told in problem(changed(**fields))


def test_json_that_did_not_end_is_a_problem() -> None:
    ended = {key: value for key, value in DOCUMENT.items() if key != "end_time"}
    assert "did not end" in problem(parse_json(json.dumps(ended)))
    text = json.dumps(DOCUMENT)
    for end in range(0, len(text) - 1, 7):
        assert not parse_json(text[:end]).conclusive
    assert not parse_json("[]").conclusive
