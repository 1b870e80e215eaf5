"""A rank's shard: what is written comes back with every bit, and no harm to the file goes unseen or unnamed."""

from __future__ import annotations

import errno
import os
import resource
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from seatrial.payload import shards
from seatrial.payload.shards import DamageError, Written

HOST = torch.device("cpu")


def state() -> dict[str, torch.Tensor]:
    """Tensors of every dtype, empty, scalar, larger than a piece, and not contiguous."""
    torch.manual_seed(3)
    return {
        "large": torch.rand(shards.CHUNK // 4 + 17),
        "turned": torch.rand(30, 40).t(),
        "scalar": torch.tensor(7.5),
        "empty": torch.empty(0, 3),
        "half": torch.rand(9).bfloat16(),
        "whole": torch.arange(11),
        "bytes": torch.arange(256).to(torch.uint8),
        "flags": torch.tensor([True, False, True]),
    }


def written(folder: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, Written]:
    path = str(folder / "rank-00000.shard")
    return path, shards.write(path, tensors, {"step": 3, "rate": 0.1})


def read(path: str, known: Written) -> tuple[dict[str, torch.Tensor], Any]:
    found: dict[str, torch.Tensor] = {}
    plain = shards.read(path, known.size, known.checksum, HOST, found.__setitem__)
    return found, plain


def test_every_bit_comes_back(tmp_path: Path) -> None:
    path, known = written(tmp_path, state())
    found, plain = read(path, known)
    assert plain == {"step": 3, "rate": 0.1}
    assert list(found) == list(state())
    for name, tensor in state().items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name


def test_its_size_and_checksum_are_the_files(tmp_path: Path) -> None:
    path, known = written(tmp_path, state())
    data = Path(path).read_bytes()
    assert known.size == len(data)
    assert known.checksum == f"{zlib.crc32(data):08x}"


@pytest.mark.parametrize("at", [3, 20, 35, 60, 400, -1])
def test_a_flipped_bit_is_seen_wherever_it_is(tmp_path: Path, at: int) -> None:
    path, known = written(tmp_path, state())
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 4
    Path(path).write_bytes(data)
    with pytest.raises(DamageError):
        read(path, known)


@pytest.mark.parametrize("length", [0, 10, 100, -1])
def test_a_truncated_file_says_how_much_is_there(tmp_path: Path, length: int) -> None:
    path, known = written(tmp_path, state())
    size = length % known.size
    os.truncate(path, size)
    with pytest.raises(DamageError, match=f"^{size} bytes, expected {known.size}"):
        read(path, known)


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamageError, match="missing"):
        read(str(tmp_path / "none.shard"), Written(1, "0", 0))


def test_half_a_shard_never_has_the_final_name(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    path = str(tmp_path / "rank-00000.shard")
    shards.write(path, state(), None, halfway=lambda: seen.append(os.listdir(tmp_path)))
    assert seen == [["rank-00000.shard.part"]]
    assert os.listdir(tmp_path) == ["rank-00000.shard"]


def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device while writing") as caught:
        written(tmp_path, state())
    assert caught.value.filename == str(tmp_path / "rank-00000.shard")
    assert os.listdir(tmp_path) == []


def test_a_copy_that_is_not_contiguous_lives_as_long_as_its_view() -> None:
    turned = torch.rand(30, 40).t()
    data = shards.view(shards.raw(turned))
    others = [torch.full((30, 40), 9.0) for _ in range(200)]
    assert bytes(data) == bytes(shards.view(shards.raw(turned)))
    assert len(others) == 200


def test_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    tensors = {"large": torch.rand(4 * shards.CHUNK)}

    def write_and_read(times: int) -> None:
        for _ in range(times):
            path, known = written(tmp_path, tensors)
            shards.read(path, known.size, known.checksum, HOST, lambda *_: None)

    write_and_read(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_and_read(8)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2 * shards.CHUNK // 1024, "kibibytes"
