"""The report: one HTML file that needs no network and no JavaScript, drawn from the record alone."""

from __future__ import annotations

import functools
import re
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from seatrial import record as records
from seatrial.record import Record
from seatrial.reports import environment, evidence, files, fleet, jobs, svg, words


def render(record: Record) -> str:
    """The report of a record. The same record gives the same text, byte for byte."""
    head = evidence.headline(record)
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            record=record,
            head=head,
            name=record.cluster.name if record.cluster is not None else "an unknown cluster",
            facts=environment.head_facts(record),
            counts=evidence.counts(record.checks),
            worst=evidence.worst(record),
            missing=record.missing(),
            qualifications=evidence.qualifications(record),
            near=evidence.near_misses(record),
            suites=evidence.suites(record),
            map=fleet.node_map(record),
            jobs=jobs.rows(record),
            span=jobs.span(record),
            telemetry=jobs.telemetry(record),
            kin=environment.kin(record),
            command=environment.command(record),
            profile=environment.profile(record),
        )
    )


def write(record_path: Path, out: Path) -> None:
    """Draw the report of a record into a file, which is replaced at once.

    Raises:
        seatrial.errors.UsageError: the record cannot be read.
    """
    files.replace(out, render(records.read(record_path)))


@functools.cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("seatrial.reports"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["dotted"] = _dotted
    templates.globals.update(words=words, clip=svg.clip, style=Markup(style()))  # noqa: S704  (our own file)
    return templates


def style() -> str:
    """The style sheet of the report and of its plots."""
    return resources.files("seatrial.reports").joinpath("templates/report.css").read_text(encoding="utf-8")


def _shown(value: object) -> object:
    """What an expression of a template shows: never a hidden character, and a dash for nothing."""
    if isinstance(value, Markup):
        return value
    return "—" if value is None else words.clean(str(value))


def _dotted(check_id: str) -> Markup:
    """A check's id that breaks after its dots where the line is too short."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=\.)", words.clean(check_id)))
