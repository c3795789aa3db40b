"""What the processes of a cluster must do alike in training, and what only the first one does."""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras

from gpubalance.engine.replicas import Replicas
from gpubalance.engine.runtime import gather_over
from gpubalance.errors import BadInput
from gpubalance.training.data import UNKNOWN_SIZE

_BATCHES_COMPARED = 3
_SAME_FILES = (
    "let every process read the same files: each takes its share of the same batches"
)
# The callbacks that write or print what all processes have. In a checkpoint all must take part:
# see scope.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class Processes:
    """The processes of a cluster, which must have the same batches, as each takes its rows of them.

    If their data differs all raise BadInput: a process with one step more than the others would
    wait in it for ever.
    """

    def __init__(self, replicas: Replicas) -> None:
        cluster = replicas.cluster
        self._all = gather_over(replicas.strategy, cluster)
        self._labels = replicas.labels if cluster else replicas.labels[:1]
        self._compared = _BATCHES_COMPARED if cluster else 0
        self.compare_sizes({})

    def compare_sizes(self, sizes: Mapping[str, int]) -> None:
        """Compares the sizes of the data that comes next."""
        self._left = self._compared
        self._asks = False
        for what, size in sizes.items():
            of_all = self._all(size)
            # An unknown length is compared before each step instead
            if UNKNOWN_SIZE in of_all:
                self._asks = True
            else:
                self._refuse(
                    of_all, f"the {what} differs in length between the processes:"
                )

    def compare_count(self, samples: int) -> None:
        """Compares the next batch's samples, 0 at the end of the data. Called before each step."""
        if self._asks:
            self._refuse(
                self._all(samples),
                "the data differs in length between the processes: the next batch has",
            )

    def compare_batch(self, batch: Any, model: Any) -> None:
        """Compares the first batches, and the step from which training continues.

        Called before each step.
        """
        if not self._left:
            return
        if (
            self._left == _BATCHES_COMPARED
            and getattr(model, "optimizer", None) is not None
        ):
            self._refuse(
                self._all(model.optimizer.iterations.numpy()),
                "the processes have trained different numbers of steps:",
                "keep backups and saved models in a folder that all processes share",
            )
        self._left -= 1
        others = [
            label for label, _ in self._differs_from_first(self._all(_digest(batch)))
        ]
        if others:
            raise BadInput(
                f"the data of {', '.join(others)} differs from that of "
                f"{self._labels[0]}: every process must read the same batches in the "
                "same order, and takes its own samples from them",
                remedy="read the same files, and shuffle with a fixed seed: "
                "keras.utils.set_random_seed(1) before everything else",
            )

    def any(self, own: bool) -> bool:
        """Whether `own` is true in any process."""
        return any(self._all(own))

    def max(self, own: float) -> float:
        """The largest of all processes' numbers."""
        return max(self._all(own))

    def _refuse(
        self, numbers: Sequence[float], what: str, remedy: str = _SAME_FILES
    ) -> None:
        """Raises BadInput if not all have the same number: `600 in alpha:0, 450 in beta:0`."""
        others = self._differs_from_first(numbers)
        if others:
            shown = [(self._labels[0], numbers[0]), *others]
            text = ", ".join(f"{number:.0f} in {label}" for label, number in shown)
            raise BadInput(f"{what} {text}", remedy=remedy)

    def _differs_from_first(self, numbers: Sequence[float]) -> list[tuple[str, float]]:
        """The processes whose number is another than the first one's, by label."""
        pairs = zip(self._labels, numbers, strict=True)
        return [(label, number) for label, number in pairs if number != numbers[0]]


def _digest(batch: Any) -> int:
    """A 32-bit checksum of a batch's values, which a float64 holds exactly."""
    return zlib.crc32(
        pickle.dumps([values.numpy() for values in keras.tree.flatten(batch)])
    )


class _End(NamedTuple):
    """The hooks in which a callback may set a flag, at which Keras looks after the last of them."""

    flag: str
    hooks: tuple[str, ...]


_ENDS = {
    "fit": _End(
        "stop_training",
        (
            "on_train_begin",
            "on_epoch_begin",
            "on_batch_begin",
            "on_batch_end",
            "on_train_batch_begin",
            "on_train_batch_end",
        ),
    ),
    "evaluate": _End(
        "stop_evaluating", ("on_test_begin", "on_test_batch_begin", "on_test_batch_end")
    ),
    "predict": _End(
        "stop_predicting",
        ("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end"),
    ),
}


class _AgreedEnd(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends in all processes what a callback ends in one, as the others would wait for it for ever.

    It must be the last callback, before Keras looks. `agreed` maps hooks to the flag of the model
    that all agree on there.
    """

    def __init__(self, processes: Processes, agreed: Mapping[str, str]) -> None:
        super().__init__()
        self._processes = processes
        for hook, flag in agreed.items():
            setattr(self, hook, functools.partial(self._agree, flag))

    def _agree(self, flag: str, *_: Any, **__: Any) -> None:
        setattr(self.model, flag, self._processes.any(getattr(self.model, flag)))


def end_together(
    method: str, bound: dict[str, Any], processes: Processes, model: Any
) -> None:
    """Changes a method's arguments so that it ends in all processes if a callback ends it in one.

    They agree by an all-reduce of one number after each epoch; also after each batch if a callback
    of the user's own is called there in any process.
    """
    callbacks = _callbacks(bound)
    agreed = {"on_epoch_end": "stop_training"} if method == "fit" else {}
    ends = [_ENDS[method]]
    if method == "fit":
        ends.append(_ENDS["evaluate"])  # it also validates
    for end in ends:
        if processes.any(_are_own(callbacks, end.hooks)):
            agreed[end.hooks[-1]] = end.flag
    if agreed:
        agreed_end = _AgreedEnd(processes, agreed)
        # Keras sets the model of callbacks in a list, but not of those in a CallbackList.
        agreed_end.set_model(model)
        _replace_callbacks(bound, [*callbacks, agreed_end])


def _callbacks(bound: dict[str, Any]) -> list[Any]:
    """The callbacks among a Keras method's arguments, also those of a CallbackList."""
    given = bound.get("callbacks") or []
    if isinstance(given, keras.callbacks.CallbackList):
        given = given.callbacks
    return keras.tree.flatten(given)  # type: ignore[no-any-return]


def _replace_callbacks(bound: dict[str, Any], callbacks: list[Any]) -> None:
    """Changes the callbacks among a Keras method's arguments; a CallbackList stays one.

    Keras adds no progress bar to such a list, and does not set its model and parameters.
    """
    given = bound.get("callbacks")
    changed: Any = callbacks
    if isinstance(given, keras.callbacks.CallbackList):
        options = {"model": getattr(given, "_model", None), **(given.params or {})}
        changed = keras.callbacks.CallbackList(callbacks, **options)
    bound["callbacks"] = changed


def _are_own(callbacks: Sequence[Any], hooks: Sequence[str]) -> bool:
    """Whether the user's own code is called in one of the hooks."""
    for callback in callbacks:
        for hook in hooks:
            module = str(getattr(getattr(callback, hook), "__module__", ""))
            if not module.startswith(("keras.", "gpubalance.")):
                return True
    return False


class _Restore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Continues where the first process was interrupted; backs up with it, but leaves no files."""

    def _save_model(self) -> None:
        self.model.save_weights(self._weights_path)

    def on_train_end(self, logs: Any = None) -> None:
        """Does nothing: the first process removes the backup."""


def quiet(bound: dict[str, Any]) -> None:
    """Changes a Keras method's arguments so that this process neither prints nor writes."""
    callbacks = []
    for callback in _callbacks(bound):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            callbacks.append(
                _Restore(
                    callback.backup_dir, callback.save_freq, callback.double_checkpoint
                )
            )
        elif not isinstance(callback, _WRITERS):
            callbacks.append(callback)
    _replace_callbacks(bound, callbacks)
    bound["verbose"] = 0
