"""A model on its devices, ready to be measured with any split; a worker holds one."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf

from gpubalance.engine import data, memory, replicas, runtime
from gpubalance.engine.built_model import BuiltModel, Supply
from gpubalance.engine.feed import Dispatched
from gpubalance.engine.replicas import DeviceTime, replicas_on
from gpubalance.engine.step.points import stamped_times
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.timing import Prefetched, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import TRACES
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.settings import Settings

_GPU_PLANE = "/device:GPU:"


def record_trace(
    step: Callable[[], Any], wait: Callable[[], None], tracing: Tracing, *, gpus: int
) -> str | None:
    """Runs and traces `tracing.steps` steps; `wait` returns when the devices have done them.

    Returns why fewer than `gpus` GPUs are in the trace, None if all are. Raises OSError if it can't
    be written, and TensorFlow's own errors if its profiler does not start.
    """
    profiler = tf.profiler.experimental
    folder = Path(tracing.folder)
    target = folder / TRACES / tracing.name
    target.parent.mkdir(parents=True, exist_ok=True)
    # The profiler names its folder by the second: two at once would write into the same one.
    with tempfile.TemporaryDirectory(prefix=".trace-", dir=folder) as temporary:
        with profiler.Profile(temporary):
            for number in range(tracing.steps):
                # `_r` marks a step's root: TensorBoard groups events under it by `step_num`.
                with profiler.Trace("train", step_num=number, _r=1):
                    step()
            wait()
        (recorded,) = (Path(temporary) / TRACES).iterdir()
        recorded.rename(target)
    return missing_gpus(target, gpus) if gpus else None


def missing_gpus(folder: Path, gpus: int) -> str | None:
    """The trace's own reason for missing GPUs, None if none is missing.

    Without CUPTI there is no error in it.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    traced = set()
    errors = []
    for path in folder.glob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        errors += space.errors
        for plane in space.planes:
            has_events = any(line.events for line in plane.lines)
            if plane.name.startswith(_GPU_PLANE) and has_events:
                traced.add(plane.name)
    if len(traced) >= gpus:
        return None
    return "; ".join(errors) or f"CUPTI reported {len(traced)} of {gpus} GPUs"


# The first steps with a new split, or of a new session, differ from the others: they are not
# traced.
_STEPS_BEFORE_A_TRACE = 3
# A batch that is ready comes within this time.
_READY_WITHIN_S = 0.002
# Sums over a group are timed for so long.
_SUMS_WITHIN_S = 0.3
# A pipeline may give batches of new shapes for ever: after so many timings of them they count.
_MOST_UNCOUNTED = 20
# The longest time spent on batches already waiting, before a pipeline is measured.
_READY_S = 1.0


class Session:
    """Builds everything once. The devices are replicas in this order; every split uses all of them.

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
        combine_rules: CombineRules | None = None,
    ) -> None:
        """`combine_rules` is what the parity check has found in another session of this model."""
        self.settings = settings
        self._joint = joint
        self._in_cluster = cluster is not None
        self._profiles = [device.profile for device in devices]
        self._devices = tuple(devices)
        if cluster is not None:
            self._devices = (devices[cluster.rank],)
        self._names = runtime.set_up(
            self._devices, settings, seed=seed, joins=self._in_cluster
        )
        self._replicas = replicas_on(
            devices, self._names, joint, settings.summing, cluster, seed=seed
        )
        self._gather = runtime.gather_over(self._replicas.strategy, cluster)
        self._limits = memory.memory_limits_bytes(self._devices, self._names)
        self._clocks = self._replicas.clocks[self._replicas.own_slice]
        # When a cluster hangs, this tells which device the others wait for.
        for clock in self._clocks:
            clock.counts_computed_steps = self._in_cluster
        self._device_time = DeviceTime(self._clocks)
        self._built = BuiltModel(
            settings, self._replicas, self._names[0], combine_rules, seed=seed
        )
        self.source = self._built.source
        self._supply = Supply(self._replicas, self.source)
        self._ended_s = 0.0  # when the host saw the end of the last timing

    def facts(self) -> dict[str, Any]:
        """What a result records about the model, and the devices' memory limits."""
        return self._built.facts() | {"memory_limit_bytes": self._limits}

    def step_flops(self) -> float | None:
        """The operations of a step for a sample, None if unknown."""
        return self._built.step_flops()

    def measure(
        self,
        split: BatchSplit,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
        at_once: bool = False,
        pipeline: bool = False,
    ) -> Iterator[Timing]:
        """Trains with this split for `seconds`, and yields at least `at_least` timings.

        Those with a step that was traced, or the first with batches of its shapes, do not count:
        they come besides. `at_once`: other workers train meanwhile, and timings go on without end.
        With `pipeline`
        batches come from the user's own pipeline instead of lying on the devices. A stamped timing
        is one step whatever `steps_per_timing` says. TensorFlow's own ResourceExhaustedError passes
        through if a device's memory does not hold its micro-batch.
        """
        self._train_with(split, from_pipeline=pipeline)
        if not self._supply.is_held:
            self._train_on_what_is_ready()
        others_compute = at_once or self._replicas.count > 1
        self._device_time.begin_timings(others_compute=others_compute)
        repetitions: Iterable[None] = itertools.repeat(None)
        if not at_once:
            repetitions = runtime.repetitions(seconds, at_least, self._agreed)
        steps = 1 if stamped else steps_per_timing
        uncounted = 0
        for _ in repetitions:
            timing = self._timing(steps, stamped=stamped)
            while not timing.counts and uncounted < _MOST_UNCOUNTED:
                uncounted += 1
                yield timing
                # Nor do their steps count among those slower than the profile
                self._device_time.begin_timings(others_compute=others_compute)
                timing = self._timing(steps, stamped=stamped)
            yield timing.model_copy(
                update={"counts": True, "new_shapes": not timing.counts}
            )

    def pull(
        self, global_batch: int, *, seconds: float, at_least: int
    ) -> Iterator[Prefetched]:
        """Takes batches from the pipeline as fast as they come, and yields timings of that.

        It continues where the last call ended, if that was for the same size; the split's batches
        are dropped.
        """
        self._supply.drop()
        for _ in runtime.repetitions(seconds, at_least, self._agreed):
            yield self._supply.pull(global_batch)

    def time_sums(
        self, groups: Sequence[tuple[int, ...]], nbytes: int
    ) -> tuple[float, ...]:
        """The seconds of a sum of so many bytes over the replicas of each group, by their places.

        Simulated devices take their profiles' sync, as in a step.
        """
        seconds = []
        for places in groups:
            taken_s = replicas.seconds_of_sum(
                self._replicas, places, nbytes, repeat_for_s=_SUMS_WITHIN_S
            )
            paced_s = self._joint.among(self._profiles[i] for i in places).sync_s
            if self._in_cluster:
                seconds.append(taken_s + paced_s)
            else:
                seconds.append(max(taken_s, paced_s))
        return tuple(seconds)

    def trace(self, split: BatchSplit, tracing: Tracing) -> str | None:
        """Trains some steps with this split under TensorFlow's profiler; see `record_trace`.

        In a cluster only the first process is traced.
        """
        self._train_with(split)
        for _ in range(_STEPS_BEFORE_A_TRACE):
            self._run()
        if self._replicas.first_own > 0:
            for _ in range(tracing.steps):
                self._run()
            self._wait()
            return None
        self._wait()
        gpus = sum(name.startswith("GPU") for name in self._names)
        return record_trace(self._run, self._wait, tracing, gpus=gpus)

    @property
    def computed_steps(self) -> int:
        """The steps in which this process of a cluster has computed its gradients."""
        (clock,) = self._clocks
        return clock.computed_steps

    def late_part(self) -> float | None:
        """The fraction of the last measured steps slower than the profile, on the worst device."""
        return self._device_time.late_part()

    def memory_peaks(self) -> tuple[int | None, ...]:
        """Each device's peak bytes since the last call; a simulated one's by its profile."""
        extra = 0
        if self._replicas.count > 1:
            extra = self._joint.extra_memory
        micro_batches = self._supply.feed.split.micro_batches[self._replicas.own_slice]
        by_profile: list[int | None] = []
        for device, micro_batch in zip(self._devices, micro_batches, strict=True):
            if device.profile is None or device.profile.memory is None:
                by_profile.append(None)
            else:
                by_profile.append(device.profile.memory_at(micro_batch, extra))
        return memory.memory_peaks(self._devices, self._names, by_profile)

    def _train_with(self, split: BatchSplit, *, from_pipeline: bool = False) -> None:
        """Prepares the split's batches, and trains a first step, which is not measured."""
        supply = self._supply
        # `--input host` streams random samples. A user's data is held, unless its pipeline is asked
        # for.
        held = not from_pipeline and (
            self.settings.input != "host" or self.settings.data is not None
        )
        if supply.has(split, held=held):
            return
        supply.begin(split)
        self._built.refuse_small(split.smallest)
        if self.source.shapes_differ:
            # A batch fits if the longest one does, so it is trained on once, whatever comes later.
            longest = self.source.longest(split.global_batch)
            self._train(supply.feed.deal(data.as_tensors(longest)))
        if held:
            # In a cluster all processes must hold the same number of batches, and none knows the
            # others' memory: with 0 bytes free each holds the fewest.
            free = 0
            if not self._in_cluster:
                free = psutil.virtual_memory().available
            # Simulated devices' batches are in the host's memory, so none holds more than is free.
            supply.hold([min(free, limit or free) for limit in self._limits])
        else:
            supply.stream()
        self._run()  # data is new, caches and the pipeline fill
        self._ended_s = time.perf_counter()

    def _train_on_what_is_ready(self) -> None:
        """Trains on batches that came while nothing was trained, or the pipeline would look faster.

        It ends when the host has to wait for a batch, or after `_READY_S` if the pipeline keeps up.
        """
        ends_s = time.perf_counter() + _READY_S
        goes_on = True
        while goes_on:
            _, _, waited_s = self._run()
            was_ready = waited_s <= _READY_WITHIN_S
            goes_on = self._agreed(was_ready and time.perf_counter() < ends_s)
        self._wait()
        self._ended_s = time.perf_counter()

    def _agreed(self, own: bool) -> bool:
        """The first process's answer: one that takes a step more would wait for ever."""
        return bool(self._gather(own)[0])

    def _timing(self, steps: int, *, stamped: bool) -> Timing:
        # Simulated devices have stood still since the last timing. Each clock moves on by that:
        # a device that ended its last step before the others still begins before them.
        self._device_time.pause(time.perf_counter() - self._ended_s)
        if not stamped:
            # Batches that differ in shape are trained on equally often.
            cycle = self._supply.cycle
            steps = math.ceil(steps / cycle) * cycle
        elif not self._device_time.is_simulated:
            # Queue a stamped step behind another, as usual steps are: an idle GPU would wait for
            # its first kernels. `seconds` are not the step's then, but `step_s` is.
            self._run()
        input_wait_s = 0.0
        first_steps = self._built.functions.first_steps
        began_s = self._device_time.now_s
        for _ in range(steps):
            logs, stamps, waited_s = self._run(stamped=stamped)
            input_wait_s += waited_s
        self._wait()
        self._ended_s = time.perf_counter()
        times = {}
        if stamped:
            times = stamped_times(stamps.numpy()[self._replicas.own_slice])
        return Timing(
            steps=steps,
            seconds=self._device_time.now_s - began_s,
            input_wait_s=input_wait_s,
            loss_is_finite=self._built.loss_is_finite(logs),
            shapes_differ=self.source.shapes_differ,
            # All processes of a cluster count the same timings
            counts=self._agreed(self._built.functions.first_steps == first_steps),
            **times,
        )

    def _run(self, *, stamped: bool = False) -> tuple[Any, Any, float]:
        """Queues a step with the next batch: the logs, the stamps and the host's wait for data.

        Simulated devices are idle meanwhile, if the batch was not ready.
        """
        dispatched, waited_s = self._supply.next()
        if self._device_time.is_simulated:
            if waited_s <= _READY_WITHIN_S:
                waited_s = 0.0
            self._device_time.pause(waited_s)
        logs, stamps = self._train(dispatched, stamped=stamped)
        return logs, stamps, waited_s

    def _train(
        self, dispatched: Dispatched, *, stamped: bool = False
    ) -> tuple[Any, Any]:
        """Queues a step: the logs and the stamps.

        Simulated devices read the clock in every step anyway, so each is traced as a stamped one.
        """
        result = self._built.functions.train(
            dispatched, stamped=stamped or self._device_time.is_simulated
        )
        return result.logs, result.stamps

    def _wait(self) -> None:
        runtime.wait_for(self._names)
