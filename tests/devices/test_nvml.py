from pathlib import Path
from typing import Any

from gpubalance.devices.nvml import Gpu, kernel_module_version, read
from tests.faults.machine import TI
from tests.stand_in import TWO_UNLIKE_GPUS, child, environment, loaded
from tests.support.cases import cases


def reading(folder: Path, script: str) -> dict[str, Any]:
    with loaded(environment(folder, script)):
        return read().model_dump(mode="json")


def test_two_unlike_gpus(tmp_path: Path) -> None:
    result = reading(tmp_path, TWO_UNLIKE_GPUS)
    versions = {"driver_version": "550.54.14", "cuda_driver_version": "12.4"}
    assert versions.items() <= result.items()
    assert result["nvml_version"] == "12.550.54.14"
    assert (result["problem"], result["remedy"]) == (None, None)
    first, second = result["gpus"]
    ti: dict[str, Any] = {"index": 0, "uuid": TI, "bus_id": "0000:01:00.0"}
    ti |= {"name": "NVIDIA GeForce GTX 1080 Ti", "compute_capability": "6.1"}
    ti |= {"memory_bytes": 11811160064, "memory_free_bytes": 11700000000}
    ti |= {"processes": [], "mig": False, "mig_slices": [], "unusable": None}
    assert first == ti
    plain = {"index": 1, "name": "NVIDIA GeForce GTX 1080", "bus_id": "0000:02:00.0"}
    assert plain.items() <= second.items()


def test_what_is_not_supported_or_refused_is_null_alone(tmp_path: Path) -> None:
    result = reading(tmp_path, "gpu 0 uuid GPU-1\ngpu 1 uuid GPU-2\ngpu 1 memory 0 0")
    for name in ("driver_version", "cuda_driver_version", "problem"):
        assert result[name] is None
    bare = [Gpu(index=n, uuid=f"GPU-{n + 1}", processes=()) for n in (0, 1)]
    assert [Gpu.model_validate(gpu) for gpu in result["gpus"]] == bare
    refused = "gpu 0 error memory 4\ngpu 0 error capability 999\ngpu 0 error bus 17\nerror driver 4"
    result = reading(tmp_path, f"{TWO_UNLIKE_GPUS}\n{refused}")
    gpu = result["gpus"][0]
    assert result["driver_version"] is None
    untold = ("memory_bytes", "memory_free_bytes", "compute_capability", "bus_id")
    assert [gpu[field] for field in untold] == [None] * 4
    assert (gpu["name"], gpu["unusable"]) == ("NVIDIA GeForce GTX 1080 Ti", None)


def test_processes_of_both_kinds_are_merged_without_ours(tmp_path: Path) -> None:
    script = r"""
gpu 0 uuid GPU-1
gpu 0 process compute 4242 1000 python \x1b[31mtrain.py
gpu 0 process compute self 5000 python
gpu 0 process compute 77 none /usr/lib/xorg/Xorg
gpu 0 process graphics 4242 3000
gpu 0 process graphics 99 64
gpu 0 process graphics 0 64
"""
    assert reading(tmp_path, script)["gpus"][0]["processes"] == [
        {"pid": 77, "name": "/usr/lib/xorg/Xorg", "memory_bytes": None},
        {"pid": 99, "name": None, "memory_bytes": 64},
        {"pid": 4242, "name": "python train.py", "memory_bytes": 3000},
    ]


def test_what_an_old_or_forbidden_driver_tells_of_processes(tmp_path: Path) -> None:
    script = f"""{TWO_UNLIKE_GPUS}
error process_name 4
gpu 0 error compute 4
gpu 0 error graphics 4
gpu 1 error processes_v3 13
gpu 1 error graphics 3
gpu 1 process compute 7 1000 python
"""
    first, second = reading(tmp_path, script)["gpus"]
    assert first["processes"] is first["unusable"] is None
    assert first["memory_bytes"] == 11811160064
    assert second["processes"] == [{"pid": 7, "name": None, "memory_bytes": 1000}]


UNKNOWN = {"index": 0, "uuid": "unknown-0"}
FIRST = {"index": 0, "uuid": TI}
NO_MEMORY = {"memory_bytes": None, "memory_free_bytes": None}


@cases(
    "fault, told, reason",
    ("handle 15", UNKNOWN, "lost"),
    ("all 15", UNKNOWN | {"name": None}, "lost"),
    ("handle 4", UNKNOWN, "no permission"),
    ("uuid 3", UNKNOWN, "UUID"),
    ("memory 15", FIRST | {"bus_id": "0000:01:00.0"} | NO_MEMORY, "lost"),
    ("capability 16", FIRST | {"compute_capability": None}, "reset"),
)
def test_a_gpu_with_a_fault_keeps_what_it_told_and_the_others_go_on(
    tmp_path: Path, fault: str, told: dict[str, Any], reason: str
) -> None:
    first, second = reading(tmp_path, f"{TWO_UNLIKE_GPUS}\ngpu 0 error {fault}")["gpus"]
    assert told.items() <= first.items()
    assert reason in first["unusable"]
    assert (second["name"], second["unusable"]) == ("NVIDIA GeForce GTX 1080", None)


def test_mig_slices_are_listed(tmp_path: Path) -> None:
    script = """
gpu 0 uuid GPU-a100
gpu 0 name NVIDIA A100-SXM4-40GB
gpu 0 mig 1
gpu 0 slice 0 uuid MIG-1111
gpu 0 slice 0 name NVIDIA A100-SXM4-40GB MIG 3g.20gb
gpu 0 slice 0 memory 20937965568 20900000000
gpu 0 slice 4 uuid MIG-2222
gpu 1 uuid GPU-off
gpu 1 mig 0
"""
    first, second = reading(tmp_path, script)["gpus"]
    assert first["mig"] is True
    assert "MIG mode" in first["unusable"]
    name = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert first["mig_slices"] == [
        {"uuid": "MIG-1111", "name": name, "memory_bytes": 20937965568},
        {"uuid": "MIG-2222", "name": None, "memory_bytes": None},
    ]
    off = {"mig": False, "mig_slices": [], "unusable": None}
    assert off.items() <= second.items()


@cases(
    "written, shown",
    (r"\x1b[31;1mGTX\x1b[0m\x07 1080\x0aTi [red]", "GTX 1080 Ti [red]"),
    ("G" * 10_000, "G" * 95),
    ("é" * 100, "é" * 47 + "\ufffd"),
    (r"\x1b[0m", None),
    ids=["escapes", "long", "cut within a character", "nothing left"],
)
def test_names_are_made_safe(tmp_path: Path, written: str, shown: str | None) -> None:
    # This is a bus id as the campaign found it.
    cut = r"\x30\x30\x30\x30" + r"\xc2\x80" * 6 + r"\xf0\x90\x80\x80" * 4
    script = f"gpu 0 uuid GPU-1\ngpu 0 name {written}\ngpu 0 bus {cut}"
    (gpu,) = reading(tmp_path, script)["gpus"]
    assert (gpu["uuid"], gpu["name"], gpu["bus_id"]) == ("GPU-1", shown, None)


def test_nvml_is_loaded_late_and_always_shut_down(tmp_path: Path) -> None:
    code = """
import sys
from gpubalance.devices import nvml
print("pynvml" in sys.modules)
nvml.read()
nvml.read()
import pynvml
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError_Uninitialized as error:
    print(error)
"""
    lost = f"{TWO_UNLIKE_GPUS}\ngpu 0 error all 15"
    for script in (TWO_UNLIKE_GPUS, "error count 999", lost):
        told = child(code, environment(tmp_path, script))
        assert told.splitlines() == ["False", "Uninitialized"]


def test_the_version_of_the_loaded_driver() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
    gcc = "Release Build\nGCC version: 12"
    opened = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.28.03  {gcc}"
    )
    versions = [kernel_module_version(text) for text in (closed, opened, "")]
    assert versions == ["550.54.14", "560.28.03", None]
