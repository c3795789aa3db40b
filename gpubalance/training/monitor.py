"""Where each device's time goes while a model trains, and whether the split still fits."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import print_msg
from gpubalance.engine.step.points import COMPUTED, FINISHED, SUMMED, stamped_times
from gpubalance.engine.user_functions import warn_user
from gpubalance.numbers.stats import median
from gpubalance.planning.follow import Rebalancer, SplitChange
from gpubalance.planning.noise import Norms, noise_scale
from gpubalance.planning.parts import DeviceTimes, StepTimes
from gpubalance.results.common import now
from gpubalance.results.plan import Noise
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.system.state import write_whole
from gpubalance.training.device_split import ChangeCost, DeviceSplit, StepsLeft
from gpubalance.training.processes import Processes
from gpubalance.training.step_warnings import (
    change_text,
    gain_text,
    noise_text,
    print_below_bar,
)

# The imbalance above which a split no longer fits.
_FITS_UP_TO = 1.05
# The noise scale is that of so many stamped steps, the latest: it drifts while a model learns.
_STEPS_FOR_NOISE = 200
_KEPT_RESTS = 9  # their median stands in for a step's rest that can't be measured
# The columns of the norms, behind a step's stamps: see `StampedStep`.
_PART_SQUARES, _WHOLE_SQUARE = FINISHED + 1, FINISHED + 2
_LOG = logging.getLogger("gpubalance")


class EventLog:
    """Writes events for TensorBoard to a folder. All tags begin with `gpubalance/`."""

    def __init__(self, log_dir: str | Path) -> None:
        """Raises TensorFlow's error for a folder that can't be written."""
        # The error of `makedirs` names the folder, a writer's does not.
        tf.io.gfile.makedirs(log_dir)
        self._log_dir = log_dir

    @cached_property
    def _writer(self) -> Any:
        """TensorFlow's writer, made at the first write.

        It starts TensorFlow's runtime, and a script may make its monitor before the split's scope,
        which sets TensorFlow up.
        """
        return tf.summary.create_file_writer(os.fspath(self._log_dir))

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        """Writes what is known, numbers as scalars and text as text."""
        with self._writer.as_default(step=step):
            for name, value in values.items():
                if isinstance(value, str):
                    _summary(name, "text", tf.constant([value]))
                elif value is not None:
                    _summary(name, "scalars", tf.constant(value, tf.float32))
        self._writer.flush()


def _summary(name: str, plugin: str, value: Any) -> None:
    """Writes as `tf.summary.scalar` and `.text` do, which need TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    tf.summary.write(f"gpubalance/{name}", value, metadata=metadata)


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback for `Split.fit`. See `Split.monitor`.

    `epochs` has what it measured, `changes` each change of the split. `gain` is how many times as
    fast the last training became by its changes, None without any or if that is not known.
    """

    def __init__(
        self,
        split: DeviceSplit,
        *,
        every: int,
        rebalance: bool,
        noise: bool | str | Path,
        log_dir: str | Path | None,
    ) -> None:
        super().__init__()
        self.epochs: list[EpochTimes] = []
        self.changes: list[SplitChange] = []
        self.gain: float | None = None
        # training/steps.py reads these three.
        self.every = every
        self.noise = noise
        self.rebalances = rebalance
        self._split = split
        self._labels = [device.label for device in split.devices]
        self._rebalancer = None
        if rebalance:
            multiple = split.plan.batch_multiple if split.plan else 1
            self._rebalancer = Rebalancer(split.limits, multiple, split.fixed_samples)
        # One of several processes prints and writes for all.
        self._log = EventLog(log_dir) if log_dir and split.is_first else None
        self._norms: deque[Norms] = deque(maxlen=_STEPS_FOR_NOISE)
        self._steps: list[StampedStep] = []
        self._clock = StepClock()
        self._change_cost = ChangeCost()
        self._steps_left = StepsLeft()
        self._first_batch = 0  # samples of this training's first step
        self._changes_before = 0  # how many changes there were before this training
        self._reported_changes = 0  # how many of `changes` are in `epochs`
        self._has_warned = False

    def on_train_begin(self, _: Any = None) -> None:
        """Stamps every `every`-th step from now on."""
        self._steps.clear()
        self._norms.clear()
        self._clock.begin()
        self._change_cost.begin()
        self._steps_left.begin()
        if self._rebalancer:
            self._rebalancer.begin()
        self._changes_before = self._reported_changes = len(self.changes)
        self.gain = None
        self._split.stamp_for(self)

    def on_train_end(self, _: Any = None) -> None:
        """Prints what a split that changed has gained, and the noise scale if it was asked for."""
        changes = self.changes[self._changes_before :]
        if self._rebalancer and changes:
            self.gain = self._rebalancer.gain
            self._say(gain_text(changes, self.gain))
        if self.noise and self._split.is_first:
            print_msg(
                noise_text(
                    noise_scale(self._norms), self._split.shares, self._split.plan
                )
            )

    def note_first_batch(self, samples: int, before: int) -> None:
        """Notes how many samples a training's first batch has. Only an epoch's last may have fewer.

        `before` is the number of the step before its own: not 0 if training continues.
        """
        self._first_batch = samples
        self._steps_left.begin_after(before)

    def on_epoch_begin(self, epoch: int, _: Any = None) -> None:
        """Counts the steps from here."""
        self._steps_left.begin_epoch(epoch)

    def note_any_step(self, number: int, took_s: float, *, is_first: bool) -> None:
        """Takes any step by its number, with the host's seconds; `is_first` with its sizes."""
        self._steps_left.note(number)
        self._change_cost.note(took_s, is_first=is_first)

    def note_stamped_step(
        self, number: int, stamps: Any, split: BatchSplit, processes: Processes
    ) -> None:
        """Takes a stamped step by its number, and changes the split once that is worth it."""
        step = StampedStep(stamps, split)
        self._steps.append(step)
        self._norms += norms_of([step])
        if self._rebalancer and self._is_of_split(split.global_batch):
            times = self._clock.times_of(number, step)
            change = self._rebalancer.note(
                number,
                times,
                steps_left=self._steps_left.left(self.params),
                # All processes ask at the same step, as they must to exchange their seconds.
                cost_s=lambda: processes.max(self._change_cost.seconds),
            )
            if change:
                self._change_split(change)

    def _is_of_split(self, samples: int) -> bool:
        """Whether a batch of so many samples may change the split, or show that it fits no longer.

        Not one that the user sizes otherwise: its size would become the global batch.
        """
        own = self._split
        return own.takes_any_batch or samples == own.global_batch

    def on_epoch_end(self, epoch: int, _: Any = None) -> None:
        """Reports what was measured: nothing of an epoch without stamped steps.

        Warns once if the split no longer fits and is not to be changed.
        """
        self._clock.pause()
        self._steps_left.end_epoch()
        if not self._steps:
            return
        times = EpochTimes.of(
            epoch, self._steps, self.changes[self._reported_changes :]
        )
        self._reported_changes = len(self.changes)
        self._steps.clear()
        self.epochs.append(times)
        self._write(times)
        if isinstance(self.noise, str | Path) and self._split.is_first:
            self._write_noise(Path(self.noise))
        # Fixed costs decide how long a last, smaller batch takes: it shows nothing of the split. It
        # may be the only stamped one of an epoch.
        samples = sum(times.batches)
        is_whole = samples >= self._first_batch and self._is_of_split(samples)
        is_unfit = is_whole and times.imbalance > _FITS_UP_TO
        warns = self._split.is_first and not self._rebalancer and not self._has_warned
        if is_unfit and warns:
            self._has_warned = True
            warn_user(self._no_longer_fits(times))

    def _no_longer_fits(self, times: EpochTimes) -> str:
        max_s = max(times.busy_s)
        slowest = self._labels[times.busy_s.index(max_s)]
        waits = []
        for label, wait_s in zip(self._labels, times.wait_s, strict=True):
            if wait_s > 0:
                waits.append(f"{label} waits {wait_s / max_s:.0%}")
        return (
            f"the split {self._split.shares} is no longer balanced: "
            f"{', '.join(waits)} of the time that {slowest} computes. `gpubalance "
            "balance` finds a new split; split.monitor(rebalance=True) adapts it "
            "during training"
        )

    def _change_split(self, change: SplitChange) -> None:
        """Changes the split of batches that are not on their way yet, and says so."""
        # The traced step takes any sizes; a function of these alone is made only once they last.
        self._split.shares = change.after
        self._change_cost.begin_split()
        self.changes.append(change)
        text = change_text(change, self._labels)
        self._say(text, self.params.get("verbose"))
        values: dict[str, float | str | None] = {
            "split": text,
            "split_gain": change.gain,
        }
        for label, batch in zip(self._labels, change.after.batches, strict=True):
            values[f"batch/{label}"] = batch
        if self._log:
            self._log.write(change.step, values)

    def _say(self, text: str, verbose: Any = 0) -> None:
        """Prints it and logs it, in the first of several processes."""
        if self._split.is_first:
            print_below_bar(text, verbose)
            _LOG.info(text)

    def _write_noise(self, path: Path) -> None:
        """Writes the file for `--noise-scale` after every epoch, as training may be interrupted."""
        noise = noise_scale(self._norms)
        record = Noise(
            created=now(),
            model=self.model.name,
            noise_scale=noise.value,
            noise_scale_ci95=noise.ci95,
            unknown=noise.unknown,
            steps=len(self._norms),
            global_batch=self._split.global_batch,
        )
        write_whole(path, record.model_dump_json(indent=2))

    def _write(self, times: EpochTimes) -> None:
        if self._log is None:
            return
        not_by_device = ("sync_s", "imbalance", "noise_scale")
        values = {name: getattr(times, name) for name in not_by_device}
        for name in ("compute_s", "update_s", "wait_s"):
            for label, value in zip(self._labels, getattr(times, name), strict=True):
                values[f"{name}/{label}"] = value
        self._log.write(times.epoch, values)


class StampedStep(NamedTuple):
    """A step's `stamps`, in seconds: [replica, (began, computed, summed, finished)]; and its split.

    If the noise is measured, [replica, (…, Σ‖h‖²/b of the replica's parts, ‖g‖² of the whole)]: see
    `planning.noise.Norms`. Not if each replica had the whole batch.
    """

    stamps: Any
    split: BatchSplit

    @property
    def summed_s(self) -> float:
        """When the gradients' sum was on all devices, by the clock of a cluster's first process."""
        return float(self.stamps[:, SUMMED].max())

    @property
    def times(self) -> StepTimes:
        """Each device's times, and the sync."""
        times = stamped_times(self.stamps)
        sync_s = self.summed_s - float(self.stamps[:, COMPUTED].max())
        return StepTimes(times["compute_s"], times["update_s"], self.split, sync_s)


def norms_of(steps: Iterable[StampedStep]) -> list[Norms]:
    """The norms of those steps in which the noise was measured."""
    norms = []
    for stamps, split in steps:
        if stamps.shape[1] > _PART_SQUARES:
            own = float(stamps[:, _PART_SQUARES].sum())
            whole = float(stamps[0, _WHOLE_SQUARE])
            norms.append(Norms(split.global_batch, sum(split.counts), own, whole))
    return norms


@dataclass(frozen=True)
class EpochTimes(DeviceTimes):
    """An epoch's medians over its stamped steps, in seconds: each device's times, and the sync.

    If the split changed, the times are those of the last one; `changes` has each change.
    `sync_s` runs from the slowest device's gradients until their sum is on all devices.
    `noise_scale` is in samples, with its 95 % interval; None if unknown.
    """

    epoch: int
    batches: tuple[int, ...]
    sync_s: float
    noise_scale: float | None = None
    noise_scale_ci95: tuple[float, float] | None = None
    changes: tuple[SplitChange, ...] = ()

    @classmethod
    def of(
        cls,
        epoch: int,
        steps: Sequence[StampedStep],
        changes: Sequence[SplitChange] = (),
    ) -> EpochTimes:
        """The medians of an epoch's steps.

        Times are of the largest global batch only: a last batch may be smaller.
        """
        maximum = max(split.global_batch for _, split in steps)
        last = [split for _, split in steps if split.global_batch == maximum][-1]
        times = [step.times for step in steps if step.split == last]
        noise = noise_scale(norms_of(steps))
        return cls(
            compute_s=_medians([step.compute_s for step in times]),
            update_s=_medians([step.update_s for step in times]),
            epoch=epoch,
            batches=last.batches,
            sync_s=median([step.sync_s for step in times]),
            noise_scale=noise.value,
            noise_scale_ci95=noise.ci95,
            changes=tuple(changes),
        )

    @property
    def wait_s(self) -> tuple[float, ...]:
        """maxⱼ (cⱼ + uⱼ) − cᵢ − uᵢ: how long each device waits for the slowest."""
        slowest_s = max(self.busy_s)
        return tuple(slowest_s - own_s for own_s in self.busy_s)


def _medians(steps: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Each device's median over the steps."""
    return tuple(map(median, zip(*steps, strict=True)))


class StepClock:
    """What steps take by the clock, beside what their stamps say of devices and sync.

    That is the host's work, and the wait for data.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins another training."""
        self._rests_s: deque[float] = deque(maxlen=_KEPT_RESTS)
        self.pause()

    def pause(self) -> None:
        """What comes before the next step, as at an epoch's end, is no part of it."""
        self._last: tuple[int, StampedStep] | None = None

    def times_of(self, number: int, step: StampedStep) -> StepTimes:
        """The times of the step of that number, with its rest.

        The rest is the mean since the last stamped step, if that was of this split and after the
        pause; else the median of the rests kept, 0 if there are none.
        """
        times = step.times
        rest_s = median(self._rests_s) if self._rests_s else 0.0
        if self._last is not None:
            last_number, last = self._last
            if last.split == step.split:
                each_s = (step.summed_s - last.summed_s) / (number - last_number)
                # A stamped step may be slower than those between.
                rest_s = max(0.0, each_s - times.step_time_s)
                self._rests_s.append(rest_s)
        self._last = number, step
        return replace(times, rest_s=rest_s)
