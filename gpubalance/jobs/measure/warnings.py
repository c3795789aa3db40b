"""The warnings about a run's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.slow import SLOW
from gpubalance.results.common import Refusal, Warning_
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares

PRECISE_ENOUGH = 0.01
_STAMPS_CHEAP = 0.03
LATE = 0.1
_FEWEST_SLOW = 2


def slowed_text(slowed: Sequence[tuple[Device, tuple[str, ...]]]) -> str:
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


def throttled(slowed: Sequence[tuple[Device, tuple[str, ...]]]) -> Warning_:
    """The warning that GPUs lowered their clocks while they were measured together."""
    return Warning_(
        code="throttled",
        message=f"{slowed_text(slowed)} while it was measured, and measured once more after that",
        next="look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE), and measure again",
    )


def slower_than_profile(late_part: float, model: str) -> Warning_ | None:
    """The warning that in some steps the real compute took longer than the profile's time, None if in few."""
    if late_part <= LATE:
        return None
    smaller = "use --model small" if model != "small" else "use larger batches, or a profile with longer steps"
    return Warning_(
        code="slower-than-profile",
        message=f"in {format_percent(late_part)} of the steps the real compute took longer than the profile's time: "
        "the figures are this machine's, not the profile's",
        next=smaller,
    )


def wide_interval(precision: float) -> Warning_ | None:
    """The warning that the step time is imprecise. `precision` is half its 95 % interval, as a part of it."""
    if precision <= PRECISE_ENOUGH:
        return None
    wide, wanted = format_percent(precision, 1), format_percent(PRECISE_ENOUGH)
    return Warning_(
        code="wide-interval",
        message=f"the 95 % interval of a step time is ± {wide}, wider than ± {wanted}"
        if math.isfinite(precision)
        else "too few timings for a confidence interval",
        next="measure longer (--windows, --duration), with nothing else running",
    )


def not_steady(steady: bool) -> Warning_ | None:
    """The warning that the warm-up ended while the step time still had a trend."""
    if steady:
        return None
    return Warning_(
        code="not-steady",
        message="the step time still had a trend when the warm-up ended",
        next="run it again: clocks that rise or fall, or another program, may be the cause",
    )


def stamps_cost(cost: float) -> Warning_ | None:
    """The warning that stamped steps took longer, by the part `cost`."""
    if cost <= _STAMPS_CHEAP:
        return None
    return Warning_(
        code="stamps-cost",
        message=f"steps in which the devices were timed took {format_percent(cost, 1)} longer: total throughput is "
        "from the others, but compute, wait and sync are only that exact",
        next="larger batches reduce it",
    )


def slow_steps(found: int, of: int, over: float) -> Warning_ | None:
    """The warning that of the steps timed alone, `found` took over 1.5 times the median.

    Or that the mean timing is longer than the median by the part `over`.
    """
    if found >= _FEWEST_SLOW:
        message = f"{found} of {of} steps that were timed alone took over {SLOW:g} times their median"
    elif over > 0:
        longer = format_percent(over, 1)
        message = f"some timings are much longer than the others: on average a step takes {longer} longer than shown"
    else:
        return None
    return Warning_(
        code="slow-steps",
        message=message,
        next="close other programs, or move them to another machine; if that does not help, see whether "
        "data or a checkpoint makes a step wait",
    )


def excess(part: float) -> Warning_ | None:
    """The warning that a device's compute in stamped steps exceeds a whole unstamped step, by that part."""
    if part <= _STAMPS_CHEAP:
        return None
    return Warning_(
        code="parts-exceed-step",
        message=f"the slowest device's compute, timed in some steps, is {format_percent(part, 1)} longer than a whole "
        "step of the others: compute, wait and sync are only that exact",
        next="measure longer, with nothing else running",
    )


def loss_not_finite(finite: bool) -> Warning_ | None:
    """The warning that the loss became infinite or NaN."""
    if finite:
        return None
    return Warning_(
        code="loss-not-finite",
        message="the loss became infinite or NaN while it was measured; a step's work and time stay the same",
        next="nothing to do for a measurement on random data",
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
        return "look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)"
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
