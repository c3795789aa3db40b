"""`gpubalance probe` as a user runs it.

What it prints, and what is left when something goes wrong.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from tests.cli.program import (
    SHORT,
    TINY_PAIR,
    gpubalance,
    here,
    interrupted,
    lines_until,
    start,
    typed,
)
from tests.stand_in import engine
from tests.support.cases import cases
from tests.support.known import known

QUICK = ("--duration", "0.2")
# The engine's stand-in, in some time and not at once.
SLOWLY = """
import time
def step(devices, batches, number):
    time.sleep(0.02)
"""
FEW = (*TINY_PAIR, *QUICK, "--max-batch", "32")
# Under TensorFlow's own allocator, as on a GPU.
BFC = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": "300",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
MODEL = """
import keras
L = keras.layers

def small():
    return keras.Sequential([L.Input((64, 64, 3)), L.Conv2D(16, 3, activation="relu"),
        L.Conv2D(16, 3, activation="relu"), L.GlobalAveragePooling2D(), L.Dense(10, activation="softmax")])
"""


# A batch of 8 takes longer than larger ones: at its first time only, or whenever it is measured.
SLOW_EIGHT = """
eights = []
def step(devices, batches, number):
    eights.append(batches == (8,))
    return 0.2 if eights[-1] and sum(eights) < {times} else None
"""


@cases("times, is_told", (7, False), (10**6, True))
def test_a_batch_that_took_longer_than_a_larger_one_is_measured_again(
    times: int, is_told: bool, engine_that: Callable[[str], None]
) -> None:
    """A batch that took longer than a larger one is measured again and told if it stays so."""
    engine_that(SLOW_EIGHT.format(times=times))
    done = here("probe", *FEW, "--gpus", "0", "--json", code=0)
    assert re.search(
        r"GPU:0: batch 8 took longer than batch \d+: measuring it once more",
        done.stderr,
    )
    probe = Probe.model_validate_json(done.stdout)
    (entry,) = probe.probes
    told = [one for one in probe.warnings if one.code == "slower-than-larger"]
    assert bool(told) == is_told
    eight = entry.curve[0]
    assert (eight.batch, eight.measured_again) == (8, True)
    assert (eight.step_time_s.median == pytest.approx(0.2)) == is_told
    assert entry.step_time_model is not None
    assert entry.step_time_model.planned_with == ("curve" if is_told else "line")


def journals(state: Path) -> list[dict[str, Any]]:
    (path,) = (state / "gpubalance" / "journals").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.mark.usefixtures("stand_in")
def test_the_pair_is_probed_kept_and_used(tmp_path: Path, own_state: Path) -> None:
    path = tmp_path / "probe.json"
    done = here("probe", *TINY_PAIR, *QUICK, "-o", str(path), code=0)
    result = Probe.model_validate_json(path.read_text())
    limits = [
        (p.batch_limit.fits, p.batch_limit.fails)
        for p in result.probes
        if p.batch_limit
    ]
    assert limits == [(224, 232), (128, 136)]
    assert result.complete
    # As it goes, it tells each size, and each trial with its reason.
    # Then it tells what they amount to, and what to do next.
    assert re.search(r"(?m)^GPU:0 batch 8: \d+ samples/s, .* ms, 320 MiB", done.stderr)
    assert re.search(
        r"GPU:0 tried 232 \(the smallest that should fail\): out of memory, ",
        done.stderr,
    )
    # The two largest may differ by less than a busy machine's noise.
    best = known(result.probes[0].solo_best)
    assert re.search(
        rf"(?m)^GPU:0  Quick 3: {best.throughput:.0f} samples/s at batch {best.batch}\b",
        done.stdout,
    )
    assert re.search(r"[▁▂].*█ samples/s at batch 8 to 224", done.stdout)
    assert "batch limit: 224 trains, 232 does not (out of memory)" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    # Nothing is left to resume, and the result is kept.
    # A run of these devices knows what they give alone.
    assert not list((own_state / "gpubalance" / "journals").glob("*"))
    assert len(list((own_state / "gpubalance" / "probes").glob("*.json"))) == 1
    command = done.stdout.splitlines()[-1].removeprefix("next: gpubalance ").split()
    ran = here(
        *command, *SHORT, "--rounds", "1", "--round-duration", "0.5", "--json", code=0
    )
    plan = Plan.model_validate_json(ran.stdout)
    assert plan.probed == result.created
    run = known(plan.run)
    solo_sum = known(run.baselines.solo_sum)
    assert solo_sum == pytest.approx(
        sum(p.solo_best.throughput for p in result.probes if p.solo_best)
    )
    assert run.scaling_efficiency == pytest.approx(run.throughput.median / solo_sum)


@cases(
    "number, code",
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full),
)
def test_an_interrupted_probe_keeps_what_is_measured_and_goes_on(
    number: signal.Signals, code: int, own_state: Path, tmp_path: Path
) -> None:
    command = (
        "probe",
        *FEW,
        "--json",
        *(("--parallel",) if number == signal.SIGTERM else ()),
    )
    slowly = engine(tmp_path, SLOWLY)
    process = start(*command, environment=slowly)
    lines_until(process, "batch 16")
    out, _ = interrupted(process, code, number)
    # Of all devices at once, any may have been the first to come so far.
    assert [8, 16] in [
        [point.batch for point in probe.curve][:2]
        for probe in Probe.model_validate_json(out).probes
    ]
    attempts = [entry for entry in journals(own_state) if entry["kind"] == "Attempt"]
    measured = {
        (entry["key"].split()[0], entry["record"]["trial"]["batch"])
        for entry in attempts
    }
    again = gpubalance(*command, "--resume", code=0, environment=slowly)
    assert "continuing an unfinished measurement" in again.stderr
    result = Probe.model_validate_json(again.stdout)
    assert result.complete
    assert result.parallel == (
        "measured-in-parallel" in {warning.code for warning in result.warnings}
    )
    assert result.parallel == ("--parallel" in command)
    assert [len(p.curve) for p in result.probes] == [len(result.probes[0].curve)] * 2
    assert measured <= {
        (f"SIM-{p.device}", point.batch) for p in result.probes for point in p.curve
    }


def test_the_time_limit_ends_it_with_what_is_measured(tmp_path: Path) -> None:
    slowly = engine(tmp_path, SLOWLY)
    done = here(
        "probe",
        *TINY_PAIR,
        *QUICK,
        *typed("--time-limit 4 --json"),
        code=8,
        environment=slowly,
    )
    assert "the time limit of 4 s passed" in done.stderr
    assert re.search(
        r"--resume continues it:\n +.*gpubalance probe .* --json --resume\n",
        done.stderr,
    )
    assert "--time-limit 4 " not in done.stderr
    assert Probe.model_validate_json(done.stdout).complete is False


@pytest.mark.usefixtures("forked")
def test_the_parent_stays_small_without_tensorflow() -> None:
    process = start("probe", *FEW, "--gpus", "0", "--json")
    parent = psutil.Process(process.pid)
    largest = 0
    while process.poll() is None:
        known(process.stderr).readline()
        with_memory = (
            parent.memory_info().rss
            if parent.is_running() and parent.status() != "zombie"
            else 0
        )
        largest = max(largest, with_memory)
    result = Probe.model_validate_json(process.communicate()[0])
    assert 0 < largest < 100 * 2**20
    assert all(
        p.flops_per_sample and p.mfu is None and p.curve[0].telemetry is None
        for p in result.probes
    )


def test_a_model_that_balance_will_refuse_is_measured_and_told(tmp_path: Path) -> None:
    refuses = engine(
        tmp_path, "def refused(): return {'message': 'it sums', 'remedy': 'take means'}"
    )
    done = here("probe", *FEW, "--gpus", "0", code=0, environment=refuses)
    assert "gpubalance balance will refuse this model: it sums" in " ".join(
        done.stdout.split()
    )
    assert "next:" not in done.stdout


@pytest.mark.campaign  # TensorFlow's allocator waits 10 s at each out-of-memory
def test_a_real_out_of_memory_is_found_exactly_and_repeatably(tmp_path: Path) -> None:
    # At once: each waits 10 s at an out-of-memory, as TensorFlow's allocator does.
    (tmp_path / "models.py").write_text(MODEL)
    command = (
        *typed("probe --simulate 1 --model models.py:small --duration 0.1 --json"),
    )
    environments = [BFC | {"XDG_STATE_HOME": str(tmp_path / str(i))} for i in range(2)]
    both = [
        start(*command, cwd=tmp_path, environment=environment)
        for environment in environments
    ]
    limits = []
    for process in both:
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        limit = known(Probe.model_validate_json(out).probes[0].batch_limit)
        assert limit.memory_bytes == 300 << 20
        assert limit.fits is not None
        assert limit.fails == limit.fits + 8
        tried = {trial.batch: trial.outcome for trial in limit.trials}
        assert (tried[limit.fits], tried[limit.fails]) == ("fits", "oom")
        # The pieces of this memory tell less than it has, so that it says of the failure that
        # decides that it should fit: that one is tried once more. Of drawn memories like this no
        # search had more than four others fail.
        failed = [trial.batch for trial in limit.trials if trial.outcome == "oom"]
        assert failed.count(limit.fails) <= 2
        assert (
            len(failed) - failed.count(limit.fails)
            == len(set(failed) - {limit.fails})
            <= 4
        )
        limits.append(limit.fits)
    assert limits[0] == limits[1]
