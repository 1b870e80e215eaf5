"""A small training job with everything that a restart may lose: weights, moments, schedule, generators, place in data.

The model is a transformer over synthetic tokens. Each rank draws its samples from an order that changes with the
epoch, through loader workers; a share of the tokens is hidden, how many by Python's generator, which ones by torch's;
dropout draws from the device's. So each of them shows in the loss as soon as it is not what it would have been.
"""

import contextlib
import hashlib
import math
import os
import random
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

from .group import Group
from .shards import pieces, raw, view

HIDDEN = 0
"""The token that stands for a hidden one."""
MOST_HIDDEN = 0.2
"""The largest share of tokens that is hidden."""
LEARNING_RATE = 2e-3
CLIP = 1.0
STRIDES = 3

Key = Tuple[int, int]
"""A sample: epoch and index."""


def mixed(*numbers: int) -> int:
    """A seed that is another one for any other numbers: 63 bits of their SHA-256."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8], "big") >> 1


class Sizes(NamedTuple):
    """How large the model, its data and a step are; a step is ``accumulation`` micro-batches of ``batch`` samples."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int
    accumulation: int
    samples: int
    """Samples of an epoch, over all ranks."""
    workers: int
    steps: int
    seed: int


class Block(nn.Module):  # type: ignore[misc]
    """Causal attention and a feed-forward layer, each normalised before and added after, with dropout."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, future: torch.Tensor) -> torch.Tensor:
        """``x`` is (batch, context, width), ``future`` (context, context): True where a token must not look."""
        batch, context, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, context, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(width // self.heads)
        weights = self.dropout(torch.softmax(scores.masked_fill(future, -math.inf), dim=-1))
        x = x + self.dropout(self.mix((weights @ values).transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.feed(self.before_feed(x)))


class Transformer(nn.Module):  # type: ignore[misc]
    """Predicts the next token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, context) tokens to (batch, context, vocabulary) scores."""
        context = tokens.shape[1]
        places = torch.arange(context, device=tokens.device)
        future = places[None, :] > places[:, None]
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, future)
        return self.head(x)


class Tokens(Dataset[Tuple[int, torch.Tensor]]):  # type: ignore[misc]
    """Sequences that count on in steps of 1 to STRIDES, each made from the seed and its own index."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def __getitem__(self, key: Key) -> Tuple[int, torch.Tensor]:
        """Index, and ``context`` + 1 tokens; the epoch moves the start, as an augmentation would."""
        epoch, index = key
        generator = torch.Generator().manual_seed(mixed(self._sizes.seed, epoch, index))
        start, stride = (int(torch.randint(1, high, (1,), generator=generator)) for high in (1 << 20, STRIDES + 1))
        counted = start + stride * torch.arange(self._sizes.context + 1)
        return index, counted % (self._sizes.vocabulary - 1) + 1


class Place:
    """How far a rank has come in its data: the epoch, and the batches of it that are used up."""

    def __init__(self, epoch: int = 0, batch: int = 0) -> None:
        self.epoch = epoch
        self.batch = batch


class Order(Sampler[List[Key]]):  # type: ignore[misc]
    """The batches of one rank from a place on, without an end: another order in each epoch, the same on every run."""

    def __init__(self, sizes: Sizes, rank: int, ranks: int, place: Place) -> None:
        self._sizes = sizes
        self._rank = rank
        self._ranks = ranks
        self._place = place

    def __iter__(self) -> Iterator[List[Key]]:
        epoch, first = self._place.epoch, self._place.batch
        while True:
            generator = torch.Generator().manual_seed(mixed(self._sizes.seed, epoch))
            order = torch.randperm(self._sizes.samples, generator=generator).tolist()[self._rank :: self._ranks]
            size = self._sizes.batch
            for batch in range(first, self._sizes.samples // self._ranks // size):
                yield [(epoch, index) for index in order[batch * size : (batch + 1) * size]]
            epoch, first = epoch + 1, 0


def _stack(samples: List[Tuple[int, torch.Tensor]]) -> Tuple[List[int], torch.Tensor]:
    return [index for index, _ in samples], torch.stack([tokens for _, tokens in samples])


class Told(NamedTuple):
    """What one step was: its loss on this rank, the samples that it used, the learning rate that it was made with."""

    loss: float
    samples: List[int]
    rate: float


class Training:
    """One rank's training: all of its state can be taken out as tensors and a plain object, and put back.

    Attributes:
        done: the steps that are done.
    """

    def __init__(self, group: Group, sizes: Sizes) -> None:
        self._group = group
        self._sizes = sizes
        _be_deterministic(sizes.seed)
        self._model = Transformer(sizes).to(group.device)
        only = [group.device.index] if group.device.type == "cuda" else None
        # With unused parameters to find, DDP keeps its buckets: laid anew after the first step, they would sum in
        # another order than those of a run that was not restored, and differ from it in the last bit.
        self._parallel = DistributedDataParallel(self._model, device_ids=only, find_unused_parameters=True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, T_max=sizes.steps)
        self.done = 0
        self._place = Place()
        self._batches: Optional[Iterator[Tuple[List[int], torch.Tensor]]] = None
        self._batches_an_epoch = sizes.samples // group.size // sizes.batch
        # The ranks' dropout and hiding differ, as they do where each rank was given a seed of its own.
        torch.manual_seed(mixed(sizes.seed, -1, group.rank))
        random.seed(mixed(sizes.seed, -1, group.rank))

    def _read_on(self) -> Iterator[Tuple[List[int], torch.Tensor]]:
        """The batches from the place on, from new workers."""
        loader = DataLoader(
            Tokens(self._sizes),
            batch_sampler=Order(self._sizes, self._group.rank, self._group.size, self._place),
            num_workers=self._sizes.workers,
            collate_fn=_stack,
            # With a generator of its own, an iterator that is made anew takes no number from torch's.
            generator=torch.Generator().manual_seed(self._sizes.seed),
            multiprocessing_context="fork" if self._sizes.workers else None,
        )
        return iter(loader)

    def close(self) -> None:
        """End the loader's workers."""
        self._batches = None

    # The work.

    def step(self, amid: Callable[[], None]) -> Told:
        """One optimizer step; ``amid`` is called in the middle of it, after the first micro-batch's gradients."""
        rate = float(self._optimizer.param_groups[0]["lr"])
        self._optimizer.zero_grad()
        if self._batches is None:
            self._batches = self._read_on()
        losses, used = [], []
        for micro in range(self._sizes.accumulation):
            indexes, tokens = next(self._batches)
            self._advance()
            used += indexes
            is_last = micro + 1 == self._sizes.accumulation
            with contextlib.nullcontext() if is_last else self._parallel.no_sync():
                losses.append(self._gradients(tokens, f"step {self.done + 1}, micro-batch {micro}"))
            if micro == 0:
                amid()
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._schedule.step()
        self.done += 1
        return Told(float(torch.stack(losses).sum().item()), used, rate)

    def _advance(self) -> None:
        self._place.batch += 1
        if self._place.batch == self._batches_an_epoch:
            self._place.epoch, self._place.batch = self._place.epoch + 1, 0

    def _gradients(self, tokens: torch.Tensor, what: str) -> torch.Tensor:
        self._group.enter("forward of " + what)
        hidden = torch.rand(tokens[:, :-1].shape) < random.random() * MOST_HIDDEN
        shown = tokens[:, :-1].masked_fill(hidden, HIDDEN).to(self._group.device)
        scores = self._parallel(shown)
        wanted = tokens[:, 1:].to(self._group.device)
        loss = functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()) / self._sizes.accumulation
        self._group.enter("gradients of " + what)
        loss.backward()
        self._group.position.phase = 2
        return loss.detach()

    # Its state.

    def tensors(self) -> Dict[str, torch.Tensor]:
        """All tensors of the state, by ``part.name``: weights, optimizer and rng."""
        held = {f"weights.{name}": tensor.detach() for name, tensor in self._model.state_dict().items()}
        for name, parameter in self._model.named_parameters():
            for key, value in sorted(self._optimizer.state[parameter].items()):
                held[f"optimizer.{key}.{name}"] = value
        held["rng.torch"] = torch.get_rng_state()
        if self._group.device.type == "cuda":
            held["rng.cuda"] = torch.cuda.get_rng_state(self._group.device)
        return held

    def plain(self) -> Dict[str, Any]:
        """The rest of the state, which survives JSON: floats come back with every bit."""
        groups = [{key: value for key, value in g.items() if key != "params"} for g in self._optimizer.param_groups]
        return {
            "done": self.done,
            "data": [self._place.epoch, self._place.batch],
            "groups": groups,
            "schedule": self._schedule.state_dict(),
            "python": random.getstate(),
        }

    def adopt(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor of the state in place of the own one.

        Raises:
            ValueError: there is no such tensor here.
        """
        part, _, rest = name.partition(".")
        if part == "weights":
            with torch.no_grad():
                self._model.state_dict()[rest].copy_(tensor)
        elif part == "optimizer":
            key, _, parameter = rest.partition(".")
            # The count of steps stays on the host, as the optimizer made it.
            kept = tensor.cpu() if key == "step" else tensor
            self._optimizer.state[dict(self._model.named_parameters())[parameter]][key] = kept
        elif name == "rng.torch":
            torch.set_rng_state(tensor.cpu())
        elif name == "rng.cuda":
            torch.cuda.set_rng_state(tensor.cpu(), self._group.device)
        else:
            raise ValueError(f"the state has no tensor {name!r}")

    def adopt_plain(self, plain: Dict[str, Any]) -> None:
        """Take the rest of the state; the data are read on from its place."""
        self.done = int(plain["done"])
        for group, saved in zip(self._optimizer.param_groups, plain["groups"]):
            group.update(saved, betas=tuple(saved["betas"]))
        self._schedule.load_state_dict(plain["schedule"])
        version, words, spare = plain["python"]
        random.setstate((version, tuple(words), spare))
        self._place = Place(*plain["data"])
        self._batches = None

    def digests(self) -> Dict[str, str]:
        """SHA-256 of each part of the state, tensors in the order of their names with dtype and shape."""
        tensors, plain = self.tensors(), self.plain()
        parts: Dict[str, Any] = {"schedule": hashlib.sha256(), "data": hashlib.sha256(), "rng.python": hashlib.sha256()}
        parts["schedule"].update(repr((plain["groups"], sorted(plain["schedule"].items()))).encode())
        parts["data"].update(repr(plain["data"]).encode())
        parts["rng.python"].update(repr(plain["python"]).encode())
        for name in sorted(tensors):
            part = name if name.startswith("rng.") else name.split(".")[0]
            digest = parts.setdefault(part, hashlib.sha256())
            digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
            for piece in pieces(raw(tensors[name])):
                digest.update(view(piece.cpu()))
        return {part: digest.hexdigest() for part, digest in sorted(parts.items())}


def _be_deterministic(seed: int) -> None:
    # cuBLAS reads this when it is first used; without it its sums may come in any order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
