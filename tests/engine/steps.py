"""Builds the product's own step on logical CPU devices, for tests that look inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.settings.settings import Summing
from tests.support.late import keras

IN_SMALL_PACKS = Summing(pack_bytes=1 << 10)  # so that a small model has several


def plain_replicas(count: int, all_reduce: AllReduce = "auto") -> Any:
    """The replicas of so many plain CPU devices."""
    from gpubalance.engine.replicas import replicas_on

    devices, joint = simulated_devices(str(count))
    names = tuple(device.label for device in devices)
    return replicas_on(devices, names, joint, Summing(all_reduce))


class Steps:
    """A model in a strategy over `len(profiles)` logical CPUs, with all variants of the step.

    The step is the product's own.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        make_optimizer: Callable[[], Any],
        profiles: Sequence[DeviceProfile | None],
        joint: JointProfile | None = None,
        *,
        xla: bool = False,
    ) -> None:
        from gpubalance.engine import data, models, pace
        from gpubalance.engine.feed import Feed
        from gpubalance.engine.replicas import Replicas, build_strategy
        from gpubalance.engine.step import built
        from gpubalance.engine.step.functions import Functions

        keras.utils.set_random_seed(7)
        self.names = tuple(f"CPU:{i}" for i in range(len(profiles)))
        self.strategy = build_strategy(self.names, "auto")
        self.clocks = pace.clocks(profiles, joint or JointProfile(), seed=0)
        of = self.strategy, self.names, tuple(self.clocks)
        replicas = Replicas(*of, summing=IN_SMALL_PACKS)
        self.feed = Feed(replicas, BatchSplit((1,) * len(profiles)))
        with self.strategy.scope():
            self.model = make_model()
            self.targets = models.compile_for(self.model)
            self.model.compile(make_optimizer(), self.model.loss, jit_compile=False)
            self.optimizer = self.model.optimizer
        self.samples = data.Samples(self.model, self.targets, seed=0)
        batch = data.as_tensors(self.samples.make(2))
        built.build(self.model, self.strategy, batch, trains=True)
        self.functions = Functions(self.model, replicas, xla=xla)

    def step(
        self,
        inputs: Any,
        labels: Any,
        batches: Sequence[int],
        micro_batches: Sequence[int] | None = None,
        *,
        stamped: bool = False,
    ) -> tuple[float, Any]:
        """Trains one step; returns its loss and its stamps, if any.

        The stamps are [replica, (began, computed, summed, finished)].
        """
        from gpubalance.engine import data
        from gpubalance.engine.models import as_outputs

        self.feed.split = BatchSplit(tuple(batches), tuple(micro_batches or ()))
        for metric in self.model.metrics:
            metric.reset_state()
        batch = inputs, as_outputs(self.model, list(labels))
        dispatched = self.feed.deal(data.as_tensors(batch))
        result = self.functions.train(dispatched, stamped=stamped)
        return float(result.logs["loss"]), result.stamps.numpy() if stamped else None

    def traces(self, *, micro: bool) -> list[Any]:
        """The traced steps, those in micro-batches or the others."""
        traced = self.functions._traced.items()
        return [made.once for (_, _, kind), (_, made) in traced if kind.micro == micro]

    def weights(self) -> list[Any]:
        return [v.numpy() for v in self.model.weights]
