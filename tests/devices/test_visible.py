"""CUDA_VISIBLE_DEVICES is read as CUDA reads it; what it hides may be somebody else's."""

from __future__ import annotations

from typing import Any

from gpubalance.devices.machine import mark_hidden
from gpubalance.devices.nvml import Gpu, MigSlice, Reading
from tests.support.altered import altered
from tests.support.cases import cases

UNLIKE = Reading(
    gpus=(
        Gpu(index=0, uuid="GPU-aaa0", name="GTX 1080"),
        Gpu(index=1, uuid="GPU-bbb1", name="GTX 1080 Ti"),
    )
)
ALIKE = Reading(gpus=tuple(altered(gpu, name="GTX 1080") for gpu in UNLIKE.gpus))


def shown(reading: Reading, **environment: str) -> list[int]:
    marked = mark_hidden(reading, environment).gpus
    return [gpu.index for gpu in marked if not gpu.unusable]


@cases(
    "listed, indices",
    *(("GPU-bbb1", [1]), ("GPU-bb", [1]), ("GPU-bbb1,GPU-aaa0", [0, 1])),
    *(("GPU-bbb1,nonsense,GPU-aaa0", [1]), ("", []), ("-1", [])),
    *(("NoDevFiles", []), ("GPU-", [])),
)
def test_uuids_are_exact_and_unset_hides_none(listed: str, indices: list[int]) -> None:
    assert shown(UNLIKE, CUDA_VISIBLE_DEVICES=listed) == indices
    assert shown(UNLIKE) == [0, 1]


@cases(
    "listed, slices",
    *(("MIG-bbb2", ["MIG-bbb2"]), ("MIG-bbb2,MIG-bbb1", ["MIG-bbb1", "MIG-bbb2"])),
    *(("GPU-aaa0", ["MIG-bbb1", "MIG-bbb2"]), ("MIG-bbb", []), ("GPU-ccc0", [])),
)
def test_a_mig_slice_that_is_not_listed_is_not_used(
    listed: str, slices: list[str]
) -> None:
    pieces = (MigSlice(uuid=f"MIG-bbb{i}", name=None, memory_bytes=1) for i in (1, 2))
    how: dict[str, Any] = {"mig": True, "unusable": "on", "mig_slices": tuple(pieces)}
    cut = Reading(gpus=(Gpu(index=0, uuid="GPU-aaa0", **how),))
    (gpu,) = mark_hidden(cut, {"CUDA_VISIBLE_DEVICES": listed}).gpus
    assert [device.uuid for device in gpu.devices] == slices


def test_numbers_count_in_nvmls_order_only_where_that_is_cudas() -> None:
    by_bus = shown(UNLIKE, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert by_bus == [1]
    assert shown(ALIKE, CUDA_VISIBLE_DEVICES="1") == [1]
    assert shown(ALIKE, CUDA_VISIBLE_DEVICES="1,7,0") == [1]
    # All of them, in whatever order
    assert shown(UNLIKE, CUDA_VISIBLE_DEVICES="1,0") == [0, 1]
    marked = mark_hidden(UNLIKE, {"CUDA_VISIBLE_DEVICES": "1"})
    assert all("use UUIDs" in (gpu.unusable or "") for gpu in marked.gpus)


def test_a_gpu_that_can_not_be_used_anyway_keeps_its_reason() -> None:
    lost = Reading(gpus=(Gpu(index=0, uuid="GPU-aaa0", unusable="lost"),))
    assert mark_hidden(lost, {"CUDA_VISIBLE_DEVICES": ""}).gpus[0].unusable == "lost"
