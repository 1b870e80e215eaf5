"""The work of the health command: exact outcomes, every wrong element found, and the right core."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.payload import affinity, health  # noqa: E402
from seatrial.payload.gemm import FORMS, LEAST, Product  # noqa: E402
from seatrial.payload.membw import HostCopies, Stream, beyond_cache  # noqa: E402
from seatrial.payload.settings import SettingsError  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [LEAST, 64, 128])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_expected_product_is_the_product_in_float64(form: str, n: int, seed: int) -> None:
    product = Product(form, n, seed, CPU)
    exact = product.a.double() @ product.b.double()
    assert torch.equal(product.expected.double(), exact)


@pytest.mark.parametrize("form", FORMS)
def test_every_element_fits_its_dtype_at_the_greatest_size(form: str) -> None:
    """Elements are h times n / 32, a power of two, and |h| is at most 4 * 32."""
    greatest = torch.tensor(float(128 * (8192 // 32)))
    assert greatest.to(FORMS[form]).float() == greatest
    odd = torch.arange(0, 129)
    assert torch.equal(odd.to(FORMS[form]).to(torch.int64), odd)


@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_a_right_product_has_no_wrong_element(form: str) -> None:
    product = Product(form, 64, 7, CPU)
    product.poison()
    product.multiply(2)
    assert product.check() is None


def test_what_was_not_written_is_wrong() -> None:
    product = Product("float32", 64, 7, CPU)
    product.poison()
    found = product.check()
    assert found is not None
    assert found.wrong == 64 * 64


def test_a_wrong_element_is_found_with_row_and_column() -> None:
    product = Product("float32", 64, 7, CPU)
    product.multiply()
    right = float(product.c[9, 60])
    product.c[9, 60] += 1
    product.c[10, 1] += 1
    assert product.check() == (2, 9, 60, right + 1, right)


def test_one_lost_term_changes_the_product() -> None:
    product = Product("float32", 64, 7, CPU)
    product.a[5, 17] = 0
    product.multiply()
    found = product.check()
    assert found is not None
    assert found.row == 5
    assert found.wrong == 64


def test_ranks_have_different_matrices() -> None:
    assert not torch.equal(Product("float32", 64, 7, CPU).a, Product("float32", 64, 8, CPU).a)


@pytest.mark.parametrize("kind", ["copy", "triad"])
def test_traffic_is_right_and_a_wrong_element_is_found(kind: str) -> None:
    traffic = Stream(64 << 10, 4, 7, 1, CPU).kinds()[kind]
    traffic.poison()
    for part in range(3):
        traffic.work(part)
    found = traffic.check()
    assert found is not None
    assert (found.offset, found.wrong) == (12 << 10, 4 << 10)
    traffic.work(3)
    assert traffic.check() is None
    assert traffic.moved == {"copy": 2, "triad": 3}[kind] * (16 << 10)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_host_copies_arrive(direction: str) -> None:
    traffic = HostCopies(4096, 7, 1, CPU).kinds()[direction]
    traffic.poison()
    found = traffic.check()
    assert found is not None
    assert found.wrong == 1024
    traffic.work(0)
    assert traffic.check() is None
    assert traffic.moved == 4096


def test_buffers_are_larger_than_the_last_cache(tmp_path: Path) -> None:
    for index, (level, size) in enumerate([("1", "32K"), ("1", "32K"), ("2", "1024K"), ("3", "64M")]):
        folder = tmp_path / "cpu3" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    caches = str(tmp_path / "cpu{}" / "cache")
    assert beyond_cache(1 << 20, 3, caches) == 256 << 20
    assert beyond_cache(1 << 30, 3, caches) == 1 << 30
    assert beyond_cache(1 << 20, 4, caches) == 1 << 20
    assert beyond_cache(1 << 20, None, caches) == 1 << 20


# Where a rank runs.


def _claimed(local_rank: int, answer: multiprocessing.connection.Connection) -> None:
    try:
        answer.send((affinity.claim_core(local_rank), os.sched_getaffinity(0)))
    except RuntimeError as error:
        answer.send((str(error), set()))


def claim(local_rank: int) -> tuple[object, set[int]]:
    """Claim a core in a process of its own, which is then gone with its affinity."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_claimed, args=(local_rank, theirs))
    process.start()
    found: tuple[object, set[int]] = mine.recv()
    process.join()
    return found


def test_each_rank_has_a_core_of_its_own() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert [claim(rank) for rank in range(len(cores))] == [(core, {core}) for core in cores]


def test_a_rank_without_a_core_says_so() -> None:
    message, _ = claim(len(os.sched_getaffinity(0)))
    assert "has no core of its own" in str(message)


def test_a_rank_stays_near_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: asked.append(cores))
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "local_cpulist").write_text("2-5,8\n")
    affinity.stay_near("00000000:1B:00.0", str(tmp_path))
    affinity.stay_near("00000000:1C:00.0", str(tmp_path))
    assert asked == [{2, 3}]


# The settings.


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dtypes": ["float64"]}, "unknown dtype 'float64'"),
        ({"soak_dtype": "tf32"}, "tf32 is a multiplication of GPUs"),
        ({"matrix": 500}, "matrix 500 is not a power of two"),
        ({"matrix": 16384}, "matrix 16384 is not a power of two from 32 to 8192"),
        ({"memory": 1001}, "memory 1001"),
        ({"copies": 0}, "copies 0"),
        ({"parts": 7}, "not whole passes"),
        ({"repeats": 101}, "repeats 101 is not within"),
        ({"soak_s": 0.0}, "soak_s"),
        ({"device": "tpu"}, "neither 'cpu' nor 'cuda'"),
    ],
)
def test_a_mistake_in_the_settings_is_told(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        health._settle(settings)


def test_an_event_of_a_phase_fits_in_its_line() -> None:
    """A hundred times of up to eight digits, and the fields beside them, stay far below 8 KiB."""
    assert health.MAX_REPEATS * len("12345678.9,") < 4096
