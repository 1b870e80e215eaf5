"""What an Allure result folder needs beside the tests' own results: categories, environment, and the plots."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from seatrial.record import Record
from seatrial.reports import environment, html, words
from seatrial.reports.evidence import FIGURES, headline

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
    """Write categories, environment, and one more result, the verdict's, which carries the report and its plots."""
    categories = json.dumps(CATEGORIES, indent=2)
    (folder / "categories.json").write_text(f"{categories}\n", encoding="utf-8")
    (folder / "environment.properties").write_text(_properties(_environment(record)), encoding="latin-1")
    result = _verdict(record, [_attach(folder, *attachment) for attachment in _attachments(record)])
    (folder / f"{result['uuid']}-result.json").write_text(json.dumps(result), encoding="utf-8")


def _attachments(record: Record) -> Iterator[tuple[str, str, str, str]]:
    """Name, media type, file ending and content of what belongs to the whole trial."""
    yield "report", "text/html", "html", html.render(record)
    style = html.style()
    for draw in FIGURES.values():
        for figure in draw(record):
            markup = str(figure.svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
            head, rest = markup.split(">", 1)
            yield figure.title, "image/svg+xml", "svg", f"{head}><style><![CDATA[{style}]]></style>{rest}"


def _attach(folder: Path, name: str, media: str, ending: str, content: str) -> dict[str, str]:
    source = f"{uuid.uuid5(uuid.NAMESPACE_OID, name + content)}-attachment.{ending}"
    (folder / source).write_text(content, encoding="utf-8")
    return {"name": name, "source": source, "type": media}


def _verdict(record: Record, attachments: list[dict[str, str]]) -> dict[str, object]:
    head = headline(record)
    started = datetime.datetime.fromisoformat(record.run.started) if record.run is not None else None
    begin = 0 if started is None else int(started.timestamp() * 1000)
    seconds = record.verdict.seconds if record.verdict is not None else 0.0
    return {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, record.digest)),
        "name": "the trial's verdict",
        "fullName": "seatrial.verdict",
        "historyId": "seatrial.verdict",
        "status": {"accepted": "passed", "rejected": "failed"}.get(head.verdict, "unknown"),
        "statusDetails": {"message": f"{head.verdict}: {head.reason}"},
        "stage": "finished",
        "start": begin,
        "stop": begin + int(seconds * 1000),
        "labels": [{"name": "suite", "value": "seatrial"}],
        "attachments": attachments,
    }


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
