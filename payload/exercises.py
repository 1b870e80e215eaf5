"""Each collective as an exercise: its input, its exact result, and the call that does it."""

from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from .group import Group
from .pattern import POISON, Blocks, Difference, Sums, first_difference


class Case(NamedTuple):
    """One collective to be done: ``elements`` are those of one block, or of the buffer where there are no blocks."""

    op: str
    dtype: str
    elements: int
    form: str
    seed: int


class Exercise:
    """A collective with its input and its exact result, made once and used again in every iteration.

    Attributes:
        output: what the collective writes, of shape [elements]; for all_reduce it is the input too.
        block: the source rank of the block that holds an offset of the output; None where there are no blocks.
    """

    def __init__(
        self,
        launch: Callable[[], List[Any]],
        output: torch.Tensor,
        expected: torch.Tensor,
        given: Optional[torch.Tensor] = None,
        block: Callable[[int], Optional[int]] = lambda _: None,
    ) -> None:
        self.launch = launch
        self.output = output
        self.block = block
        self._expected = expected
        self._given = given
        self._kept = None if given is None else given.clone()

    def restore(self) -> None:
        """Put the input back, and into the output what cannot be right."""
        self.output.fill_(POISON)
        if self._given is not None and self._kept is not None:
            self._given.copy_(self._kept)

    def check(self) -> Optional[Difference]:
        """Compare every element of the output."""
        return first_difference(self.output, self._expected)


class Workbench:
    """Makes the exercises of one rank."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def exercise(self, case: Case) -> Exercise:
        """The buffers of a case, filled, and the call that does it."""
        make: Callable[[Case], Exercise] = getattr(self, "_" + case.op)
        return make(case)

    def _empty(self, case: Case, blocks: int = 1) -> torch.Tensor:
        return torch.empty(case.elements * blocks, dtype=getattr(torch, case.dtype), device=self._group.device)

    def _sums(self, case: Case) -> Sums:
        return Sums(case.dtype, self._group.size, case.seed, self._group.device)

    def _block(self, case: Case, source: int, first: int = 0) -> torch.Tensor:
        out = self._empty(case)
        Blocks(case.dtype, case.seed).fill(out, source, first)
        return out

    def _blocks(self, case: Case, first: int) -> torch.Tensor:
        """One block of each source, which each has at ``first`` in its own buffer."""
        out = self._empty(case, self._group.size)
        for source, part in enumerate(out.chunk(self._group.size)):
            Blocks(case.dtype, case.seed).fill(part, source, first)
        return out

    def _all_reduce(self, case: Case) -> Exercise:
        buffer, expected = self._empty(case), self._empty(case)
        self._sums(case).fill_input(buffer, self._group.rank)
        self._sums(case).fill_sum(expected)
        return Exercise(lambda: [dist.all_reduce(buffer, async_op=True)], buffer, expected, buffer)

    def _broadcast(self, case: Case) -> Exercise:
        expected = self._block(case, 0)
        buffer = expected.clone()
        given = buffer if self._group.rank == 0 else None
        return Exercise(lambda: [dist.broadcast(buffer, 0, async_op=True)], buffer, expected, given, lambda _: 0)

    def _all_gather(self, case: Case) -> Exercise:
        given, output = self._block(case, self._group.rank), self._empty(case, self._group.size)
        parts = list(output.chunk(self._group.size))
        calls = {
            "tensor": lambda: [dist.all_gather_into_tensor(output, given, async_op=True)],
            "list": lambda: [dist.all_gather(parts, given, async_op=True)],
        }
        return Exercise(calls[case.form], output, self._blocks(case, 0), given, lambda at: at // case.elements)

    def _reduce_scatter(self, case: Case) -> Exercise:
        given, output, expected = self._empty(case, self._group.size), self._empty(case), self._empty(case)
        self._sums(case).fill_input(given, self._group.rank)
        self._sums(case).fill_sum(expected, self._group.rank * case.elements)
        parts = list(given.chunk(self._group.size))
        calls = {
            "tensor": lambda: [dist.reduce_scatter_tensor(output, given, async_op=True)],
            "list": lambda: [dist.reduce_scatter(output, parts, async_op=True)],
        }
        return Exercise(calls[case.form], output, expected, given)

    def _all_to_all(self, case: Case) -> Exercise:
        given, output = self._empty(case, self._group.size), self._empty(case, self._group.size)
        Blocks(case.dtype, case.seed).fill(given, self._group.rank)
        sent, received = list(given.chunk(self._group.size)), list(output.chunk(self._group.size))
        calls = {
            "tensor": lambda: [dist.all_to_all_single(output, given, async_op=True)],
            "list": lambda: [dist.all_to_all(received, sent, async_op=True)],
        }
        expected = self._blocks(case, self._group.rank * case.elements)
        return Exercise(calls[case.form], output, expected, given, lambda at: at // case.elements)

    def _sendrecv(self, case: Case) -> Exercise:
        """A ring: to the next rank, from the one before."""
        after, before = (self._group.rank + 1) % self._group.size, (self._group.rank - 1) % self._group.size
        given, output = self._block(case, self._group.rank), self._empty(case)

        def launch() -> List[Any]:
            both = [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, output, before)]
            return list(dist.batch_isend_irecv(both))

        return Exercise(launch, output, self._block(case, before), given, lambda _: before)
