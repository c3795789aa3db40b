"""How long and how exactly a command measures, and how much memory it keeps free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpubalance.errors import BadInput, UsageError
from gpubalance.numbers.units import format_bytes, parse_bytes
from gpubalance.settings.choices import Baseline
from gpubalance.settings.device import Device
from gpubalance.settings.record import (
    Count,
    Multiple,
    Name,
    Record,
    Repeats,
    WithinDay,
    WithinHour,
    measuring_option,
    option,
)

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


# What follows in a pipeline if windows of five timings don't settle the result.
_LONGEST_WINDOW_S = 10.0
_LONGEST_WINDOW_OF_PROOF_S = 6.0
# Time that would leave a step time less known than that is saved.
HOPELESS = 0.06
_HOPELESS_PROOF = 0.012
_LONGEST_PROOF_S = 30.0
USUAL_MULTIPLE = 8  # of --batch-multiple
_KNOWN = 0.005

EACH = "Probe every device. Default: of equal devices on one host, only the first."


class Limits(Record):
    """What bounds every measurement.

    `time_limit_s` ends the command. `deadline_s` is the longest silence of a worker; null stands
    for one that suits the step.
    """

    time_limit_s: float | None = measuring_option(
        "--time-limit S",
        "Stop after this many seconds, and show what was measured until then.",
        gt=0,
        le=1e7,
    )
    deadline_s: WithinDay | None = measuring_option(
        "--deadline S",
        "End a worker that sends nothing for longer than this. Default: 30 times as "
        "long as such steps took before, at least 60 s; for a first step 900 s.",
    )
    seed: int = measuring_option(
        "--seed N", "Seed for samples, weights and noise.", 0, ge=0, lt=2**31
    )


class Measuring(Limits):
    """How long and how exactly to measure a split.

    A window takes `duration_s`; if that is null, it ends when it knows its step time within
    ± 0.5 %, after 10 s at most. More windows follow until the result is known within ± 1 %: at
    most two thirds as many again.
    """

    windows: Repeats = measuring_option(
        "--windows N",
        "Number of windows of a few seconds. If the result is not known within ± 1 %, "
        "more follow: at most two thirds of N, rounded up (2 more after 3).",
        3,
    )
    duration_s: WithinDay | None = measuring_option(
        "--duration S",
        "Seconds that a window takes. Default: until its step time is known within ± 0.5 %, "
        "at most 10.",
    )
    baseline: Baseline = measuring_option(
        "--baseline even|none",
        "What to measure interleaved with the split: even (the even split) or none.",
        "even",
    )

    @property
    def max_windows(self) -> int:
        """The most windows to measure while the confidence interval is still too wide."""
        return math.ceil(self.windows * 5 / 3)

    @property
    def longest_s(self) -> float:
        """The seconds of a window, or the most of one that ends sooner."""
        return self.duration_s or _LONGEST_WINDOW_S

    @property
    def hopeless(self) -> float:
        """No window follows the planned ones if the result would stay less known than that."""
        return HOPELESS

    @property
    def patience_s(self) -> float:
        """No window follows the planned ones after so many seconds of windows."""
        return math.inf

    def most_windows(self, together_s: float) -> int:
        """The most windows of each workload, if one window of each takes `together_s` in all."""
        most = self.max_windows
        if most * together_s > self.patience_s:
            most = min(most, math.floor(self.patience_s / together_s) + 1)
        return max(self.windows, most)

    @property
    def within(self) -> float | None:
        """How exactly a window must know its step time to end early, as a part of it; else None."""
        return None if self.duration_s else _KNOWN


class Proof(Measuring):
    """How to measure what was found: a proof takes no longer than its verdict needs."""

    windows: Repeats = measuring_option(
        "--windows N",
        "Number of windows of the final run, of a few seconds each. If the result is "
        "not known within ± 1 %, more follow: at most two thirds of N, rounded up (2 "
        "more after 2).",
        2,
    )
    duration_s: WithinDay | None = measuring_option(
        "--duration S",
        "Seconds that a window takes. Default: until its step time is known within ± 0.5 %, "
        "at most 6.",
    )

    @property
    def longest_s(self) -> float:
        """The seconds of a window, or the most of one that ends sooner."""
        return self.duration_s or _LONGEST_WINDOW_OF_PROOF_S

    @property
    def hopeless(self) -> float:
        """See `Measuring.hopeless`: a plan is found whether or not its gain is known to 1 %."""
        return _HOPELESS_PROOF

    @property
    def patience_s(self) -> float:
        """See `Measuring.patience_s`: steps of a second would take minutes to be known to 1 %."""
        return _LONGEST_PROOF_S


# The names of what a run measures interleaved, in events and in the journal: its own split, the
# even split, and its own split on batches that lie on the devices, without an input pipeline.
OWN_SPLIT = ""
EVEN_SPLIT = "even"
ON_HELD_BATCHES = "held"


def window_place(number: int, planned: int) -> str:
    """`window 2 of 3`; of one that follows the planned ones, `window 4, beyond the planned 3`."""
    if number <= planned:
        return f"window {number} of {planned}"
    return f"window {number}, beyond the planned {planned}"


class Tracing(Record):
    """A profiler trace of `steps` steady steps, written to `folder`/plugins/profile/`name`."""

    folder: str
    name: str
    steps: Annotated[int, Field(ge=1, le=1000)] = 10

    def of(self, device: Device) -> Tracing:
        """That of one device among several."""
        return self.model_copy(
            update={"name": f"{self.name}-{device.label.replace(':', '-')}"}
        )


class Probing(Limits):
    """How a device is measured alone.

    With `max_batch` null the batch grows until memory is exhausted, or, without a memory limit,
    until throughput stops rising. Nor is memory's end looked for, unless `find_limit`, where steps
    take over a second and throughput has not risen for three octaves.
    `margin_bytes` of each device's memory are kept free, or each device's own. A batch
    size is measured until its step time is known as exactly as is needed, for at most 12 s; with
    `duration_s` for at least that long, and at most four times as long. Of equal devices the first
    is probed, with `each` all are.
    """

    max_batch: Count | None = measuring_option(
        "--max-batch N", "The largest batch to try. Default: until memory is full."
    )
    batch_multiple: Multiple = measuring_option(
        "--batch-multiple N",
        "Try only multiples of this; if none fits, try all smaller batches.",
        USUAL_MULTIPLE,
    )
    margin_bytes: Margin = margin_option("Measuring")
    find_limit: bool = measuring_option(
        "--find-limit",
        "Find the largest batch that fits, even far above where throughput stops "
        "rising.",
        default=False,
    )
    duration_s: WithinHour | None = measuring_option(
        "--duration S",
        "Measure each batch size for at least S seconds, at most 4 times as long. "
        "Default: until it is known precisely enough, see gpubalance guide probe.",
    )
    parallel: bool = measuring_option(
        "--parallel",
        "Measure all devices at once; use it only where they do not disturb each "
        "other.",
        default=False,
    )
    ahead: bool = measuring_option(
        "--ahead/--no-ahead",
        "Start the next worker, which loads TensorFlow, before it is needed.",
        default=True,
    )
    each: bool = measuring_option("--each", EACH, default=False)


def too_few_samples(where: str, samples: int, wanted: int) -> BadInput:
    """The error for data with fewer samples than a global batch has."""
    multiple = " with --batch-multiple 1" if samples % USUAL_MULTIPLE else ""
    return BadInput(
        f"{where} has {samples} samples, fewer than the global batch of {wanted}",
        remedy=f"give more samples, or use smaller batches, at most {samples} in "
        f"total: for balance --global-batch {samples} or less{multiple}",
    )
