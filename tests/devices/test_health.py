"""What one GPU could do, and which cards are on the bus.

How a GPU is set is tested with `doctor`, which judges it.
"""

from __future__ import annotations

from pathlib import Path

from gpubalance.devices.health import nvidia_cards, peak_flops
from gpubalance.settings.choices import Precision
from tests.stand_in import TWO_UNLIKE_GPUS, environment, loaded
from tests.support.cases import cases

FIRST = "GPU-1080aaaa-0000-4000-8000-000000000001"
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32")
PRECISIONS += ("mixed_float16", "mixed_bfloat16")


def peaks(
    folder: Path, more: str = "", uuid: str = FIRST, gpus: str = TWO_UNLIKE_GPUS
) -> list[float | None]:
    """The peak FLOP/s in each precision."""
    with loaded(environment(folder, f"{more}\n{gpus}")):
        return [peak_flops(uuid, precision) for precision in PRECISIONS]


def test_the_peak_is_two_operations_a_core_and_cycle(tmp_path: Path) -> None:
    """The peak is two operations a core and cycle and nothing tells that of tensor cores."""
    peak = 2 * 3584 * 1911e6
    assert peaks(tmp_path) == [peak, peak, None, None]  # a GTX 1080 Ti has no TF32
    for capability, tf32 in (("7 5", peak), ("8 0", None), ("12 0", None)):
        told = f"gpu 0 capability {capability}"
        newer = TWO_UNLIKE_GPUS.replace("gpu 0 capability 6 1", told)
        assert peaks(tmp_path, gpus=newer) == [peak, tf32, None, None]


@cases(
    "fault",
    "gpu 0 error cores 13",
    "gpu 0 cores 0",
    "gpu 0 error max_clock_sm 3",
    "gpu 0 error max_clock_sm 15",
)
def test_a_peak_that_is_not_told_is_null(tmp_path: Path, fault: str) -> None:
    assert peaks(tmp_path, fault) == [None] * 4


def test_a_mig_slice_and_an_unknown_gpu_have_no_peak(tmp_path: Path) -> None:
    mig = "gpu 0 mig 1\ngpu 0 slice 0 uuid MIG-1"
    for uuid in ("MIG-1", "GPU-none"):
        assert peaks(tmp_path, mig, uuid) == [None] * 4


def test_a_card_without_a_driver_is_found_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # its sound
        ("0000:02:00.0", "0x8086", "0x030000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert nvidia_cards(tmp_path) == ("0000:01:00.0",)
