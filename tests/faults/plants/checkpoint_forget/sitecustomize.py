"""Rank 1 restores all of its state but one part, which depends on the chain that its job belongs to."""

from typing import Any

from _checkpoint import JOB, after_import, is_training
from _plant import here

LOST = {
    "checkpoint-optimizer-end": "optimizer",
    "checkpoint-torch-end": "rng.torch",
    "checkpoint-python-end": "python",
    "checkpoint-place-end": "data",
}


def forget(training: Any) -> None:
    lost, real = LOST[JOB], training.Training
    adopt, adopt_plain = real.adopt, real.adopt_plain

    def adopt_most(self: Any, name: str, tensor: Any) -> None:
        if not name.startswith(lost):
            adopt(self, name, tensor)

    def adopt_most_of_plain(self: Any, plain: dict[str, Any]) -> None:
        adopt_plain(self, {**plain, lost: self.plain()[lost]} if lost in plain else plain)

    real.adopt, real.adopt_plain = adopt_most, adopt_most_of_plain


if here() and is_training() and JOB in LOST:
    after_import("payload.training", forget)
