"""junit.xml: a testcase a check, and red wherever the trial was not accepted."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from seatrial import record
from seatrial.record import Check, Record
from seatrial.reports import junit
from tests import samples


def drawn(name: str, folder: Path) -> ElementTree.Element:
    path = folder / f"{name}.jsonl"
    getattr(samples, name)(path)
    junit.write(path, folder / "junit.xml")
    return ElementTree.fromstring((folder / "junit.xml").read_text("utf-8"))


def cases(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {case.get("name", ""): case for case in root.iter("testcase")}


def said(case: ElementTree.Element, element: str) -> str:
    found = case.find(element)
    assert found is not None, ElementTree.tostring(case)
    return found.get("message", "")


def totals(root: ElementTree.Element) -> tuple[int, int, int, int]:
    tests, failures, errors, skipped = (int(root.get(key, "")) for key in ("tests", "failures", "errors", "skipped"))
    assert tests == len(list(root.iter("testcase")))
    assert failures == len(list(root.iter("failure")))
    assert errors == len(list(root.iter("error")))
    assert skipped == len(list(root.iter("skipped")))
    for suite in root.iter("testsuite"):
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    return tests, failures, errors, skipped


def test_an_accepted_run_is_green(tmp_path: Path) -> None:
    root = drawn("accepted", tmp_path)
    assert totals(root) == (52, 0, 0, 0)
    case = cases(root)["nccl.all_reduce.busbw[dtype=float32 size=1 MiB nodes=1]"]
    assert case.get("classname") == "nccl"
    assert {found.get("name") for found in case.iter("property")} == {"observed", "bound", "source", "job"}


def test_each_outcome_has_its_element(tmp_path: Path) -> None:
    root = drawn("rejected", tmp_path)
    assert totals(root) == (60, 9, 2, 5)
    found = cases(root)
    late = found["nccl.rank.lateness[rank=5]"]
    assert said(late, "failure") == "outside its bound: observed 0.61 share, bound ≤ 0.25 share"
    silent = found["telemetry.host.gaps[node=node-0]"]
    assert said(silent, "failure") == "inconclusive: the sampler of node-1 fell silent after 7.0 s"
    unbound = found["nccl.reduce_scatter.busbw[dtype=bfloat16 size=1 MiB nodes=1]"]
    assert said(unbound, "failure") == "uncalibrated: no bound with a source exists for this place"
    unable = found["nccl.all_to_all.busbw[dtype=bfloat16 size=1 MiB nodes=1]"]
    assert said(unable, "skipped") == "gloo of torch 1.13 has no all_to_all"
    assert said(found["nccl.job.complete"], "error") == "error: the target refused us: permission denied"


def test_every_failure_says_what_to_do(tmp_path: Path) -> None:
    root = drawn("rejected", tmp_path)
    for failure in [*root.iter("failure"), *root.iter("error")]:
        assert "next: " in (failure.text or "")


def test_a_waived_check_is_skipped_by_name(tmp_path: Path) -> None:
    waived = cases(drawn("rejected", tmp_path))["nccl.broadcast.busbw[dtype=float32 size=256 KiB nodes=1]"]
    assert said(waived, "skipped") == "waived: waived by j.doe"
    properties = {found.get("name"): found.get("value") for found in waived.iter("property")}
    assert properties["waiver owner"] == "j.doe"
    assert properties["waiver expires"] == "2026-12-31"


def test_a_planned_check_without_an_outcome_is_an_error(tmp_path: Path) -> None:
    missing = cases(drawn("rejected", tmp_path))["nccl.all_gather.correct[dtype=float16]"]
    assert said(missing, "error") == "error: planned, and without an outcome at the end of the run"


def test_an_unfinished_run_is_red(tmp_path: Path) -> None:
    assert totals(drawn("unfinished", tmp_path)) == (52, 0, 32, 0)


def test_a_run_killed_before_its_verdict_is_red(tmp_path: Path) -> None:
    path = samples.accepted(tmp_path / "record.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    root = ElementTree.fromstring(junit.render(record.read(path)))
    assert totals(root) == (53, 0, 1, 0)
    assert said(cases(root)["seatrial.verdict"], "error") == "not accepted: the run did not finish"


def test_an_empty_record_is_red() -> None:
    root = ElementTree.fromstring(junit.render(Record()))
    assert totals(root) == (1, 0, 1, 0)


def test_hostile_names_are_valid_xml(tmp_path: Path) -> None:
    root = drawn("hostile", tmp_path)
    shown = "<script>alert('x')</script>&\"'\\x1b[31m\\x00\\u202egnp.exe"
    assert any(shown in name for name in cases(root))


@pytest.mark.parametrize("reason", ["inconclusive: silent", "silent"])
def test_a_prefix_is_written_once(reason: str) -> None:
    fields = {"type": "check", "t": 1.0, "id": "a.b", "outcome": "inconclusive", "unit": "s", "reason": reason}
    root = ElementTree.fromstring(junit.render(Record(checks=(Check.model_validate(fields),))))
    assert said(cases(root)["a.b"], "failure") == "inconclusive: silent"


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    drawn("rejected", tmp_path)
    first = (tmp_path / "junit.xml").read_bytes()
    junit.write(tmp_path / "rejected.jsonl", tmp_path / "again.xml")
    assert (tmp_path / "again.xml").read_bytes() == first
