"""The payload's zip: the same bytes every time, whole or not at all, and readable by an old Python."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seatrial import shipping
from seatrial.shipping import pack


def test_the_same_payload_is_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.pyz", tmp_path / "other.pyz"
    assert pack(one) == pack(other) == hashlib.sha256(one.read_bytes()).hexdigest()
    assert one.read_bytes() == other.read_bytes()


def test_it_runs_alone(tmp_path: Path) -> None:
    pack(tmp_path / shipping.NAME)
    command = [sys.executable, "-I", "-S", str(tmp_path / shipping.NAME), "--help"]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "launch" in done.stdout


def test_its_syntax_is_that_of_python_3_8(tmp_path: Path) -> None:
    pack(tmp_path / shipping.NAME)
    with zipfile.ZipFile(tmp_path / shipping.NAME) as archive:
        own = [name for name in archive.namelist() if name.startswith("payload/")]
        assert {"payload/main.py", "payload/launch.py"} <= set(own)
        for name in own:
            ast.parse(archive.read(name), name, feature_version=(3, 8))


def test_a_pack_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / shipping.NAME)
    before = (tmp_path / shipping.NAME).read_bytes()
    monkeypatch.setattr(shipping, "_members", lambda: [("payload/main.py", None)])
    with pytest.raises(TypeError):
        pack(tmp_path / shipping.NAME)
    assert [path.name for path in tmp_path.iterdir()] == [shipping.NAME]
    assert (tmp_path / shipping.NAME).read_bytes() == before


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "nowhere" / shipping.NAME)
