"""Where each device's time goes while a model trains, and whether the split still fits."""

from __future__ import annotations

import os
import statistics
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import keras
import tensorflow as tf
from keras.src.utils.io_utils import print_msg

from gpubalance.engine.step.points import COMPUTED, FINISHED, SUMMED, stamped_times
from gpubalance.numbers.units import format_percent, three_digits
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Curve, Line, fit_line
from gpubalance.planning.noise import (
    NoiseScale,
    Norms,
    efficiency,
    goodput,
    learning_rate_factor,
    noise_scale,
)
from gpubalance.planning.problem import Load, NoSplitError, Problem
from gpubalance.results.common import now
from gpubalance.results.plan import Noise
from gpubalance.settings.shares import Shares
from gpubalance.system.state import write_whole

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device

# The imbalance above which a split no longer fits, and above which it is changed. Below, the gain
# can't be measured.
_FITS_UP_TO = 1.05
_REBALANCED_FROM = 1.02
_STAMPS = FINISHED + 1
# The least part by which another split must reach the same loss sooner to be named.
_CLEARLY = 0.01
# Stamped steps, the latest, that the noise scale is estimated from: it drifts while a model learns.
_RECENT = 200


@dataclass(frozen=True)
class EpochTimes:
    """An epoch's medians over its stamped steps, in seconds: each device's compute and update, and
    the sync.

    `sync_s` runs from the slowest device's gradients until their sum is on all devices.
    `noise_scale` is in samples, with its 95 % interval; None if unknown.
    """

    epoch: int
    batches: tuple[int, ...]
    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]
    sync_s: float
    noise_scale: float | None = None
    noise_scale_ci95: tuple[float, float] | None = None

    @classmethod
    def of(cls, epoch: int, steps: Sequence[tuple[Any, Shares]]) -> EpochTimes:
        """The medians of (stamps, split) steps. Times are of the largest global batch only: a last
        may be smaller.
        """
        batches = max((split.batches for _, split in steps), key=sum)
        stamps = [own for own, split in steps if split.batches == batches]
        each = [stamped_times(own) for own in stamps]
        compute_s, update_s = (
            tuple(map(statistics.median, zip(*(times[what] for times in each), strict=True)))
            for what in ("compute_s", "update_s")
        )
        sync_s = statistics.median(
            float(own[:, SUMMED].max() - own[:, COMPUTED].max()) for own in stamps
        )
        noise = noise_scale(_norms(steps))
        return cls(epoch, batches, compute_s, update_s, sync_s, noise.value, noise.ci95)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """cᵢ + uᵢ: each device's compute and update."""
        return tuple(map(sum, zip(self.compute_s, self.update_s, strict=True)))

    @property
    def wait_s(self) -> tuple[float, ...]:
        """maxⱼ (cⱼ + uⱼ) − cᵢ − uᵢ: how long each device waits for the slowest."""
        return tuple(max(self.busy_s) - own for own in self.busy_s)

    @property
    def imbalance(self) -> float:
        """max (cᵢ + uᵢ) / mean (cᵢ + uᵢ); 1 is perfect."""
        return max(self.busy_s) * len(self.busy_s) / sum(self.busy_s)


class Watched(Protocol):
    """What a monitor needs of the split that it watches, and may change."""

    devices: tuple[Device, ...]
    shares: Shares
    limits: tuple[int, ...]
    plan: Plan | None

    @property
    def global_batch(self) -> int: ...

    def stamp_for(self, monitor: Any) -> None: ...


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback for `Split.fit`; `epochs` has what it measured. See `Split.monitor`."""

    def __init__(
        self,
        split: Watched,
        *,
        every: int,
        rebalance: bool,
        noise: bool | str | Path,
        log_dir: str | Path | None,
    ) -> None:
        super().__init__()
        self.epochs: list[EpochTimes] = []
        self._split = split
        self.every, self.noise = every, noise
        self._rebalance = rebalance
        if log_dir:
            tf.io.gfile.makedirs(log_dir)  # its error names the folder, which a writer's does not
        self._writer = tf.summary.create_file_writer(os.fspath(log_dir)) if log_dir else None
        self._norms: deque[Norms] = deque(maxlen=_RECENT)
        self._stamps: list[tuple[Any, Shares]] = []
        self._seen: list[dict[int, float]] = [{} for _ in split.devices]  # compute by batch
        self._has_warned = False

    def on_train_begin(self, _: Any = None) -> None:
        """Stamps every `every`-th step from now on."""
        self._stamps.clear()
        self._norms.clear()
        self._split.stamp_for(self)

    def on_train_end(self, _: Any = None) -> None:
        """Prints the noise scale if it was asked for."""
        if self.noise:
            print_msg(noise_text(noise_scale(self._norms), self._split.shares, self._split.plan))

    def note(self, stamps: Any, split: Shares) -> None:
        """Takes a stamped step's seconds [replica, (began, computed, summed, finished)] and its
        split.

        To measure the noise, two more columns have its norms, unless each replica had the whole
        batch.
        """
        self._stamps.append((stamps, split))
        self._norms += _norms([(stamps, split)])

    def on_epoch_end(self, epoch: int, _: Any = None) -> None:
        """Reports what was measured. If the split no longer fits, warns once, or changes it."""
        noted, self._stamps = self._stamps, []
        if not noted:
            return
        times = EpochTimes.of(epoch, noted)
        self.epochs.append(times)
        self._write(times)
        if isinstance(self.noise, str | Path):
            self._write_noise(Path(self.noise))
        for seen, batch, compute_s in zip(self._seen, times.batches, times.compute_s, strict=True):
            seen[batch] = compute_s
        if self._rebalance and times.imbalance > _REBALANCED_FROM:
            self._change_split(times)
        elif not self._rebalance and times.imbalance > _FITS_UP_TO and not self._has_warned:
            self._has_warned = True
            warnings.warn(self._no_longer_fits(times), stacklevel=2)

    def _no_longer_fits(self, times: EpochTimes) -> str:
        labels, most_s = [device.label for device in self._split.devices], max(times.busy_s)
        pairs = zip(labels, times.wait_s, strict=True)
        waits = ", ".join(
            f"{label} waits {wait_s / most_s:.0%}" for label, wait_s in pairs if wait_s > 0
        )
        return (
            f"the split {Shares(times.batches)} no longer fits: {waits} of the time that "
            f"{labels[times.busy_s.index(most_s)]} computes. `gpubalance balance` finds a new one; "
            "split.monitor(rebalance=True) adapts it while it trains"
        )

    def _change_split(self, times: EpochTimes) -> None:
        """Changes to the best split of the same global batch, by each device's measured times."""
        of_each = zip(map(_model, self._seen), self._split.limits, times.update_s, strict=True)
        try:
            found = allocate(
                Problem(tuple(Load(*one) for one in of_each), global_batch=self._split.global_batch)
            )
        except NoSplitError:
            return
        if all(found.split.batches):
            # Of batches that are not on their way yet, without tracing again.
            self._split.shares = found.split

    def _write_noise(self, path: Path) -> None:
        """Writes the file for `--noise-scale` after every epoch, as training may be interrupted."""
        found = noise_scale(self._norms)
        record = Noise(
            created=now(),
            model=self.model.name,
            noise_scale=found.value,
            noise_scale_ci95=found.ci95,
            unknown=found.unknown,
            steps=len(self._norms),
            global_batch=self._split.global_batch,
        )
        write_whole(path, record.model_dump_json(indent=2))

    def _write(self, times: EpochTimes) -> None:
        if self._writer is None:
            return
        values = {name: getattr(times, name) for name in ("sync_s", "imbalance", "noise_scale")}
        for name in ("compute_s", "update_s", "wait_s"):
            pairs = zip(self._split.devices, getattr(times, name), strict=True)
            values |= {f"{name}/{device.label}": value for device, value in pairs}
        with self._writer.as_default(step=times.epoch):
            for name, value in values.items():
                if value is not None:
                    _scalar(name, value)
        self._writer.flush()


def _norms(steps: Sequence[tuple[Any, Shares]]) -> list[Norms]:
    """The norms of those steps in which the noise was measured."""
    return [
        Norms(
            split.global_batch,
            sum(split.counts),
            float(own[:, _STAMPS].sum()),
            float(own[0, _STAMPS + 1]),
        )
        for own, split in steps
        if own.shape[1] > _STAMPS
    ]


def _model(seen: dict[int, float]) -> Line | Curve:
    """A line through two or more measured batches; for a single one, time in proportion to the
    batch.
    """
    if len(seen) > 1:
        return fit_line(list(seen.items()))
    ((batch, compute_s),) = seen.items()
    return Line(0.0, compute_s / batch, 0.0)


def _scalar(name: str, value: float) -> None:
    """Writes as `tf.summary.scalar` does, which needs TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(f"gpubalance/{name}", tf.constant(value, tf.float32), metadata=metadata)


def noise_text(found: NoiseScale, split: Shares, plan: Plan | None) -> str:
    """`noise scale 3200 (2700 to 3900): …`; with a plan also the split that would learn faster, by
    its predictions.
    """
    if found.value is None or found.ci95 is None:
        return f"noise scale not known: {found.unknown}"
    low, high = map(three_digits, found.ci95)
    total = split.global_batch
    text = (
        f"noise scale {three_digits(found.value)} ({low} to {high}): at a global batch of "
        f"{total} each sample is worth "
        f"{format_percent(efficiency(total, found.value))}"
    )
    return f"{text}{_better(found.value, split, plan)}"


def _better(scale: float, split: Shares, plan: Plan | None) -> str:
    """The split that would learn faster, as the end of a sentence; empty if the split is not the
    plan's own.
    """
    if plan is None or not plan.predicted.by_global_batch or plan.split.without_idle != split:
        return ""
    value = goodput(scale)
    best = max(
        plan.predicted.by_global_batch,
        key=lambda one: value(one.split.global_batch, one.step_time_s),
    )
    total = best.split.global_batch
    sooner = value(total, best.step_time_s) / value(split.global_batch, plan.predicted.step_time_s)
    if sooner < 1 + _CLEARLY:
        return "; no other global batch would reach the same loss clearly sooner"
    factor = learning_rate_factor(split.global_batch, total, scale)
    return (
        f"; {best.split} would reach the same loss {sooner:.2f} × sooner; learning rate × "
        f"{factor:.2f} with SGD"
    )
