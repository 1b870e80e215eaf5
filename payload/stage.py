"""Command ``stage``: copies one data set, in a process of its own, which may be killed at any moment.

It writes a line of JSON for each file that is whole, ``{"whole": path}``, and in the end
``{"copied_files": n, "copied_bytes": n, "kept_files": n, "stopped": why, "failures": {path: why}}``.
"""

import json
import os
from typing import Any, Dict

from .copying import Copier, Folder
from .datasets import Entry, escaped, parse
from .settings import settled

DEFAULTS: Dict[str, Any] = {"source": "", "target": "", "manifest": "", "streams": 2}


def main(given: Dict[str, Any]) -> int:
    """Copy the files of the manifest that are missing; returns 1 where one could not be copied.

    Raises:
        payload.settings.SettingsError: the settings are wrong.
        payload.datasets.ManifestError: the manifest is.
        OSError: the target cannot be written.
    """
    settings = settled("stage", DEFAULTS, given)
    with open(settings["manifest"], encoding="utf-8", errors="surrogateescape") as file:
        entries = parse(file.read(), settings["manifest"])
    copier = Copier(Folder(settings["source"]), settings["target"], entries, settings["streams"], whole=_tell_whole)
    report = copier.run()
    _tell(
        copied_files=report.copied_files,
        copied_bytes=report.copied_bytes,
        kept_files=report.kept_files,
        stopped=report.stopped,
        failures={escaped(path): why for path, why in report.failures.items()},
    )
    return 1 if report.failures or report.stopped else 0


def _tell_whole(entry: Entry) -> None:
    _tell(whole=escaped(entry.path))


def _tell(**said: object) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")
