"""What a split or a cut is for, and how to search for it."""

from __future__ import annotations

import re
from reprlib import repr as short_repr
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gpubalance.errors import UsageError
from gpubalance.settings.measuring import EACH, Margin, margin_option
from gpubalance.settings.record import (
    Count,
    Multiple,
    Record,
    Repeats,
    Seconds,
    WithinHour,
    measuring_option,
    split_option,
)

_MOST_MICRO_BATCHES = 1024


def _micro_batches(typed: object) -> object:
    """The number that `off` and text stand for.

    Raises ValueError for anything that is not auto, off or a number.
    """
    number = typed
    if typed == "off":
        number = 1
    elif re.fullmatch("[0-9]{1,5}", str(typed)):
        number = int(str(typed))
    if number != "auto" and number not in range(1, _MOST_MICRO_BATCHES + 1):
        raise ValueError(
            f"must be auto, off or a number from 1 to {_MOST_MICRO_BATCHES}, not "
            f"{short_repr(typed)}"
        )
    return number


Accumulate = Annotated[int | Literal["auto"], BeforeValidator(_micro_batches)]


class PlanRequest(Record):
    """What the split is for; null leaves the choice to the planner.

    `accumulate` is the most micro-batches that a device's batch may be divided into;
    `batch_multiple` null is the probe's. `margin_bytes` are kept free beyond what a joint run
    takes. `from_batch` is the global batch that the current learning rate suits. With
    `noise_scale`, the gradient noise scale in samples, goodput is maximised, not throughput.
    Raises UsageError for a global batch above its own upper limit.
    """

    global_batch: Count | None = split_option(
        "--global-batch B",
        "Samples of all devices in one step, exactly. "
        "Default: whatever gives the most samples per second.",
    )
    max_global_batch: Count | None = split_option(
        "--max-global-batch B", "Upper limit for the global batch."
    )
    accumulate: Accumulate = split_option(
        "--accumulate auto|off|N",
        "Allow up to N micro-batches on a device whose batch does not fit; auto: up "
        "to 8.",
        1,
        typed="off",
    )
    batch_multiple: Multiple | None = split_option(
        "--batch-multiple N",
        "Make every batch a multiple of N. Default: as in the probe.",
    )
    margin_bytes: Margin = margin_option(
        "Split", " beyond what training on all devices needs"
    )
    from_batch: Count | None = split_option(
        "--from-batch B",
        "The global batch that your learning rate was tuned for. Default: the batch "
        "of --data, or the best batch of the best device alone.",
    )
    noise_scale: Annotated[float, Field(ge=1e-3, lt=1e12)] | None = split_option(
        "--noise-scale N|FILE",
        "Maximise goodput (throughput × learning progress per sample) with this "
        "gradient noise scale: in samples, or the file that "
        "split.monitor(noise=FILE) wrote. Default: maximise samples per second.",
    )
    sync_s: Seconds | None = split_option(
        "--sync S",
        "Sync of a step in seconds, as `run` shows it: everything except the slowest "
        "compute and update.",
    )

    @model_validator(mode="after")
    def _is_within_its_limit(self) -> PlanRequest:
        wanted, maximum = self.global_batch, self.max_global_batch
        if wanted is not None and maximum is not None and wanted > maximum:
            raise UsageError(
                f"--global-batch {wanted} is more than --max-global-batch {maximum}",
                remedy="leave one of them out",
            )
        return self


class Rounds(Record):
    """How to find the split: in at most `rounds` rounds of `round_s` each.

    `round_s` null measures each split until its step time is known within ± 0.5 %, for at most 3 s.
    `fresh` probes again even if a probe of these devices and settings is stored, `each` probes even
    devices that are equal.
    """

    rounds: Repeats = measuring_option("--rounds N", "Measure at most N splits.", 10)
    fresh: bool = measuring_option(
        "--fresh",
        "Make a new probe, even if there is one of these devices and settings.",
        default=False,
    )
    each: bool = measuring_option("--each", EACH, default=False)
    round_s: WithinHour | None = measuring_option(
        "--round-duration S",
        "Seconds to measure each split that is tried. "
        "Default: until it is known within ± 0.5 %, up to 3 s.",
    )


class Cutting(Rounds):
    """How to cut a model into stages, and what a step is.

    `micro_batch` null is the smallest that is nearly as fast as any, `micro_batches` null is eight
    for each device. `cuts` names the layers that begin a stage; without any the planner chooses the
    cuts. `margin_bytes` of each device's memory are kept free. With `force` the model is cut even
    if it is better off uncut.
    """

    micro_batch: Multiple | None = split_option(
        "--micro-batch N",
        "Samples in a micro-batch. Default: the fewest within 5 % of the best "
        "throughput.",
    )
    micro_batches: int | None = split_option(
        "--micro-batches N",
        "Number of micro-batches in a step. Default: 8 per device.",
        ge=1,
        le=_MOST_MICRO_BATCHES,
    )
    cuts: tuple[str, ...] = split_option(
        "--cuts LAYER…",
        "Cut before these layers, and nowhere else. Default: anywhere.",
        (),
    )
    margin_bytes: Margin = margin_option("Split")
    force: bool = split_option(
        "--force", "Cut the model even if it trains faster uncut.", default=False
    )
    rounds: Repeats = measuring_option("--rounds N", "Measure at most N cuts.", 5)
    round_s: WithinHour = measuring_option(
        "--round-duration S", "Seconds to measure each cut that is tried.", 3.0
    )
