"""A training loop that reads a staged data set, and how long it waits for its data.

The model is trained for real. Its passes over a batch are repeated until a step lasts as long as asked for: what a
loader must keep up with is the step of the user's model, which is not known here.
"""

import mmap
import os
import random
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.utils.data import DataLoader, Dataset

_HIDDEN = 128
_FEATURES = 4096
_CLASSES = 10
_TRIES = 5
_AHEAD = 2
"""Batches that a worker fetches ahead, as is torch's default."""


class Feed(NamedTuple):
    """The loop that is asked for; ``step_s`` is how long the model works on a batch, in seconds."""

    batch: int
    sample_bytes: int
    step_s: float
    steps: int
    warmup: int
    workers: int


class Batches(Dataset):  # type: ignore[misc]
    """Batches of samples, each read into its place in a memory that the workers share with the training process.

    The memory is there before the workers are forked: no descriptor has to be handed over by a socket, whose path in a
    long TMPDIR would be too long.

    Args:
        files: path and size of each file; a file's rest that is shorter than a sample is left out.
        feed: the loop.
        seed: decides the order of the samples, which are drawn with replacement.
    """

    def __init__(self, files: Sequence[Tuple[str, int]], feed: Feed, seed: int) -> None:
        size = feed.sample_bytes
        self._feed = feed
        self.places = [(path, offset) for path, length in files for offset in range(0, length - size + 1, size)]
        self._count = feed.warmup + feed.steps
        drawn = random.Random(seed)
        self._order = [drawn.randrange(len(self.places) or 1) for _ in range(feed.batch * self._count)]
        # No worker may write where the loop still reads: beside what is fetched ahead, one is in use and one is begun.
        self._slots = _AHEAD * max(1, feed.workers) + 2
        self._memory = mmap.mmap(-1, self._slots * feed.batch * size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        """Read a batch into its slot; returns its number.

        Raises:
            IndexError: there is no such batch.
            OSError: a file is shorter than it was.
        """
        if number >= self._count:
            raise IndexError(number)
        feed, slot = self._feed, memoryview(self._memory)[self._start(number) :]
        for at, place in enumerate(self._order[number * feed.batch : (number + 1) * feed.batch]):
            path, offset = self.places[place]
            handle = os.open(path, os.O_RDONLY)
            try:
                room = slot[at * feed.sample_bytes : (at + 1) * feed.sample_bytes]
                if os.preadv(handle, [room], offset) != feed.sample_bytes:
                    raise OSError(f"{path}: fewer than {feed.sample_bytes} bytes at {offset}")
            finally:
                os.close(handle)
        return number

    def tensor(self, number: int) -> torch.Tensor:
        """The batch that was read: uint8, samples by bytes."""
        count = self._feed.batch * self._feed.sample_bytes
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=self._start(number))
        return flat.reshape(self._feed.batch, self._feed.sample_bytes)

    def _start(self, number: int) -> int:
        return number % self._slots * self._feed.batch * self._feed.sample_bytes


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
    batches = Batches(files, feed, seed)
    if not batches.places:
        return {"why": f"no file has {feed.sample_bytes} bytes, the size of one sample"}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = _Model(device)
    model.last(feed.step_s, batches.tensor(batches[0]))
    ahead = {"prefetch_factor": _AHEAD, "multiprocessing_context": "fork"} if feed.workers else {}
    loader = DataLoader(batches, batch_size=None, num_workers=feed.workers, **ahead)
    waits, works = _loop(loader, batches, model, moved)
    return {
        "wait_us": waits[feed.warmup :],
        "work_us": works[feed.warmup :],
        "device": device.type,
        "samples": len(batches.places),
        "passes": model.passes,
        "torch": torch.__version__,
    }


def _loop(
    loader: Any, batches: Batches, model: _Model, moved: Callable[[int], None]
) -> Tuple[List[float], List[float]]:
    waits: List[float] = []
    works: List[float] = []
    numbers = iter(loader)
    while True:
        begin = time.perf_counter()
        number: Optional[int] = next(numbers, None)
        if number is None:
            return waits, works
        arrived = time.perf_counter()
        batch = batches.tensor(number)
        model.step(batch)
        end = time.perf_counter()
        waits.append(round((arrived - begin) * 1e6, 1))
        works.append(round((end - arrived) * 1e6, 1))
        moved(batch.numel())
