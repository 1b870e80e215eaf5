"""A GPU's condition, read through pynvml and judged: each fault is red, and what was not read is never green."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import nvml as standin
from lab.nvml import gpu
from seatrial.bounds import load_package
from seatrial.check import Measurement, Outcome, Place, Planned, judge
from seatrial.job import Event
from seatrial.suites.health.condition import UNITS, Condition, Finding, judge_memory, judge_nvlink, judge_pcie
from seatrial.suites.health.devices import Device

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in NVML needs gcc")

HERE = Path(__file__).parent
CONTEXT = {"device": "cuda", "accelerator": "h100-80gb", "topology": "8gpu-sxm-nvlink"}

SPEED = "field__90"
ECC_MODE, PAGES_PENDING = "field__900001", "field__900002"
WIDTH, WIDTH_MOST = "field__900003", "field__900004"
GENERATION, GENERATION_MOST = "field__900005", "field__900006"
SOUND: dict[str, str | int | None] = {
    SPEED: 26562,
    ECC_MODE: 1,
    PAGES_PENDING: 0,
    WIDTH: 16,
    WIDTH_MOST: 16,
    GENERATION: 5,
    GENERATION_MOST: 5,
}

READ = """
import json, sys
from payload import condition, nvml
with nvml.session("/nowhere", "/nowhere") as library:
    print(json.dumps([condition.read(library, gpu.uuid) for gpu in library.inventory.gpus]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", str(path), str(HERE / "nvml_links.c")], check=True, timeout=120)
    return path


@pytest.fixture
def read(library: Path, tmp_path: Path) -> Any:
    """Read the condition of GPUs, each described by what is not sound about it."""

    def conditions(*changes: dict[str, str | int | None]) -> list[Condition]:
        file = tmp_path / "gpus"
        standin.write(file, standin.MACHINE, [gpu(at, **(SOUND | change)) for at, change in enumerate(changes)])
        argv, env = [sys.executable, "-c", READ], standin.environment(library, file)
        done = subprocess.run(
            argv, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return [of(rank, fields) for rank, fields in enumerate(json.loads(done.stdout))]

    return conditions


def of(rank: int, fields: dict[str, Any] | None) -> Condition:
    device = Device(rank, "node", rank, None, f"GPU-{rank}", "NVIDIA H100 80GB HBM3")
    return Condition(device, None if fields is None else Event(rank, 0, 0.0, "condition", fields))


def findings(conditions: list[Condition], rank: int, *, promised: bool = True) -> dict[str, Finding]:
    own, peers = conditions[rank], [other for other in conditions if other.device.rank != rank]
    return judge_memory(own) | judge_pcie(own) | judge_nvlink(own, peers, promised=promised)


def outcomes(conditions: list[Condition], rank: int, *, promised: bool = True) -> dict[str, Outcome]:
    bounds = load_package()
    said = {}
    for check, finding in findings(conditions, rank, promised=promised).items():
        planned = Planned(check, Place({"rank": str(rank)}))
        measured = Measurement(planned, finding.value, UNITS[check], references=finding.references, why=finding.why)
        verdict = judge(measured, bounds.find(check, {**CONTEXT, **planned.place.where}))
        said[check] = Outcome.SKIP if finding.skip else verdict.outcome
    return said


def test_sound_gpus_pass_everything(read: Any) -> None:
    conditions = read({}, {})
    for rank in (0, 1):
        assert set(outcomes(conditions, rank).values()) == {Outcome.PASS}


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("health.ecc.uncorrected", {"ecc__uncorrected": 1}),
        ("health.remap.pending", {"remap__pending": 1}),
        ("health.remap.failure", {"remap__failure": 1}),
        ("health.pages.pending", {PAGES_PENDING: 1}),
        ("health.pcie.width", {WIDTH: 8}),
        ("health.pcie.generation", {GENERATION: 4}),
        ("health.nvlink.down", {"nvlink__links": 17}),
        ("health.nvlink.speed", {SPEED: 25781}),
    ],
)
def test_a_fault_fails_its_own_check_on_its_own_gpu(read: Any, check: str, fault: dict[str, str | int | None]) -> None:
    conditions = read({}, fault)
    said = outcomes(conditions, 1)
    assert said.pop(check) is Outcome.FAIL
    assert set(said.values()) == {Outcome.PASS}
    assert set(outcomes(conditions, 0).values()) == {Outcome.PASS}


@pytest.mark.parametrize(
    ("word", "check"),
    [
        ("ecc__uncorrected", "health.ecc.uncorrected"),
        ("remap__pending", "health.remap.pending"),
        ("remap__failure", "health.remap.failure"),
        (PAGES_PENDING, "health.pages.pending"),
        (WIDTH, "health.pcie.width"),
        (GENERATION, "health.pcie.generation"),
    ],
)
def test_not_supported_is_a_skip_and_an_error_is_inconclusive(read: Any, word: str, check: str) -> None:
    assert outcomes(read({word: None}, {}), 0)[check] is Outcome.SKIP
    broken = read({word: "!UNKNOWN"}, {})
    assert outcomes(broken, 0)[check] is Outcome.INCONCLUSIVE
    assert "rank 0" in findings(broken, 0)[check].why


def test_a_maximum_that_is_not_told_is_no_pass(read: Any) -> None:
    assert outcomes(read({WIDTH_MOST: 0}, {}), 0)["health.pcie.width"] is Outcome.INCONCLUSIVE


def test_ecc_that_is_off_is_no_pass(read: Any) -> None:
    conditions = read({ECC_MODE: 0, "ecc__uncorrected": None}, {})
    assert outcomes(conditions, 0)["health.ecc.uncorrected"] is Outcome.INCONCLUSIVE
    assert "ECC is off" in findings(conditions, 0)["health.ecc.uncorrected"].why


def test_no_nvlink_anywhere_is_a_skip_unless_the_profile_promises_it(read: Any) -> None:
    conditions = read({"nvlink__links": None}, {"nvlink__links": None})
    assert outcomes(conditions, 0, promised=False)["health.nvlink.down"] is Outcome.SKIP
    assert outcomes(conditions, 0, promised=True)["health.nvlink.down"] is Outcome.INCONCLUSIVE


def test_all_links_of_one_gpu_down_is_a_fault(read: Any) -> None:
    assert outcomes(read({"nvlink__links": 0}, {}), 0)["health.nvlink.down"] is Outcome.FAIL


def test_a_gpu_that_nvml_does_not_know_is_no_pass() -> None:
    said = outcomes([of(0, None)], 0, promised=False)
    assert set(said.values()) == {Outcome.INCONCLUSIVE}


UNKNOWN = """
import json
from payload import condition, nvml
with nvml.session("/nowhere", "/nowhere") as library:
    print(json.dumps(condition.read(library, "GPU-elsewhere")))
"""


def test_a_uuid_that_nvml_does_not_list_is_told(library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, standin.MACHINE, [gpu(0, **SOUND)])
    argv, env = [sys.executable, "-c", UNKNOWN], standin.environment(library, file)
    done = subprocess.run(argv, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=60, check=True)
    condition = of(0, json.loads(done.stdout))
    assert set(outcomes([condition], 0, promised=False).values()) == {Outcome.INCONCLUSIVE}
    assert "knows no GPU-elsewhere" in condition.finding("pcie_width").why
