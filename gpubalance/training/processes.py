"""What the processes of a cluster do alike when they train, and what only the first one does."""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from gpubalance.engine.hosts import what_all_say
from gpubalance.errors import BadInput
from gpubalance.training.place import Place

_BATCHES_COMPARED = 3
# Those that write of what all processes have. A checkpoint is for all to take part in: see `apart`.
_WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.RemoteMonitor, keras.callbacks.TensorBoard)


class Alike:
    """Compares the first global batches of the processes: each takes its rows of the same ones."""

    def __init__(self, place: Place) -> None:
        self._all_say = what_all_say(place.strategy, place.cluster) if place.cluster else None
        self._labels = place.labels
        self.begin()

    def begin(self) -> None:
        """The next batches are the first of another pass."""
        self._left = _BATCHES_COMPARED if self._all_say else 0

    def check(self, batch: Any) -> None:
        """Raises BadInput, in all processes, where one has another batch than the first."""
        if not self._left or self._all_say is None:
            return
        self._left -= 1
        said = self._all_say(float(_digest(batch)))
        others = [label for label, one in zip(self._labels, said, strict=True) if one != said[0]]
        if others:
            raise BadInput(
                f"the data of {', '.join(others)} is not that of {self._labels[0]}: every process must read the same "
                "batches in the same order, of which it takes its samples",
                remedy="read the same files, and shuffle by a seed: keras.utils.set_random_seed(1) before all else",
            )


def _digest(batch: Any) -> int:
    """Of the values, whatever they are: 32 bits, which a float64 holds exactly."""
    found = 0
    for values in keras.tree.flatten(batch):
        array = values.numpy()
        parts = array.ravel().tolist() if array.dtype == object else [array.tobytes()]
        for part in parts:
            found = zlib.crc32(part, found)
    return found


class _Restore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Goes on where the first process was interrupted, takes part in its backups, and leaves the files to it."""

    def _save_model(self) -> None:
        self.model.save_weights(self._weights_path)

    def on_train_end(self, logs: Any = None) -> None:
        """Keeps what the first process removes."""


@contextlib.contextmanager
def apart(path: Any) -> Iterator[str]:
    """A path for what a process saves that is not the first; nothing of it stays.

    It must take part: reading a metric's variables sums them over all processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / Path(path).name)


def _without_writing(callbacks: Any) -> list[Any]:
    """The callbacks of a process that is not the first, which writes backups and logs for all."""
    kept = []
    for one in keras.tree.flatten(callbacks or []):
        if isinstance(one, keras.callbacks.BackupAndRestore):
            kept.append(_Restore(one.backup_dir, one.save_freq, one.double_checkpoint))
        elif not isinstance(one, _WRITERS):
            kept.append(one)
    return kept


def quiet(bound: dict[str, Any]) -> None:
    """Changes the arguments of a Keras method, so that only the first process speaks and writes."""
    bound.update(verbose=0, callbacks=_without_writing(bound.get("callbacks")))
