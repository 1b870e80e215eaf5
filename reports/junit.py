"""junit.xml, a testcase a check, drawn from the record so that it says what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from seatrial import record as records
from seatrial.record import Check, Record
from seatrial.reports import files, words
from seatrial.reports.evidence import headline

ELEMENTS = {"fail": "failure", "inconclusive": "failure", "uncalibrated": "failure", "error": "error"}
"""The JUnit element of each outcome that is not green."""


@dataclass(frozen=True)
class Case:
    """One testcase: its suite, its name and the element that tells how it ended, none for a pass."""

    suite: str
    name: str
    element: str | None = None
    kind: str = ""
    message: str = ""
    text: str = ""
    properties: Sequence[tuple[str, str]] = ()


def render(record: Record) -> str:
    """The whole file. The same record gives the same text, byte for byte."""
    cases = [_of_check(record, check) for check in record.checks]
    cases += [_missing(name) for name in record.missing()]
    cases += _of_trial(record, cases)
    root = ElementTree.Element("testsuites", {"name": "seatrial", **_counts(cases)})
    if record.verdict is not None:
        root.set("time", f"{record.verdict.seconds:.3f}")
    for suite in dict.fromkeys(case.suite for case in cases):
        own = [case for case in cases if case.suite == suite]
        element = ElementTree.SubElement(root, "testsuite", {"name": words.clean(suite), **_counts(own)})
        if record.run is not None:
            element.set("timestamp", words.clean(record.run.started))
            element.set("hostname", words.clean(record.run.host))
        for case in own:
            _append(element, case)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def write(record_path: Path, out: Path) -> None:
    """Draw junit.xml of a record into a file, which is replaced at once.

    Raises:
        seatrial.errors.UsageError: the record cannot be read.
    """
    files.replace(out, render(records.read(record_path)))


def _of_check(record: Record, check: Check) -> Case:
    name = f"{check.id}[{check.place}]" if check.place else check.id
    facts = [("observed", words.observed(check)), ("bound", words.bound(check))]
    facts += [("source", words.provenance(check.bound))] if check.bound is not None else []
    facts += [("job", check.job)] if check.job is not None else []
    if check.outcome == "pass":
        return Case(check.suite, name, properties=facts)
    if check.outcome == "skip":
        return Case(check.suite, name, "skipped", "skip", check.reason)
    if check.outcome == "waived":
        facts += _waivers(record, check)
        return Case(check.suite, name, "skipped", "waived", f"waived: {check.reason}", properties=facts)
    kind = check.outcome
    return Case(check.suite, name, ELEMENTS[kind], kind, _message(check), _text(check, facts), facts)


def _waivers(record: Record, check: Check) -> list[tuple[str, str]]:
    waivers = [waiver for waiver in record.waivers if waiver.covers(check)]
    return [(f"waiver {key}", getattr(of, key)) for of in waivers for key in ("owner", "reason", "expires")]


def _message(check: Check) -> str:
    if check.outcome == "fail":
        return f"{check.reason}: observed {words.observed(check)}, bound {words.bound(check)}"
    return check.reason if check.reason.startswith(f"{check.outcome}:") else f"{check.outcome}: {check.reason}"


def _text(check: Check, facts: Sequence[tuple[str, str]]) -> str:
    said = [("where", check.place), *facts, ("detail", check.detail), ("disturbed by", "; ".join(check.qualified))]
    said += [("test", check.test), ("next", words.next_step(check))]
    return "\n".join(f"{term}: {fact}" for term, fact in said if fact)


def _missing(name: str) -> Case:
    message = "error: planned, and without an outcome at the end of the run"
    text = "next: look at what ended the run, then run it again"
    return Case(name.partition(".")[0], name.replace(" [", "[", 1), "error", "missing", message, text)


def _of_trial(record: Record, cases: Sequence[Case]) -> list[Case]:
    """A case for the trial itself, where it was not accepted and no check says so."""
    head = headline(record)
    if head.verdict == "accepted" or any(case.element in ("failure", "error") for case in cases):
        return []
    message = f"{head.verdict}: {head.reason}"
    return [Case("seatrial", "seatrial.verdict", "error", head.verdict, message, "\n".join(record.damage))]


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    elements = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: sum(case.element == element for case in cases) for name, element in elements.items()}
    return {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}}


def _append(suite: ElementTree.Element, case: Case) -> None:
    names = {"classname": words.clean(case.suite), "name": words.clean(case.name)}
    element = ElementTree.SubElement(suite, "testcase", names)
    if case.properties:
        properties = ElementTree.SubElement(element, "properties")
        for name, value in case.properties:
            ElementTree.SubElement(properties, "property", name=words.clean(name), value=words.clean(value))
    if case.element is not None:
        said = {"type": words.clean(case.kind), "message": words.clean(case.message)}
        ElementTree.SubElement(element, case.element, said).text = words.clean(case.text)
