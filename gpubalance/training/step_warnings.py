"""What training tells: warnings of steps, each once, changes of the split, the noise scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubalance.engine.feed import Dispatched
from gpubalance.engine.keras_patches import print_msg
from gpubalance.engine.models import unsynchronised_text
from gpubalance.engine.user_functions import warn_user
from gpubalance.numbers.units import format_percent, three_digits
from gpubalance.planning.follow import SplitChange
from gpubalance.planning.noise import (
    NoiseScale,
    efficiency,
    goodput,
    learning_rate_factor,
)
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training import data, measured
from gpubalance.training.device_split import DeviceSplit

# A device's time in a split that differs by less says nothing of its speed.
_MOVED = 0.05
# The least part by which another split must reach the same loss sooner to be named.
_CLEARLY = 0.01


class StepWarnings:
    """The warnings of one model's steps over a split; of several processes only the first warns."""

    def __init__(self, split: DeviceSplit, model: Any) -> None:
        self._split = split
        self._model = model
        self._epoch_samples: int | None = None
        self._may_begin_short = False
        self._short_first: Dispatched | None = None  # until a second batch tells

    def begin(self, options: dict[str, Any]) -> None:
        """Begins a call, with its data as the user gave it."""
        self._epoch_samples = data.epoch_samples(options)
        self._may_begin_short = data.may_begin_short(options)
        self._short_first = None

    def warn_once(self, text: str) -> None:
        """Warns of a text, unless it is empty or has been said."""
        if text and self._split.is_first and text not in self._split.warned:
            self._split.warned.add(text)
            warn_user(text)

    def warn_of_no_finite_loss(self, history: dict[str, Any]) -> None:
        """Warns if the last loss of a `fit`'s history is no number.

        Does nothing if the parity check has warned of this model's loss.
        """
        of_check = f"the loss of the model {self._model.name}, or its gradient, is NaN"
        if not any(text.startswith(of_check) for text in self._split.warned):
            self.warn_once(data.not_finite_text(history, self._model))

    def warn_of_batch_normalisation(self, *, xla: bool) -> None:
        """Warns of layers that normalise each device's samples by themselves."""
        if self._split.replicas.count > 1:
            micro = self._split.shares.accumulates
            self.warn_once(unsynchronised_text(self._model, micro=micro, xla=xla))

    def warn_if_not_the_planned_model(
        self, step: measured.Fingerprint | None = None
    ) -> None:
        """Warns if the plan was measured with another model or optimizer, or with another `step`.

        `step` counts the step's operations by type; None before the parity check has counted them.
        """
        split = self._split
        if split.plan is not None:
            self.warn_once(
                measured.plan_mismatch_text(
                    split.plan, self._model, split.simulate, split.plan_file, step
                )
            )

    @property
    def first_batch_may_be_short(self) -> bool:
        """Whether the first batch may be the one that is not full: the second one tells."""
        return self._short_first is not None

    def warn_of_other_batches(
        self, dispatched: Dispatched, *, rebalances: bool
    ) -> None:
        """Warns of steps that do not have the split's global batch, by the first one.

        By the larger of the first two where the first may be the one that is not full.
        """
        split = self._split
        if split.takes_any_batch:
            return
        if self._short_first is not None:
            dispatched = max(self._short_first, dispatched, key=lambda one: one.samples)
            self._short_first = None
        elif self._may_begin_short and dispatched.samples < split.global_batch:
            self._short_first = dispatched
            return
        self.warn_once(
            data.other_batches_text(
                dispatched,
                split.global_batch,
                only=self._epoch_samples,
                rebalances=rebalances,
                balance=measured.balance_command(split.plan, split.simulate),
            )
        )


def change_text(change: SplitChange, labels: Sequence[str]) -> str:
    """`step 340: 944/640 → 812/772, GPU:0 became 31 % slower; 1.16 × what …`.

    It names the device whose compute time has changed most.
    """
    text = f"step {change.step}: {change.before} → {change.after}"
    moved = [ratio - 1 for ratio in change.slowdown]
    maximum = max(moved, key=abs)
    if abs(maximum) > _MOVED:
        slower = "slower" if maximum > 0 else "faster"
        text += f", {labels[moved.index(maximum)]} became {format_percent(abs(maximum))} {slower}"
    return f"{text}; {change.gain:.2f} × what the old split now gives"


def gain_text(changes: Sequence[SplitChange], gain: float | None) -> str:
    """`3 changes of the split, the first in step 340: 1.14 × what 944/640 would have given …`."""
    counted = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    text = f"{counted} of the split, the first in step {changes[0].step}: "
    if gain is None:
        return f"{text}too few steps were timestamped since then to tell what it gained"
    return f"{text}{gain:.2f} × what {changes[0].before} would have given since"


def noise_text(noise: NoiseScale, split: BatchSplit, plan: Plan | None) -> str:
    """`noise scale 3200 (2700 to 3900): …`, with a plan also of a split that would learn faster."""
    if noise.value is None or noise.ci95 is None:
        return f"gradient noise scale not known: {noise.unknown}"
    low, high = map(three_digits, noise.ci95)
    batch = split.global_batch
    worth = format_percent(efficiency(batch, noise.value))
    text = (
        f"gradient noise scale {three_digits(noise.value)} ({low} to {high}): at a "
        f"global batch of {batch} a sample gives {worth} of the progress that it "
        "gives in a very small batch"
    )
    if (
        plan is None
        or not plan.predicted.by_global_batch
        or plan.split.without_idle != split
    ):
        return text
    return f"{text}; {_better(noise.value, plan)}"


def _better(scale: float, plan: Plan) -> str:
    """The split that would learn faster than the plan's, by its predictions."""
    value = goodput(scale)
    now = plan.split.global_batch
    best = max(
        plan.predicted.by_global_batch,
        key=lambda row: value(row.split.global_batch, row.step_time_s),
    )
    batch = best.split.global_batch
    sooner = value(batch, best.step_time_s) / value(now, plan.predicted.step_time_s)
    if sooner < 1 + _CLEARLY:
        return "no other global batch would reach the same loss clearly sooner"
    factor = learning_rate_factor(now, batch, scale)
    return (
        f"{best.split} would reach the same loss {sooner:.2f} × sooner; learning rate × "
        f"{factor:.2f} with SGD"
    )


def print_below_bar(text: str, verbose: Any) -> None:
    """Prints a line below the progress bar, which has no end yet, if `verbose` has Keras show it.

    Keras takes "auto" for 1.
    """
    print_msg(f"\n{text}" if verbose in (1, "auto") else text)
