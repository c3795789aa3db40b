"""A model on its devices, ready to be measured with any split; a worker holds one while
it lives.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psutil
import tensorflow as tf

from gpubalance.engine import data, hosts, runtime
from gpubalance.engine.feed import Dealt, Feed
from gpubalance.engine.models import facts_of, make_model
from gpubalance.engine.pace import PacedClock
from gpubalance.engine.place import place_of
from gpubalance.engine.step.functions import Functions, count_step
from gpubalance.engine.step.parity import TRIED
from gpubalance.engine.step.points import stamped_times
from gpubalance.engine.trace import record_trace
from gpubalance.results.decomposition import UNTRIED, Decomposition
from gpubalance.results.timing import Pulled, Timing
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares

# What trains three times keeps training: with a new split, or in a new session, the first steps
# differ from the others.
_STEPS_BEFORE_A_TRACE = 3
# A batch that is ready comes within this time.
_READY_WITHIN_S = 0.002
# So long what is ready is trained on before a pipeline is measured.
_READY_S = 1.0
# Batches come in bursts: from a parallel map, a file, a rebatch. So a timing of a pipeline alone
# has several.
_LEAST_PULLED = 4
_LEAST_PULLED_S = 0.5
# If a pipeline's batches differ in shape, a timing is the mean over at least this many.
_UNLIKE_AT_ONCE = 7


class Session:
    """Builds everything once. The devices are replicas in this order; all get samples in every
    split.

    In a cluster this process has one of the devices; all processes must get the same calls in the
    same order.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        settings: Settings,
        joint: JointProfile,
        *,
        seed: int,
        cluster: Cluster | None = None,
        verdict: Decomposition | None = None,
    ) -> None:
        """`verdict` is what the parity check has found in another session of this model."""
        self.settings, self._joint, self.in_cluster = settings, joint, cluster is not None
        self._devices = tuple(devices) if cluster is None else (devices[cluster.rank],)
        self._names = runtime.set_up(self._devices, settings, seed=seed, joins=self.in_cluster)
        self._place = place_of(devices, self._names, joint, settings.summing, cluster, seed=seed)
        self._here, strategy = self._place.here, self._place.strategy
        self._all_say = hosts.what_all_say(strategy, cluster)
        self._limits = runtime.memory_limits_bytes(self._devices, self._names)
        self._clocks = self._place.clocks[self._here]
        for clock in self._clocks:
            clock.counts = self.in_cluster
        self._paced = [clock for clock in self._clocks if isinstance(clock, PacedClock)]
        self._all_paced = len(self._paced) == len(self._devices)
        with strategy.scope():
            self._model = make_model(settings)
        self.source = data.samples_for(settings, self._model, strategy, self._names[0], seed=seed)
        self._functions = Functions(self._model, self._place, xla=settings.xla)
        self._verdict = self._known(verdict)
        self._split, self._from_pipeline = Shares((1,) * len(devices)), False
        self._feed = Feed(self._place, self._split)
        # Batches, which are `_held` on the devices or come from a pipeline.
        self._data: Iterator[Any] | None = None
        self._held = False
        self._ended_s = 0.0  # when the host saw the end of the last timing
        self._turn = 1  # steps until each batch has come once, if they differ in shape
        # Batches of that size, without the devices.
        self._pulled: tuple[int, Iterator[Any]] | None = None

    def _known(self, verdict: Decomposition | None) -> Decomposition:
        """Builds the model, and finds out how a split would train it; nothing is known of a model
        without user's code.

        A single device trains what a split can't.
        """
        batch = data.as_tensors(self.source.make(TRIED))
        data.build(self.settings, self._model, self._place.strategy, batch)
        if ":" not in self.settings.model:
            return UNTRIED
        if verdict is None:
            return self._functions.try_in_parts("train", batch)
        self._functions.follow("train", verdict)
        return verdict

    def facts(self) -> dict[str, Any]:
        """What a result records about the model. `gradient_bytes` is what an all-reduce moves."""
        return {
            "model": facts_of(self._model) | {"step": self._verdict.fingerprint},
            "memory_limit_bytes": self._limits,
            "pack_bytes": self._functions.pack_bytes if self._place.replicas > 1 else None,
            "verdict": self._verdict,
            "own_batch": self.source.own_batch,
        }

    def _goes_on(self, own: bool) -> bool:
        """What the first process says: one that takes a step more than the others would wait for
        them for ever.
        """
        return bool(self._all_say(own)[0])

    def step_flops(self) -> float | None:
        """The operations of a step for a sample, the mean of some if samples differ in shape; None
        if unknown.
        """
        some = range(_UNLIKE_AT_ONCE if self.source.differs else 1)
        return count_step(self._model, [self.source.make(1, salt=number) for number in some])

    def measure(
        self,
        split: Shares,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
        at_once: bool = False,
        pipeline: bool = False,
    ) -> Iterator[Timing]:
        """Trains with this split and yields timings, until `seconds` are over and `at_least`
        timings are given.

        `at_once`: other workers train meanwhile, and the caller must end it. With `pipeline`
        batches come from the user's own pipeline instead of lying on the devices. A stamped timing
        is one step whatever `steps_per_timing` says. TensorFlow's own ResourceExhaustedError passes
        through if a device's memory does not hold its micro-batch.
        """
        self._train_with(split, from_pipeline=pipeline)
        if not self._held:
            self._train_on_what_is_ready()
        for clock in self._paced:
            clock.steps = clock.late_steps = 0
            clock.at_once = at_once or self._place.replicas > 1
        for _ in (
            itertools.repeat(None) if at_once else runtime.rounds(seconds, at_least, self._goes_on)
        ):
            yield self._timing(1 if stamped else steps_per_timing, stamped=stamped)

    def _train_on_what_is_ready(self) -> None:
        """Trains without measuring on what came while nothing was trained, as it would count as if
        it came meanwhile.

        That is over when the host has to wait for a batch; of a pipeline that keeps up it never is.
        """
        ends_s = time.perf_counter() + _READY_S
        goes_on = True
        while goes_on:
            _, _, waited = self._run()
            goes_on = self._goes_on(waited <= _READY_WITHIN_S and time.perf_counter() < ends_s)
        runtime.wait_for(self._names)
        self._ended_s = time.perf_counter()

    def pull(self, global_batch: int, *, seconds: float, at_least: int) -> Iterator[Pulled]:
        """Takes batches from the pipeline as fast as they come, and yields timings, until `seconds`
        are over.

        It continues where the last call ended, if that was for the same size; the split's batches
        are dropped.
        """
        self._drop_data()
        if self._pulled is None or self._pulled[0] != global_batch:
            self._pulled = global_batch, self.source.stream(global_batch)
        for _ in runtime.rounds(seconds, at_least, self._goes_on):
            began, cpu_s, count = time.perf_counter(), time.process_time(), 0
            while count < _LEAST_PULLED or time.perf_counter() - began < _LEAST_PULLED_S:
                next(self._pulled[1])
                count += 1
            cpu_s = time.process_time() - cpu_s
            yield Pulled(batches=count, seconds=time.perf_counter() - began, cpu_s=cpu_s)

    @property
    def computed_steps(self) -> int:
        """The steps in which this process of a cluster had its own gradients."""
        (clock,) = self._clocks
        return clock.computed_steps

    def trace(self, split: Shares, tracing: Tracing) -> str | None:
        """Trains some steps with this split under TensorFlow's profiler; see `record_trace`.

        In a cluster only the first process is traced.
        """
        self._train_with(split)
        only_along = bool(self._here.start)
        for _ in range(_STEPS_BEFORE_A_TRACE + only_along * tracing.steps):
            self._run()
        runtime.wait_for(self._names)
        gpus = sum(name.startswith("GPU") for name in self._names)
        wait = partial(runtime.wait_for, self._names)
        return None if only_along else record_trace(self._run, wait, tracing, gpus=gpus)

    def _train_with(self, split: Shares, *, from_pipeline: bool = False) -> None:
        """Prepares the split's data, of one split at a time: another's would take memory that is
        being measured.
        """
        if self._data is not None and (split, from_pipeline) == (self._split, self._from_pipeline):
            return
        self._drop_data()
        self._split, self._from_pipeline, self._pulled = split, from_pipeline, None
        self._verdict.refuse_small(split.smallest, self._model)
        self._feed.split, source = split, self.source
        if source.differs:
            # A batch fits if the longest one does: so that is trained on once, whatever comes
            # later.
            self._run(self._feed.deal(data.as_tensors(source.longest(split.global_batch))))
        self._held = not from_pipeline and (
            self.settings.input != "host" or self.settings.data is not None
        )
        if not self._held:
            self._turn, self._data = _UNLIKE_AT_ONCE, source.stream(split.global_batch)
        else:
            # In a cluster all processes must hold the same number, without knowing each other's
            # memory: the fewest.
            free = 0 if self.in_cluster else psutil.virtual_memory().available
            held = data.held(self._feed, source, [min(free, one or free) for one in self._limits])
            self._turn, self._data = len(held), itertools.cycle(held)
        self._turn = self._turn if source.differs else 1
        self._run()  # unmeasured: data is new, caches and the pipeline fill
        self._ended_s = time.perf_counter()

    def _drop_data(self) -> None:
        self._feed.stop()  # the pipeline is the user's, and can't be read by two
        self._data = None

    def _next(self) -> tuple[Dealt, float]:
        """The next batch and the host's wait for it, in which simulated devices are idle if it was
        not ready.
        """
        assert self._data is not None  # noqa: S101  (_train_with comes first)
        asked = time.perf_counter()
        if self._held:
            dealt = next(self._data)
        else:
            _, dealt = self._feed.take(self._data)
            self._feed.look_ahead(self._data)
        waited = time.perf_counter() - asked
        if not self._paced:
            return dealt, waited
        waited = waited if waited > _READY_WITHIN_S else 0.0
        self._pause(waited)
        return dealt, waited

    def _pause(self, seconds: float) -> None:
        """Simulated devices have nothing to do for so long, which is none of their time."""
        for clock in self._paced:
            clock.free_s += seconds

    def _run(self, dealt: Dealt | None = None, *, stamped: bool = False) -> tuple[Any, Any, float]:
        """Queues a step with this batch or the next one: the logs, the stamps and the host's wait
        for data.

        Simulated devices read the clock in every step anyway, and take no longer after a pause: so
        their stamped steps need no trace of their own, and no other step before them.
        """
        dealt, waited = (dealt, 0.0) if dealt else self._next()
        logs, stamps, _ = self._functions.train(dealt, stamped=stamped or self._all_paced)
        return logs, stamps, waited

    def _timing(self, steps: int, *, stamped: bool) -> Timing:
        # The pause is none of theirs: one whose update is shorter is ahead, as in training.
        self._pause(time.perf_counter() - self._ended_s)
        if not stamped:
            steps = -(-steps // self._turn) * self._turn
        elif not self._all_paced:
            # Queue a stamped step behind another, as usual steps are: an idle GPU would wait for
            # its first kernels.
            self._run()
        input_wait_s, began = 0.0, self._now
        for _ in range(steps):
            logs, stamps, waited = self._run(stamped=stamped)
            input_wait_s += waited
        runtime.wait_for(self._names)
        self._ended_s = time.perf_counter()
        return Timing(
            steps=steps,
            seconds=self._now - began,
            input_wait_s=input_wait_s,
            loss_is_finite=self._is_finite(logs),
            unlike=self.source.differs,
            **(stamped_times(stamps.numpy()[self._here]) if stamped else {}),
        )

    def _is_finite(self, logs: dict[str, Any]) -> bool:
        """Whether the loss is a number: as it is logged, else as far as the smallest
        weight tells.
        """
        if "loss" in logs:
            return math.isfinite(float(logs["loss"]))
        smallest = min(self._model.trainable_variables, key=lambda one: math.prod(one.shape))
        return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(smallest))))

    @property
    def _now(self) -> float:
        """The end of the last step of devices that have nothing left to do: by profiles if
        simulated, else now.
        """
        return max((clock.free_s for clock in self._paced), default=time.perf_counter())

    def late_part(self) -> float | None:
        """The worst device's part of the last measured steps whose real compute took longer than
        the profile's time.
        """
        return max(
            (clock.late_steps / clock.steps for clock in self._paced if clock.steps), default=None
        )

    def memory_peaks(self) -> tuple[int | None, ...]:
        """Each device's peak bytes since the last call; a simulated one's by its profile and
        micro-batch.
        """
        extra = self._joint.extra_memory if self._place.replicas > 1 else 0
        sizes = self._split.micro_batches[self._here]
        by_profile = [
            one.profile.memory_at(size, extra)
            if one.profile and one.profile.memory is not None
            else None
            for one, size in zip(self._devices, sizes, strict=True)
        ]
        return runtime.memory_peaks(self._devices, self._names, by_profile)
