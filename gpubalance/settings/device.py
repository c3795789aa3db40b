"""Devices, as every result names them, and the profiles that simulated ones follow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Annotated, Any, TypeAlias

from pydantic import Field, field_validator, model_validator

from gpubalance.settings.record import Bytes, Record, Seconds

# A name comes from outside: it must not look like an option, a path or a shell's syntax. ssh takes
# `user@name` too.
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?"
Host = Annotated[
    str, Field(pattern=rf"^{_USER}[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=253)
]


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


# A batch and its seconds; strict, as TOML's true is no batch of 1.
TimedBatch: TypeAlias = tuple[
    Annotated[int, Field(gt=0, lt=2**31, strict=True)],
    Annotated[Seconds, Field(strict=True)],
]


class DeviceProfile(Record):
    """How a simulated device behaves.

    A step's compute of b samples takes alpha_s + beta_s · b seconds, or what a `curve` of points
    (batch, seconds) says: see `compute_s`. Its weight update takes
    update_s, whatever the batch, without noise or drift. A joint run's sync takes sync_s at least,
    as if its link were slow. Its memory is base_memory + b · memory_per_sample bytes (plus the
    joint run's extra) and may not exceed `memory`, if that is given. `noise` is the relative
    standard deviation of a step's compute time. With XLA, which Keras would use on it by itself,
    that is `xla_factor` times as long; null: as long, and Keras would not.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    alpha_s: Seconds = 0.0
    beta_s: Seconds = 0.0
    curve: tuple[TimedBatch, ...] = ()
    update_s: Seconds = 0.0
    sync_s: Seconds = 0.0
    memory: Annotated[Bytes, Field(gt=0)] | None = None
    base_memory: Bytes = 0
    memory_per_sample: Bytes = 0
    noise: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    drift: tuple[DriftPoint, ...] = ()
    xla_factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = (
        None
    )

    def compute_s(self, batch: int, micro_batch: int | None = None) -> float:
        """Seconds of a step's compute of `batch` samples, of so many at a time.

        A curve is linear between its points. Its first and last pieces continue beyond them, but
        the last one never falls.
        """
        micro_batch = micro_batch or batch
        whole = (batch - 1) // micro_batch
        first = batch - whole * micro_batch  # it may be smaller than the others
        return self._at_once_s(first) + whole * self._at_once_s(micro_batch)

    def _at_once_s(self, batch: int) -> float:
        if not self.curve:
            return self.alpha_s + self.beta_s * batch
        number = bisect_left(
            self.curve, batch, 1, len(self.curve) - 1, key=itemgetter(0)
        )
        (left, low_s), (right, high_s) = self.curve[number - 1 : number + 1]
        slope_s = (high_s - low_s) / (right - left)
        if batch > right:
            return high_s + max(0.0, slope_s) * (batch - right)
        if batch < left:
            # Never below a line from the origin, as no step takes negative time.
            slope_s = min(slope_s, low_s / left)
        return low_s + slope_s * (batch - left)

    def slowed(self, times: float) -> DeviceProfile:
        """The profile with everything that takes time taking so many times as long."""
        if times == 1:
            return self
        changes: dict[str, Any] = {
            "update_s": times * self.update_s,
            "sync_s": times * self.sync_s,
            "curve": tuple((batch, times * time_s) for batch, time_s in self.curve),
        }
        if not self.curve:
            changes["alpha_s"] = times * self.alpha_s
            changes["beta_s"] = times * self.beta_s
        if self.drift:
            changes["drift"] = tuple(
                DriftPoint(from_s=times * point.from_s, factor=point.factor)
                for point in self.drift
            )
        return self.model_copy(update=changes)

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
    def _has_a_line_or_a_curve(self) -> DeviceProfile:
        if not self.curve:
            if not {"alpha_s", "beta_s"} <= self.model_fields_set:
                raise ValueError(
                    "alpha_s (seconds per step) and beta_s (seconds per sample) are "
                    "needed, or a curve"
                )
            return self
        if self.alpha_s or self.beta_s:
            raise ValueError("curve replaces alpha_s and beta_s: give one or the other")
        return self

    @field_validator("curve")
    @classmethod
    def _curve_rises(cls, curve: tuple[TimedBatch, ...]) -> tuple[TimedBatch, ...]:
        batches = [batch for batch, _ in curve]
        if curve and (len(batches) < 2 or batches != sorted(set(batches))):
            raise ValueError("needs two or more points, of rising batches")
        if not all(seconds for _, seconds in curve):
            raise ValueError("its seconds must be above 0")
        return curve

    @field_validator("drift")
    @classmethod
    def _drift_is_ordered(cls, drift: tuple[DriftPoint, ...]) -> tuple[DriftPoint, ...]:
        times = [point.from_s for point in drift]
        if times != sorted(times):
            raise ValueError("its points must be in order of time")
        return drift


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
    link_bytes_per_s: (
        Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] | None
    ) = None
    link_latency_s: Seconds = 0.0

    def slowed(self, times: float) -> JointProfile:
        """The same with everything that takes time taking so many times as long."""
        if times == 1:
            return self
        link = self.link_bytes_per_s
        changes = {
            "sync_s": times * self.sync_s,
            "link_latency_s": times * self.link_latency_s,
            "link_bytes_per_s": None if link is None else link / times,
        }
        return self.model_copy(update=changes)

    def among(self, profiles: Iterable[DeviceProfile | None]) -> JointProfile:
        """What a joint run of these devices adds: the longest sync of any of them counts."""
        longest_s = max(
            (profile.sync_s for profile in profiles if profile), default=0.0
        )
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
    def gets_xla(self) -> bool:
        """Whether Keras would use XLA by itself if the device were the only one."""
        if self.profile is not None:
            return self.profile.xla_factor is not None
        return not self.simulated

    @property
    def is_local_gpu(self) -> bool:
        """Whether NVML on this host knows it."""
        return not self.simulated and self.host is None

    @property
    def is_of_table(self) -> bool:
        """Whether it stands for a card in a table of step times, which has no UUIDs."""
        return self.simulated and self.uuid == table_uuid(self.name, self.index)

    @property
    def called(self) -> str:
        """Its name for --gpus: `0`, or `alpha:0` on a named host."""
        return str(self.index) if self.host is None else f"{self.host}:{self.index}"


def table_uuid(name: str, index: int) -> str:
    """What identifies a card in its table of step times: several may have one name."""
    return f"{name} {index}"


def hosts_of(devices: Iterable[Device]) -> tuple[str | None, ...]:
    """The hosts of these devices, each once, in order of their first device."""
    return tuple(dict.fromkeys(device.host for device in devices))
