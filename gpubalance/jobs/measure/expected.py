"""Estimates in advance how long a joint measurement takes, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.measure.pipeline import ROUND_S, WARM_UP_S
from gpubalance.jobs.measure.series import (
    LEAST_TIMINGS,
    SHORT_TIMING_S,
    STAMPED_PART,
    STAMPED_STEPS,
    TIMING_S,
    WARMUP_STEPS,
)
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Measuring, RunRequest
from gpubalance.settings.shares import Shares

# Measured on simulated devices, whose engine is the real one on a CPU.
WORKER_S = 4.0  # loads TensorFlow and builds the model
TRACING_S = 1.5  # for a split's two graphs, with stamps and without
_GUESSED_STEP_S = 0.2
_STEPS_A_STAMP = 2  # a stamped step has another before it
_SETTLING_STEPS = 5  # including the one that is not timed
_STAMPED_SETTLING_STEPS = 2 * _STEPS_A_STAMP  # more, for the first split in micro-batches
# For an even split that does not fit in one piece: its step over the best split's, and the steps of the search.
_DIVIDED_SLOWER = 1.25
_SEARCHED_STEPS = 5
_ROUNDS_ALONE = 2  # to know the rate of the pipeline alone


def step_s(device: Device, batch: int, micro_batches: int = 1) -> float:
    """A step of a device alone, by a simulated device's profile; a guess for others."""
    profile = device.profile
    return profile.alpha_s * micro_batches + profile.beta_s * batch + profile.update_s if profile else _GUESSED_STEP_S


def split_step_s(request: RunRequest) -> float:
    """A step of a run's split: that of the slowest device, plus the sync of simulated devices."""
    split = request.split
    shares = zip(request.devices, split.batches, split.micro_batches, strict=True)
    return max(step_s(device, batch, -(-batch // micro)) for device, batch, micro in shares) + request.joint.sync_s


def warm_up_s(joint_step_s: float) -> float:
    """The full warm-up of a split."""
    return TRACING_S + (1 + 2 * _STEPS_A_STAMP + WARMUP_STEPS) * joint_step_s


def settling_s(joint_step_s: float) -> float:
    """The short warm-up of another split with a warm worker."""
    return _SETTLING_STEPS * joint_step_s


def windows_s(measuring: Measuring, steps_s: Sequence[float], windows: int) -> float:
    """The windows of several splits measured in turns; `steps_s` has their step times."""
    return windows * sum(_window_s(measuring, one) for one in steps_s)


def _window_s(measuring: Measuring, one_step_s: float) -> float:
    """A window of a split: its stamped steps, then its timings, of which the last one begins before the end."""
    if measuring.duration_s is None:
        return short_window_s(one_step_s)
    stamped_s = max(STAMPED_PART * measuring.duration_s, STAMPED_STEPS * _STEPS_A_STAMP * one_step_s)
    return stamped_s + (1 - STAMPED_PART) * measuring.duration_s + max(TIMING_S, one_step_s) / 2


def run_s(request: RunRequest) -> float:
    """A run of its devices with samples, from the start of the worker; what fits is known of simulated devices."""
    split, joint_step_s = request.split, split_step_s(request)
    even = Shares.even(split.global_batch, len(split.batches))
    seconds = WORKER_S + proof_s(
        request.measuring, joint_step_s, even=even != split, divided=not _fits(request, even.batches)
    )
    return seconds + (0.0 if request.settings.data is None else pipeline_s(request.measuring, joint_step_s))


def _fits(request: RunRequest, batches: Sequence[int]) -> bool:
    """Whether these batches fit in a joint run by the devices' profiles."""
    extra = request.joint.extra_memory
    profiles = [(device.profile, batch) for device, batch in zip(request.devices, batches, strict=True)]
    return all(
        one is None or one.memory is None or one.memory_at(batch, extra) <= one.memory for one, batch in profiles
    )


def proof_s(
    measuring: Measuring, joint_step_s: float, *, even: bool = True, divided: bool = False, warm: bool = False
) -> float:
    """A split with its warm-up, in turns with the even split if that is wanted, which is assumed to be as slow.

    `even`: the even split is another one, as it is not for a single device. `divided`: it does not fit in one piece.
    Then its steps take longer, and the largest equal shares that fit are searched for and measured too. `warm`: the
    worker is warm for splits in one piece, as in a balance, which also measures the best split of their global batch.
    """
    own_s = settling_s(joint_step_s) if warm else warm_up_s(joint_step_s)
    if measuring.baseline != "even" or not even:
        return own_s + windows_s(measuring, [joint_step_s], measuring.windows)
    if not divided:
        return own_s + settling_s(joint_step_s) + windows_s(measuring, [joint_step_s] * 2, measuring.windows)
    even_s = _DIVIDED_SLOWER * joint_step_s
    one_s = settling_s(joint_step_s) + _window_s(measuring, joint_step_s)
    beside_s = _SEARCHED_STEPS * joint_step_s + (2 if warm else 1) * one_s
    windows = windows_s(measuring, [joint_step_s, even_s], measuring.windows)
    return own_s + beside_s + TRACING_S + settling_s(even_s) + _STAMPED_SETTLING_STEPS * even_s + windows


def pipeline_s(measuring: Measuring, joint_step_s: float) -> float:
    """What --data adds to a run: its pipeline alone, and the split once more with batches held on the devices."""
    alone_s = WARM_UP_S + _ROUNDS_ALONE * min(ROUND_S, measuring.duration_s or ROUND_S)
    return alone_s + settling_s(joint_step_s) + windows_s(measuring, [joint_step_s], measuring.windows)


def short_window_s(joint_step_s: float) -> float:
    """A window without a given length."""
    return STAMPED_STEPS * _STEPS_A_STAMP * joint_step_s + LEAST_TIMINGS * max(SHORT_TIMING_S, joint_step_s)
