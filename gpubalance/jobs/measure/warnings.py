"""The warnings of all that measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.parts import SLOW
from gpubalance.results.common import Refusal, Throughput, Warning_
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares

if TYPE_CHECKING:
    from gpubalance.jobs.measure.timings import Timings

PRECISE_ENOUGH = 0.01
_STAMPS_CHEAP = 0.03
LATE = 0.1
_FEWEST_SLOW = 2
_COOLER = "look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)"


Slowed = Sequence[tuple[Device, tuple[str, ...]]]  # each GPU that was throttled for a reason that passes, and why


def of_figures(
    model: str,
    slowed: Slowed,
    measured: Sequence[Timings],
    *,
    steady: bool,
    stamp_cost: float | None = None,
    excess_part: float = 0.0,
) -> list[Warning_]:
    """The warnings about the figures of all that was measured in turns: each a row of code, condition, text, remedy.

    `excess_part` is that of a device's compute over a whole step.
    """
    precision = max((one.precision for one in measured), default=0.0)
    late_part = max((one.late_part for one in measured), default=0.0)
    over = max((one.mean_over_median for one in measured), default=0.0)
    slow, stamped = sum(one.slow_steps for one in measured), sum(len(one.stamped) for one in measured)
    stamp_cost = stamp_cost or 0.0
    late, wide, enough = format_percent(late_part), format_percent(precision, 1), format_percent(PRECISE_ENOUGH)
    longer, costs, excess = (format_percent(part, 1) for part in (over, stamp_cost, excess_part))
    wider = f"the 95 % interval of a step time is ± {wide}, wider than ± {enough}"
    some_slow = f"{slow} of {stamped} steps that were timed alone took over {SLOW:g} times their median"
    some_longer = f"some timings are much longer than the others: on average a step takes {longer} longer than shown"
    rows: list[tuple[str, bool, str, str]] = [
        (
            "throttled",
            bool(slowed),
            f"{slowed_text(slowed)} while it was measured, and measured once more after that",
            f"{_COOLER}, and measure again",
        ),
        (
            "slower-than-profile",
            late_part > LATE,
            f"in {late} of the steps the real compute took longer than the profile's time, so the figures are this "
            "machine's and not the profile's",
            "use --model small" if model != "small" else "use larger batches, or a profile with longer steps",
        ),
        (
            "wide-interval",
            precision > PRECISE_ENOUGH,
            wider if math.isfinite(precision) else "too few timings for a confidence interval",
            "measure longer (--windows, --duration), with nothing else running",
        ),
        (
            "not-steady",
            not steady,
            "the step time still had a trend when the warm-up ended",
            "run it again: clocks that rise or fall, or another program, may be the cause",
        ),
        (
            "slow-steps",
            slow >= _FEWEST_SLOW or over > 0,
            some_slow if slow >= _FEWEST_SLOW else some_longer,
            "close other programs, or move them to another machine. If that does not help, see whether data or a "
            "checkpoint makes a step wait",
        ),
        (
            "stamps-cost",
            stamp_cost > _STAMPS_CHEAP,
            f"steps in which the devices were timed took {costs} longer. Total throughput is from the others, but "
            "compute, wait and sync are only that exact",
            "larger batches reduce it",
        ),
        (
            "parts-exceed-step",
            excess_part > _STAMPS_CHEAP,
            f"the slowest device's compute, timed in some steps, is {excess} longer than a whole step of the others, "
            "so compute, wait and sync are only that exact",
            "measure longer, with nothing else running",
        ),
        (
            "loss-not-finite",
            not all(one.loss_is_finite for one in measured),
            "the loss became infinite or NaN while it was measured, which changes nothing about a step's work and time",
            "nothing to do for a measurement on random data",
        ),
    ]
    return [Warning_(code=code, message=message, next=next_) for code, holds, message, next_ in rows if holds]


def slowed_text(slowed: Slowed) -> str:
    """`GPU:0 was throttled (thermal)`, with NVML's reasons."""
    return " and ".join(f"{device.label} was throttled ({', '.join(reasons)})" for device, reasons in slowed)


def not_exact(text: str) -> Warning_:
    """The warning about a model that a split does not train exactly as one device does."""
    return Warning_(code="not-exact", message=text, next="gpubalance guide train says what a split trains exactly")


def balance_refuses(refused: Refusal) -> Warning_:
    """The warning about a model that a device trains alone, and a split can't."""
    message = f"gpubalance balance will refuse this model: {refused.message}"
    return Warning_(code="not-for-a-split", message=message, next=refused.remedy)


def resumed(count: int, what: str = "windows") -> list[Warning_]:
    """The warning that a command continued after an interruption, if so many of these were measured before."""
    was = "was" if count == 1 else "were"
    since = ", after a warm-up then. Telemetry covers the others only" if what == "windows" else ""
    found = Warning_(
        code="resumed",
        message=f"{count} of its {what} {was} measured before it was interrupted{since}",
        next="nothing to do, unless the machine was changed in between: then measure without --resume",
    )
    return [found] if count else []


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
        f"samples/s in {len(rates)} measurements, of which the median counts",
        next="close other programs, and balance again",
    )


def even_is_faster(split: Shares, gave: Throughput, even: Shares, even_gave: Throughput) -> Warning_:
    """The warning that a balance goes on with the even split, as it was faster than the split beside it."""
    return Warning_(
        code="even-is-faster",
        message=f"{split} gave {format_rate(gave.median)} samples/s and the even split {even} beside it "
        f"{format_rate(even_gave.median)}: the faster of them counts",
        next="close other programs, and balance again: the devices were not as fast as when they were planned for",
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
        message="the batches differ in shape: a step time is the mean over several of them, and plans use that mean. "
        "The batch limit was tried with the longest of the first batches",
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
