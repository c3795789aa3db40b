"""Trains with XLA: which batches are compiled, and what is told of that."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import Dispatched
from gpubalance.engine.step.functions import Functions, TrainedStep
from gpubalance.engine.step.problems import NotCompiled
from gpubalance.numbers.units import format_seconds
from gpubalance.training.device_split import DeviceSplit
from gpubalance.training.measured import xla_mismatch_text
from gpubalance.training.scope import uses_xla
from gpubalance.training.step_warnings import print_below_bar

# XLA compiles each size for each device anew, which takes longer than many steps: those after the
# first are compiled when so many of the latest batches had them.
_LATEST, _OFTEN = 20, 4


class CompiledSteps:
    """Trains a model's steps with its `functions`: with XLA, if they have it, what comes often."""

    def __init__(
        self, split: DeviceSplit, model: Any, warn: Callable[[str], None]
    ) -> None:
        self.functions = Functions(
            model,
            split.replicas,
            xla=uses_xla(model, split.plan),
        )
        self._verbose: Any = 0  # of the `fit`
        self._has_warned = False  # of sizes that are rare
        self._split = split
        self._model = model
        self._warn = warn
        self._latest: deque[Any] = deque(maxlen=_LATEST)
        self._sizes: set[Any] = set()  # that are compiled
        self._compiled: set[Any] = set()  # the same, each with the kind of step

    def begin(self, options: dict[str, Any]) -> None:
        """Takes the options of a `fit`, and warns if it is otherwise than was measured."""
        self._verbose = options.get("verbose", "auto")
        xla = uses_xla(self._model, self._split.plan)
        self._warn(xla_mismatch_text(self._split.plan, self._model, xla=xla))

    def train(
        self, dispatched: Dispatched, *, stamped: bool = False, noisy: bool = False
    ) -> TrainedStep:
        """As `Functions.train`; a step that is compiled first, or not at all, counts as traced."""
        functions = self.functions
        if not functions.xla:
            return functions.train(dispatched, stamped=stamped, noisy=noisy)
        sizes = [tuple(tensor.shape) for tensor in tf.nest.flatten(dispatched.values)]
        shapes = dispatched.shares, tuple(sizes)
        if not self._comes_often(shapes):
            self._warn_of_rare(dispatched)
            result = functions.train(dispatched, compiled=False)
            return TrainedStep(result.logs, None, was_traced=True, is_first_run=True)
        kind = shapes, stamped, noisy
        if kind in self._compiled:
            return functions.train(dispatched, stamped=stamped, noisy=noisy)
        self._compiled.add(kind)
        self._sizes.add(shapes)
        has_bar = len(self._latest) > 1  # Keras shows it at the end of a step
        self._report(
            f"XLA compiles the step for {dispatched.shares} …", has_bar=has_bar
        )
        began_s = time.perf_counter()
        kept = self._kept()
        try:
            result = functions.train(dispatched, stamped=stamped, noisy=noisy)
        except NotCompiled as error:
            self._go_on_without(error)
            for variable, value in kept:
                variable.assign(value)
            result = functions.train(dispatched, stamped=stamped, noisy=noisy)
            # The failed try made this call slow.
            return result._replace(is_first_run=True)
        took = format_seconds(time.perf_counter() - began_s)
        self._report(f"… it took {took}")
        return result._replace(was_traced=True, is_first_run=True)

    def max_in_a_row(self, dispatched: Dispatched) -> int:
        """How many batches like this one a call should train on; 1 with XLA."""
        return 1 if self.functions.xla else self.functions.max_in_a_row(dispatched)

    def trace_again(self, what: str) -> None:
        """As `Functions.trace_again`, which compiles again, too."""
        self.functions.trace_again(what)
        if what == "train":
            self._compiled.clear()
            self._sizes.clear()

    def _comes_often(self, shapes: Any) -> bool:
        """Whether batches with these shapes are compiled: the first ones, or if many have them."""
        self._latest.append(shapes)
        is_first = not self._sizes
        return is_first or shapes in self._sizes or self._latest.count(shapes) >= _OFTEN

    @property
    def _may_give_up(self) -> bool:
        """Whether nobody asked for XLA. In a cluster a failed step ends the connection."""
        return not self._model.jit_compile and self._split.replicas.cluster is None

    def _kept(self) -> list[tuple[Any, Any]]:
        """What a step changes that XLA can't compile, with its values, on the host.

        It counts as an iteration, and weights decay: neither waits for gradients.
        """
        if not self._may_give_up:
            return []
        optimizer = getattr(self._model.optimizer, "variables", [])
        with self.functions.as_first_traced("train"):
            variables = [*self._model.trainable_variables, *optimizer]
        return [(variable, variable.numpy()) for variable in variables]

    def _go_on_without(self, error: NotCompiled) -> None:
        """Gives XLA up with a warning, if that may be. Raises the error else."""
        if not self._may_give_up:
            error.remedy = "compile it with jit_compile=False"
            raise error
        self._warn(f"{error.message}\nSo it trains without XLA, unlike its plan")
        self.functions.give_up_xla()

    def _warn_of_rare(self, dispatched: Dispatched) -> None:
        """Warns once, of the first of them: there may be as many as batches."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"the model {self._model.name} trains batches of {dispatched.shares} "
                "without XLA: XLA compiles each size anew, and gpubalance compiles "
                "only sizes that come often"
            )

    def _report(self, text: str, *, has_bar: bool = False) -> None:
        if self._verbose and self._split.is_first:
            print_below_bar(text, self._verbose if has_bar else 0)
