"""A training loop that reads a staged data set, and how long it waits for its data.

The model is trained for real. Its passes over a batch are repeated until a step lasts as long as asked for: what a
loader must keep up with is the step of the user's model, which is not known here.
"""

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.utils.data import DataLoader, Dataset

_HIDDEN = 128
_FEATURES = 4096
_CLASSES = 10
_TRIES = 5


class Feed(NamedTuple):
    """The loop that is asked for; ``step_s`` is how long the model works on a batch, in seconds."""

    batch: int
    sample_bytes: int
    step_s: float
    steps: int
    warmup: int
    workers: int


class Samples(Dataset):  # type: ignore[misc]
    """The files of a data set, cut into samples of one size; a file's rest that is shorter is left out."""

    def __init__(self, files: Sequence[Tuple[str, int]], sample_bytes: int) -> None:
        self._bytes = sample_bytes
        self._places = [
            (path, offset) for path, size in files for offset in range(0, size - sample_bytes + 1, sample_bytes)
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> torch.Tensor:
        path, offset = self._places[index]
        data = bytearray(self._bytes)
        handle = os.open(path, os.O_RDONLY)
        try:
            if os.preadv(handle, [data], offset) != self._bytes:
                raise OSError(f"{path}: fewer than {self._bytes} bytes at {offset}")
        finally:
            os.close(handle)
        return torch.frombuffer(data, dtype=torch.uint8)


class _Model:
    """A small network, and how often a batch goes through it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        layers = [torch.nn.Linear(_FEATURES, _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN, _CLASSES)]
        self._network = torch.nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01)
        self.passes = 1

    def step(self, batch: torch.Tensor) -> None:
        """Train on one batch."""
        data = batch.to(self._device)[:, :_FEATURES].float() / 255
        target = batch[:, 0].to(self._device).long() % _CLASSES
        for _ in range(self.passes):
            self._optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self._network(data), target).backward()
            self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def last(self, seconds: float, batch: torch.Tensor) -> None:
        """Set the passes so that a step lasts about so long; the quickest of a few tries is what the device can do."""
        self.step(batch)
        tries = []
        for _ in range(_TRIES):
            begin = time.perf_counter()
            self.step(batch)
            tries.append(time.perf_counter() - begin)
        self.passes = max(1, round(seconds / max(1e-6, min(tries))))


def measure(files: Sequence[Tuple[str, int]], feed: Feed, seed: int, moved: Callable[[int], None]) -> Dict[str, Any]:
    """Train on the files, shuffled, and time each step's wait for its batch and its work on it.

    Args:
        files: path and size of each.
        feed: the loop.
        seed: decides the order of the samples.
        moved: is told of each batch's bytes.

    Returns:
        ``wait_us`` and ``work_us`` of each measured step, the ``device``, ``samples`` in the set, ``passes`` a step; or
        ``why`` where the set has too few samples.
    """
    samples = Samples(files, feed.sample_bytes)
    wanted = feed.batch * (feed.steps + feed.warmup)
    if not len(samples):
        return {"why": f"no file has {feed.sample_bytes} bytes, the size of one sample"}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = _Model(device)
    model.last(feed.step_s, torch.stack([samples[at % len(samples)] for at in range(feed.batch)]))
    order = torch.utils.data.RandomSampler(samples, replacement=True, num_samples=wanted)
    loader = DataLoader(
        samples,
        batch_size=feed.batch,
        sampler=order,
        num_workers=feed.workers,
        multiprocessing_context="fork" if feed.workers else None,
        pin_memory=device.type == "cuda",
    )
    waits, works = _loop(loader, model, moved)
    return {
        "wait_us": waits[feed.warmup :],
        "work_us": works[feed.warmup :],
        "device": device.type,
        "samples": len(samples),
        "passes": model.passes,
        "torch": torch.__version__,
    }


def _loop(loader: Any, model: _Model, moved: Callable[[int], None]) -> Tuple[List[float], List[float]]:
    waits: List[float] = []
    works: List[float] = []
    batches = iter(loader)
    while True:
        begin = time.perf_counter()
        batch: Optional[torch.Tensor] = next(batches, None)
        if batch is None:
            return waits, works
        arrived = time.perf_counter()
        model.step(batch)
        end = time.perf_counter()
        waits.append(round((arrived - begin) * 1e6, 1))
        works.append(round((end - arrived) * 1e6, 1))
        moved(batch.numel())
