"""What the processes of a cluster must do alike in training, and what only the first one does."""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from gpubalance.engine.hosts import what_all_say
from gpubalance.engine.place import Place
from gpubalance.errors import BadInput
from gpubalance.training.data import UNKNOWN_SIZE

_BATCHES_COMPARED = 3
_AS_MUCH = (
    "read the same files in every process: a split gives each device its part of the same batches"
)
# The callbacks that write what all processes have. In a checkpoint all must take part: see own_fit.
_WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.RemoteMonitor, keras.callbacks.TensorBoard)


class Alike:
    """Compares the processes' data: each takes its rows of the same batches, and all take the same
    number of steps.

    If they differ all raise BadInput: a process with one step more than the others would wait in it
    for ever.
    """

    def __init__(self, place: Place) -> None:
        cluster = place.cluster
        self._all = what_all_say(place.strategy, cluster)
        self._labels = place.labels if cluster else place.labels[:1]
        self._compared = _BATCHES_COMPARED if cluster else 0
        self.begin({})

    def begin(self, sizes: Mapping[str, int]) -> None:
        """Starts another pass over data of these sizes. Raises BadInput if they differ between
        processes.
        """
        self._left = self._compared
        self._asks = False
        for what, size in sizes.items():
            said = self._all(size)
            if UNKNOWN_SIZE in said:  # an unknown length is compared before each step instead
                self._asks = True
            else:
                self._refuse(said, f"the {what} is not as long in all processes:")

    def has(self, samples: int) -> None:
        """Compares the next batch's samples, 0 at the end of the data. Called before each step."""
        if self._asks:
            self._refuse(
                self._all(samples), "the data is not as long in all processes: the next batch has"
            )

    def check(self, batch: Any, model: Any) -> None:
        """Compares the first batches' contents, and the step that training continues from. Called
        before each step.
        """
        if not self._left:
            return
        if self._left == _BATCHES_COMPARED and getattr(model, "optimizer", None) is not None:
            self._refuse(
                self._all(model.optimizer.iterations.numpy()),
                "the processes have not trained for as many steps before:",
                "the folder of a backup must be one that all processes see, and so must a "
                "saved model",
            )
        self._left -= 1
        said = self._all(_digest(batch))
        others = [label for label, one in zip(self._labels, said, strict=True) if one != said[0]]
        if others:
            raise BadInput(
                f"the data of {', '.join(others)} is not that of {self._labels[0]}: every "
                "process must read the same "
                "batches in the same order, and take its own samples from them",
                remedy=(
                    "read the same files, and shuffle by a seed: keras.utils.set_random_seed(1) "
                    "before all else"
                ),
            )

    def any(self, own: bool) -> bool:
        """Whether `own` is true in any process."""
        return any(self._all(own))

    def _refuse(self, said: Sequence[float], what: str, remedy: str = _AS_MUCH) -> None:
        """Raises BadInput if not all say the same: `600 in alpha:0, 450 in beta:0`, the first and
        those that differ.
        """
        pairs = list(zip(self._labels, said, strict=True))
        others = [pair for pair in pairs if pair[1] != said[0]]
        if others:
            told = ", ".join(f"{one:.0f} in {label}" for label, one in [pairs[0], *others])
            raise BadInput(f"{what} {told}", remedy=remedy)


def _digest(batch: Any) -> int:
    """A 32-bit checksum of a batch's values, which a float64 holds exactly."""
    return zlib.crc32(pickle.dumps([values.numpy() for values in keras.tree.flatten(batch)]))


# For each Keras method: the hooks in which a callback may set its flag, the hook after which Keras
# looks, and the flag.
_ENDS = {
    "fit": (
        (
            "on_train_begin",
            "on_epoch_begin",
            "on_batch_begin",
            "on_batch_end",
            "on_train_batch_begin",
        ),
        *("on_train_batch_end", "stop_training"),
    ),
    "evaluate": (("on_test_begin", "on_test_batch_begin"), "on_test_batch_end", "stop_evaluating"),
    "predict": (
        ("on_predict_begin", "on_predict_batch_begin"),
        "on_predict_batch_end",
        "stop_predicting",
    ),
}


class _Together(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends in all processes what a callback ends in one, as the others would wait for it for ever.

    It must be the last callback, before Keras looks. `agreed` maps hooks to the model's flag that
    is agreed on there.
    """

    def __init__(self, alike: Alike, agreed: Mapping[str, str]) -> None:
        super().__init__()
        self._alike = alike
        for hook, flag in agreed.items():
            setattr(self, hook, functools.partial(self._agree, flag))

    def _agree(self, flag: str, *_: Any, **__: Any) -> None:
        setattr(self.model, flag, self._alike.any(getattr(self.model, flag)))


def end_together(method: str, bound: dict[str, Any], alike: Alike) -> None:
    """Changes a Keras method's arguments so that it ends in all processes when a callback ends it
    in one.

    They agree by an all-reduce of one number after each epoch; also after each batch if a callback
    of the user's own is called there in any process.
    """
    callbacks = keras.tree.flatten(bound.get("callbacks") or [])
    agreed = {"on_epoch_end": "stop_training"} if method == "fit" else {}
    # Fit also validates.
    for before, last, flag in [_ENDS[method], *([_ENDS["evaluate"]] if method == "fit" else [])]:
        if alike.any(_are_own(callbacks, [*before, last])):
            agreed[last] = flag
    if agreed:
        bound["callbacks"] = [*callbacks, _Together(alike, agreed)]


def _are_own(callbacks: Sequence[Any], hooks: Sequence[str]) -> bool:
    """Whether the user's own code is called in one of the hooks."""
    found = [getattr(one, hook) for one in callbacks for hook in hooks]
    return any(
        not str(getattr(one, "__module__", "")).startswith(("keras.", "gpubalance."))
        for one in found
    )


class _Restore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Continues where the first process was interrupted, takes part in its backups, and leaves the
    files to it.
    """

    def _save_model(self) -> None:
        self.model.save_weights(self._weights_path)

    def on_train_end(self, logs: Any = None) -> None:
        """Does nothing: the first process removes the backup."""


def quiet(bound: dict[str, Any]) -> None:
    """Changes a Keras method's arguments so that this process neither prints nor writes; the first
    one does for all.
    """
    kept = []
    for one in keras.tree.flatten(bound.get("callbacks") or []):
        if isinstance(one, keras.callbacks.BackupAndRestore):
            kept.append(_Restore(one.backup_dir, one.save_freq, one.double_checkpoint))
        elif not isinstance(one, _WRITERS):
            kept.append(one)
    bound.update(verbose=0, callbacks=kept)
