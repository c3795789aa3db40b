"""Calls a traced function of many tensors without TensorFlow's Python work for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Traced:
    """A function as one graph. TensorFlow's own call takes some 20 µs for each tensor, and a pass has hundreds.

    No gradient tape sees what it does.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        """Traces it for arguments like these structures of specs. Call it in one thread, as Keras is not thread-safe.

        Within the trace of another function, `needs` are tensors of that one, which it must return.
        """

        def run(*tensors: Any) -> Any:
            return function(*tf.nest.pack_sequence_as(specs, tensors, expand_composites=True))

        traced = tf.function(run, autograph=False)
        self._graph = traced.get_concrete_function(*tf.nest.flatten(specs, expand_composites=True))
        self._types = [output.dtype for output in self._graph.outputs]
        self._like = self._graph.structured_outputs
        self._config = _config()
        self.variables = self._graph.variables
        self.needs = self._graph.captured_inputs

    def __call__(self, *given: Any, needs: Sequence[Any] | None = None) -> Any:
        """Returns what the function returns. `needs` are the values of what it needs of another function."""
        tensors = [*tf.nest.flatten(given, expand_composites=True), *(self.needs if needs is None else needs)]
        made = tf.raw_ops.StatefulPartitionedCall(
            args=tensors, Tout=self._types, f=self._graph, config_proto=self._config
        )
        found = iter(made if self._types else ())
        like = tf.nest.flatten(self._like, expand_composites=True)
        flat = [None if one is None else next(found) for one in like]
        return tf.nest.pack_sequence_as(self._like, flat, expand_composites=True)


def copied(tensors: Any) -> Any:
    """The same tensors on the present device."""
    return tf.nest.map_structure(tf.identity, tensors)


def _config() -> bytes:
    """What TensorFlow's own calls of a function pass on: operations that a GPU has not got run on the host, and whether
    the graph optimizer is on.
    """
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    is_off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    config.graph_options.rewrite_options.disable_meta_optimizer = is_off
    return config.SerializeToString()  # type: ignore[no-any-return]
