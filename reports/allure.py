"""What an Allure result folder needs beside the tests' own results: categories and the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from seatrial.record import Record
from seatrial.reports import environment, words
from seatrial.reports.evidence import headline

_BEGIN = r"^\s*(?:[\w.]+: )?"
_REST = r"[\s\S]*$"
_NAMED = "(?:inconclusive|uncalibrated):"

CATEGORIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "Inconclusive: could not be measured as required",
        "matchedStatuses": ["failed", "broken"],
        "messageRegex": f"{_BEGIN}inconclusive:{_REST}",
    },
    {
        "name": "Uncalibrated: measured, but no bound with a source exists",
        "matchedStatuses": ["failed", "broken"],
        "messageRegex": f"{_BEGIN}uncalibrated:{_REST}",
    },
    {
        "name": "Fail: measured, outside its bound",
        "matchedStatuses": ["failed"],
        "messageRegex": f"^(?!\\s*(?:[\\w.]+: )?{_NAMED}){_REST}",
    },
    {
        "name": "Error: the harness or its access failed",
        "matchedStatuses": ["broken"],
        "messageRegex": f"^(?!\\s*(?:[\\w.]+: )?{_NAMED}){_REST}",
    },
)
"""By the start of a test's message, after the name of the exception if there is one; each message has one category."""


def write_extras(record: Record, folder: Path) -> None:
    """Write categories.json and environment.properties into an Allure result folder."""
    categories = json.dumps(CATEGORIES, indent=2)
    (folder / "categories.json").write_text(f"{categories}\n", encoding="utf-8")
    (folder / "environment.properties").write_text(_properties(_environment(record)), encoding="latin-1")


def _environment(record: Record) -> dict[str, str]:
    head = headline(record)
    facts = {"verdict": f"{head.verdict}: {head.reason}", "command": environment.command(record)}
    if record.cluster is not None:
        facts["cluster"] = record.cluster.name
    facts |= dict(environment.head_facts(record))
    if record.run is not None:
        facts |= {"seatrial": record.run.seatrial, "python": record.run.python, "host": record.run.host}
    return facts | _of_nodes(record)


def _of_nodes(record: Record) -> dict[str, str]:
    """What the nodes are; where they differ, each value with its count of nodes."""
    values: dict[str, dict[str, int]] = {}
    for kin in environment.kin(record):
        for term, fact in kin.facts:
            found = values.setdefault(f"node.{term}", {})
            found[fact] = found.get(fact, 0) + len(kin.nodes)
    return {
        term: next(iter(found))
        if len(found) == 1
        else "; ".join(f"{fact} ({words.counted(count, 'node')})" for fact, count in found.items())
        for term, found in values.items()
    }


def _properties(facts: Mapping[str, str]) -> str:
    return "".join(f"{_escaped(term, key=True)}={_escaped(fact)}\n" for term, fact in facts.items())


def _escaped(text: str, *, key: bool = False) -> str:
    """The text as a Java properties file takes it: one line of ISO 8859-1, everything else as UTF-16 escapes."""
    special = {"\\": "\\\\", "\n": "\\n", "\t": "\\t"} | ({" ": "_", "=": "\\=", ":": "\\:"} if key else {})
    return "".join(special.get(character) or _latin(character) for character in words.clean(text))


def _latin(character: str) -> str:
    if character <= "\N{LATIN SMALL LETTER Y WITH DIAERESIS}":
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
