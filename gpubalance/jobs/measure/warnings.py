"""The warnings of all that measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.slow import SLOW
from gpubalance.results.common import Refusal, Warning_
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares

PRECISE_ENOUGH = 0.01
_STAMPS_CHEAP = 0.03
LATE = 0.1
_FEWEST_SLOW = 2
_COOLER = "look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)"


Slowed = Sequence[tuple[Device, tuple[str, ...]]]  # each GPU that was throttled for a reason that passes, and why


@dataclass(frozen=True)
class Figures:
    """What decides whether the figures of a measurement can be relied on, of all that was measured in turns.

    `precision` is half the 95 % interval of a step time as a part of it, the largest; `slow_steps` are those over 1.5
    times the median, of `stamped_steps`; `excess_part` is that of a device's compute over a whole step.
    """

    model: str
    slowed: Slowed = ()
    late_part: float = 0.0
    precision: float = 0.0
    steady: bool = True
    slow_steps: int = 0
    stamped_steps: int = 0
    mean_over_median: float = 0.0
    stamp_cost: float = 0.0
    excess_part: float = 0.0
    loss_is_finite: bool = True


def of_figures(found: Figures) -> list[Warning_]:
    """The warnings about figures, whatever was measured: each a row of code, condition, message and what to do."""
    late, wide, slow = format_percent(found.late_part), format_percent(found.precision, 1), found.slow_steps
    over, costs, longer = (
        format_percent(part, 1) for part in (found.mean_over_median, found.stamp_cost, found.excess_part)
    )
    rows: list[tuple[str, bool, str, str]] = [
        (
            "throttled",
            bool(found.slowed),
            f"{slowed_text(found.slowed)} while it was measured, and measured once more after that",
            f"{_COOLER}, and measure again",
        ),
        (
            "slower-than-profile",
            found.late_part > LATE,
            f"in {late} of the steps the real compute took longer than the profile's time: the figures are this "
            "machine's, not the profile's",
            "use --model small" if found.model != "small" else "use larger batches, or a profile with longer steps",
        ),
        (
            "wide-interval",
            found.precision > PRECISE_ENOUGH,
            f"the 95 % interval of a step time is ± {wide}, wider than ± {format_percent(PRECISE_ENOUGH)}"
            if math.isfinite(found.precision)
            else "too few timings for a confidence interval",
            "measure longer (--windows, --duration), with nothing else running",
        ),
        (
            "not-steady",
            not found.steady,
            "the step time still had a trend when the warm-up ended",
            "run it again: clocks that rise or fall, or another program, may be the cause",
        ),
        (
            "slow-steps",
            slow >= _FEWEST_SLOW or found.mean_over_median > 0,
            f"{slow} of {found.stamped_steps} steps that were timed alone took over {SLOW:g} times their median"
            if slow >= _FEWEST_SLOW
            else f"some timings are much longer than the others: on average a step takes {over} longer than shown",
            "close other programs, or move them to another machine; if that does not help, see whether data or a "
            "checkpoint makes a step wait",
        ),
        (
            "stamps-cost",
            found.stamp_cost > _STAMPS_CHEAP,
            f"steps in which the devices were timed took {costs} longer: total throughput is from the others, but "
            "compute, wait and sync are only that exact",
            "larger batches reduce it",
        ),
        (
            "parts-exceed-step",
            found.excess_part > _STAMPS_CHEAP,
            f"the slowest device's compute, timed in some steps, is {longer} longer than a whole step of the others: "
            "compute, wait and sync are only that exact",
            "measure longer, with nothing else running",
        ),
        (
            "loss-not-finite",
            not found.loss_is_finite,
            "the loss became infinite or NaN while it was measured; a step's work and time stay the same",
            "nothing to do for a measurement on random data",
        ),
    ]
    return [Warning_(code=code, message=message, next=next_) for code, holds, message, next_ in rows if holds]


def slowed_text(slowed: Slowed) -> str:
    """`GPU:0 was throttled (thermal)`, with NVML's reasons."""
    return " and ".join(f"{device.label} was throttled ({', '.join(reasons)})" for device, reasons in slowed)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def not_exact(text: str) -> Warning_:
    """The warning about a model that a split does not train exactly as one device does."""
    return Warning_(code="not-exact", message=text, next="gpubalance guide train says what a split trains exactly")


def balance_refuses(refused: Refusal) -> Warning_:
    """The warning about a model that a device trains alone, and a split can't."""
    message = f"gpubalance balance will refuse this model: {refused.message}"
    return Warning_(code="not-for-a-split", message=message, next=refused.remedy)


def resumed(windows: int) -> Warning_:
    """The warning that a run continued after an interruption."""
    return Warning_(
        code="resumed",
        message=f"{windows} of its windows {_was(windows)} measured before it was interrupted, after a warm-up then; "
        "telemetry covers the others only",
        next="nothing to do, unless the machine was changed in between: then measure without --resume",
    )


def rounds_taken_over(rounds: int) -> Warning_:
    """The warning that a balance, or the rounds of a cut, continued after an interruption."""
    return Warning_(
        code="resumed",
        message=f"{rounds} of its rounds {_was(rounds)} measured before it was interrupted",
        next="nothing to do, unless the machine was changed in between: then measure without --resume",
    )


def even_does_not_fit(even: Shares, where: str, smaller: Shares) -> Warning_:
    """The warning that the run is compared with smaller equal shares."""
    return Warning_(
        code="even-split-does-not-fit",
        message=f"the even split {even} runs out of memory on {where}: "
        f"compared with {smaller} instead, the largest equal shares that fit",
        next="nothing to do: no equal split of this global batch is possible on these devices",
    )


def even_out_of_memory(what: str) -> Warning_:
    """The warning that the run went on without the even split."""
    return Warning_(
        code="even-split-out-of-memory",
        message=f"{what}, in turns with the run's split: there is no even split to compare with",
        next="compare with smaller batches, or measure with --baseline none",
    )


def speed_changed(device: Device, change: float) -> Warning_:
    """The warning that a device became slower, or faster if `change` is negative, by that part."""
    return Warning_(
        code="throttled",
        message=f"{device.label} became {100 * abs(change):.0f} % "
        f"{'slower' if change > 0 else 'faster'} while it was measured: the split is for its speed at the end",
        next=to_keep_speed(device),
    )


def to_keep_speed(device: Device) -> str:
    """What to do so that a device keeps its speed."""
    if not device.simulated:
        return _COOLER
    if device.profile is not None and device.profile.drift:
        return "use a profile without drift"
    return "close other programs: it is simulated with this machine's processor"


def unsteady_machine(split: Shares, rates: Sequence[float]) -> Warning_:
    """The warning that a split which was measured several times gave something else each time."""
    return Warning_(
        code="not-steady",
        message=f"the machine is not steady: {split} gave {format_rate(min(rates))} to {format_rate(max(rates))} "
        f"samples/s in {len(rates)} measurements; its median counts",
        next="close other programs, and balance again",
    )


def batches_joined(own: int, global_batch: int) -> Warning_:
    """The warning that the user's own batches, which differ in shape, have another size than the run's."""
    return Warning_(
        code="batches-joined",
        message=f"the dataset's own batches have {own} samples and differ in shape: batches of {global_batch} were "
        "made from them, each padded to its longest sample, but split.fit leaves such batches as they are",
        next=f"let the dataset make batches of {global_batch}: padded_batch({global_batch})",
    )


def batches_differ() -> Warning_:
    """The warning that step times are means over batches of several shapes."""
    return Warning_(
        code="batches-differ",
        message="the batches differ in shape: a step time is the mean over several of them, and plans use that mean; "
        "the batch limit was tried with the longest of the first batches",
        next="keep some memory free with --margin if longer ones may come",
    )


def shares_assumed() -> Warning_:
    """The warning about a cut model on simulated devices, whose profiles describe whole models."""
    return Warning_(
        code="shares-assumed",
        message="a block's part of its device's profile is assumed to be its part of the model's operations, weights "
        "and activations",
        next="nothing to do: real devices are measured block by block",
    )
