"""`--tensorboard` and `--trace` as a user gives them, read back by TensorBoard's own code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpubalance.cli.job import board_in
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import EnvironmentFault
from gpubalance.jobs.events import Doing, WindowDone
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Plan
from gpubalance.settings.settings import Settings
from tests.cli.program import QUICK_PAIR, broken, gpubalance, typed, users_variables
from tests.jobs.probes import probe_of
from tests.render.measurements import PAIR, measurement, step_time
from tests.stand_in import engine
from tests.support.known import known

pytestmark = pytest.mark.xdist_group("tensorboard")
Engine = dict[str, str]  # its variables
Folders = pytest.TempPathFactory

# The program as its entry point runs it, and then which heavy packages its process has loaded.
_TELLING = """
import sys
from gpubalance.cli.app import main
try:
    main()
finally:
    print("loaded:", *sorted({"tensorflow", "keras", "tensorboard"} & set(sys.modules)), file=sys.stderr)
"""


@dataclass(frozen=True)
class Done:
    """A command that has written into `folder`, and where its own runs are."""

    folder: Path
    name: str
    out: str
    err: str

    def scalars(self, run: str) -> dict[str, list[Any]]:
        """TensorBoard's scalar events (wall_time, step, value) of a run, by tag."""
        from tensorboard.backend.event_processing.event_accumulator import (
            SCALARS,
            EventAccumulator,
        )

        folder = str(self.folder / self.name / run)
        read = EventAccumulator(folder, size_guidance={SCALARS: 0}).Reload()
        return {tag: read.Scalars(tag) for tag in read.Tags()["scalars"]}

    @property
    def traces(self) -> list[Path]:
        return sorted((self.folder / "plugins" / "profile").glob("*/*.xplane.pb"))


def told(folder: Path, *arguments: str, variables: Mapping[str, str] = {}) -> Done:
    both = ("--tensorboard", str(folder), "--trace", str(folder))
    program = [sys.executable, "-c", _TELLING, *arguments, *both, "--json"]
    how: Any = {"env": {**users_variables(), **variables}, "timeout": 240}
    done = subprocess.run(program, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    (own,) = [path for path in folder.iterdir() if path.name.startswith(arguments[0])]
    return Done(folder, own.name, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # TensorBoard's own switch: it reads without TensorFlow, which takes seconds to load.
        patch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
        save(probe_of(simulated_devices(QUICK_PAIR)[0]))
        yield


@pytest.fixture(scope="module")
def trains_nothing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def balance(_state: None, trains_nothing: Engine, tmp_path_factory: Folders) -> Done:
    short = ("--windows", "2", "--duration", "0.5", "--round-duration", "0.5")
    folder = tmp_path_factory.mktemp("balance")
    options = ("balance", "--simulate", QUICK_PAIR, *short, "--accumulate", "off")
    return told(folder, *options, variables=trains_nothing)


@pytest.fixture(scope="module")
def probe(_state: None, trains_nothing: Engine, tmp_path_factory: Folders) -> Done:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "plugins").write_text("in the way of a trace")
    few = typed("--gpus 1 --max-batch 16 --duration 0.2 --no-ahead")
    options = ("--simulate", QUICK_PAIR, *few)
    return told(folder, "probe", *options, variables=trains_nothing)


def test_the_parent_loads_tensorboard_and_never_tensorflow(
    balance: Done, probe: Done
) -> None:
    for done in (balance, probe):
        assert done.err.splitlines()[-1] == "loaded: tensorboard"


def table(done: Done) -> tuple[list[str], dict[str, Any]]:
    """TensorBoard's own hyperparameter table: its columns, and the rows by session group name."""
    from tensorboard.backend.event_processing import (
        data_provider,
        plugin_event_multiplexer,
    )
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import (
        api_pb2,
        backend_context,
        get_experiment,
        list_session_groups,
    )

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(done.folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(done.folder))
    context = backend_context.Context(TBContext(data_provider=provider))
    statuses = [api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE]
    some: Any = {"start_index": 0, "slice_size": 100, "allowed_statuses": statuses}
    wanted = api_pb2.ListSessionGroupsRequest(**some)
    of = RequestContext(), context, ""
    experiment = get_experiment.Handler(*of, api_pb2.GetExperimentRequest()).run()
    groups = list_session_groups.Handler(*of, wanted).run().session_groups
    columns = [info.name for info in experiment.hparam_infos]
    return columns, {group.name: group for group in groups}


def figures(group: Any) -> dict[str, float]:
    return {value.name.tag: value.value for value in group.metric_values}


def test_each_split_that_was_tried_is_a_row_of_the_table(balance: Done) -> None:
    from tensorboard.plugins.hparams import api_pb2

    plan = Plan.model_validate_json(balance.out)
    run = known(plan.run)
    rounds = known(plan.balance).rounds
    columns, rows = table(balance)
    names = ("split", "even", *(f"round-{tried.number}" for tried in rounds))
    assert set(rows) == {f"{balance.name}/{name}" for name in names}
    split, even = (rows[f"{balance.name}/{name}"] for name in names[:2])
    assert set(columns) == set(split.hparams)
    # What a split is comes before its settings.
    assert columns[:3] == ["batch/GPU:0", "batch/GPU:1", "batches"]
    batches = [split.hparams[f"batch/GPU:{i}"].number_value for i in (0, 1)]
    assert batches == list(plan.batches)
    assert split.hparams["model"].string_value == "small"
    rate = figures(split)["gpubalance/median/samples_per_s"]
    assert rate == pytest.approx(run.throughput.median, rel=1e-5)
    of_even = "/".join(map(str, known(run.baselines.even).batches))
    assert even.hparams["batches"].string_value == of_even
    for tried in rounds:
        row = rows[f"{balance.name}/round-{tried.number}"]
        assert row.hparams["batches"].string_value == "/".join(map(str, tried.batches))
        (session,) = row.sessions
        failed = tried.outcome == "oom"
        ended = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
        assert session.status == ended
        of_round = figures(row).get("gpubalance/median/samples_per_s")
        found = tried.measured and tried.measured.throughput.median
        assert of_round == (found and pytest.approx(found, rel=1e-5))


def test_a_probe_is_a_curve_over_batch_sizes(probe: Done) -> None:
    (one,) = json.loads(probe.out)["probes"]
    read = probe.scalars("solo-GPU-1")
    points = read["gpubalance/over_batch/samples_per_s"]
    curve = one["curve"]
    assert [p.step for p in points] == [p["batch"] for p in curve] == [8, 16]
    rates = [p["throughput"]["median"] for p in curve]
    assert [p.value for p in points] == pytest.approx(rates, rel=1e-5)
    assert [event.value for event in read["gpubalance/batch/GPU:1"]] == [8, 16]
    assert probe.traces == []


def test_a_trace_of_steady_steps_is_made_when_all_is_measured(balance: Done) -> None:
    (path,) = balance.traces
    assert path.parent.name == balance.name
    said = balance.err.splitlines()
    (traced,) = [n for n, line in enumerate(said) if "tracing 10 steps of" in line]
    for line in said[traced:]:
        assert not re.search("window|round|proving", line)
    assert not [path for path in balance.folder.iterdir() if path.name.startswith(".")]


def test_a_trace_that_cannot_be_recorded_is_a_warning(probe: Done) -> None:
    result = json.loads(probe.out)
    assert result["complete"] is True
    (warning,) = [w for w in result["warnings"] if w["code"] == "not-traced"]
    assert warning["message"].startswith("GPU:1: no trace was recorded: ")
    assert "plugins" in warning["message"]


def test_what_can_no_longer_be_written_is_told_at_the_end(tmp_path: Path) -> None:
    """What can no longer be written is told when the measurement is over."""
    window = WindowDone(1, 1, "", PAIR, measurement((6, 4), step_time(0.5)))

    def command() -> None:
        with board_in(tmp_path, "run-1", Settings(model="small"), quiet=True) as board:
            (tmp_path / "run-1" / "split").write_text("in the way")
            for event in (window, Doing("the next window"), window):
                known(board)(event)

    with pytest.raises(EnvironmentFault, match="can't write to --tensorboard"):
        command()


def test_without_the_extra_it_is_told_how_to_install_it(tmp_path: Path) -> None:
    without = broken(tmp_path, "tensorboard", "ModuleNotFoundError(name='tensorboard')")
    options = ("--simulate", QUICK_PAIR, "--tensorboard", str(tmp_path / "board"))
    done = gpubalance("run", *options, code=3, environment=without)
    assert "--tensorboard needs" in done.stderr
    assert "pip install '.[tensorboard]'" in done.stderr
    assert "starting TensorFlow" not in done.stderr
    assert not (tmp_path / "board").exists()
