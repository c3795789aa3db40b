"""What the values of options mean: sizes, seconds, settings; and back, the command that one would type."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gpubalance.errors import UsageError
from gpubalance.numbers.units import parse_bytes
from gpubalance.settings import choices
from gpubalance.text import clean, clean_lines

if TYPE_CHECKING:
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import PlanRequest, Settings

_MOST_MICRO_BATCHES, _DIGITS = 1024, 20


def default_model(devices: Sequence[Device]) -> str:
    """What is trained where --model is not given."""
    return choices.DEFAULT_MODEL_SIMULATED if devices[0].simulated else choices.DEFAULT_MODEL_ON_GPU


def settings(
    devices: Sequence[Device],
    model: str | None,
    precision: choices.Precision,
    *,
    xla: bool,
    input_: choices.Input,
    all_reduce: choices.AllReduce = "auto",
) -> Settings:
    """What is trained, and how; without --model what suits the devices."""
    from gpubalance.settings.requests import Settings

    return Settings(
        model=model or default_model(devices), precision=precision, xla=xla, input=input_, all_reduce=all_reduce
    )


def command(name: str, devices: Sequence[Device], given: Settings, simulate: str | None, *split: str) -> str:
    """A command on these devices with these settings, as one would type it; `split` is between the two."""
    from gpubalance.settings.requests import Settings

    words = ["gpubalance", name, *(["--simulate", simulate] if simulate else [])]
    words += ["--gpus", *(str(device.index) for device in devices), *split]
    if given.model != default_model(devices):
        words += ["--model", given.model]
    for option in ("precision", "input", "all_reduce"):
        if getattr(given, option) != Settings.model_fields[option].default:
            words += [f"--{option.replace('_', '-')}", getattr(given, option)]
    return clean_lines(shlex.join([*words, *(["--xla"] if given.xla else [])]))


def seconds(option: str, value: float, most: float) -> float:
    """The value. Raises UsageError where it is not above 0 or above `most`; NaN is neither."""
    if not 0 < value <= most:
        raise UsageError(f"{option} takes seconds, more than 0 and up to {most:g}")
    return value


def seconds_or_none(option: str, value: float | None, most: float) -> float | None:
    """The same for an option that may be left out."""
    return None if value is None else seconds(option, value, most)


def size(option: str, text: str) -> int:
    """Bytes. Raises UsageError for what is no size."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def micro_batches(text: str) -> int | Literal["auto"]:
    """The most micro-batches that `--accumulate` allows. Raises UsageError for another word."""
    if text in ("auto", "off"):
        return "auto" if text == "auto" else 1
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS and 1 <= int(text) <= _MOST_MICRO_BATCHES:
        return int(text)
    raise UsageError(
        f"--accumulate takes auto, off or a number from 1 to {_MOST_MICRO_BATCHES}, not {clean(text, 40)!r}"
    )


def plan_request(accumulate: str, margin: str, sync_s: float | None = None, **wanted: int | None) -> PlanRequest:
    """What a split is wanted for. Raises UsageError for what `--accumulate` and `--margin` do not take."""
    from gpubalance.settings.requests import PlanRequest

    return PlanRequest(
        accumulate=micro_batches(accumulate), margin_bytes=size("--margin", margin), sync_s=sync_s, **wanted
    )
