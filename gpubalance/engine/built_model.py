"""A model that is built for its replicas, with its samples and the functions of its steps."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from gpubalance.engine import data, models
from gpubalance.engine.models import compiled_text, local_layers_of
from gpubalance.engine.replicas import Replicas
from gpubalance.engine.step.counted import count_step
from gpubalance.engine.step.functions import Functions
from gpubalance.engine.step.parity import TRIED_SAMPLES
from gpubalance.engine.supply import UNLIKE_BATCHES
from gpubalance.results.combine_rules import UNTRIED, CombineRules
from gpubalance.settings.settings import Settings


class BuiltModel:
    """Makes the model, and finds out how a split would train it."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        device: str,
        combine_rules: CombineRules | None,
        *,
        seed: int,
    ) -> None:
        """`device` is the name of the one that has the samples. For `combine_rules` see Session."""
        self._settings = settings
        self._replicas = replicas
        with replicas.strategy.scope():
            self.model = models.make_model(settings)
        was_compiled = self.model.compiled
        self.source = data.samples_for(
            settings, self.model, replicas.strategy, device, seed=seed
        )
        self._compiled_with = None
        if settings.model_is_code and not was_compiled:
            self._compiled_with = compiled_text(self.model)
        self.functions = Functions(self.model, replicas, xla=settings.xla)
        self.combine_rules = self._build(combine_rules)

    def _build(self, combine_rules: CombineRules | None) -> CombineRules:
        """Builds the model, and finds out how a split would train it, if that is not known.

        Only user's code is tried. A single device trains what a split can't.
        """
        batch = data.as_tensors(self.source.make(TRIED_SAMPLES))
        data.build(self._settings, self.model, self._replicas.strategy, batch)
        if not self._settings.model_is_code:
            return UNTRIED
        if combine_rules is None:
            return self.functions.try_in_parts("train", batch)
        self.functions.follow("train", combine_rules)
        return combine_rules

    def facts(self) -> dict[str, Any]:
        """What a result records about the model."""
        pack_bytes = None
        if self._replicas.count > 1:
            pack_bytes = self.functions.pack_bytes
        return {
            "model": models.facts_of(self.model)
            | {"step": self.combine_rules.fingerprint},
            "pack_bytes": pack_bytes,
            "combine_rules": self.combine_rules,
            "own_batch": self.source.own_batch,
            "own_batch_stays": self.source.own_batch_stays,
            "samples": self.source.epoch_samples,
            "local_layers": local_layers_of(self.model),
            "compiled_with": self._compiled_with,
        }

    def step_flops(self) -> float | None:
        """The operations of a step for a sample, None if unknown.

        It is the mean of several samples if these differ in shape.
        """
        count = 1
        if self.source.shapes_differ:
            count = UNLIKE_BATCHES
        samples = [self.source.make(1, salt=number) for number in range(count)]
        return count_step(self.model, samples)

    def refuse_small(self, smallest: int) -> None:
        """Raises for a split whose smallest part is too small for the model to train exactly."""
        self.combine_rules.refuse_small(smallest, self.model)

    def loss_is_finite(self, logs: dict[str, Any]) -> bool:
        """Whether the loss is a number: as it is logged, else as the smallest weight tells."""
        if "loss" in logs:
            return math.isfinite(float(logs["loss"]))
        weights = self.model.trainable_variables
        smallest = min(weights, key=lambda variable: math.prod(variable.shape))
        return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(smallest))))
