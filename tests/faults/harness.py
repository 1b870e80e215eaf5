"""Runs a whole trial of this machine on the smallest job that shows a fault, and reads its record."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from seatrial import record as records

HERE = Path(__file__).parent
PLANTS = HERE / "plants"


@dataclass
class SmallTrial:
    """A trial of one suite with a fault planted from outside.

    ``budgets`` are as in a profile, ``also`` are other parts of the profile, ``env`` is added to the environment.
    """

    folder: Path
    suite: str = "nccl"
    plant: str | None = None
    wrapper: str | None = None
    budgets: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    also: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def profile(self) -> Path:
        """The profile of this machine as two CPU ranks."""
        target: dict[str, object] = {"kind": "local"}
        if self.wrapper is not None:
            script = self.folder / "python"
            words = shlex.join([sys.executable, str(HERE / "wrapper.py"), self.wrapper])
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o755)
            target["python"] = str(script)
        path = self.folder / "small.yaml"
        pool = {"name": "host", "accelerator": "cpu"}
        budgets = {"start": "60 s", "silence": "20 s", "total": "120 s"} | self.budgets
        whole = {"name": "small", "target": target, "pools": [pool], "budgets": budgets, **self.also}
        path.write_text(yaml.safe_dump(whole))
        return path

    def environment(self) -> dict[str, str]:
        """This process's environment, with the planted module first on the path of every Python of the trial."""
        folders = [str(PLANTS / self.plant), str(PLANTS)] if self.plant is not None else []
        return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, str(HERE.parent.parent)]), **self.env}

    def argv(self) -> list[str]:
        """The command, as a user would give it, with the suite's plan made small."""
        run = ["--run-dir", str(self.folder / "run"), f"--cluster={self.profile()}", "--seed=7"]
        suite = ["-p", "tests.faults.small", "--pyargs", f"seatrial.suites.{self.suite}"]
        return [sys.executable, "-m", "pytest", *suite, *run]

    def run(self, timeout: float = 120) -> Finished:
        """Run it to its end."""
        done = subprocess.run(
            [*self.argv(), *self.options],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        path = self.folder / "run" / "record.jsonl"
        return Finished(done.returncode, done.stdout + done.stderr, records.read(path))


@dataclass
class Finished:
    """A trial after its end."""

    status: int
    output: str
    record: records.Record

    def checks(self, id_: str, **where: str) -> list[records.Check]:
        """The checks of an id at a place."""
        return [
            check
            for check in self.record.checks
            if check.id == id_ and all(check.where.get(key) == value for key, value in where.items())
        ]

    def check(self, id_: str, **where: str) -> records.Check:
        """The only check of an id at a place."""
        (found,) = self.checks(id_, **where)
        return found

    @property
    def verdict(self) -> str:
        """The word of the session."""
        assert self.record.verdict is not None, self.output
        return self.record.verdict.verdict

    def outcomes(self) -> set[str]:
        """All outcomes that occur."""
        return {check.outcome for check in self.record.checks}


def missed(check: records.Check) -> bool:
    """Whether a speed missed its bound: a fail, or inconclusive where something else disturbed the window too."""
    return check.outcome == "fail" or (check.outcome == "inconclusive" and "outside its bound" in check.reason)
