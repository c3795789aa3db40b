"""What a script reports to the `gpubalance launch` that started it: how far its training is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpubalance.settings.requests import TrainingProgress
from gpubalance.workers.lines import REPORTS

_EVERY_S = 0.1


class Reports:
    """Writes how far this process is into the pipe of the `launch` that started it, if one did."""

    def __init__(self) -> None:
        self._pipe = _pipe()
        self._progress = TrainingProgress()
        self._next_s = 0.0

    def note(self, **changes: Any) -> None:
        """Reports what has changed."""
        if self._pipe is None:
            return
        self._progress = self._progress.model_copy(update=changes)
        # Nobody listens any more, and this process will end
        with contextlib.suppress(OSError):
            os.write(self._pipe, self._progress.model_dump_json().encode() + b"\n")

    def note_step(self, *, trains: bool = False) -> None:
        """Reports that another step begins; of fast steps only some are reported."""
        if self._pipe is None:
            return
        step = int(trains)
        changes = {
            "step": self._progress.step + step,
            "unsaved": self._progress.unsaved + step,
            "awaited": True,
        }
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._progress = self._progress.model_copy(update=changes)
        else:
            self._next_s = now_s + _EVERY_S
            self.note(**changes)

    @contextlib.contextmanager
    def of_call(self, method: str, options: dict[str, Any]) -> Iterator[None]:
        """Reports epochs and backups of Keras' method with these arguments in the block."""
        if self._pipe is None:
            yield
            return
        from gpubalance.engine.keras_patches import SAVE_BACKUP
        from gpubalance.engine.replacing import acting

        if method == "fit":
            self._watch(options)
        with acting({SAVE_BACKUP: self._save_and_note}):
            try:
                yield
            finally:
                self.note(awaited=False)

    def _watch(self, options: dict[str, Any]) -> None:
        """Has a `fit` call this at each epoch's begin, and notes whether it makes backups."""
        import keras

        callbacks = keras.tree.flatten(options.get("callbacks") or [])
        backups = [
            callback
            for callback in callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
        ]
        epochs = keras.callbacks.LambdaCallback(on_epoch_begin=self._begin_epoch)
        options["callbacks"] = [*callbacks, epochs]
        self._progress = self._progress.model_copy(update={"backs_up": bool(backups)})

    def _begin_epoch(self, epoch: int, _: Any) -> None:
        self.note(epoch=epoch + 1, step=0)

    def _save_and_note(self, save: Callable[[Any], None], backup: Any) -> None:
        save(backup)
        self.note(unsaved=0)


def _pipe() -> int | None:
    """The pipe's number, if this process has it: one that a script starts has only the variable."""
    number, _, inode = os.environ.get(REPORTS, "").partition(":")
    with contextlib.suppress(ValueError, OSError):
        if os.fstat(int(number)).st_ino == int(inode):
            return int(number)
    return None


reports = Reports()
