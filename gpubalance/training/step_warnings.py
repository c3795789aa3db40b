"""What the steps of a model warn of, each text once."""

from __future__ import annotations

from typing import Any

from gpubalance.engine.feed import Dealt
from gpubalance.engine.local_layers import unsynchronised_text
from gpubalance.training import data, measured
from gpubalance.training.device_split import DeviceSplit
from gpubalance.training.warn import warn_user


class StepWarnings:
    """The warnings of one model's steps over a split; of several processes only the first warns."""

    def __init__(self, split: DeviceSplit, model: Any) -> None:
        self._split = split
        self._model = model
        self._epoch_samples: int | None = None
        self._may_begin_short = False
        self._short_first: Dealt | None = None  # until a second batch tells

    def begin(self, options: dict[str, Any]) -> None:
        """Begins a call, with its data as the user gave it."""
        self._epoch_samples = data.epoch_samples(options)
        self._may_begin_short = data.may_begin_short(options)
        self._short_first = None

    def say(self, text: str) -> None:
        """Warns of a text, unless it is empty or has been said."""
        if text and self._split.is_first and text not in self._split.warned:
            self._split.warned.add(text)
            warn_user(text)

    def of_no_finite_loss(self, history: dict[str, Any]) -> None:
        """Warns of losses in a `fit`'s history that are no numbers, if nothing has said so."""
        if not any("not finite" in text for text in self._split.warned):
            self.say(data.not_finite_text(history))

    def of_batch_normalisation(self, *, xla: bool) -> None:
        """Warns of layers that normalise each device's samples by themselves."""
        if self._split.replicas.count > 1:
            micro = self._split.shares.accumulates
            self.say(unsynchronised_text(self._model, micro=micro, xla=xla))

    def of_another_model(self, step: measured.Fingerprint | None = None) -> None:
        """Warns of a model, its optimizer, or a step that the plan was not measured with."""
        split = self._split
        if split.plan is not None:
            self.say(
                measured.unlike_plan_text(
                    split.plan, self._model, split.simulate, split.plan_file, step
                )
            )

    @property
    def wait_for_second_batch(self) -> bool:
        """Whether the first batch may be the one that is not full, so that the second tells."""
        return self._short_first is not None

    def of_other_batches(self, dealt: Dealt, *, rebalances: bool) -> None:
        """Warns of steps that do not have the split's global batch, by the first one.

        By the larger of the first two where the first may be the one that is not full.
        """
        split = self._split
        if split.takes_any_batch:
            return
        if self._short_first is not None:
            dealt = max(self._short_first, dealt, key=lambda one: one.samples)
            self._short_first = None
        elif self._may_begin_short and dealt.samples < split.global_batch:
            self._short_first = dealt
            return
        self.say(
            data.other_batches_text(
                dealt,
                split.global_batch,
                only=self._epoch_samples,
                rebalances=rebalances,
                balance=measured.balance_command(split.plan, split.simulate),
            )
        )
