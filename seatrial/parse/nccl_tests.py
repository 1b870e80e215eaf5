"""Reads what nccl-tests prints, as text or as JSON, and lists everything that keeps it from being evidence.

A report with problems is inconclusive: rows that could be read are in it, to be shown, not to be judged.

Format: NVIDIA/nccl-tests 2.19, src/util.cu. Formulas: doc/PERFORMANCE.md there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROGRAMS = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "alltoall_perf": "all_to_all",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
    "sendrecv_perf": "sendrecv",
    "gather_perf": "gather",
    "scatter_perf": "scatter",
    "hypercube_perf": "hypercube",
}
"""The operation that each program measures."""

_SHARED = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_WHOLE = frozenset({"broadcast", "reduce", "sendrecv", "hypercube"})

JSON_VERSIONS = (2, 3)
"""The schemas of ``-J`` that this reader knows."""


def busbw_factor(op: str, ranks: int) -> float:
    """What algbw is multiplied by to give busbw: the load of the busiest link, whatever the algorithm.

    all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all, gather and scatter (n-1)/n; broadcast, reduce,
    sendrecv and hypercube 1. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Raises:
        ValueError: an unknown operation, or no rank.
    """
    if ranks < 1:
        raise ValueError(f"{op}: {ranks} ranks")
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in _SHARED:
        return (ranks - 1) / ranks
    if op in _WHOLE:
        return 1.0
    raise ValueError(f"unknown operation {op!r}, known: all_reduce, {', '.join(sorted(_SHARED | _WHOLE))}")


def implied_ranks(algbw: float, busbw: float) -> float:
    """How many ranks an all_reduce ran on, from its two bandwidths: n = 2 / (2 - busbw / algbw).

    Raises:
        ValueError: no number of ranks gives such a pair.
    """
    if not algbw > 0 or not 0 <= busbw / algbw < 2:
        raise ValueError(f"algbw {algbw}, busbw {busbw}: no number of ranks gives these")
    return 2 / (2 - busbw / algbw)


@dataclass(frozen=True)
class Side:
    """One half of a row, out of place or in place: time in microseconds, bandwidths in GB/s (decimal).

    ``wrong`` is None where the result was not checked (-c 0). ``spread`` has the columns of -I by name.
    """

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None
    spread: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One size: ``size`` in bytes, ``count`` in elements."""

    size: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Side
    in_place: Side


@dataclass(frozen=True)
class Device:
    """One rank's place, as the report's head tells it."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    name: str


@dataclass(frozen=True)
class Report:
    """Everything that one run of one program said.

    Attributes:
        op: the operation, as this package names it; None where the program is not named.
        version: of nccl-tests; None in old releases.
        out_of_bounds: how many results the program found wrong.
        average: mean busbw in GB/s over all sizes and both halves: depends on the flags, never a gate.
        problems: why this is no evidence; empty where it is.
    """

    op: str | None
    version: str | None
    devices: tuple[Device, ...]
    rows: tuple[Row, ...]
    out_of_bounds: int | None
    average: float | None
    problems: tuple[str, ...]

    @property
    def conclusive(self) -> bool:
        """Whether the rows may be judged."""
        return not self.problems


_LAUNCHER_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\](?:\[[^\]]*\])?<std(?:out|err|diag)>:\s?|\d+: )")
_PROGRAM = re.compile(r"# Collective test (?:starting|concluded): (\S+)")
_VERSION = re.compile(r"# nccl-tests version (\S+)")
_SWEEP = re.compile(r"# nThread \d+ nGpus \d+ minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]*\]\s*(.*)"
)
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*: (\d+) (OK|FAILED)\s*$")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)")
_PREAMBLE = re.compile(r"\b\d+\s+\d+\s+[a-z][a-z0-9_]*\s+[a-z]+\s+-?\d+\b")
_NUMBER = re.compile(r"\s*(?:[-+]?\d*\.?\d+(?:e[-+]?\d+)?|-?nan|-?inf|N/A)(?:\s|$)")

_FIRST_COLUMNS = ("size", "count", "type", "redop", "root")
_SIDE_COLUMNS = ("time", "algbw", "busbw", "#wrong")


def parse(text: str) -> Report:
    """Read what a program printed; a launcher's prefixes ("[1,0]<stdout>:", "0: ") are taken off."""
    return _Reader([_LAUNCHER_PREFIX.sub("", line) for line in text.splitlines()]).report()


@dataclass(frozen=True)
class _Layout:
    """The columns of a table: those of each side, and whether a time stamp (two words) ends each row."""

    side: tuple[str, ...]
    stamped: bool

    def row(self, words: Sequence[str]) -> Row:
        """A row from its words.

        Raises:
            ValueError: a word is not what its column holds.
        """
        middle = len(_FIRST_COLUMNS) + len(self.side)
        end = middle + len(self.side)
        if len(words) != end + 2 * self.stamped:
            raise ValueError(f"{len(words)} words, the header has {end + 2 * self.stamped}")
        size, count, root = int(words[0]), int(words[1]), int(words[4])
        if size < 0 or count < 0:
            raise ValueError("a size below 0")
        sides = (self._side(words[len(_FIRST_COLUMNS) : middle]), self._side(words[middle:end]))
        return Row(size, count, words[2], words[3], root, *sides)

    def _side(self, words: Sequence[str]) -> Side:
        cells = dict(zip(self.side, words, strict=True))
        wrong = cells.pop("#wrong")
        numbers = {title: _finite(word) for title, word in cells.items()}
        time, algbw, busbw = (numbers.pop(title) for title in _SIDE_COLUMNS[:3])
        return _sound(Side(time, algbw, busbw, None if wrong == "N/A" else int(_finite(wrong)), numbers))


class _Reader:
    """One pass over the lines of a report."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._problems: list[str] = []
        self._layout: _Layout | None = None
        self._rows: list[Row] = []
        self._headers = 0
        self._sweep: re.Match[str] | None = None
        self._reduced: int | None = None
        self._found: dict[str, list[str]] = {"program": [], "version": [], "average": [], "bounds": []}
        self._devices: list[Device] = []
        for number, line in enumerate(lines, 1):
            self._take(number, line)

    def report(self) -> Report:
        """What was read, and what is wrong with the whole of it."""
        programs = sorted(set(self._found["program"]))
        op = PROGRAMS.get(programs[0]) if len(programs) == 1 else None
        bounds, average = self._footer("bounds", "Out of bounds values"), self._footer("average", "Avg bus bandwidth")
        out_of_bounds = None if bounds is None else int(bounds)
        problems = [*self._problems, *self._of_the_whole(op, programs)]
        problems += _of_the_results(out_of_bounds, self._rows)
        problems += _of_the_ranks(op, sum(device.group == 0 for device in self._devices), self._rows)
        version = self._found["version"][0] if self._found["version"] else None
        return Report(op, version, tuple(self._devices), tuple(self._rows), out_of_bounds, average, tuple(problems))

    def _take(self, number: int, line: str) -> None:
        if line.lstrip().startswith("#"):
            self._comment(number, line.strip())
        elif self._layout is not None:
            self._table_line(number, line, self._layout)
        elif _PREAMBLE.search(line):
            self._problems.append(f"line {number}: a row before the table's header: {line.strip()[:80]!r}")

    def _comment(self, number: int, line: str) -> None:
        words = line.lstrip("#").split()
        if words[:2] == ["size", "count"]:
            self._headers += 1
            self._layout = self._read_header(number, words)
        elif (match := _DEVICE.match(line)) is not None:
            rank, group, pid, host, device, name = match.groups()
            self._devices.append(Device(int(rank), int(group or 0), int(pid), host, int(device), name))
        for key, pattern in (
            ("program", _PROGRAM),
            ("version", _VERSION),
            ("average", _AVERAGE),
            ("bounds", _OUT_OF_BOUNDS),
        ):
            if (match := pattern.match(line)) is not None:
                self._found[key].append(match[1])
        self._sweep = _SWEEP.match(line) or self._sweep
        if (match := _REDUCED.search(line)) is not None:
            self._reduced = int(match[1])

    def _read_header(self, number: int, words: list[str]) -> _Layout | None:
        stamped = words[-1] == "timestamp"
        titles = words[:-1] if stamped else words
        first, sides = titles[: len(_FIRST_COLUMNS)], titles[len(_FIRST_COLUMNS) :]
        half = sides[: len(sides) // 2]
        if "cputime" in titles:
            self._problems.append(f"line {number}: the times are the CPU's (-C), not the collectives'")
            return None
        if tuple(first) != _FIRST_COLUMNS or tuple(half[:4]) != _SIDE_COLUMNS or sides != half + half:
            self._problems.append(f"line {number}: not a table's header that this reader knows: {' '.join(words)}")
            return None
        return _Layout(tuple(half), stamped)

    def _table_line(self, number: int, line: str, layout: _Layout) -> None:
        """A row, or a part of one, or other output that does the table no harm."""
        if not _NUMBER.match(line) and not _PREAMBLE.search(line):
            return
        try:
            self._rows.append(layout.row(line.split()))
        except ValueError as error:
            self._problems.append(f"line {number}: not a whole row ({error}): {line.strip()[:80]!r}")

    def _footer(self, key: str, title: str) -> float | None:
        """The value of a footer's line; None where it does not stand there exactly once, as a number."""
        found = self._found[key]
        if len(found) != 1:
            self._problems.append(f"{len(found)} lines {title!r} in the footer, expected 1: cut short, or several runs")
            return None
        try:
            return _finite(found[0])
        except ValueError as error:
            self._problems.append(f"{title}: {error}")
            return None

    def _of_the_whole(self, op: str | None, programs: Sequence[str]) -> Iterator[str]:
        if self._headers == 0:
            yield "no table"
        elif self._headers > 1:
            yield f"{self._headers} tables: several runs, or ranks that each ran alone"
        elif not self._rows:
            yield "a table without rows"
        if len(programs) > 1 or (programs and programs[0] not in PROGRAMS):
            yield f"program {', '.join(programs)}, expected one of {', '.join(PROGRAMS)}"
        if self._headers == 1 and self._sweep is not None:
            yield from self._of_the_sweep(op, self._sweep)

    def _of_the_sweep(self, op: str | None, sweep: re.Match[str]) -> Iterator[str]:
        """Each combination of type, operation and root must have a row for every size that the head announces."""
        smallest, largest, step = (int(sweep[group]) for group in (1, 2, 3))
        sizes = _sizes(smallest, min(largest, self._reduced or largest), step, sweep[4] == "factor")
        kinds: dict[str, list[Row]] = {}
        for row in self._rows:
            kinds.setdefault(f"{row.dtype} {row.redop} root {row.root}", []).append(row)
        for kind, rows in kinds.items():
            if not sizes or len(rows) % len(sizes):
                yield f"{len(rows)} rows of {kind}, the sweep that the head announces has {len(sizes)}"
            elif op not in _SHARED and _rounded(sizes, rows) != {row.size for row in rows}:
                yield f"the sizes of {kind} are not those that the head announces: a row is missing, another one double"


def _sizes(smallest: int, largest: int, step: int, by_factor: bool) -> Sequence[int]:
    """The sizes of a sweep in bytes; none for one that never ends."""
    if step < 1 or (by_factor and (step < 2 or smallest < 1)):
        return []
    if not by_factor:
        return range(smallest, largest + 1, step)
    sizes = [smallest]
    while sizes[-1] * step <= largest:
        sizes.append(sizes[-1] * step)
    return sizes


def _rounded(sizes: Sequence[int], rows: Sequence[Row]) -> set[int]:
    """The sizes as a program prints them: whole elements."""
    element = max((row.size // row.count for row in rows if row.count), default=1)
    return {size - size % element for size in sizes}


def _finite(word: Any) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is no measurement")
    return number


def _sound(side: Side) -> Side:
    """A time that is not above zero, or a bandwidth below zero, was never measured."""
    if side.time_us <= 0 or side.algbw < 0 or side.busbw < 0:
        raise ValueError(f"time {side.time_us}, algbw {side.algbw}, busbw {side.busbw}")
    return side


def _of_the_results(out_of_bounds: int | None, rows: Sequence[Row]) -> Iterator[str]:
    """The footer and the rows count the same wrong results."""
    wrong = sum(side.wrong or 0 for row in rows for side in (row.out_of_place, row.in_place))
    if out_of_bounds is not None and (out_of_bounds == 0) != (wrong == 0):
        yield f"the rows count {wrong} wrong results, the footer {out_of_bounds}"


def _of_the_ranks(op: str | None, ranks: int, rows: Sequence[Row]) -> Iterator[str]:
    """Whether the devices that the head lists are the ranks that the bandwidths imply."""
    if op is None or ranks == 0:
        return
    for row in rows:
        if (why := rank_mismatch(op, ranks, row)) is not None:
            yield why
            return


def rank_mismatch(op: str, ranks: int, row: Row) -> str | None:
    """Why a row's bandwidths do not come from ``ranks`` ranks; None where they may, to the printed digits.

    busbw / algbw is the operation's factor, which tells the ranks for all operations but those whose factor is 1.
    """
    factor = busbw_factor(op, ranks)
    for side in (row.out_of_place, row.in_place):
        slack = _half_digit(side.busbw) + factor * _half_digit(side.algbw)
        if abs(side.busbw - factor * side.algbw) > slack + 1e-9:
            expected = f"{ranks} ranks give busbw = {factor:.4f} * algbw"
            return f"{row.size} bytes: algbw {side.algbw:g}, busbw {side.busbw:g} GB/s, but {expected}"
    return None


def _half_digit(value: float) -> float:
    """Half of the last digit that is printed: two decimals, fewer from 1,000 and from 10,000 on."""
    return 0.005 if value < 1e3 else 0.05 if value < 1e4 else 0.5


def parse_json(text: str) -> Report:
    """Read the file of ``-J``. The environment that it dumps is not kept."""
    try:
        told = json.loads(text)
    except ValueError as error:
        return _nothing(f"not JSON, or cut short: {error}")
    if not isinstance(told, dict) or told.get("version") not in JSON_VERSIONS:
        version = told.get("version") if isinstance(told, dict) else None
        return _nothing(f"schema version {version}, this reader knows {', '.join(map(str, JSON_VERSIONS))}")
    problems: list[str] = []
    rows = list(_json_rows(told.get("results"), problems))
    bounds = _json_number(told, "out_of_bounds", "count", problems)
    average = _json_number(told, "average_bus_bandwidth", "bandwidth", problems)
    if not rows:
        problems.append("no results")
    if "end_time" not in told:
        problems.append("no end_time: the run did not end")
    if bounds is not None:
        okay, expected = told["out_of_bounds"].get("okay"), "true" if bounds == 0 else "false"
        if okay != expected:
            problems.append(f"out_of_bounds.okay is {okay!r} for {bounds:g} wrong results, expected {expected!r}")
        problems += _of_the_results(int(bounds), rows)
    return Report(
        op=_json_op(told.get("args")),
        version=None,
        devices=(),
        rows=tuple(rows),
        out_of_bounds=None if bounds is None else int(bounds),
        average=average,
        problems=tuple(problems),
    )


def _nothing(problem: str) -> Report:
    return Report(None, None, (), (), None, None, (problem,))


def _json_op(args: Any) -> str | None:
    program = str(args[0]).rpartition("/")[2] if isinstance(args, list) and args else ""
    return PROGRAMS.get(program)


def _json_rows(results: Any, problems: list[str]) -> Iterator[Row]:
    for number, result in enumerate(results if isinstance(results, list) else []):
        try:
            sides = [_json_side(result[key], result.get(f"{key}_per_iter")) for key in ("out_of_place", "in_place")]
            texts = (str(result["type"]), str(result["redop"]), int(str(result["root"])))
            yield Row(int(result["size"]), int(result["count"]), *texts, *sides)
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"results[{number}]: {type(error).__name__}: {error}")


def _json_side(side: Any, spread: Any) -> Side:
    if "cpu_time" in side:
        raise ValueError("the times are the CPU's (-C), not the collectives'")
    wrong = None if side["nwrong"] is None else int(_finite(side["nwrong"]))
    numbers = {key: _finite(value) for key, value in (spread or {}).items() if not isinstance(value, list)}
    return _sound(Side(_finite(side["time"]), _finite(side["alg_bw"]), _finite(side["bus_bw"]), wrong, numbers))


def _json_number(told: Mapping[str, Any], key: str, inner: str, problems: list[str]) -> float | None:
    try:
        return _finite(told[key][inner])
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"{key}.{inner}: {type(error).__name__}: {error}")
        return None
