"""`--tensorboard DIR`: writes a job's events into event files as they come.

It uses TensorBoard's own package without TensorFlow, which this process never loads.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpubalance.cli.output import say, unwritable
from gpubalance.errors import EnvironmentFault
from gpubalance.jobs import events
from gpubalance.jobs.events import Watch
from gpubalance.render.tensorboard import METRICS, Ended, Scalar, Summaries, Summary, Tried, columns
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.text import clean_lines

# TensorBoard looks for this in a file's name. Other programs append the host's name; results name no host.
_NAME = "events.out.tfevents"
_FORMAT = "brain.Event:2"


class Board:
    """A listener that writes events. If it no longer can, as on a full disk, it stops, and the measurement goes on."""

    def __init__(self, files: EventFiles, summaries: Summaries) -> None:
        self._files = files
        self._summaries = summaries
        self.error: OSError | None = None

    def __call__(self, event: events.Event) -> None:
        of, now_s = self._summaries, time.time()
        summaries: Mapping[type, Callable[[Any], list[Summary]]] = {
            events.WindowDone: lambda e: of.window(e.name, e.devices, e.measurement, now_s),
            events.TurnDone: lambda e: [one for part in e.parts for one in of.own(e.name, part, now_s)],
            events.RoundDone: lambda e: of.round(e.round, e.devices, now_s),
            events.PointDone: lambda e: of.point(e.device, e.point, now_s),
            events.DeviceDone: lambda e: of.solo_done(e.device, now_s),
        }
        if type(event) in summaries:
            self._write(summaries[type(event)](event))

    def done(self) -> None:
        """Notes that the job has ended with a complete result."""
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
    """Yields a function that adds a board to a listener: `beside(progress)`. Without a folder it adds none.

    The block measures and outputs the result; the files are below folder/name. Raises EnvironmentFault at the start if
    nothing can be written or TensorBoard's package is missing, and at the end if something could not be written.
    """
    if folder is None:
        yield lambda watch: watch
        return
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


def both(first: Watch, second: Watch | None) -> Watch:
    """A listener that passes each event to both."""
    if second is None:
        return first

    def tell(event: events.Event) -> None:
        first(event)
        second(event)

    return tell


class EventFiles:
    """One file for each run, each in its own folder below one folder. Raises OSError if they can't be written."""

    def __init__(self, folder: Path, columns: Mapping[str, type]) -> None:
        """Makes the folder and describes the table of splits. Raises EnvironmentFault without TensorBoard."""
        self._folder = folder
        self._writers: dict[str, Any] = {}
        _load()
        self._write("", time.time(), 0, _experiment(columns))
        self.flush()

    def add(self, summary: Summary) -> None:
        """Appends the summary to its run's file; see `flush`."""
        if isinstance(summary, Scalar):
            from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb

            value = SummaryPb.Value(tag=summary.tag, simple_value=summary.value)
            self._write(summary.run, summary.wall_s, summary.step, SummaryPb(value=[value]))
        elif isinstance(summary, Tried):
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb

            group = f"{self._folder.name}/{summary.run}"
            told = hparams_pb(dict(summary.hparams), trial_id=group, start_time_secs=summary.began_s)
            self._write(summary.run, summary.began_s, 0, told)
        else:
            self._write(summary.run, summary.ended_s, 0, _end(summary))

    def flush(self) -> None:
        """Writes what was added to the files, where it stays if the program is killed."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Closes every file."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, run: str, wall_s: float, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        if run not in self._writers:
            self._writers[run] = _opened(self._folder / run)
            self._writers[run].write(Event(wall_time=wall_s, file_version=_FORMAT).SerializeToString())
        self._writers[run].write(Event(wall_time=wall_s, step=step, summary=summary).SerializeToString())


def _load() -> None:
    """Loads only what does not load TensorFlow, as TensorBoard's EventFileWriter would if it is installed."""
    try:
        import tensorboard.plugins.hparams.summary_v2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault(
            f"--tensorboard needs TensorBoard's own package: {error}", remedy="pip install 'tensorboard<3'"
        ) from None


def _opened(folder: Path) -> Any:
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    return RecordWriter((folder / f"{_NAME}.{int(time.time()):010}.{os.getpid()}").open("wb"))


def _experiment(columns: Mapping[str, type]) -> Any:
    """The table's columns and figures. TensorBoard takes them from one command of a folder, for all of them."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    kinds = {float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING, bool: api_pb2.DATA_TYPE_BOOL}
    experiment = api_pb2.Experiment(
        time_created_secs=time.time(),
        # TensorBoard first shows columns that differ: those of the split, not the settings that all have.
        hparam_infos=[
            api_pb2.HParamInfo(name=name, type=kinds[kind], differs=name.startswith("batch"))
            for name, kind in columns.items()
        ],
        metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=name) for tag, name in METRICS],
    )
    return _told(metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment))


def _end(ended: Ended) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_SUCCESS if ended.fits else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended.ended_s)
    return _told(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=info))


def _told(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary as SummaryPb
    from tensorboard.plugins.hparams import metadata

    # The hparams plugin's data is in the metadata of an empty tensor.
    value = SummaryPb.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)
    return SummaryPb(value=[value])
