"""A replica's part of a global batch, and what methods of Keras do while its step is traced.

They get the part: they read its weight, and note in it what the step has done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from gpubalance.engine.replacing import Attribute, Method, acting
from gpubalance.results.combine_rules import UNTRIED, CombineRules


class Change(NamedTuple):
    """A step's assignment to a variable."""

    variable: Any
    value: Any
    late: bool  # after the step had applied its gradients


class ReducedLoss(NamedTuple):
    """What a loss of Keras returned: `result` times the part's weight is what the part adds."""

    loss_object: Any
    values: Any  # those that were reduced
    result: Any


class Added(NamedTuple):
    """What a layer adds to the loss."""

    layer: str
    tensor: Any
    # By the number of samples, as Keras does for regularizers since 3.14
    is_divided: bool
    is_regularizer: bool


class MetricResult(NamedTuple):
    """One of the numbers that a metric's `result` returned."""

    tensor: Any
    metric: Any
    place: int  # among all numbers of that result


@dataclass(eq=False)
class ParityProbe:
    """What the parity check gives a part, and what the part's step notes: see `traced_step.py`."""

    # Each loss's divisor for the whole batch; 0 if the loss is to take the part's own
    divisors: Any
    # For each thing that layers add to the loss, the power of the part's weight to multiply it by
    exponents: Any
    states: frozenset[int]  # the ids of the tensors that stand for variables
    # From here on what the step notes. Each loss's divisor for the part:
    own_divisors: list[Any] = field(default_factory=list)
    losses: list[ReducedLoss] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)  # whose gradients were taken
    warnings: list[str] = field(default_factory=list)  # of what is not exact


@dataclass(eq=False)
class Part:
    """A replica's part of the global batch, and what its step has done so far."""

    weight: Any  # of the part's mean in the global mean
    combine_rules: CombineRules = UNTRIED
    # The batch is too small to divide: each replica has all of it, and the first one's counts.
    replicated: bool = False
    micro: bool = False  # it is a micro-batch
    compiled: bool = False  # by XLA, in one piece
    probing: ParityProbe | None = None  # in the parity check only
    is_scaled: bool = False  # the loss has been multiplied by the weight
    assigns: bool = False  # Keras is setting a variable
    # The losses that are being computed, each called by the one before.
    calling: list[Any] = field(default_factory=list)
    # The gradients and the variables of each call of the optimizer.
    applied: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    # The names of synchronised BatchNormalization layers that were called with a mask.
    masked_batch_norms: list[str] = field(default_factory=list)
    graph: Any = None  # the one that the step is traced in
    # The number of operations in the graph when gradients were applied: later ones are late.
    operations_before: int = 0
    applied_inside: bool = False  # whether gradients were applied in a branch or a loop
    added_count: int = 0  # how many losses layers have added
    # What each layer has added to the loss, by the layer's id.
    added_by_layer: dict[int, list[Any]] = field(default_factory=dict)
    # The metrics' results that the step asked for, by the tensor's id.
    results: dict[int, MetricResult] = field(default_factory=dict)

    def warn(self, text: str) -> None:
        """Notes what is not exact, for the parity check: a later trace says nothing."""
        if self.probing is not None:
            self.probing.warnings.append(text)


# What to call in a part's step. A method's is called with the part, the original method and the
# arguments, an attribute's with the part and its value.
PartReplacements: TypeAlias = dict[Method | Attribute, Callable[..., Any]]


@contextlib.contextmanager
def part_of(
    weight: Any,
    replacements: PartReplacements,
    combine_rules: CombineRules = UNTRIED,
    **options: Any,
) -> Iterator[Part]:
    """The part of the replica whose step this thread traces inside the block.

    The replacements act meanwhile. TensorFlow traces each replica in a thread of its own, so this
    must be called in that.
    """
    graph = tf.compat.v1.get_default_graph()
    part = Part(weight, combine_rules, graph=graph, **options)
    of_part = {target: partial(method, part) for target, method in replacements.items()}
    with acting(of_part):
        yield part
