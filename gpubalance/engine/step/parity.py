"""The parity check: a step in unequal parts beside the same step whole, compared by numbers.

Each quantity tells by itself how the parts make the whole (see `verdict.py`), and the step then combines it in that
way. What no power makes is told, and what a split can't train is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_inside import graph_of, nodes_in_order
from gpubalance.engine.sources import is_sum, reaches
from gpubalance.engine.step import built
from gpubalance.engine.step.changes import is_keras_own
from gpubalance.engine.step.draws import name_of
from gpubalance.engine.step.logs import NOT_FROM_PARTS, told_of_log
from gpubalance.engine.step.trial import Ran, Trial
from gpubalance.engine.step.verdict import MEAN, OTHER, SUM, Verdict, power_of
from gpubalance.errors import BadInput
from gpubalance.results.common import Refusal
from gpubalance.text import clean

TRIED = 16  # samples, of which a quarter is one part
_NEAR = 1e-3  # of a gradient's norm
_NEAR_OF_NUMBERS = 1e-5  # of a loss or a log
_NEAR_OF_STATES = 1e-4  # which are differences of larger numbers
_NEAR_IN_HALF = 5e-2
_PLAINLY = 0.01  # of a quantity: no rounding or small constant beside a divisor
_WINDOWS = 4  # of each size that are tried for numbers that are not finite
_UNKNOWN = "so it is not known whether it takes a mean over samples, as a split needs"
_UNLIKE = (
    "takes gradients that are not a mean over samples: they are clipped, or something is computed from the batch as a "
    "whole. A split adds up the gradients of a batch's parts, so the result is not exactly that of one device"
)
NEITHER = (
    "not a mean over samples: the losses of a batch's parts are averaged, weighted by samples, so the result is not "
    "exactly that of one device"
)
_DIVIDED = (
    "is divided by a sum or a mean over the batch, as of weights or a mask: a split divides each part's loss by that "
    "of the part, so the result is not exactly that of one device"
)


def check(model: Any, batch: Any, device: str, *, share: int = TRIED, trains: bool = True) -> Verdict:
    """How a step's quantities are made from parts, and what a split does not train exactly, or can't.

    `batch` is one as the step takes it, of which up to 16 samples are tried, at most a device's `share`, but two at
    least. A step that fails for these alone has a verdict that is not known, and says so.
    """
    try:
        told = built.check(model, trains=trains)
        found = _tried(model, batch, device, share, trains=trains)
    except BadInput as error:
        return Verdict(refused=Refusal(message=error.message, remedy=error.remedy))
    return replace(found, warned=(*told, *found.warned))


def _tried(model: Any, batch: Any, device: str, share: int, *, trains: bool) -> Verdict:
    own = _names_of_own(model)
    step = f"the train_step of the model {model.name}"
    if is_keras_own(type(model).train_step):
        step = f"training the model {model.name}" + (f" (your own code: {', '.join(own)})" if own else "")
    exact = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        return _Check(Trial(model, batch, device, min(TRIED, max(2, share)), trains=trains), step, own).verdict()
    except BadInput:
        raise
    except tf.errors.ResourceExhaustedError:
        if share > 2:
            return _tried(model, batch, device, min(TRIED, share) // 2, trains=trains)
        return Verdict(warned=(f"{step} can't be tried on two samples for want of memory: {_UNKNOWN}",), is_known=False)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises for these samples; training may not
        told = f"{step} can't be tried on a few samples ({type(error).__name__}: {_line_of(error)}): {_UNKNOWN}"
        return Verdict(warned=(told,), is_known=False)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(exact)


def can_run(model: Any, batch: Any, strategy: Any, device: str) -> bool:
    """Whether the `train_step` runs with such samples, if a split can train it at all."""
    try:
        built.build(model, strategy, tf.nest.map_structure(tf.convert_to_tensor, batch), trains=True)
        trial = Trial(model, batch, device, TRIED, trains=True)
        trial.run(slice(None), trial.now())
    except BadInput:
        return True
    except Exception:  # noqa: BLE001 - whatever Keras or the user's code raises for labels of another shape
        return False
    return True


def _names_of_own(model: Any) -> list[str]:
    """The names of layers and losses with code of the user's, and of a graph's operations that mix samples."""
    layers = model._flatten_layers()
    graphs = (graph_of(layer) for layer in layers)
    nodes = [node for graph in graphs if graph is not None for node in nodes_in_order(graph)]
    mixing = [node.operation.name for node in nodes if not isinstance(node.operation, keras.Layer) and _mixes(node)]
    names = [layer.name for layer in layers if layer is not model and _is_own(layer)]
    own_loss = [] if type(model).compute_loss is keras.Model.compute_loss else ["compute_loss"]
    return [*names, *mixing, *own_loss]


def _is_own(layer: Any) -> bool:
    given = (getattr(layer, name, None) for name in ("activation", "activity_regularizer", "function"))
    return not is_keras_own(layer) or any(one is not None and not is_keras_own(one) for one in given)


def _mixes(node: Any) -> bool:
    return any(output.shape[:1] != (None,) for output in node.output_tensors)


def _line_of(error: Exception) -> str:
    """An error's first line, or of a graph's error the one that says what is wrong: that before its node."""
    text, node, _ = str(error).strip().partition("\n\t [[{{node")
    return clean((text.splitlines() or [""])[-1 if node else 0])


class _Check:
    """The runs of one trial, and what they tell."""

    def __init__(self, trial: Trial, step: str, own: list[str]) -> None:
        self._trial, self._step, self._own, self._model = trial, step, own, trial.model
        dtypes = {layer.compute_dtype for layer in trial.model._flatten_layers()}
        is_half = bool(dtypes & {"float16", "bfloat16"})
        self._near, self._near_of_numbers = (_NEAR_IN_HALF,) * 2 if is_half else (_NEAR, _NEAR_OF_NUMBERS)
        cut = max(1, trial.count // 4)
        self._weights = cut / trial.count, 1 - cut / trial.count
        # Layers' states are those after a step, as they may begin with zeros. Metrics begin anew, as in each epoch.
        start = trial.now()
        self._after = trial.run(slice(None), start).states
        metrics = {id(variable) for variable, _ in trial.metrics}
        self._states = {name: start[name] if name in metrics else now for name, now in self._after.items()}
        self._whole = trial.run(slice(None), self._states)
        self._alone = [self._run([one]) for one in range(trial.count)]
        # The first ones beside the rest, and those that weigh most, which a loss of the hardest samples would tell.
        orders = np.arange(trial.count), np.argsort([-_size_of(ran) for ran in self._alone], kind="stable")
        self._cuts = [(order[:cut], order[cut:]) for order in orders]
        self._parts = self._run_parts(())
        self._copies: list[Ran] | None = None

    def _run(self, at: Any, exponents: tuple[int, ...] = ()) -> Ran:
        return self._trial.run(at, self._states, self._whole.divisors, exponents)

    def _run_parts(self, exponents: tuple[int, ...]) -> list[dict[str, Any]]:
        """The marks [cut, 3] of the first parts, and of the second ones."""
        of_parts = ([self._run(at, exponents).marks for at in parts] for parts in zip(*self._cuts, strict=True))
        return [{name: np.stack([marks[name] for marks in of_cuts]) for name in of_cuts[0]} for of_cuts in of_parts]

    def verdict(self) -> Verdict:
        """What the runs tell. Raises BadInput for what a split can't train."""
        exponents = self._exponents()
        if any(exponents):
            self._parts = self._run_parts(exponents)
        zeros = self._of_nothing_added()
        told = [*self._trial.probing.told, *self._of_losses(), *zeros]
        is_known = not zeros and not any(
            self._is_zero(f"state {id(variable)}")
            for variable, metric in self._trial.metrics
            if id(variable) in self._trial.changed and not is_keras_own(getattr(metric, "_fn", metric))
        )
        if self._trial.trains:
            of_gradients, has_gradients = self._of_gradients(exponents)
            is_known = is_known and has_gradients
            told += [of_gradients] if of_gradients and not told else []
            told += [f"the loss of the model {self._model.name} {_DIVIDED}"] if not told and self._is_divided() else []
        variables = self._of_states(told, exponents)
        logs = {name: self._of_log(name, told) for name in self._trial.logs}
        return Verdict(
            variables=variables,
            logs=logs,
            exponents=exponents,
            warned=tuple(dict.fromkeys(told)),
            least=self._least(),
            is_known=is_known,
            step=self._trial.step,
        )

    def _power(self, name: str) -> int | None:
        parts = [(weight, part[name]) for weight, part in zip(self._weights, self._parts, strict=True)]
        near = max(self._near_of_numbers, _NEAR_OF_STATES if name.startswith("state") else 0.0)
        return power_of(self._whole.marks[name], parts, near)

    def _is_zero(self, name: str) -> bool:
        return not any(np.any(marks[name][..., 0]) for marks in (self._whole.marks, *self._parts))

    def _exponents(self) -> tuple[int, ...]:
        """The exponents of what layers add. Raises BadInput for a sum, which is taken for a mean."""
        found = []
        for place, added in enumerate(self._trial.probing.added):
            power = self._power(f"added {place}")
            if power == SUM and not (added.is_regularizer or added.loss.shape.rank):
                raise BadInput(
                    f"the layer {added.layer} adds a sum over the batch to the loss: it is taken for a mean when a "
                    "batch is divided",
                    remedy="add_loss(ops.mean(loss)), or a value for each sample",
                )
            found.append(0 if power is OTHER else power - MEAN + added.divided)
        return tuple(found)

    def _of_nothing_added(self) -> list[str]:
        """What is said of losses that layers add, but not for the samples tried."""
        added = enumerate(self._trial.probing.added)
        names = {one.layer for place, one in added if not one.loss.shape.rank and self._is_zero(f"added {place}")}
        return [f"what the layer {name} adds to the loss is 0 for the samples tried, {_UNKNOWN}" for name in names]

    def _of_losses(self) -> list[str]:
        """What is said of Keras' losses and of those that are given to it. Raises BadInput for a sum."""
        told = []
        for place, (loss, _, result) in enumerate(self._trial.probing.losses):
            what = f"the loss of the model {self._model.name} ({name_of(loss)})"
            name = f"loss {place}"
            power = MEAN if result.shape.rank else self._power(name)
            if power == SUM or (power != MEAN and self._is_of_sum(name)):
                raise BadInput(
                    f"{what} sums over the batch and returns one number, which is taken for a mean when a batch is "
                    "divided (a sum divided by a fixed number is one, too)",
                    remedy="return a value for each sample; keras.losses.Loss with reduction='sum' sums them",
                )
            is_own = not is_keras_own(_function(loss))
            if power != MEAN and (is_own or not self._own):  # else it is what the user's own code gives to it
                told.append(f"{what} is {NEITHER}")
            elif is_own and self._is_zero(name):
                told.append(f"{what} is 0 for the samples tried, {_UNKNOWN}")
        return told

    def _of_gradients(self, exponents: tuple[int, ...]) -> tuple[str, bool]:
        """What is said of the gradients, and whether they tell anything. Raises BadInput for those of a sum."""
        every, one, other = (_marks_of(marks, "gradient") for marks in (self._whole.marks, *self._parts))
        if not every.size:
            return "", True
        if not every.any():
            return f"{self._step} has no gradients for the samples tried: {_UNKNOWN}", False
        floor = 1e-5 * float(np.linalg.norm(every[:, 0]))
        power = power_of(every[:, None], list(zip(self._weights, (one, other), strict=True)), self._near, floor)
        if power == MEAN:
            return "", True
        if power == SUM or (not any(exponents) and self._is_of_sum("gradient")):
            raise BadInput(
                f"{self._step} takes the gradients of a sum over the batch, but a split needs those of a mean over its "
                "samples (a sum divided by a fixed number is one, too)",
                remedy="take the mean over samples, or give self.optimizer.scale_loss a value for each sample",
            )
        return f"{self._step} {_UNLIKE}", True

    def _is_of_sum(self, name: str) -> bool:
        """Whether each copy of the samples adds as much: to a mean or a quotient of sums it adds nothing."""
        if self._copies is None:
            self._copies = [self._trial.run(slice(None), self._states, copies=copies) for copies in (2, 3)]
        once, twice, thrice = (_marks_of(ran.marks, name) for ran in (self._whole, *self._copies))
        first, second = twice - once, thrice - twice
        is_plain = np.abs(first[:, 1:]).max() > _PLAINLY * twice[:, 0].max()
        near = 2 * max(self._near, self._near_of_numbers) * np.linalg.norm(thrice[:, 0])
        return bool(is_plain and np.all(np.abs(second - first)[:, 1:] <= near))

    def _is_divided(self) -> bool:
        """Whether a loss is divided by what is computed from samples, which the tried ones may have alike by chance.

        Keras' own losses that do so are brought to their share of such a divisor, or are tried.
        """
        reduced, samples = self._trial.probing.losses, self._trial.samples
        results = {id(one.result) for one in reduced}
        own = [one.values for one in reduced if not is_keras_own(_function(one.loss))]
        of_own = any(reaches(values, samples, results - {id(values)}) for values in own)
        return of_own or any(reaches(target, samples, results) for target in self._trial.probing.targets)

    def _of_states(self, told: list[str], exponents: tuple[int, ...]) -> dict[int, int | None]:
        """The powers of the variables that the step changes; appends what is not exact."""
        trial, found = self._trial, {}
        first, _ = self._cuts[0]
        anew = trial.run(first, self._after, self._whole.divisors, exponents).marks
        for variable, _ in trial.metrics:
            name = f"state {id(variable)}"
            adds = power_of(anew[name], [(1.0, self._parts[0][name][0])], _NEAR_OF_STATES) is not OTHER
            if id(variable) in trial.changed and not self._is_zero(name):
                found[id(variable)] = self._power(name) if adds else OTHER
        told += self._of_metrics(found, [*told])
        for variable, layer in trial.kept:
            if id(variable) in trial.changed and not is_keras_own(layer):
                found[id(variable)] = self._power(f"state {id(variable)}")
                if self._is_zero(f"state {id(variable)}"):
                    told.append(
                        f"the layer {layer.name} changes {variable.name} by 0 for the samples tried, {_UNKNOWN}"
                    )
                elif found[id(variable)] is OTHER:
                    told.append(
                        f"the layer {layer.name} updates {variable.name} from its samples to what is neither a mean "
                        "nor a sum over them: the devices' values are averaged, weighted by samples"
                    )
        return found

    def _of_metrics(self, found: dict[int, int | None], told: list[str]) -> list[str]:
        """What is said of metrics; the powers `found` get those that a metric's other numbers tell, as a count does."""
        more = []
        for variable, metric in self._trial.metrics:
            if id(variable) not in self._trial.changed or found.get(id(variable)) is not OTHER:
                continue
            powers = {found.get(id(one)) for one, owner in self._trial.metrics if owner is metric} - {OTHER}
            power = powers.pop() if len(powers) == 1 else SUM
            if id(variable) in found and not (told and is_keras_own(metric)):
                more.append(
                    f"the metric {metric.name} does not only add to {variable.name} a mean or a sum over samples: the "
                    f"devices' values are {'averaged' if power == MEAN else 'summed'}, which is not what one device "
                    "would log"
                )
            found[id(variable)] = power
        return more

    def _of_log(self, name: str, told: list[str]) -> int | None:
        """The power of a log; one that is not exact is appended to `told`."""
        if self._is_zero(f"log {name}"):  # as a count may be
            return SUM if is_sum(self._trial.logs[name]) else MEAN
        power = self._power(f"log {name}")
        if power is OTHER:
            told.append(told_of_log(self._model, name, NOT_FROM_PARTS))
        return power

    def _least(self) -> int:
        """The fewest samples of which all parts that were tried are finite, where the whole is."""
        if not _is_finite(self._whole):
            return 1
        size = 1
        while size < self._trial.count and not all(map(_is_finite, self._windows(size))):
            size *= 2
        return size

    def _windows(self, size: int) -> list[Ran]:
        if size == 1:
            return self._alone
        step = max(1, (self._trial.count - size) // (_WINDOWS - 1))
        starts = range(0, self._trial.count - size + 1, step)
        return [self._run(slice(at, at + size)) for at in starts]


def _marks_of(marks: dict[str, Any], begins: str) -> Any:
    """The marks [quantity, …, 3] of those whose names begin so."""
    return np.array([one for name, one in marks.items() if name.startswith(begins)])


def _size_of(ran: Ran) -> float:
    """How much the samples of a run weigh in losses and gradients."""
    return float(sum(one[0] ** 2 for name, one in ran.marks.items() if name.startswith(("gradient", "loss"))))


def _is_finite(ran: Ran) -> bool:
    return all(np.isfinite(one[0]) for name, one in ran.marks.items() if name.startswith(("gradient", "loss")))


def _function(loss: Any) -> Any:
    return getattr(loss, "fn", loss)
