"""Matrix products of which every element is known beforehand, whatever the order in which a device adds up.

With period P, a[i, k] = u[i] * f[(i + k) mod P] and b[k, j] = v[j] * g[(k + j) mod P], where f and g hold -2, -1, 1 or
2, and u and v hold -1 or 1. The inner index runs through n / P whole periods, so that
c[i, j] = u[i] * v[j] * n / P * h[(j - i) mod P] with h[s] = sum over t of f[t] * g[(t + s) mod P].
All terms and all partial sums are integers below 4 n, which float32 accumulators hold exactly; |h| <= 4 P = 128 times a
power of two is exact in every dtype of FORMS, so that a right device gives exactly this and any other value is a fault.
"""

import random
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional

import torch

from .pattern import first_difference

PERIOD = 32
LEAST, GREATEST = PERIOD, 8192
"""Sizes of a matrix: from n = 16384 on, float16 could not hold every element."""

FORMS: Dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "tf32": torch.float32,
}
"""The multiplications there are, each with its matrices' dtype; tf32 rounds float32 inputs to 10 mantissa bits."""


class Wrong(NamedTuple):
    """How a product differs from what it must be: how many elements, and the first of them."""

    wrong: int
    row: int
    column: int
    got: float
    expected: float


class Product:
    """Two matrices of shape [n, n], their product, and what it must be.

    Args:
        form: a key of FORMS.
        n: a power of two from LEAST to GREATEST.
        seed: another seed gives other matrices.
        device: where they are.
    """

    def __init__(self, form: str, n: int, seed: int, device: torch.device) -> None:
        chance = random.Random(seed)
        f, g = ([chance.choice((-2, -1, 1, 2)) for _ in range(PERIOD)] for _ in range(2))
        u, v = ([chance.choice((-1, 1)) for _ in range(n)] for _ in range(2))
        dtype = FORMS[form]
        rows = torch.tensor(u, dtype=dtype, device=device).unsqueeze(1)
        columns = torch.tensor(v, dtype=dtype, device=device)
        overlap = [sum(f[t] * g[(t + shift) % PERIOD] for t in range(PERIOD)) for shift in range(PERIOD)]
        self.n = n
        self.form = form
        self.a = _hankel(f, n, dtype, device).mul_(rows)
        self.b = _hankel(g, n, dtype, device).mul_(columns)
        self.c = torch.empty_like(self.a)
        # Row n - 1 - i of a Hankel matrix is row i of a Toeplitz matrix; n is a multiple of the period.
        scaled = [value * (n // PERIOD) for value in overlap[1:] + overlap[:1]]
        self.expected = _hankel(scaled, n, dtype, device).flip(0).mul_(rows).mul_(columns)

    @property
    def flop(self) -> int:
        """Floating-point operations of one product."""
        return 2 * self.n**3

    @staticmethod
    def buffers(form: str, n: int) -> int:
        """Bytes that a product takes, with what it needs to be made and compared."""
        return 6 * n * n * int(torch.empty(0, dtype=FORMS[form]).element_size())

    def poison(self) -> None:
        """Make sure that an element which is not written is wrong."""
        self.c.fill_(float("nan"))

    def multiply(self, times: int = 1) -> None:
        """Hand ``times`` products to the device, each written over the one before."""
        with _precision(self.form):
            for _ in range(times):
                torch.mm(self.a, self.b, out=self.c)

    def check(self) -> Optional[Wrong]:
        """Compare every element of the last product; None where all are right."""
        found = first_difference(self.c.reshape(-1), self.expected.reshape(-1))
        if found is None:
            return None
        row, column = divmod(found.offset, self.n)
        return Wrong(found.wrong, row, column, found.got, found.expected)


def _hankel(period: List[int], n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The matrix [n, n] whose element [i, k] is period[(i + k) mod PERIOD]."""
    line = torch.tensor(period, dtype=dtype, device=device).repeat(2 * n // PERIOD)
    return line.as_strided((n, n), (1, 1)).clone()


@contextmanager
def _precision(form: str) -> Iterator[None]:
    """How float32 matrices are multiplied: as such, or with their inputs rounded to tf32."""
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if form == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(usual)


def forbid_reduced_sums() -> None:
    """Have cuBLAS add up partial sums in float32, as the exact outcome needs.

    By default it may round those of bfloat16 and float16 products to the output's dtype before it adds them.
    """
    for dtype in ("fp16", "bf16"):
        try:
            setattr(torch.backends.cuda.matmul, f"allow_{dtype}_reduced_precision_reduction", False)
        except (AssertionError, AttributeError):
            pass  # torch 1.13 has no such choice for bfloat16.
