"""How a GPU is set and how it is doing, read once. Nothing is ever set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpubalance.devices.nvml import ask, with_gpu
from gpubalance.devices.telemetry import ecc_errors, throttle_mask
from gpubalance.results.telemetry import throttling
from gpubalance.settings.record import Record

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")  # VGA and 3D controllers
_READ = 0  # pynvml's own name for it, NVML_P2P_CAPS_INDEX_READ, is a tuple by mistake


class Health(Record):
    """What decides, beside its model, how well a GPU works. Null is what NVML does not tell. Powers are in watts."""

    display: bool | None = None
    persistence: bool | None = None
    power_cap_w: float | None = None
    power_default_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


def read_health(uuid: str) -> Health | None:
    """None where NVML does not start, or loses the GPU on the way."""
    return with_gpu(uuid, _health)


def read_peer_to_peer(source: str, target: str) -> str | None:
    """Whether a GPU may read another's memory: `direct`, or NVML's reason why not; None where it does not tell."""

    def status_of(nvml: Any, handle: Any) -> str | None:
        other = ask(nvml, nvml.nvmlDeviceGetHandleByUUID, target)
        status = ask(nvml, nvml.nvmlDeviceGetP2PStatus, handle, other, _READ) if other else None
        return {
            nvml.NVML_P2P_STATUS_OK: "direct",
            1: "not by this chipset",
            nvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "not by this GPU",
            nvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "not over these PCI bridges",
            nvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "disabled in the driver's settings",
            nvml.NVML_P2P_STATUS_NOT_SUPPORTED: "not supported",
        }.get(status)

    return with_gpu(source, status_of)


def nvidia_cards(folder: Path = _PCI) -> tuple[str, ...]:
    """Bus ids of NVIDIA's cards on the PCI bus, driver or not."""
    found = []
    for device in sorted(folder.glob("*")):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASSES):
            found.append(device.name)
    return tuple(found)


def _health(nvml: Any, handle: Any) -> Health:
    def watts(call: Any) -> float | None:
        power_mw = ask(nvml, call, handle)
        return power_mw / 1000 if power_mw else None

    def switch(call: Any) -> bool | None:
        state = ask(nvml, call, handle)
        return None if state is None else bool(state)

    mask = throttle_mask(nvml, handle)
    return Health(
        display=switch(nvml.nvmlDeviceGetDisplayActive),
        persistence=switch(nvml.nvmlDeviceGetPersistenceMode),
        power_cap_w=watts(nvml.nvmlDeviceGetEnforcedPowerLimit),
        power_default_w=watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit),
        throttle_reasons=None if mask is None else throttling([mask]),
        ecc_corrected=ecc_errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=ecc_errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )
