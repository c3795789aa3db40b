"""Builds the product's own step on logical CPU devices, for tests that look inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import DeviceProfile, JointProfile


class Steps:
    """A model in a strategy over `len(profiles)` logical CPUs, with all variants of the product's step.

    In a cluster each of them is in its own process.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        make_optimizer: Callable[[], Any],
        profiles: Sequence[DeviceProfile | None],
        joint: JointProfile | None = None,
        *,
        xla: bool = False,
        cluster: Cluster | None = None,
    ) -> None:
        import keras

        from gpubalance.engine import data, losses, pace, runtime

        # The strategy gives the other processes the first one's weights.
        keras.utils.set_random_seed(7 + (cluster.rank if cluster else 0))
        self.names = ("CPU:0",) if cluster else tuple(f"CPU:{i}" for i in range(len(profiles)))
        self.strategy = runtime.build_strategy(self.names, "auto", cluster)
        self.clocks = pace.clocks(profiles, joint or JointProfile(), seed=0)
        for clock in self.clocks:
            clock.counts = cluster is not None
        with self.strategy.scope():
            self.model = make_model()
            self.optimizer = make_optimizer()
            self.optimizer.build(self.model.trainable_variables)
        self.loss = losses.fit_loss(self.model)
        self.samples = data.Samples(self.model, self.loss, seed=0)
        self._xla = xla
        self._functions: dict[tuple[bool, bool], Any] = {}

    def function(self, *, stamped: bool = False, micro: bool = False) -> Any:
        """The product's step, built on first use."""
        from gpubalance.engine import data, step

        if (stamped, micro) not in self._functions:
            spec = data.element_spec(self.strategy, self.samples)
            parts = self.strategy, self.model, self.loss, self.optimizer, self.clocks, spec
            self._functions[stamped, micro] = step.build_step(*parts, stamped=stamped, micro=micro, xla=self._xla)
        return self._functions[stamped, micro]

    def deal(self, inputs: Any, labels: Any, batches: Sequence[int]) -> Any:
        """Deals NumPy samples to the replicas in order."""
        import keras
        import tensorflow as tf

        from gpubalance.engine import data

        starts = [sum(batches[:i]) for i in range(len(batches))]

        def share(context: Any) -> Any:
            first = starts[context.replica_id_in_sync_group]
            last = first + batches[context.replica_id_in_sync_group]
            return keras.tree.map_structure(lambda a: tf.constant(a[first:last]), (inputs, labels))

        return data.distribute(self.strategy, share)

    def step(
        self,
        inputs: Any,
        labels: Any,
        batches: Sequence[int],
        micro_batches: Sequence[int] | None = None,
        *,
        stamped: bool = False,
    ) -> tuple[float, Any]:
        """Trains one step; returns the loss and the stamps [replica, (began, computed, summed, finished)]."""
        import tensorflow as tf

        sizes = [] if micro_batches is None else [tf.constant(micro_batches, tf.int32)]
        step = self.function(stamped=stamped, micro=micro_batches is not None)
        loss, stamps = step(self.deal(inputs, labels, batches), tf.constant(float(sum(batches))), *sizes)
        return float(loss), stamps.numpy()

    def weights(self) -> list[Any]:
        return [v.numpy() for v in self.model.weights]
