"""Builds the product's own step on logical CPU devices, for tests that look into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubalance.settings.device import DeviceProfile, JointProfile


class Steps:
    """A model in a strategy over `len(profiles)` logical CPUs, with all variants of the product's step."""

    def __init__(
        self,
        make_model: Callable[[], Any],
        make_optimizer: Callable[[], Any],
        profiles: Sequence[DeviceProfile | None],
        joint: JointProfile | None = None,
        *,
        xla: bool = False,
        all_reduce: str = "auto",
    ) -> None:
        import keras

        from gpubalance.engine import data, losses, pace, runtime, step

        separate_collectives()
        keras.utils.set_random_seed(7)
        self.names = tuple(f"CPU:{i}" for i in range(len(profiles)))
        self.strategy = runtime.build_strategy(self.names, all_reduce)
        self.clocks = pace.clocks(profiles, joint or JointProfile(), seed=0)
        with self.strategy.scope():
            self.model = make_model()
            self.optimizer = make_optimizer()
            self.optimizer.build(self.model.trainable_variables)
        self.loss = losses.fit_loss(self.model)
        self.samples = data.Samples(self.model, self.loss, seed=0)
        spec = data.element_spec(self.strategy, self.samples)
        self.functions = {
            stamped: step.build_step(
                self.strategy, self.model, self.loss, self.optimizer, self.clocks, spec, stamped=stamped, xla=xla
            )
            for stamped in (False, True)
        }
        self._spec, self._xla = spec, xla
        self._accumulating: dict[bool, Any] = {}

    def accumulating(self, *, stamped: bool = False) -> Any:
        """The variant with micro-batches; not every model has one."""
        from gpubalance.engine import step

        if stamped not in self._accumulating:
            self._accumulating[stamped] = step.build_step(
                self.strategy,
                self.model,
                self.loss,
                self.optimizer,
                self.clocks,
                self._spec,
                stamped=stamped,
                micro=True,
                xla=self._xla,
            )
        return self._accumulating[stamped]

    def deal(self, inputs: Any, labels: Any, batches: Sequence[int]) -> Any:
        """NumPy samples, dealt to the replicas in order."""
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
        """One step; the loss and the stamps [replica, (begin, computed, finished)]."""
        import tensorflow as tf

        data, global_batch = self.deal(inputs, labels, batches), tf.constant(float(sum(batches)))
        if micro_batches is None:
            loss, stamps = self.functions[stamped](data, global_batch)
        else:
            loss, stamps = self.accumulating(stamped=stamped)(data, global_batch, tf.constant(micro_batches, tf.int32))
        return float(loss), stamps.numpy()

    def weights(self) -> list[Any]:
        return [v.numpy() for v in self.model.weights]


def separate_collectives() -> None:
    """TensorFlow numbers collective groups from 1 in every strategy, and thinks two strategies' groups the same one.

    gpubalance has one strategy a process; a test process has many, so each gets numbers of its own.
    """
    import tensorflow as tf

    tf.distribute.MirroredStrategy._collective_key_base += 1000
