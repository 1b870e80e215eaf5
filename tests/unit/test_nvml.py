"""NVML through the stand-in library: what is read, what is not there, and what is broken must never look alike."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab import nvml as standin
from lab.nvml import gpu

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in NVML needs gcc")

ROOT = Path(__file__).parents[2]


def has_driver() -> bool:
    """Whether this machine has an NVML of its own."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


needs_no_driver = pytest.mark.skipif(has_driver(), reason="this machine has an NVML of its own")

FIND = """
import json, sys
from payload import nvml
try:
    found = nvml.find(*sys.argv[1:])
    print(json.dumps({"gpus": [gpu._asdict() for gpu in found.gpus], "driver": found.driver, "cuda": found.cuda}))
except nvml.AbsentError as absent:
    print(json.dumps({"kind": absent.kind.name, "detail": absent.detail}))
"""

ABSENCE = """
import json, sys
from payload import nvml
try:
    nvml.inventory(*sys.argv[1:])
except nvml.AbsentError as absent:
    print(json.dumps({"kind": absent.kind.name, "detail": absent.detail}))
"""

READ = """
import json
from payload import nvml
with nvml.session("/nowhere", "/nowhere") as library:
    from payload.devices import FAST, SLOW
    device = library.devices[0]
    values = {}
    for metric in FAST + SLOW:
        values.update(zip(metric.columns, device.read(metric)))
    print(json.dumps({"values": values, "unsupported": device.unsupported, "faults": device.faults}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpus"


def run(code: str, *arguments: str, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """A program's one line of JSON, and what it said on standard error."""
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout), done.stderr


def read(library: Path, file: Path, **changes: str | int | None) -> dict[str, Any]:
    standin.write(file, standin.MACHINE, [gpu(0, **changes)])
    return run(READ, env=standin.environment(library, file))[0]


def find(library: Path, file: Path, dev: str = "/nowhere", pci: str = "/nowhere") -> tuple[dict[str, Any], str]:
    return run(FIND, dev, pci, env=standin.environment(library, file))


def test_inventory_names_every_gpu_by_uuid_and_pci_address(library: Path, file: Path) -> None:
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1, nvlink__links=None)])
    found, _ = find(library, file)
    assert (found["driver"], found["cuda"]) == ("580.95.05", "13.0")
    assert [(g["index"], g["pci"], g["links"]) for g in found["gpus"]] == [
        (0, "00000000:10:00.0", 18),
        (1, "00000000:11:00.0", 0),
    ]
    assert len({g["uuid"] for g in found["gpus"]}) == 2
    assert found["gpus"][0]["memory"] == 80 * 2**30
    assert found["gpus"][0]["mig"] is False


def test_slices_belong_to_their_gpu(library: Path, file: Path) -> None:
    slices: dict[tuple[int, int], standin.Facts] = {
        (1, 0): {"uuid": "MIG-a", "name": "H100 MIG 1g.10gb", "memory.total": 10 * 2**30, "memory.used": 0},
        (1, 3): {"uuid": "MIG-b", "name": "H100 MIG 3g.40gb"},
    }
    standin.write(file, standin.MACHINE, [gpu(0, mig__mode=None), gpu(1, mig__mode=1)], slices)
    found, _ = find(library, file)
    assert [g["mig"] for g in found["gpus"]] == [None, True]
    assert found["gpus"][1]["slices"] == [
        ["MIG-a", "H100 MIG 1g.10gb", 10 * 2**30],
        ["MIG-b", "H100 MIG 3g.40gb", None],
    ]


@needs_no_driver
def test_no_library_is_a_machine_without_gpus(tmp_path: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    assert run(FIND, "/nowhere", "/nowhere", env=env)[0] == {"gpus": [], "driver": None, "cuda": None}
    absent, _ = run(ABSENCE, "/nowhere", "/nowhere", env=env)
    assert absent["kind"] == "NO_LIBRARY"
    assert "libnvidia-ml.so.1" in absent["detail"]


def test_no_device_is_a_machine_without_gpus(library: Path, file: Path) -> None:
    for machine in ({**standin.MACHINE, "init": "DRIVER_NOT_LOADED"}, standin.MACHINE):
        standin.write(file, machine, [])
        assert find(library, file)[0]["gpus"] == []
        absent, _ = run(ABSENCE, "/nowhere", "/nowhere", env=standin.environment(library, file))
        assert absent["kind"] == "NO_DEVICE"


def hardware(tmp_path: Path, kind: str) -> tuple[str, str]:
    """Folders like /dev and /sys/bus/pci/devices that show a sign of a GPU."""
    dev, pci = tmp_path / "dev", tmp_path / "pci"
    dev.mkdir()
    pci.mkdir()
    if kind == "node":
        (dev / "nvidia0").touch()
    else:
        card = pci / "0000:10:00.0"
        card.mkdir()
        (card / "vendor").write_text("0x10de\n")
        (card / "class").write_text("0x030200\n" if kind == "gpu" else "0x068000\n")
    return str(dev), str(pci)


@pytest.mark.parametrize("kind", ["node", "gpu"])
@pytest.mark.parametrize("machine", [{"init": "DRIVER_NOT_LOADED"}, standin.MACHINE])
def test_hardware_without_nvml_is_an_error_not_a_cpu_machine(
    library: Path, file: Path, tmp_path: Path, kind: str, machine: standin.Facts
) -> None:
    standin.write(file, machine, [])
    dev, pci = hardware(tmp_path, kind)
    found, _ = find(library, file, dev, pci)
    assert found["kind"] == "BROKEN"
    assert ("nvidia0" if kind == "node" else "0000:10:00.0") in found["detail"]


@needs_no_driver
@pytest.mark.parametrize("kind", ["node", "gpu"])
def test_hardware_without_a_library_is_an_error_not_a_cpu_machine(tmp_path: Path, kind: str) -> None:
    found, _ = run(FIND, *hardware(tmp_path, kind), env={**os.environ, "LD_LIBRARY_PATH": ""})
    assert found["kind"] == "BROKEN"


def test_another_kind_of_pci_device_is_no_sign_of_a_gpu(library: Path, file: Path, tmp_path: Path) -> None:
    standin.write(file, standin.MACHINE, [])
    assert find(library, file, *hardware(tmp_path, "switch"))[0]["gpus"] == []


@pytest.mark.parametrize("refusal", ["LIB_RM_VERSION_MISMATCH", "NO_PERMISSION", "UNKNOWN"])
def test_a_library_that_will_not_start_is_broken(library: Path, file: Path, refusal: str) -> None:
    standin.write(file, {"init": refusal}, [gpu(0)])
    assert find(library, file)[0]["kind"] == "BROKEN"


def test_a_library_that_does_not_load_is_broken(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    found, _ = run(FIND, "/nowhere", "/nowhere", env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert found["kind"] == "BROKEN"
    assert "too short" in found["detail"]


def test_a_library_without_its_python_binding_is_broken(library: Path, file: Path) -> None:
    standin.write(file, standin.MACHINE, [gpu(0)])
    hidden = "import sys\nsys.modules['pynvml'] = None\n" + FIND
    found, _ = run(hidden, "/nowhere", "/nowhere", env=standin.environment(library, file))
    assert found["kind"] == "BROKEN"
    assert "pynvml" in found["detail"]


def test_one_gpu_that_cannot_be_opened_is_named(library: Path, file: Path) -> None:
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1, open="GPU_IS_LOST")])
    found, _ = find(library, file)
    assert found["kind"] == "BROKEN"
    assert "GPU 1" in found["detail"]
    assert "lost" in found["detail"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("driver = 1\n[gpu 0]\npowr = 3\n", ":3: unknown key 'powr'"),
        ("[gpu 0]\npower = lots\n", ":2: 'power' cannot be 'lots'"),
        ("[gpu 0]\npower = -1\n", ":2: 'power' cannot be '-1'"),
        ("[gpu 0]\npower = !NO_SUCH_ERROR\n", ":2: 'power' cannot be"),
        ("[gpu 0]\npower\n", ":2: expected key = value"),
        ("[gpu 0]\npower = 1\npower = 2\n", ":3: the key 'power' stands twice"),
        ("[gpu 1]\n", ":1: expected a new [gpu N]"),
        ("[gpu 0]\n[gpu 0]\n", ":2: expected a new [gpu N]"),
        ("init = MAYBE\n", ":1: 'init' cannot be 'MAYBE'"),
        ("[gpu 0]\nxids = 79 many\n", ":2: 'xids' cannot be"),
    ],
)
def test_a_malformed_description_is_loud(library: Path, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    found, errors = find(library, file)
    assert found["kind"] == "BROKEN"
    assert f"{file}{said}" in errors


def test_a_missing_description_is_loud(library: Path, file: Path) -> None:
    found, errors = find(library, file)
    assert found["kind"] == "BROKEN"
    assert "No such file" in errors


def test_every_metric_is_read_in_its_unit(library: Path, file: Path) -> None:
    changes: dict[str, str | int | None] = {
        "memory.used": 5,
        "utilisation.gpu": 97,
        "utilisation.memory": 40,
        "power": 650_500,
        "temperature": 71,
        "headroom": 16,
        "clock.sm": 1755,
        "clock.memory": 2600,
        "reasons": "0x44",
        "ecc.corrected": 3,
        "ecc.uncorrected": 2,
        "remap.pending": 1,
        "remap.failure": 0,
        "nvlink.crc_flit": 1,
        "nvlink.crc_data": 2,
        "nvlink.replay": 4,
        "nvlink.recovery": 8,
        "pcie.replay": 9,
    }
    found = read(library, file, **changes)
    assert found["values"] == {
        "memory_used": 5,
        "utilisation": 97,
        "memory_utilisation": 40,
        "power": 650.5,
        "temperature": 71,
        "headroom": 16,
        "sm_clock": 1755,
        "memory_clock": 2600,
        "reasons": 0x44,
        "ecc_corrected": 3,
        "ecc_uncorrected": 2,
        "remap_pending": 1,
        "remap_failure": 0,
        "nvlink_errors": 15,
        "pcie_replays": 9,
    }
    assert found["unsupported"] == []
    assert found["faults"] == {}


WORDS = {
    "utilisation.gpu": ("utilisation", "memory_utilisation"),
    "power": ("power",),
    "temperature": ("temperature",),
    "headroom": ("headroom",),
    "clock.sm": ("sm_clock",),
    "clock.memory": ("memory_clock",),
    "reasons": ("reasons",),
    "ecc.corrected": ("ecc_corrected",),
    "ecc.uncorrected": ("ecc_uncorrected",),
    "remap.pending": ("remap_pending", "remap_failure"),
    "nvlink.links": ("nvlink_errors",),
    "pcie.replay": ("pcie_replays",),
}


def test_not_supported_is_none_and_said_for_every_metric(library: Path, file: Path) -> None:
    found = read(library, file, **dict.fromkeys(WORDS, None))
    columns = [column for columns in WORDS.values() for column in columns]
    assert {column: found["values"][column] for column in columns} == dict.fromkeys(columns, None)
    assert sorted(found["unsupported"]) == sorted(columns)
    assert found["values"]["memory_used"] == 2**30


def test_an_error_is_none_and_kept_apart_from_not_supported(library: Path, file: Path) -> None:
    found = read(library, file, power="!GPU_IS_LOST", ecc__uncorrected="!UNKNOWN")
    assert (found["values"]["power"], found["values"]["ecc_uncorrected"]) == (None, None)
    assert found["faults"] == {"power": "GPU is lost", "ecc_uncorrected": "Unknown Error"}
    assert found["unsupported"] == []


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"field.38": 1, "field.45": 2, "field.52": 4, "field.59": 8}, 15),
        ({"field.52": 4}, 4),
        ({"field.208": 5, "field.208.17": 6, "field.215.3": 7}, 18),
    ],
    ids=["totals up to NVLink 4", "one total alone", "NVLink 5, link by link"],
)
def test_nvlink_errors_are_summed_from_what_the_device_has(
    library: Path, file: Path, fields: dict[str, str | int | None], errors: int
) -> None:
    assert read(library, file, **fields)["values"]["nvlink_errors"] == errors


XIDS = """
import json, os, sys
from payload import nvml
with nvml.session("/nowhere", "/nowhere") as library, library.xids() as arrived:
    told = [arrived()]
    for step in sys.argv[1:]:
        os.replace(step, os.environ["SEATRIAL_NVML_FILE"])
        told += [arrived(), arrived()]
    print(json.dumps({"told": told, "unsupported": [d.unsupported for d in library.devices], "faults": library.faults}))
"""


def test_each_xid_is_told_once_with_its_gpu(library: Path, file: Path) -> None:
    steps = [file.with_name("one"), file.with_name("two")]
    standin.write(file, standin.MACHINE, [gpu(0, xids="31"), gpu(1)])
    standin.write(steps[0], standin.MACHINE, [gpu(0, xids="31"), gpu(1, xids="79")])
    standin.write(steps[1], standin.MACHINE, [gpu(0, xids="31 48 63"), gpu(1, xids="79")])
    found, _ = run(XIDS, *map(str, steps), env=standin.environment(library, file))
    first, second = gpu(0)["uuid"], gpu(1)["uuid"]
    assert found["told"] == [[], [[second, 79]], [], [[first, 48], [first, 63]], []]
    assert found["unsupported"] == [[], []]


def test_a_gpu_without_xid_events_says_so(library: Path, file: Path) -> None:
    standin.write(file, standin.MACHINE, [gpu(0, xids=None)])
    found, _ = run(XIDS, env=standin.environment(library, file))
    assert found["unsupported"] == [["xid"]]


def test_an_event_set_that_breaks_is_a_fault(library: Path, file: Path) -> None:
    step = file.with_name("one")
    standin.write(file, standin.MACHINE, [gpu(0)])
    standin.write(step, standin.MACHINE, [gpu(0, xids="!GPU_IS_LOST")])
    found, _ = run(XIDS, str(step), env=standin.environment(library, file))
    assert found["faults"] == {"xid": "GPU is lost"}
    assert found["told"] == [[], [], []]


def test_older_and_newer_names_of_a_call_answer_alike(library: Path, file: Path) -> None:
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1)])
    code = """
import ctypes, json
lib = ctypes.CDLL("libnvidia-ml.so.1")
counts = []
for init, count in (("nvmlInit", "nvmlDeviceGetCount"), ("nvmlInit_v2", "nvmlDeviceGetCount_v2")):
    number = ctypes.c_uint()
    counts.append([getattr(lib, init)(), getattr(lib, count)(ctypes.byref(number)), number.value, lib.nvmlShutdown()])
number = ctypes.c_uint()
print(json.dumps({"counts": counts, "after": lib.nvmlDeviceGetCount(ctypes.byref(number))}))
"""
    found, _ = run(code, env=standin.environment(library, file))
    assert found == {"counts": [[0, 0, 2, 0], [0, 0, 2, 0]], "after": 1}
