"""The report: drawn from the record alone, the same bytes each time, everything said and everything escaped."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import unicodedata
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import record
from seatrial.record import Check, Record, Series, Timeline
from seatrial.reports import allure, environment, evidence, fleet, html, nccl, plots, svg, words
from tests import samples


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._words: list[str] = []
        self._within = ""
        self.feed(source)
        self.close()
        self.text = " ".join("".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element; each but a possible line break parts the words around it."""
        self.elements.append((tag, dict(attrs)))
        self._within = tag
        self._words += [] if tag == "wbr" else [" "]

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        """Part the words around an element's end."""
        self._within = ""
        self._words.append(" ")

    def handle_data(self, data: str) -> None:
        """Take the text that is shown."""
        if self._within not in ("style", "title", "desc"):
            self._words.append(data)


def sample(name: str, folder: Path) -> Record:
    path = folder / f"{name}.jsonl"
    return record.read(getattr(samples, name)(path))


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return html.render(sample("rejected", tmp_path_factory.mktemp("record")))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return sample("large", tmp_path_factory.mktemp("record"))


def check(**fields: object) -> Check:
    known: dict[str, object] = {"type": "check", "t": 1.0, "id": "nccl.a.busbw", "outcome": "pass", "unit": "GB/s"}
    return Check.model_validate(known | fields, strict=False)


def test_the_verdict_comes_first(rejected: str) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]+)", rejected)
    expected = ["This record is not whole", "Waivers", "Worst findings", "Disturbances", "Suite nccl"]
    expected += ["Suite telemetry", "Nodes by metrics", "Jobs", "Telemetry", "Environment", "Plan"]
    assert headings == expected
    verdict = "lab-hosts is rejected rejected: 3 checks are outside their bounds"
    assert Page(rejected).text.startswith(f"Sea trial Record of trial {verdict}")


def test_an_accepted_run_says_so(tmp_path: Path) -> None:
    page = Page(html.render(sample("accepted", tmp_path)))
    assert "local is accepted accepted: every required check passed 52 ✓ pass" in page.text
    assert "Near misses Passes within 5% of their bound" in page.text
    assert "not whole" not in page.text


def test_a_run_without_a_verdict_is_not_accepted(tmp_path: Path) -> None:
    source = html.render(sample("unfinished", tmp_path))
    assert "<title>local: not accepted: the run did not finish</title>" in source
    text = Page(source).text
    assert "local is not accepted not accepted: the run did not finish" in text
    assert "line 26, the last, is torn after 41 bytes" in text
    assert "32 planned checks ended without an outcome" in text
    assert "! error nccl.job.complete" in text


def test_an_acceptance_in_a_damaged_record_does_not_count(tmp_path: Path) -> None:
    path = samples.accepted(tmp_path / "record.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-3] = lines[-3][:50] + b"\n"
    path.write_bytes(b"".join(lines))
    text = Page(html.render(record.read(path))).text
    assert "local is not accepted not accepted: the record is damaged" in text
    assert f"line {len(lines) - 2}: " in text


def test_an_empty_record_is_not_accepted() -> None:
    assert "not accepted: the run did not finish" in Page(html.render(Record())).text


def test_a_finding_says_what_where_observed_bound_source_and_next(rejected: str) -> None:
    text = Page(rejected).text
    assert (
        "✗ fail nccl.all_reduce.busbw outside its bound nccl.all_reduce.busbw where observed 95% interval n bound "
        "dtype=float32 size=1 MiB nodes=1 1.201 GB/s 1.153 … 1.261 20 ≥ 1.681 GB/s "
        f"source 0.5 {words.TIMES} nccl.loopback.bandwidth; share of the loopback bandwidth measured in the same run, "
        "2026-11-20, 2 ranks on one host, gloo over loopback, med confidence "
        "test suites/nccl/test_collectives.py::test_bandwidth[all_reduce-float32] job nccl-1 Next: run the op alone"
    ) in text
    assert "rank 3: first wrong element at offset 70144, expected 12.0, observed 12.5" in text


def test_every_finding_has_a_next_step(rejected: str) -> None:
    findings = re.findall(r'<article class="finding.*?</article>', rejected, re.DOTALL)
    assert len(findings) >= 10
    for finding in findings:
        assert re.search(r'<p class="next"><b>Next:</b> \w', finding)


def test_every_outcome_is_told_in_words(rejected: str) -> None:
    text = Page(rejected).text
    for outcome in ("44 ✓ pass", "3 ✗ fail", "1 ! error", "3 ? inconclusive", "3 ○ uncalibrated", "2 § waived"):
        assert outcome in text
    assert f"3 {words.DASH} skip" in text
    assert f"{words.DASH} skip gloo of torch 1.13 has no all_to_all nccl.all_to_all.busbw [dtype=bfloat16" in text
    assert "switch firmware due in week 51 j.doe 2026-12-31" in text
    assert "node-1: CPU 0 throttled for 3.1 s (2 checks)" in text


def test_checks_left_out_are_told() -> None:
    plan = record.Plan(type="plan", t=0.0, checks=(), deselected=("nccl.a.busbw", "nccl.b.busbw"))
    text = Page(html.render(Record(plan=plan))).text
    assert "2 checks left out on the command line: nccl.a.busbw, nccl.b.busbw." in text


def test_a_job_says_how_it_ended(rejected: str) -> None:
    text = Page(rejected).text
    assert "queue 0.1 s of 10 min, start 1.8 s of 2 min, run 4.1 s of 15 min" in text
    assert "Ended: a rank died , rank 5 was ended by SIGKILL; at fault: rank 5." in text
    assert f"ranks 0{words.DASH}4, 6: SIGTERM; rank 5: SIGKILL; rank 7: no exit seen" in text
    assert "rank 5, event line 41: truncated" in text


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    path = samples.rejected(tmp_path / "record.jsonl")
    html.write(path, tmp_path / "here.html")
    draw = (
        "import sys; from pathlib import Path; from seatrial.reports import html; html.write(*map(Path, sys.argv[1:]))"
    )
    for seed in ("1", "2"):
        there = tmp_path / f"{seed}.html"
        environ = os.environ | {"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"}
        subprocess.run([sys.executable, "-c", draw, str(path), str(there)], check=True, env=environ)
        assert there.read_bytes() == (tmp_path / "here.html").read_bytes()


def test_a_report_needs_neither_pytest_nor_a_target() -> None:
    ask = "import sys, seatrial.reports.html, seatrial.reports.junit, seatrial.reports.allure; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("seatrial.") and not name.startswith("seatrial.reports")}
    assert ours == {"seatrial.record", "seatrial.errors"}
    assert not loaded & {"pytest", "_pytest", "torch", "pynvml"}


def test_needs_no_network_and_no_script(rejected: str) -> None:
    page = Page(rejected)
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "form", "base"}
    for _, attributes in page.elements:
        assert (attributes.get("href") or "#").startswith("#")
        assert not {"src", "srcset", "onload", "onclick"} & attributes.keys()
    assert "url(" not in rejected
    assert "@import" not in rejected
    assert "default-src 'none'" in rejected


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    source = html.render(sample("hostile", tmp_path))
    page = Page(source)
    plain = {tag for tag, _ in page.elements}
    assert "script" not in plain
    assert "<script>alert('x')</script>&\"'\\x1b[31m\\x00\\u202egnp.exe" in page.text
    hidden = {c for c in source if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"}
    assert not hidden
    for _, attributes in page.elements:
        assert not {"alert('x')", "onload"} & attributes.keys()


def test_a_large_cluster_stays_readable(large: Record) -> None:
    assert len(large.checks) == 5000
    source = html.render(large)
    assert len(source.encode()) < 3_000_000
    text = Page(source).text
    assert "✗ fail nccl.rank.lateness at 8 places" in text
    assert "85 more nodes with passes only" not in text
    assert "84 more nodes with passes only" in text
    assert "1000 series" in text
    assert "Each bar is the worst of 16 neighbours." in text


def test_the_map_names_the_bad_node_first(large: Record) -> None:
    drawn = fleet.node_map(large)
    node, cells = drawn.rows[0]
    assert node == "gpu-017"
    assert {cell.outcome for cell in cells if cell is not None} == {"fail"}
    assert {cell.outcome for _, row in drawn.rows[1:] for cell in row if cell is not None} == {"pass"}


def test_the_map_finds_a_ranks_node(tmp_path: Path) -> None:
    drawn = fleet.node_map(sample("rejected", tmp_path))
    cells = {node: dict(zip(drawn.metrics, row, strict=True)) for node, row in drawn.rows}
    assert cells["node-1"]["nccl.rank.lateness"] == fleet.Cell("fail", 4)
    assert cells["node-0"]["nccl.rank.lateness"] == fleet.Cell("pass", 4)


def test_every_plot_has_a_title_units_and_an_alternative(rejected: str) -> None:
    drawn = re.findall(r"<svg.*?</svg>", rejected, re.DOTALL)
    assert len(drawn) == 11
    for one in drawn:
        assert re.search(r"<title>\w.*</title><desc>\w.*</desc>", one)
        titles = re.findall(r'<text [^>]*class="axis"[^>]*>([^<]+)</text>', one)
        assert len(titles) == 2
        assert all(re.search(r"\S \(\S+\)$", title) for title in titles)


def test_a_bandwidth_plot_draws_values_intervals_and_bounds(tmp_path: Path) -> None:
    figure = nccl.figures(sample("rejected", tmp_path))[0]
    assert figure.title == "all_reduce: bus bandwidth"
    points = 7
    assert figure.svg.count('class="mark ') == points + 3
    assert figure.svg.count('class="interval ') == points * 3
    assert figure.svg.count('class="bound ') == points
    assert figure.svg.count('class="cross fail"') == 2
    assert ">256 KiB<" in figure.svg
    assert figure.caption.startswith("Farthest outside its bound at dtype=float32 size=1 MiB nodes=1: 1.201 GB/s")


def test_a_value_stands_where_the_axis_says() -> None:
    scale = svg.Scale(0, 10, 100, 0)
    assert [scale(value) for value in (0, 5, 10, 20)] == [100, 50, 0, 0]
    log = svg.Scale(1, 16, 0, 100, log=True)
    assert [round(log(value)) for value in (1, 4, 16, 0)] == [0, 50, 100, 0]


def test_lateness_is_drawn_a_bar_a_rank(tmp_path: Path) -> None:
    figure = nccl.figures(sample("rejected", tmp_path))[-1]
    assert figure.svg.count('class="bar pass"') == 7
    assert figure.svg.count('class="bar fail"') == 1
    assert "bound 0.25" in figure.svg


def series(t: list[float], v: list[float], gaps: int = 0, node: str = "n") -> Series:
    fields = {"type": "series", "t": t, "v": v, "job": "j", "node": node, "metric": "m", "unit": "W", "gaps": gaps}
    return Series.model_validate(fields, strict=False)


def test_a_gap_is_drawn_as_a_gap() -> None:
    times = [float(t) for t in [*range(10), *range(20, 30)]]
    whole = plots.over_time("m", [series([float(t) for t in range(20)], [1.0] * 20)], Timeline())
    holed = plots.over_time("m", [series(times, [1.0] * 20, gaps=1)], Timeline())
    assert (whole.svg.count('class="curve c0" d'), whole.svg.count('class="gap"')) == (2, 0)
    assert (holed.svg.count('class="curve c0" d'), holed.svg.count('class="gap"')) == (3, 1)
    assert "20 samples, 1 gap (n: 1)." in holed.caption


def test_a_spike_survives_the_reduction() -> None:
    values = [1.0] * 5000
    values[2501] = 99.0
    figure = plots.over_time("m", [series([t / 10 for t in range(5000)], values)], Timeline())
    assert len(figure.svg) < 20_000
    assert figure.caption.startswith("From 1 W to 99 W")
    highest = plots._track("n", [series([t / 10 for t in range(5000)], values)]).stretches[0]
    assert max(step.high for step in highest) == 99.0


def test_a_job_s_moments_are_marked(rejected: str) -> None:
    drawn = re.findall(r"<svg.*?</svg>", rejected, re.DOTALL)[-1]
    for moment in ("submitted", "admitted", "started", "ended"):
        assert f">{moment}</text>" in drawn
    assert drawn.count('class="moment"') == 4


def test_nodes_that_differ_are_shown_apart(tmp_path: Path) -> None:
    path = samples.rejected(tmp_path / "record.jsonl")
    odd = path.read_bytes().replace(b'"hostname":"node-1.example","cpus":2', b'"hostname":"node-1.example","cpus":1')
    path.write_bytes(odd)
    read = record.read(path)
    assert [kin.names for kin in environment.kin(read)] == ["node-0", "node-1"]
    assert "The nodes differ : 2 kinds." in Page(html.render(read)).text


def test_findings_that_differ_in_numbers_only_stand_together() -> None:
    late = [check(outcome="fail", observed=float(n), reason=f"{n} outside", where={"rank": str(n)}) for n in (1, 2)]
    other = check(outcome="fail", observed=1.0, reason="something else")
    assert [len(found.checks) for found in evidence.findings([*late, other])] == [2, 1]
    assert evidence.findings(late)[0].notes == [("rank=2", "2 outside")]


def test_many_findings_are_folded() -> None:
    many = tuple(check(id=f"nccl.{n}.busbw", outcome="error", reason=f"{'x' * n}") for n in range(100))
    source = html.render(Record(checks=many))
    assert "70 more findings" in source
    assert source.count('<article class="finding error">') == 103


def test_passes_beyond_the_list_are_counted() -> None:
    bound = {"kind": "min", "value": 1.0, "source": "s", "limits": [1.0, None]}
    many = [check(observed=2.0 + n, where={"rank": str(n)}, bound=bound) for n in range(1200)]
    group = evidence.Group(many)
    assert len(group.passes) == 1000
    assert group.passes[0].observed == 2.0
    assert group.unlisted == 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1,234,567"),
        (8.2, "8.2"),
        (8.19999, "8.2"),
        (0.0123456, "0.01235"),
        (-3.5, f"{words.MINUS}3.5"),
        (1.25e-7, f"1.25e{words.MINUS}7"),
        (3.2e11, "3.2e11"),
        (1e300, "1e300"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (5.0, "W", "5 W"),
        (999.0, "B", "999 B"),
        (53_928_818.0, "B/s", "53.93 MB/s"),
        (2.866e9, "B", "2.866 GB"),
        (2e9, "W", "2e9 W"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    assert words.quantity(value, unit) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (99_999.0, "99,999"), (2.5e8, "2.5e8"), (0.02, "0.02")])
def test_ticks(value: float, text: str) -> None:
    assert words.short(value) == text


def test_bytes_over_time_are_told_in_their_multiple() -> None:
    fields = {"type": "series", "t": [0.0, 1.0], "v": [0.0, 2.4e9], "gaps": 0}
    memory = Series.model_validate(
        fields | {"job": "j", "node": "n", "metric": "host.memory", "unit": "B"}, strict=False
    )
    figure = plots.over_time("m", [memory], Timeline())
    assert "host.memory (GB)" in figure.svg
    assert ">2<" in figure.svg
    assert figure.caption.startswith("From 0 B to 2.4 GB")


def test_a_ratio_tells_what_it_was_held_against() -> None:
    bound = {"kind": "ratio", "value": 0.5, "of": "ring", "reference": 2.6, "source": "s", "limits": [1.3, None]}
    failed = check(outcome="fail", observed=1.0, bound=bound)
    assert f"source 0.5 {words.TIMES} ring (ring was 2.6 GB/s); s" in Page(html.render(Record(checks=(failed,)))).text


def test_a_source_is_told_once(rejected: str) -> None:
    text = Page(rejected).text
    assert text.count("[1] med") == 6
    assert "Sources of the bounds share of the loopback bandwidth measured in the same run, 2026-11-20" in text


def test_an_observed_value_is_never_rounded_onto_its_bound() -> None:
    bound = {"kind": "min", "value": 8.2, "source": "s", "limits": [8.2, None]}
    close = check(outcome="fail", observed=8.1999999, interval=[8.1, 8.2000001], bound=bound)
    assert words.observed(close) == "8.1999999 GB/s"
    assert words.interval(close) == "8.1 … 8.2000001"
    assert words.bound(close) == "≥ 8.2 GB/s"


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([1.0, None], "≥ 1 GB/s"),
        ([None, 2.0], "≤ 2 GB/s"),
        ([1.0, 2.0], "≥ 1 and ≤ 2 GB/s"),
        ([0.0, 0.0], "= 0 GB/s"),
        ([None, None], ""),
    ],
)
def test_bounds(limits: list[float | None], text: str) -> None:
    assert words.bound(check(bound={"kind": "within", "source": "s", "limits": limits})) == text


@pytest.mark.parametrize(
    ("text", "size"), [("1 MiB", 2**20), ("64KiB", 65536), ("1.5 GiB", 1.5 * 2**30), ("512 B", 512)]
)
def test_sizes(text: str, size: float) -> None:
    assert nccl.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "1 MB", "x MiB", "1.2.3 MiB", "0 B"])
def test_what_is_no_size(text: str) -> None:
    assert nccl.size_bytes(text) is None


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
LIMITS = st.tuples(NUMBERS | st.none(), NUMBERS | st.none())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NUMBERS, LIMITS, st.text(max_size=8)), min_size=1, max_size=12), st.text(max_size=30))
def test_any_numbers_and_names_can_be_drawn(
    values: list[tuple[float, tuple[float | None, float | None], str]], unit: str
) -> None:
    checks = [
        check(
            id=f"nccl.{op}.busbw",
            outcome=outcome,
            observed=value,
            unit=unit,
            where={"size": f"{1 + at} KiB", "x": op},
            bound=bound,
        )
        for at, (value, limits, op) in enumerate(values)
        for outcome in ("pass", "fail")
        for bound in [{"kind": "within", "source": "s", "limits": limits}]
    ]
    late = [
        one.model_copy(update={"id": "nccl.rank.lateness", "where": {"rank": str(at)}}) for at, one in enumerate(checks)
    ]
    sampled = series([float(at) for at in range(len(values))], [value for value, _, _ in values])
    job = record.Job(type="job", t=1.0, id="j", payload="p", ranks=1, gpus=0, timeline=Timeline(), state="completed")
    source = html.render(Record(checks=(*checks, *late), series=(sampled,), jobs=(job,)))
    source.encode()
    positions = re.findall(r'(?:[xy]|d)="([^"]*)"', source)
    assert all(math.isfinite(float(number)) for text in positions for number in re.findall(r"-?[\d.]+", text))
    assert "nan" not in " ".join(positions)


def test_the_colours_have_contrast() -> None:
    style = resources.files("seatrial.reports").joinpath("templates/report.css").read_text()
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w]+): (#\w+)", scheme))
        for name in ("ink", "muted", "navy", "pass", "fail", "inconclusive", "uncalibrated", "skip", "waived", "error"):
            for ground in ("paper", "sheet"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for name in ("c0", "c1", "c2", "c3"):
            assert contrast(colours[name], colours["paper"]) >= 3.0, name


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.1."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.1 of ``#rgb`` or ``#rrggbb``."""
    digits = colour.removeprefix("#")
    pairs = [digit * 2 for digit in digits] if len(digits) == 3 else [digits[at : at + 2] for at in (0, 2, 4)]
    red, green, blue = (_linear(int(pair, 16) / 255) for pair in pairs)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize(
    ("status", "message", "category"),
    [
        ("failed", "inconclusive: 3 samples, the bound needs 20", "Inconclusive"),
        ("failed", "AssertionError: inconclusive: noise\nover two lines", "Inconclusive"),
        ("broken", "seatrial.errors.InconclusiveError: inconclusive: silent", "Inconclusive"),
        ("failed", "Failed: uncalibrated: no bound", "Uncalibrated"),
        ("failed", "AssertionError: outside its bound: observed 1\nwhere: inconclusive: no", "Fail"),
        ("broken", "seatrial.errors.AccessError: permission denied", "Error"),
    ],
)
def test_allure_tells_the_outcomes_apart(status: str, message: str, category: str) -> None:
    found = [
        str(entry["name"])
        for entry in allure.CATEGORIES
        if status in list(entry["matchedStatuses"]) and re.fullmatch(str(entry["messageRegex"]), message)  # type: ignore[call-overload]
    ]
    assert len(found) == 1
    assert found[0].startswith(category)


def test_allure_gets_its_environment(tmp_path: Path) -> None:
    allure.write_extras(sample("hostile", tmp_path), tmp_path)
    lines = (tmp_path / "environment.properties").read_text("latin-1").splitlines()
    assert "node.CPU_cores=2" in lines
    assert "verdict=rejected: <script>alert('x')</script>&\"'\\\\x1b[31m\\\\x00\\\\u202egnp.exe" in lines
    assert all(re.match(r"[\w.-]+=", line) for line in lines)
