"""What a worker without a model is asked, and replies: checks of devices and of what is installed.

Survey, Inspect            →    Surveyed, Inspected
Copy, Reduce               →    Copied, Reduced
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

_Bytes = Annotated[int, Field(ge=1)]


class Survey(Record):
    """Find out which of these GPUs TensorFlow has."""

    devices: tuple[Device, ...]


class Surveyed(Record):
    """UUIDs of the GPUs that TensorFlow can't use, each with the reason if TensorFlow gives one.

    `memory_growth`: whether each GPU that it has takes memory as needed; null if it has none.
    """

    missing: dict[str, str]
    memory_growth: bool | None = None


class Inspect(Record):
    """Find out what is installed, without touching a device."""


class Inspected(Record):
    """What TensorFlow's build needs, and why each CUDA library can't be loaded, None if it can.

    `capabilities` are the build's: `sm_60` is code, `compute_90` is compiled by a newer GPU's
    driver. `cudnn` is the version it is built for, `cudnn_loaded` that of the loaded library, which
    is `cudnn_file`.
    """

    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    capabilities: tuple[str, ...]
    libraries: dict[str, str | None]
    cudnn_loaded: str | None
    cudnn_file: str | None = None


class Copy(Record):
    """Copy random data from one of the devices to another, and compare it there."""

    devices: tuple[Device, ...]
    source: int
    target: int
    nbytes: _Bytes


class Copied(Record):
    """How many of the `elements` arrived changed, and how many of those as zeros.

    `seconds` is the fastest copy's.
    """

    elements: int
    differing: int
    zeros: int
    seconds: float


class Reduce(Record):
    """Sum random data over the devices, as gradients are, and compare the sum on each."""

    devices: tuple[Device, ...]
    nbytes: _Bytes


class Reduced(Record):
    """How many elements of the sum are wrong on each device; `seconds` of the fastest sum."""

    differing: tuple[int, ...]
    seconds: float
