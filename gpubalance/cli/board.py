"""`--tensorboard DIR`: what a stage tells, written into event files as it comes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.cli.output import say
from gpubalance.cli.watch import both
from gpubalance.errors import EnvironmentFault
from gpubalance.jobs.events import DeviceDone, Event, PointDone, RoundDone, WindowDone
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.cli.event_files import EventFiles
    from gpubalance.jobs.events import Watch
    from gpubalance.render.tensorboard import Summaries, Summary
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Settings


class Board:
    """A listener that writes. A file that can't be written any more, as on a full disk, ends the writing only."""

    def __init__(self, files: EventFiles, summaries: Summaries) -> None:
        self._files = files
        self._summaries = summaries
        self.error: OSError | None = None

    def __call__(self, event: Event) -> None:
        self._write(self._of(event, time.time()))

    def _of(self, event: Event, now_s: float) -> list[Summary]:
        if isinstance(event, WindowDone):
            return self._summaries.window(event.name, event.devices, event.measurement, now_s)
        if isinstance(event, RoundDone):
            return self._summaries.round(event.round, event.devices, now_s)
        if isinstance(event, PointDone):
            return self._summaries.point(event.device, event.point, now_s)
        return self._summaries.solo_done(event.device, now_s) if isinstance(event, DeviceDone) else []

    def done(self) -> None:
        """The stage has ended with a whole result."""
        self._write(self._summaries.done(time.time()))

    def _write(self, summaries: Sequence[Summary]) -> None:
        if self.error is not None:
            return
        try:
            for summary in summaries:
                self._files.add(summary)
            self._files.flush()
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Closes the files."""
        try:
            self._files.close()
        except OSError as error:
            self.error = self.error or error


@contextmanager
def board_in(
    folder: Path | None, name: str, devices: Sequence[Device], settings: Settings, *, quiet: bool
) -> Iterator[Callable[[Watch], Watch]]:
    """Gives a function that lets a board listen beside another: `beside(progress)`. Without a folder none does.

    The block is the stage and the giving of its result; the files are below folder/name. Raises EnvironmentFault at
    once where nothing can be written or TensorBoard's package is missing, at the end where something was not.
    """
    if folder is None:
        yield lambda watch: watch
        return
    from gpubalance.cli.event_files import EventFiles
    from gpubalance.render.tensorboard import Summaries, columns

    try:
        board = Board(EventFiles(folder / name, columns(devices, settings)), Summaries(settings))
    except OSError as error:
        raise unwritable("--tensorboard", folder, error) from None
    try:
        yield lambda watch: both(watch, board)
        board.done()
    finally:
        board.close()
        if not quiet:
            say(clean_lines(f"charts: tensorboard --logdir {shlex.quote(str(folder))}"), sys.stderr)
    if board.error is not None:
        raise unwritable("--tensorboard", folder, board.error)


def unwritable(option: str, folder: Path, error: OSError) -> EnvironmentFault:
    """The error of a folder in which nothing can be written."""
    why = "it is a file" if folder.is_file() else error.strerror or str(error)
    return EnvironmentFault(f"can't write to {option} {folder}: {why}", remedy=f"give another {option}")
