"""`gpubalance layers` as a user runs it, with real workers.

Their engine takes as long as the simulated schedule.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.results.layers import Layers, Stage
from gpubalance.results.records import read_record
from tests.cli.program import (
    ROOT,
    gpubalance,
    here,
    interrupted,
    lines_until,
    one_line,
    start,
    typed,
)
from tests.jobs.probes import probe_of
from tests.stand_in import engine
from tests.support.cases import cases
from tests.support.known import known

pytestmark = pytest.mark.usefixtures("stand_in")
LARGE = str(ROOT / "configs" / "gtx1080ti-gtx1080-large-model.toml")
COMPUTE = 'alpha_s = 0.01\nbeta_s = 0.0005\nmemory = "1 GiB"'
SHORT = ("--windows", "1", "--round-duration", "0.1", "--micro-batch", "32")


def result_of(*arguments: str, **how: Any) -> tuple[Layers, str]:
    """The result, and stderr."""
    done = here("layers", *arguments, "--json", code=0, **how)
    return Layers.model_validate_json(done.stdout), done.stderr


def parts_s(stage: Stage) -> float:
    """The times of all that a device does in a step."""
    own_s = stage.forward_s + stage.backward_s + stage.transfer_s + stage.update_s
    return own_s + stage.bubble_s


def profile(folder: Path, *devices: str, joint: str = "") -> str:
    """A profile file with these lines for each device."""
    heads = [f'[[device]]\nname = "{n}"\n{lines}\n' for n, lines in enumerate(devices)]
    path = folder / "profile.toml"
    path.write_text("\n".join([*heads, f"[joint]\n{joint}\n"]))
    return str(path)


def test_a_model_that_no_device_holds_is_cut_over_both(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    result, told = result_of("--simulate", LARGE, "-o", str(path))
    assert len(result.stages) == 2
    assert result.throughput.median > 500
    assert "each with the whole" not in told
    assert result.baselines.solo_best is None
    assert "small does not fit on GPU:0" in (result.baselines.solo_best_why_not or "")
    step_s = result.step_time_s.median
    assert result.predicted.step_time_s == pytest.approx(step_s, rel=0.05)
    for stage in result.stages:
        assert parts_s(stage) == pytest.approx(step_s, rel=0.01)
        held, limit = stage.memory_peak_bytes, result.devices[stage.device].memory_bytes
        assert known(held) <= known(limit)
        assert held == pytest.approx(stage.memory_predicted_bytes, rel=0.01)
    assert result.bubble >= result.bubble_bound
    assert read_record(path, Layers) == result

    here(f"compare {path} {path}", code=0)
    page = path.with_suffix(".html")
    here(f"report {path} --html {page} --csv", code=0)
    assert "One step, task by task" in page.read_text()


def test_where_no_cut_fits_it_says_what_does_or_what_never_will(tmp_path: Path) -> None:
    one = f'{COMPUTE}\nbase_memory = "1.2 GiB"\nmemory_per_sample = "{{}} MiB"'
    # Both hold 300 MiB beside what is planned.
    # The margin is by how much the plan was seen to be too little.
    close = profile(tmp_path, *[one.format(4)] * 2)
    held = engine(tmp_path, "def held(device): return 300 << 20")
    done = here("layers", "--simulate", close, *SHORT, code=5, environment=held)
    assert "GPU:0 ran out of memory and gets fewer blocks" in done.stderr
    fits = r"→ --margin \d+MiB --micro-batch \d+ fits: GPU:\d blocks"
    assert re.search(fits, done.stderr)
    assert "--resume" not in done.stderr
    large = profile(tmp_path, *[one.format(1).replace("1.2 GiB", "20 GiB")] * 2)
    done = here("layers", "--simulate", large, *SHORT, code=5)
    larger = "the block that begins with conv2d does not fit on any device (GPU:0 "
    assert larger in done.stderr
    says = "→ no smaller micro-batch fits: take more devices, or a smaller model"
    assert says in done.stderr
    assert "--resume" not in done.stderr


def test_named_cuts_are_those(tmp_path: Path) -> None:
    two = ("--cuts", "conv2d_5", "--micro-batches", "2")
    found, _ = result_of("--simulate", LARGE, *SHORT, *two)
    assert [(first, last) for first, last, _ in found.segments] == [(0, 0), (1, 1)]
    assert [block.calls for block in found.blocks] == [5, 3]
    assert found.micro_batches == 2


def test_an_interrupted_proof_goes_on_with_what_it_measured(tmp_path: Path) -> None:
    script = """
    import os, pathlib, time

    def step(devices, segments, number):
        if number > 13 and not pathlib.Path(os.environ["GO_ON"]).exists():
            time.sleep(60)
    """
    variables = {**engine(tmp_path, script), "GO_ON": str(tmp_path / "go-on")}
    arguments = ("layers", "--simulate", LARGE, *SHORT, "--windows", "3", "--json")
    process = start(*arguments, environment=variables)
    lines_until(process, "window 1 of 3")
    out, err = interrupted(process)
    cut_short: dict[str, Any] = json.loads(out)
    assert cut_short["complete"] is False
    assert "--resume" in err
    process = start(*arguments, "--resume", environment=variables)
    told = lines_until(process, "starting TensorFlow")
    out, _ = interrupted(process)
    left = json.loads(out)["step_time_s"]
    assert left["samples"] == cut_short["step_time_s"]["samples"]
    assert "".join(told).count("continuing an unfinished measurement") == 1
    (tmp_path / "go-on").touch()
    done = gpubalance(*arguments, "--resume", code=0, environment=variables)
    assert "measuring 8 blocks" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["complete"]
    told = [one["message"] for one in result["warnings"] if one["code"] == "resumed"]
    kept = [line[: line.index(" was")] for line in told]
    assert kept == ["1 of its rounds", "1 of its windows"]
    samples = [one["step_time_s"]["samples"] for one in (cut_short, result)]
    assert samples[1][: len(samples[0])] == samples[0]
    assert len(samples[1]) == 3 * len(samples[0])
    assert result["steps"] == 3 * cut_short["steps"]


def test_a_batch_split_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """The batch split is the last thing that is measured.

    Here its result can't be saved, as somebody made the file meanwhile.
    """
    script = """
    import os, pathlib

    def step(devices, parts, number):
        if isinstance(parts[0], int):  # batches, not segments
            pathlib.Path(os.environ["MADE"]).touch()
    """
    made = tmp_path / "layers.json"
    variables = {**engine(tmp_path, script), "MADE": str(made)}
    pair = _known_pair(tmp_path)
    more = typed("--force --rounds 1 --json")
    arguments = ("layers", "--simulate", pair, *SHORT, *more)
    first = here(*arguments, "-o", str(made), code=3, environment=variables)
    assert "measuring the batch split" in first.stderr
    again = here(*arguments, "--resume", code=0, environment=variables)
    told = again.stderr.replace("continuing an unfinished measurement", "")
    assert "measuring" not in told
    results = [Layers.model_validate_json(one.stdout) for one in (first, again)]
    splits = [result.baselines.split for result in results]
    assert splits[0] == splits[1]
    assert known(splits[0]).measured


@cases(
    "end, code, message",
    ("raise TaskFailedError(1, 'the update')", 8, "GPU:1 hangs in the update"),
    ("os.kill(os.getpid(), 9)", 6, "out of memory while training in segments on GPU:0"),
)
def test_a_stage_that_hangs_or_dies_is_told_and_what_was_measured_is_kept(
    tmp_path: Path, end: str, code: int, message: str
) -> None:
    script = f"""
    import os
    from gpubalance.engine.failures import TaskFailedError

    def step(devices, segments, number):
        if number > 13:  # in the proof
            {end}
    """
    more = typed("--force --rounds 1 --windows 2 --json")
    arguments = ("layers", "--simulate", _known_pair(tmp_path), *SHORT, *more)
    done = here(*arguments, code=code, environment=engine(tmp_path, script))
    assert message in one_line(done.stderr)
    assert "--resume" in done.stderr
    cut_short = Layers.model_validate_json(done.stdout)
    assert not cut_short.complete
    assert [tried.outcome for tried in cut_short.rounds] == ["measured"]


def _known_pair(folder: Path) -> str:
    """A profile of two devices that each hold the model, which have been probed."""
    pair = profile(folder, *[f'{COMPUTE}\nmemory_per_sample = "1 MiB"'] * 2)
    save(probe_of(simulated_devices(pair)[0]))
    return pair
