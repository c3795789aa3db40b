"""A traced function of many tensors, called without what TensorFlow's Python does for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Traced:
    """A function as one graph. TensorFlow's own call takes some 20 µs for each tensor, and a pass has hundreds.

    No gradient tape sees what it does.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        """Traces it, for arguments like these structures of specs, in one thread: Keras is not safe in several.

        Where that is within the trace of another one, `needs` are tensors of that one, which it must give.
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
        """What the function gives; `needs` are the values of what it needs of another one."""
        tensors = [*tf.nest.flatten(given, expand_composites=True), *(self.needs if needs is None else needs)]
        made = tf.raw_ops.StatefulPartitionedCall(
            args=tensors, Tout=self._types, f=self._graph, config_proto=self._config
        )
        found = iter(made if self._types else ())
        like = tf.nest.flatten(self._like, expand_composites=True)
        flat = [None if one is None else next(found) for one in like]
        return tf.nest.pack_sequence_as(self._like, flat, expand_composites=True)


def _config() -> bytes:
    """What `tf.config` says of the graph optimizer, whose setting such a call does not look up by itself."""
    config = tf.compat.v1.ConfigProto()
    is_off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    config.graph_options.rewrite_options.disable_meta_optimizer = is_off
    return config.SerializeToString()  # type: ignore[no-any-return]
