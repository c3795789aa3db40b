"""Warms a subject up in a worker, as far as the worker has not trained with it before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gpubalance.errors import BadInput
from gpubalance.jobs.measure.subject_runner import SubjectRunner, WarmUp, step_s_of
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import has_trend
from gpubalance.results.timing import Timing
from gpubalance.workers.messages import Pipe

WARMUP_STEPS = 10
_LONGEST_WARMUP_S = 60.0
_LONGEST_WARMUP_STEPS = 200
SETTLING_STEPS = 3
_TRACED_STEPS = 2
_CLEARLY_FASTER = 0.95
_LONGEST_SETTLING_STEPS = 30
# What to do about a loss that is no number, with samples of the user's and with random ones.
_LOSS_OF_DATA = (
    "the first samples of --data {given} have no NaN, but a later one may: read all of it once and "
    "look for NaN and infinity. If there is none, train a step without gpubalance: values that are "
    "not scaled, a learning rate that is too high, and log(0) or a division by 0 in the loss do it"
)
_LOSS_OF_RANDOM = (
    "inputs are random numbers from 0 to 1, and labels fit the output: if the model takes others, "
    "measure with --data"
)


def train_until_ready(runner: SubjectRunner, before: WarmUp) -> WarmUp:
    """Trains until the step time is steady; what the warm-up `before` has become by that.

    A worker's first split trains at least 10 steps, of which the last 10 show no trend; so does
    every split under XLA, which compiles each. Another one settles; one that the worker has trained
    with is ready. The stamped steps' own trace is warmed up too, one for splits in one piece and
    one for others. Raises OutOfMemory, and BadInput for a loss that is not a number from the first
    step on.
    """
    if runner.subject.cut is not None:
        return _warm_up_cut(runner, runner.subject.cut, before)
    worker = runner.worker
    subject = runner.subject
    key = (subject.split, subject.from_input_pipeline)
    until_steady = worker.settings.xla or not worker.warm
    if key in worker.warm or (key in worker.trained and not until_steady):
        runner.note_peaks(worker.trained[key])
        return replace(before, peaks=runner.peaks)
    steps = _first_steps(runner)
    is_new = all(
        split.accumulates != subject.split.accumulates for split, _ in worker.warm
    )
    if subject.wants_stamps and (until_steady or is_new):
        steps += runner.train(at_least=_TRACED_STEPS, stamped=True)
    if until_steady:
        steps = _until_steady(runner, steps)
        step_s = median([step_s_of(step) for step in steps[-WARMUP_STEPS:]])
        steady = before.steady and _are_steady(steps)
    else:
        steps = _until_settled(runner, steps)
        step_s = step_s_of(steps[-1])
        steady = before.steady
    worker.warm.add(key)
    count = before.steps + len(steps)
    return WarmUp(count, steady, step_s, runner.peaks, runner.are_unlike)


def _warm_up_cut(runner: SubjectRunner, cut: Pipe, before: WarmUp) -> WarmUp:
    """Trains until steps no longer get faster, unless these segments ran last in this process."""
    warmed_up = runner.worker.warm_pipeline
    key = cut.segments, cut.micro_batch
    if key in warmed_up:
        return replace(before, steps=warmed_up[key])
    warmed_up.clear()
    steps = train_until_settled(runner)
    warmed_up[key] = before.steps + len(steps)
    step_s = step_s_of(steps[-1])
    return WarmUp(
        warmed_up[key], before.steady, step_s, runner.peaks, runner.are_unlike
    )


def train_until_settled(
    runner: SubjectRunner, *, refuses_bad_loss: bool = True
) -> list[Timing]:
    """The steps of a short warm-up, for a worker that has trained before.

    It ends when no step is clearly faster: the last two are as fast as each other. They are at
    least 3, as what trains three times keeps training. Raises as `train_until_ready` does, for a
    loss that is not a number only if it `refuses_bad_loss`: that is for a model's first
    measurement, as random data may lead to one later.
    """
    return _until_settled(
        runner, _first_steps(runner, refuses_bad_loss=refuses_bad_loss)
    )


def _first_steps(
    runner: SubjectRunner, *, refuses_bad_loss: bool = True
) -> list[Timing]:
    steps = list(runner.train(at_least=1))
    if refuses_bad_loss and not runner.losses_are_finite:
        given = runner.worker.settings.data
        raise BadInput(
            "the model's loss is not a number at the first step",
            remedy=_LOSS_OF_DATA.format(given=given) if given else _LOSS_OF_RANDOM,
        )
    return steps


def _until_steady(runner: SubjectRunner, first: Sequence[Timing]) -> list[Timing]:
    """These first steps, and more until the last show no trend, or it has taken long enough."""
    end_s = time.monotonic() + _LONGEST_WARMUP_S
    steps = list(first)
    while not _are_steady(steps) and len(steps) <= _LONGEST_WARMUP_STEPS:
        if len(steps) >= WARMUP_STEPS and time.monotonic() > end_s:
            break
        steps += runner.train(at_least=2)
    return steps


def _are_steady(steps: Sequence[Timing]) -> bool:
    last = [step_s_of(step) for step in steps[-WARMUP_STEPS:]]
    return len(last) == WARMUP_STEPS and not has_trend(last)


def _until_settled(runner: SubjectRunner, first: Sequence[Timing]) -> list[Timing]:
    """These first steps, and more until the last is not clearly faster than the one before."""
    steps = list(first)
    while len(steps) < _LONGEST_SETTLING_STEPS:
        if len(steps) >= SETTLING_STEPS:
            last_s = step_s_of(steps[-1])
            before_s = step_s_of(steps[-2])
            if last_s >= _CLEARLY_FASTER * before_s:
                break
        steps += runner.train(at_least=1)
    return steps
