"""The memory to keep free: as much on each device, or each device's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator

from gpubalance.errors import UsageError
from gpubalance.numbers.units import format_bytes, parse_bytes
from gpubalance.settings.device import Device
from gpubalance.settings.options import option
from gpubalance.settings.record import Name

_FEWEST_BYTES = 1 << 20  # of memory: fewer bytes mean a number without its unit


def _sizes(typed: object) -> int | dict[str, int]:
    """Bytes, or bytes by device. Raises ValueError for what is neither."""
    by_device = typed
    if isinstance(typed, str) and "=" in typed:
        by_device = _pairs(typed)
    if not isinstance(by_device, Mapping):
        return _bytes_of(by_device)
    return {str(device): _bytes_of(size) for device, size in by_device.items()}


def _bytes_of(size: object) -> int:
    """Raises ValueError for an invalid size, and for a number whose unit was forgotten."""
    if (
        isinstance(size, str)
        and size.strip().isdecimal()
        and 0 < int(size) < _FEWEST_BYTES
    ):
        number = size.strip()
        raise ValueError(
            f"{number} means {number} bytes: give a unit, {number}MiB, or {number}B "
            "for bytes"
        )
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise ValueError(f"{error}; on some devices only: 0=2GiB,1=512MiB") from None


def _pairs(text: str) -> dict[str, str]:
    sizes = {}
    for pair in text.split(","):
        device, equals, size = pair.partition("=")
        name = device.strip()
        if not (name and equals):
            raise ValueError(f"{pair.strip()!r} is not DEVICE=SIZE, such as 0=2GiB")
        if name in sizes:
            raise ValueError(f"device {name} is given twice")
        sizes[name] = size
    return sizes


# Bytes on each device; or by what --gpus calls a device, none on those that are not named.
Margin = Annotated[int | dict[Name, int], BeforeValidator(_sizes)]


def margin_option(panel: str, beyond: str = "") -> Margin:
    """The field that is `--margin` on the command line; `beyond` says what it comes on top of."""
    margin: Margin = option(
        panel,
        "--margin SIZE",
        f"Memory to keep free on each device{beyond}: 512MiB. On some devices only: "
        "0=2GiB,1=512MiB, as for a GPU with a display, or with another program that "
        "may need more.",
        0,
    )
    return margin


def margin_on(device: Device, margin: Margin) -> int:
    """The bytes to keep free on that device."""
    if isinstance(margin, int):
        return margin
    return margin.get(device.called, 0)


def refuse_unknown(margin: Margin, devices: Sequence[Device]) -> None:
    """Raises UsageError for a margin of a device that is not among these."""
    if isinstance(margin, int):
        return
    known = dict.fromkeys(device.called for device in devices)
    for name in margin:
        if name not in known:
            raise UsageError(
                f"--margin names device {name}, which is not among those in use",
                remedy=f"they are {', '.join(known)}",
            )


def margin_text(margin: Margin) -> str:
    """`512 MiB`; `2.00 GiB on 0, 512 MiB on 1`."""
    if isinstance(margin, int):
        return format_bytes(margin)
    return ", ".join(f"{format_bytes(size)} on {name}" for name, size in margin.items())
