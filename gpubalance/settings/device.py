"""Devices, as every result names them, and the profiles that simulated ones follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, model_validator

from gpubalance.settings.record import Bytes, Record, Seconds

# A name comes from outside: it must not look like an option, a path or a shell's syntax.
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=253)]


class DriftPoint(Record):
    """From second `from_s` of a measurement on, compute times are multiplied by `factor`.

    A profile writes the two as a pair.
    """

    from_s: Seconds
    factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == 2:
            return {"from_s": value[0], "factor": value[1]}
        return value


class DeviceProfile(Record):
    """How a simulated device behaves.

    A step's compute of b samples takes alpha_s + beta_s · b seconds. Its weight update takes
    update_s, whatever the batch, without noise or drift. A joint run's sync takes sync_s at least,
    as if its link were slow. Its memory is base_memory + b · memory_per_sample bytes (plus the
    joint run's extra) and may not exceed `memory`, if that is given. `noise` is the relative
    standard deviation of a step's compute time.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    alpha_s: Seconds
    beta_s: Seconds
    update_s: Seconds = 0.0
    sync_s: Seconds = 0.0
    memory: Annotated[Bytes, Field(gt=0)] | None = None
    base_memory: Bytes = 0
    memory_per_sample: Bytes = 0
    noise: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    drift: tuple[DriftPoint, ...] = ()

    def memory_at(self, batch: int, extra: int = 0) -> int:
        """Bytes that a step of `batch` samples needs; `extra` is what a joint run adds."""
        return self.base_memory + extra + batch * self.memory_per_sample

    def drift_at(self, elapsed_s: float) -> float:
        """The factor on the compute time, `elapsed_s` after the measurement began."""
        factor = 1.0
        for point in self.drift:  # which is in order of time
            if elapsed_s >= point.from_s:
                factor = point.factor
        return factor

    @model_validator(mode="after")
    def _drift_is_ordered(self) -> DeviceProfile:
        times = [point.from_s for point in self.drift]
        if times != sorted(times):
            raise ValueError("drift: its points must be in order of time")
        return self


class JointProfile(Record):
    """What simulated devices cost each other.

    A joint run adds `sync_s` to each step, and `extra_memory` bytes on every device. A device in
    use with a longer sync of its own replaces these seconds. Over several hosts they are added to
    what the real all-reduce takes.

    While several devices compute, in a joint run or each with its own model, compute takes
    `contention` times as long. Activations sent from one device to another take `link_latency_s`
    plus their bytes / `link_bytes_per_s` (null: no time); each pair of devices and each direction
    has its own link.
    """

    sync_s: Seconds = 0.0
    extra_memory: Bytes = 0
    contention: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 1.0
    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] | None = None
    link_latency_s: Seconds = 0.0

    def among(self, profiles: Iterable[DeviceProfile | None]) -> JointProfile:
        """What a joint run of these devices adds: the longest sync of any of them counts."""
        longest_s = max((profile.sync_s for profile in profiles if profile), default=0.0)
        return self.model_copy(update={"sync_s": max(self.sync_s, longest_s)})


class Device(Record):
    """One GPU or one simulated device, as every result names it.

    `profile` is null on a GPU and on a plain CPU device: nothing is paced or limited then. `host`
    is null if there is only one host; otherwise `index` is the device's number on its host.
    """

    index: Annotated[int, Field(ge=0, le=10**9)]
    uuid: str
    name: str
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)] | None
    simulated: bool
    host: Host | None = None
    bus_id: str | None = None
    profile: DeviceProfile | None = None

    @property
    def label(self) -> str:
        """`GPU:0`, as users know it from TensorFlow; `CPU:0` for a plain CPU device.

        `alpha:0` on a named host.
        """
        if self.host is not None:
            return self.called
        is_plain_cpu = self.simulated and self.profile is None
        return f"CPU:{self.index}" if is_plain_cpu else f"GPU:{self.index}"

    @property
    def told_by_nvml(self) -> bool:
        """Whether NVML on this host knows it."""
        return not self.simulated and self.host is None

    @property
    def called(self) -> str:
        """Its name for --gpus: `0`, or `alpha:0` on a named host."""
        return str(self.index) if self.host is None else f"{self.host}:{self.index}"


def hosts_of(devices: Iterable[Device]) -> tuple[str | None, ...]:
    """The hosts of these devices, each once, in order of their first device."""
    return tuple(dict.fromkeys(device.host for device in devices))
