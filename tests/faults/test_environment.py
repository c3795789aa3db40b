"""Rows 1 to 13: driver, libraries and devices are not what one would like.

The real program works on NVML's stand-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubalance.system.versions import too_old
from tests.cli.program import QUICK_PAIR, gpubalance
from tests.faults.machine import (
    BRIEF,
    PLAIN,
    TI,
    Machine,
    codes_of,
    first_line,
    in_step,
    warning_of,
)
from tests.stand_in import TWO_UNLIKE_GPUS, environment

GIB = 1 << 30
SHORT_PROBE = ("probe", "--max-batch", "8", "--duration", "0.2")


def test_01_no_nvml_library_is_said_with_the_way_on() -> None:
    done = gpubalance("balance", code=3)
    assert done.stdout == ""
    no_driver = "error: no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert first_line(done) == no_driver
    assert "install the NVIDIA driver" in done.stderr
    assert "--simulate gtx1080ti-gtx1080" in done.stderr
    gpubalance("devices", "--simulate", QUICK_PAIR, code=0)


def test_02_a_driver_that_serves_nobody_is_told_with_the_way_on(tmp_path: Path) -> None:
    """No test can load a driver: its version is what this machine has, or unknown."""
    unlike = ", but its library is 560.35.03", "reboot, or `sudo modprobe -r nvidia_uvm"
    absent = "not loaded (its library is 550.54.14)", "reboot or load the driver"
    errors = {"18\nnvml 12.560.35.03": unlike, "9\nnvml 12.550.54.14": absent}
    for error, (says, remedy) in errors.items():
        done = Machine(tmp_path, gpus=f"init_error {error}").refuses(3, "run")
        assert says in first_line(done)
        assert remedy in done.stderr


RAISES = "raise tf.errors.InternalError(None, None, '{}')"
ARCHITECTURE = in_step(RAISES.format("CUDNN_STATUS_ARCH_MISMATCH in conv_ops.cc"))
NO_ROOM = "CUDNN_STATUS_ALLOC_FAILED"
NO_HANDLE = in_step(RAISES.format(f"Could not create cudnn handle: {NO_ROOM}"))
NO_LOSS = "def loss_is_finite(): return False"
STILL = "sent nothing for 0.5 s while building", "TensorFlow is still being"
# Each has the words of a run, its engine, the exit code, and what the error says.
ENDS: list[tuple[Any, ...]] = [
    ("--batches 8 8", ARCHITECTURE, 3, "pip install nvidia-cudnn-cu12==9.10.2.21"),
    ("--gpus GPU-1080", "", 2, "error: 'GPU-1080' matches 2 devices", TI, PLAIN),
    ("--gpus 0 --batches 8", NO_HANDLE, 3, NO_ROOM, "free the GPU's memory"),
    ("--deadline 0.5", "hang()", 8, *STILL, "--deadline"),
    ("--windows 1", NO_LOSS, 4, "loss is NaN or infinite at the first step"),
]


@pytest.mark.parametrize("row", ENDS, ids=lambda row: row[0])
def test_05_10_16_20_28_one_error_ends_it(tmp_path: Path, row: tuple[Any, ...]) -> None:
    """What cuDNN says comes from the stand-in of the engine; how it is sorted and told is real."""
    words, steps, code, *says = row
    done = Machine(tmp_path, steps).refuses(code, "run", *words.split(), "--quiet")
    assert all(part in done.stderr for part in says), done.stderr


def test_03_a_driver_too_old_is_told_the_version_needed(tmp_path: Path) -> None:
    """A driver too old for this TensorFlow is told the version needed."""
    old = TWO_UNLIKE_GPUS.replace("cuda 12040", "cuda 11080")
    old = old.replace("driver 550.54.14", "driver 520.61.05")
    # TensorFlow's build is read without loading it. The stand-in has
    # no part in that, so it is the real one's.
    done = gpubalance("run", code=3, environment=environment(tmp_path, old))
    serves = "driver 520.61.05 supports CUDA up to 11.8"
    assert f"{serves}, but TensorFlow is built for CUDA 12." in first_line(done)
    assert "driver 525.60.13 or newer" in first_line(done)


def test_03_a_driver_serves_all_of_its_major_version() -> None:
    for serves, built in (("12.4", "12.5.1"), ("13.0", "12.5.1"), (None, "12.5.1")):
        assert too_old("570.1", serves, built) is None
    assert "580.65.06" in (too_old("570.1", "12.8", "13.0") or "")


@pytest.mark.full
def test_04_tensorflow_without_its_libraries_names_them(tmp_path: Path) -> None:
    """TensorFlow without its libraries names them and benchmarks no CPU.

    The real TensorFlow, which has no CUDA libraries here and sees no GPU.
    """
    variables = environment(tmp_path, TWO_UNLIKE_GPUS)
    done = gpubalance("run", "--quiet", code=3, environment=variables)
    assert done.stdout == ""
    assert "sees no GPU" in first_line(done)
    assert "GPU:0" in first_line(done)
    assert "these libraries can't be loaded: libcud" in first_line(done)
    assert "pip install '.[cuda]'" in done.stderr


LEFT_OUT = f"""
from gpubalance.errors import EnvironmentFault
def built(devices):
    if any(device.uuid == {PLAIN!r} for device in devices):
        raise EnvironmentFault("TensorFlow 2.21.0 does not use GPU:1")
"""


def test_06_an_unusable_gpu_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """That TensorFlow leaves it out comes from the stand-in of the engine."""
    machine = Machine(tmp_path, LEFT_OUT)
    first, second = machine.result(*SHORT_PROBE, code=6)["probes"]
    assert first["complete"]
    assert [failure["exit_code"] for failure in second["failures"]] == [3]
    machine.refuses(3, "probe", "--gpus", "1", "--max-batch", "8")


def test_07_08_a_worker_sees_its_gpus_by_uuid_in_nvmls_order(tmp_path: Path) -> None:
    """A worker sees its GPUs by UUID in NVML's order and leaves none out."""
    steps = """
def built(devices):
    names = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_MIN_GPU_MULTIPROCESSOR_COUNT", "TF_FORCE_GPU_ALLOW_GROWTH"
    print(*map(os.environ.get, names), flush=True)
    os.abort()
"""
    machine = Machine(tmp_path, steps)
    both = ("--gpus", "1", "0"), ("--simulate", QUICK_PAIR)
    for devices, shown in zip(both, (f"{PLAIN},{TI}", "-1"), strict=True):
        done = machine.refuses(6, "run", *devices, "--quiet")
        assert f"{shown} PCI_BUS_ID 1 true" in done.stderr


def test_09_what_cuda_visible_devices_hides_is_said(tmp_path: Path) -> None:
    def told(listed: str, code: int, *gpus: str) -> str:
        machine = Machine(tmp_path, CUDA_VISIBLE_DEVICES=listed)
        return machine.refuses(code, "run", *gpus).stderr

    for listed in (TI, f"{TI},nonsense,{PLAIN}"):
        hidden = f"GPU 1 can't be used: hidden by CUDA_VISIBLE_DEVICES={listed}"
        assert hidden in told(listed, 2, "--gpus", "1")
    for nothing in ("nonsense", ""):
        first, *_ = told(nothing, 3).splitlines()
        assert f"hidden by CUDA_VISIBLE_DEVICES={nothing}" in first
    result = Machine(tmp_path, CUDA_VISIBLE_DEVICES=TI).result("run", *BRIEF)
    assert [device["uuid"] for device in result["devices"]] == [TI]
    assert "gpu-left-out" in codes_of(result)


def test_11_a_mig_slice_is_probed_alone(tmp_path: Path) -> None:
    slices = """
driver 550.54.14
gpu 0 name A100
gpu 0 uuid GPU-a0
gpu 0 mig 1
gpu 0 slice 0 uuid MIG-s0
gpu 0 slice 1 uuid MIG-s1
"""
    machine = Machine(tmp_path, gpus=slices)
    found = machine.result(*SHORT_PROBE, "--gpus", "MIG-s1")
    assert [device["uuid"] for device in found["devices"]] == ["MIG-s1"]
    assert "slices can't train together" in first_line(machine.refuses(2, "balance"))


@pytest.mark.parametrize("command", ["run", "probe"])
def test_12_another_process_is_left_alone(tmp_path: Path, command: str) -> None:
    idle = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(idle) as other:
        try:
            of_other = f"process compute {other.pid} {3 * GIB} python train.py"
            both = f"gpu 1 process compute 1 none\ngpu 1 {of_other}\n"
            machine = Machine(tmp_path, gpus=f"{TWO_UNLIKE_GPUS}{both}")
            few = BRIEF if command == "run" else SHORT_PROBE[1:]
            result = machine.result(command, *few)
            told = f"process 1 (memory not told), process {other.pid}"
            used = f"GPU:1 is also used by {told} (python train.py, 3072 MiB)"
            assert warning_of(result, "gpu-in-use")["message"] == used
            refused = machine.refuses(3, command, "--strict")
            assert first_line(refused) == f"error: {used}"
            machine.runs(command, "--gpus", "0", "--strict", *few)
            assert psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE
        finally:
            other.kill()


def test_13_what_nvml_does_not_tell_is_null_and_n_a(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus="gpu 0 uuid GPU-bare-0")
    done = machine.runs("run", *BRIEF, "-o", str(tmp_path / "run.json"))
    assert "n/a" in done.stdout
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["devices"][0]["memory_bytes"] is None
    telemetry = result["replicas"][0]["telemetry"]
    assert telemetry is None or telemetry["temperature_c"] is None
