"""What NVML says about one GPU beyond the list: its settings, its state, its PCIe link."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.devices.telemetry import ecc_errors, throttle_reasons
from gpubalance.settings.choices import Precision
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_READ = 0  # pynvml's own name, NVML_P2P_CAPS_INDEX_READ, is a tuple by mistake
_TF32_FROM = (8, 0)  # compute capability; older cards take it for float32
_PER_CORE_AND_CYCLE = 2  # a fused multiply-add counts as two
_EVERY_S = 0.2
_ENDS_WITHIN_S = 5.0  # a driver that hangs does not hold the doctor up


class Health(Record):
    """What, beside its model, decides how well a GPU works. Null is what NVML does not say."""

    display: bool | None = None
    persistence: bool | None = None
    power_cap_w: float | None = None
    power_default_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


def read_health(uuid: str) -> Health | None:
    """The GPU's health now; None if NVML does not start or loses the GPU while it is read."""
    return with_gpu(uuid, _health)


def _health(card: Card) -> Health:
    nvml = card.nvml
    return Health(
        display=card.ask("DisplayActive"),
        persistence=card.ask("PersistenceMode"),
        power_cap_w=_watts(card.ask("EnforcedPowerLimit")),
        power_default_w=_watts(card.ask("PowerManagementDefaultLimit")),
        throttle_reasons=throttle_reasons(card),
        ecc_corrected=ecc_errors(card, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=ecc_errors(card, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts else None


def read_peer_to_peer(source: str, target: str) -> str | None:
    """Whether a GPU may read another's memory: `direct`, or NVML's reason why not.

    None if NVML does not say.
    """

    def status_of(card: Card) -> str | None:
        """NVML's answer in words; None for an unknown one."""
        nvml = card.nvml
        status = card.ask("P2PStatus", nvml.nvmlDeviceGetHandleByUUID(target), _READ)
        return {
            nvml.NVML_P2P_STATUS_OK: "direct",
            1: "not by this chipset",
            nvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "not by this GPU",
            nvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "not over these PCI bridges",
            nvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "disabled in the driver's settings",
            nvml.NVML_P2P_STATUS_NOT_SUPPORTED: "not supported",
        }.get(status)

    return with_gpu(source, status_of)


def peak_flops(uuid: str, precision: Precision) -> float | None:
    """Peak FLOP/s in float32: 2 · CUDA cores · maximum SM clock.

    None if NVML does not give both, as for MIG slices. Also None where a card multiplies in another
    precision, newer ones in TF32: that takes tensor cores, whose number and rate NVML does not
    give, and which differ between cards of one compute capability (a GeForce's accumulate at half
    the rate of its professional twin). The clock is the highest that the card can be set to; under
    load it seldom holds it.
    """

    def float32(card: Card) -> float | None:
        """FLOP/s of its cores; None if unknown, or if tensor cores do the work."""
        capability = card.ask("CudaComputeCapability")
        if precision == "tf32" and (capability is None or capability >= _TF32_FROM):
            return None
        cores = card.ask("NumGpuCores")
        clock_mhz = card.ask("MaxClockInfo", card.nvml.NVML_CLOCK_SM)
        if not cores or not clock_mhz:
            return None
        return float(_PER_CORE_AND_CYCLE * cores * clock_mhz * 1_000_000)

    return with_gpu(uuid, float32) if precision in ("float32", "tf32") else None


def nvidia_cards(folder: Path = _PCI) -> tuple[str, ...]:
    """Bus ids of NVIDIA's cards on the PCI bus, with or without a driver."""
    return tuple(
        card.name for card in sorted(folder.glob("*")) if _is_nvidia_card(card)
    )


def _is_nvidia_card(card: Path) -> bool:
    try:
        vendor = (card / "vendor").read_text().strip()
        kind = (card / "class").read_text().strip()
    except OSError:
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASSES)


class PcieLink(NamedTuple):
    """Lanes, and the generation of PCIe."""

    width: int
    generation: int

    def __str__(self) -> str:
        """`PCIe 4.0 x16`."""
        return f"PCIe {self.generation}.0 x{self.width}"


def own_link(device: Device, folder: Path = _PCI) -> PcieLink | None:
    """The most that the card can, whatever its slot; None if NVML does not say.

    By its documentation NVML's largest width is that of card and slot together, so Linux is asked
    for the card's own too. NVML's largest generation of the GPU is the card's.
    """
    link = with_gpu(device.uuid, _largest_link)
    if link is None:
        return None
    return link._replace(width=max(link.width, _width_in(folder, device)))


def _largest_link(card: Card) -> PcieLink | None:
    return _link(card, "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration")


def _link_now(card: Card) -> PcieLink | None:
    return _link(card, "CurrPcieLinkWidth", "CurrPcieLinkGeneration")


def _link(card: Card, width_name: str, generation_name: str) -> PcieLink | None:
    """What NVML's calls of these names say; None if one of them does not."""
    width = card.ask(width_name)
    generation = card.ask(generation_name)
    return PcieLink(width, generation) if width and generation else None


def _width_in(folder: Path, device: Device) -> int:
    """The card's lanes by Linux, 0 if that does not say."""
    try:
        text = (
            (folder / (device.bus_id or "none") / "max_link_width").read_text().strip()
        )
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


@contextmanager
def watched_links(uuids: Sequence[str]) -> Iterator[dict[str, PcieLink]]:
    """The fastest link of each of the GPUs while the block runs, by UUID.

    It has none of a GPU of which NVML does not tell. An idle GPU lowers its generation to save
    power, so the block must have them work.
    """
    fastest: dict[str, PcieLink] = {}
    ended = threading.Event()

    def look() -> None:
        """Notes the widest and latest link of each GPU, again and again."""
        while not ended.wait(_EVERY_S):
            for uuid in uuids:
                link = with_gpu(uuid, _link_now)
                if link is not None:
                    before = fastest.get(uuid, link)
                    width = max(before.width, link.width)
                    generation = max(before.generation, link.generation)
                    fastest[uuid] = PcieLink(width, generation)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield fastest
    finally:
        ended.set()
        thread.join(_ENDS_WITHIN_S)
