"""What results of every kind have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Shown
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA_VERSION: Literal[1] = 1

_FORMER = ("largest_even", "best_at_largest_even")
# No measured value is larger, in its unit (FLOP/s are the largest). A file may contain anything.
_LARGEST = 10**18
Exact = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
# No measurement is more exact than seven digits, which keep a file readable.
Number = Annotated[
    Exact, PlainSerializer(lambda x: float(f"{x:.7g}"), return_type=float)
]
# A time in seconds, or a rate per second.
Positive = Annotated[Number, Field(gt=1e-12, lt=1e12)]
# A part of a whole, or of another figure.
Part = Annotated[Number, Shown(unit="%")]
Ratio = Annotated[Number, Shown(unit="×")]
Interval = tuple[Number, Number] | None
Whole = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
# Steps, parameters, bytes; and a device's place among the result's devices.
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Peak = Annotated[Count | None, Shown(brief="memory")]
Samples = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[Samples, Field(ge=1)]
Devices = Annotated[tuple[Device, ...], Field(min_length=1)]


def unsound(field: str, what: str) -> PydanticCustomError:
    """The error of fields that don't agree, for a validator to raise; `field` is a path to one."""
    return PydanticCustomError(
        "unsound", "{field}: {what}", {"field": field, "what": what}
    )


def without_former(fields: Any) -> Any:
    """A validator that drops fields which only files of an earlier gpubalance have."""
    if isinstance(fields, dict):
        return {name: value for name, value in fields.items() if name not in _FORMER}
    return fields


def check_length(field: str, length: int, devices: int) -> None:
    """Raises `unsound` unless there is one value for each device."""
    if length != devices:
        raise unsound(field, f"{length} of {devices} devices")


def has_a_split(record: Any) -> Any:
    """A validator of records with `batches`: their sizes must form a valid `split`."""
    try:
        record.split  # noqa: B018  (made of its fields, and sound or not at all)
    except ValueError as error:
        field = "micro_batches" if any(record.batches) else "batches"
        raise unsound(field, str(error)) from None
    return record


def now() -> str:
    """The current time for a result: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Result(Record):
    """The fields that every result begins with."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str
    created: str


class OfSplit(Record):
    """A record of a split: samples in a step, and in a micro-batch, for each device."""

    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...]

    _is_of_a_split = model_validator(mode="after")(has_a_split)

    @property
    def split(self) -> BatchSplit:
        """The batches and micro-batches as one value."""
        return BatchSplit(self.batches, self.micro_batches)


class Warning_(Record):
    """Something that a reader must know: a code to search for, the message, and what to do."""

    code: str
    message: str
    next: str


class StepTime(Record):
    """Seconds per step.

    Each of `samples` is the mean of `steps_per_sample` consecutive steps, timed as one. `at_s` is
    when each of them ended, in seconds from the first measured moment of any split.
    """

    median: Positive
    mad: Annotated[Number, Shown("MAD", "ms")]
    ci95: Interval
    steps_per_sample: Annotated[Count, Shown("steps a timing")]
    samples: tuple[Positive, ...]
    at_s: tuple[Number, ...]

    @model_validator(mode="after")
    def _sound(self) -> StepTime:
        if len(self.at_s) != len(self.samples):
            raise unsound("at_s", f"{len(self.at_s)} of {len(self.samples)} samples")
        return self

    @property
    def relative_half_width(self) -> float:
        """Half the 95 % interval as a part of the median; 0 if unknown."""
        if self.ci95 is None:
            return 0.0
        return (self.ci95[1] - self.ci95[0]) / 2 / self.median


class Throughput(Record):
    """Samples per second: the global batch over the step time."""

    median: Positive
    ci95: Interval


class Environment(Record):
    """The software and machine behind a figure: an allow-list without anything personal."""

    gpubalance: str
    python: str
    platform: str
    cpu: str
    cpu_count: Count
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    driver: str | None


class Refusal(Record):
    """Why a split can't train a model, and what to do instead."""

    message: str
    remedy: str


class Optimizer(Record):
    """What updates the weights: its class, and how many numbers it holds for each weight.

    Adam holds 2. It may be a fraction, where some weights have more than others.
    """

    name: str
    per_weight: Number

    def __str__(self) -> str:
        return f"{self.name}, which holds {self.per_weight:g} numbers for a weight"


class Model(Record):
    """What was trained; `gradient_bytes` is what every all-reduce moves.

    `input_shapes` has the shape of one sample of each input, with null for an open dimension; null
    if it is not known. `step` is the fingerprint of the step that was measured, how often it has
    each operation that takes long, and `others`; null for a model of gpubalance's or Keras' own.
    `optimizer` is null if it is not known.
    """

    name: str
    parameters: Count
    gradient_bytes: Count
    input_shapes: tuple[tuple[Count | None, ...], ...] | None = None
    step: tuple[tuple[str, Count], ...] | None = None
    optimizer: Optimizer | None = None

    def is_like(self, other: Model) -> bool:
        """Whether it is the same model with the same optimizer, as far as both are known."""
        own = (self.name, self.parameters, self.gradient_bytes)
        if own != (other.name, other.parameters, other.gradient_bytes):
            return False
        shapes = {self.input_shapes, other.input_shapes, None}
        optimizers = {self.optimizer, other.optimizer, None}
        return len(shapes) <= 2 and len(optimizers) <= 2


class LocalLayers(Record):
    """What a split does not train exactly because each device has its own share.

    `batch_normalizations` are the layers that take their statistics from it. `random` has how many
    layers of each class draw random numbers.
    """

    batch_normalizations: Count = 0
    random: tuple[tuple[str, Count], ...] = ()


def _device_numbers(
    fields: Iterable[tuple[Any, Any]], path: str = ""
) -> Iterator[tuple[str, int]]:
    """Each `device` in a record and those within it, with its path."""
    for name, value in fields:
        if name == "device":
            yield f"{path}{name}", value
        if isinstance(value, Record):
            yield from _device_numbers(value, f"{path}{name}.")
        elif isinstance(value, tuple):
            yield from _device_numbers(enumerate(value), f"{path}{name}.")


class OfDevices(Result):
    """A result of some devices."""

    devices: Devices

    @model_validator(mode="after")
    def _has_its_devices(self) -> Self:
        for path, device in _device_numbers(self):
            if device >= len(self.devices):
                raise unsound(path, f"there is no device {device}")
        return self

    def label(self, device: int) -> str:
        """`GPU:0`, for a device's place among them."""
        return self.devices[device].label


class OfModel(OfDevices):
    """A result of devices that trained a model, with the settings that hold for all of them."""

    settings: Settings
    environment: Environment | None
    model: Model | None


def check_distinct(devices: Devices) -> None:
    """Raises for two devices of one UUID, by which a plan finds its devices again."""
    if len({device.uuid for device in devices}) < len(devices):
        raise unsound("devices", "two have the same UUID")


def shapes_text(shapes: tuple[tuple[int | None, ...], ...]) -> str:
    """`28×28×1`, `any×80 and 3` for two inputs; `any` stands for an open dimension."""
    texts = []
    for shape in shapes:
        sizes = ["any" if size is None else str(size) for size in shape]
        text = "×".join(sizes) or "1"
        if text == "any":
            text = "any length"
        texts.append(text)
    return " and ".join(texts)
