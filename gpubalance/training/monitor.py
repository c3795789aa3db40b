"""Where each device's time goes while a model trains, and whether the split still fits."""

from __future__ import annotations

import os
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.utils.io_utils import print_msg

from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Curve, Line, fit_line
from gpubalance.planning.noise import Norms, noise_scale
from gpubalance.planning.problem import Load, NoSplitError, Problem
from gpubalance.results.common import now
from gpubalance.results.plan import Noise
from gpubalance.settings.shares import Shares
from gpubalance.system.state import write_whole
from gpubalance.training.device_split import DeviceSplit
from gpubalance.training.epoch_times import EpochTimes, StampedStep, norms_of
from gpubalance.training.noise_text import noise_text

# The imbalance above which a split no longer fits, and above which it is changed. Below, the gain
# can't be measured.
_FITS_UP_TO = 1.05
_REBALANCED_FROM = 1.02
# Stamped steps, the latest, that the noise scale is estimated from: it drifts while a model learns.
_RECENT = 200


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback for `Split.fit`; `epochs` has what it measured. See `Split.monitor`."""

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
        self.every = every
        self.noise = noise
        self._split = split
        self._rebalance = rebalance
        self._writer = None
        if log_dir:
            tf.io.gfile.makedirs(log_dir)  # its error names the folder, which a writer's does not
            self._writer = tf.summary.create_file_writer(os.fspath(log_dir))
        self._norms: deque[Norms] = deque(maxlen=_RECENT)
        self._steps: list[StampedStep] = []
        self._seen: list[dict[int, float]] = [{} for _ in split.devices]  # compute by batch
        self._has_warned = False

    def on_train_begin(self, _: Any = None) -> None:
        """Stamps every `every`-th step from now on."""
        self._steps.clear()
        self._norms.clear()
        self._split.stamp_for(self)

    def on_train_end(self, _: Any = None) -> None:
        """Prints the noise scale if it was asked for."""
        if self.noise:
            print_msg(noise_text(noise_scale(self._norms), self._split.shares, self._split.plan))

    def note(self, stamps: Any, split: Shares) -> None:
        """Takes a stamped step: see `StampedStep`."""
        step = StampedStep(stamps, split)
        self._steps.append(step)
        self._norms += norms_of([step])

    def on_epoch_end(self, epoch: int, _: Any = None) -> None:
        """Reports what was measured. If the split no longer fits, warns once, or changes it."""
        if not self._steps:
            return
        times = EpochTimes.of(epoch, self._steps)
        self._steps.clear()
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
        labels = [device.label for device in self._split.devices]
        most_s = max(times.busy_s)
        slowest = labels[times.busy_s.index(most_s)]
        waits = []
        for label, wait_s in zip(labels, times.wait_s, strict=True):
            if wait_s > 0:
                waits.append(f"{label} waits {wait_s / most_s:.0%}")
        return (
            f"the split {Shares(times.batches)} no longer fits: {', '.join(waits)} of the time "
            f"that {slowest} computes. `gpubalance balance` finds a new one; "
            "split.monitor(rebalance=True) adapts it while it trains"
        )

    def _change_split(self, times: EpochTimes) -> None:
        """Changes to the best split of the same global batch, by each device's measured times."""
        loads = []
        for seen, limit, update_s in zip(
            self._seen, self._split.limits, times.update_s, strict=True
        ):
            loads.append(Load(_model(seen), limit, update_s))
        try:
            best = allocate(Problem(tuple(loads), global_batch=self._split.global_batch))
        except NoSplitError:
            return
        if all(best.split.batches):
            # Of batches that are not on their way yet, without tracing again.
            self._split.shares = best.split

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
        if self._writer is None:
            return
        values = {name: getattr(times, name) for name in ("sync_s", "imbalance", "noise_scale")}
        for name in ("compute_s", "update_s", "wait_s"):
            for device, value in zip(self._split.devices, getattr(times, name), strict=True):
                values[f"{name}/{device.label}"] = value
        with self._writer.as_default(step=times.epoch):
            for name, value in values.items():
                if value is not None:
                    _scalar(name, value)
        self._writer.flush()


def _model(seen: dict[int, float]) -> Line | Curve:
    """A line through two or more measured batches; through one, time in proportion to the batch."""
    if len(seen) > 1:
        return fit_line(list(seen.items()))
    ((batch, compute_s),) = seen.items()
    return Line(0.0, compute_s / batch, 0.0)


def _scalar(name: str, value: float) -> None:
    """Writes as `tf.summary.scalar` does, which needs TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(f"gpubalance/{name}", tf.constant(value, tf.float32), metadata=metadata)
