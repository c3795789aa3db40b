import json
from pathlib import Path

import pytest

from tests.stand_in import TWO_UNLIKE_GPUS, child, environment

PEAK = """
import json
from gpubalance.devices.health import peak_flops
print(json.dumps(peak_flops("{uuid}", "{precision}")))
"""
FIRST = "GPU-1080aaaa-0000-4000-8000-000000000001"


def peak(folder: Path, more: str = "", uuid: str = FIRST, precision: str = "float32") -> float | None:
    code = PEAK.format(uuid=uuid, precision=precision)
    result: float | None = json.loads(child(code, environment(folder, f"{more}\n{TWO_UNLIKE_GPUS}")))
    return result


def test_two_operations_a_core_and_cycle(tmp_path: Path) -> None:
    assert peak(tmp_path) == 2 * 3584 * 1911e6


@pytest.mark.parametrize("precision", ["tf32", "mixed_float16", "mixed_bfloat16"])
def test_tensor_cores_are_not_told_of(tmp_path: Path, precision: str) -> None:
    assert peak(tmp_path, precision=precision) is None


@pytest.mark.parametrize(
    "fault",
    [
        "gpu 0 error cores 3",
        "gpu 0 error cores 13",
        "gpu 0 cores 0",
        "gpu 0 error max_clock_sm 3",
        "gpu 0 error max_clock_sm 15",
        "gpu 0 error handle 15",
        "init_error 9",
    ],
)
def test_what_is_not_told_is_null(tmp_path: Path, fault: str) -> None:
    assert peak(tmp_path, fault) is None


def test_a_mig_slice_has_no_peak(tmp_path: Path) -> None:
    assert peak(tmp_path, "gpu 0 mig 1\ngpu 0 slice 0 uuid MIG-1", uuid="MIG-1") is None


def test_an_unknown_gpu_has_no_peak(tmp_path: Path) -> None:
    assert peak(tmp_path, uuid="GPU-none") is None
