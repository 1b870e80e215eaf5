"""What the checkpoint suite's plants share: which job this is, its checkpoints, and its modules once they are there."""

import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

JOB = os.environ.get("SEATRIAL_JOB", "").rsplit("-", 2)[0]
"""The name of this job: ``checkpoint-`` and the name of the kill that ends it, or of its chain and ``-end``."""


def is_training() -> bool:
    """Whether this process is a rank of a training job, and not one of its loader workers."""
    return "RANK" in os.environ and "checkpoint" in getattr(sys, "orig_argv", [])


def newest() -> Path:
    """The newest checkpoint that this job finds."""
    settings = json.loads(sys.orig_argv[-1])
    return max(Path(settings["folder"]).glob("step-*"))


class _After(importlib.abc.MetaPathFinder):
    """Lets a module be imported as it is, and then changes it."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(self, name: str, path: object, target: object = None) -> Any:  # noqa: ARG002
        """Wrap the real module's loader."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        real = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            real(module)
            # A zip's loader is the same for all modules in it.
            if module.__name__ == self._name:
                self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Change a module of the payload as soon as it is imported."""
    sys.meta_path.insert(0, _After(name, change))
