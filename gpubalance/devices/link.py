"""The PCIe link of a GPU: what it is now, and what the card itself could. Changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.settings.device import Device

_PCI = Path("/sys/bus/pci/devices")
_EVERY_S = 0.2
_ENDS_WITHIN_S = 5.0  # a driver that hangs does not hold the doctor up


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
