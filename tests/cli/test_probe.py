"""`gpubalance probe` as a user runs it.

What it prints, and what is left when something goes wrong.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from tests.cli.program import (
    SHORT,
    TINY_PAIR,
    gpubalance,
    here,
    interrupted,
    lines_until,
    one_line,
    result_of,
    start,
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


def journals(state: Path) -> list[dict[str, Any]]:
    (path,) = (state / "gpubalance" / "journals").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.mark.usefixtures("stand_in")
def test_the_pair_is_probed_kept_and_used(tmp_path: Path, own_state: Path) -> None:
    path = tmp_path / "probe.json"
    done = here("probe", *TINY_PAIR, *QUICK, "-o", str(path), code=0)
    result = read_record(path, Probe)
    found = [known(probe.batch_limit) for probe in result.probes]
    limits = [(limit.fits, limit.fails) for limit in found]
    assert limits == [(224, 232), (128, 136)]
    assert result.complete
    # As it goes, it tells each size, and each trial with its reason.
    # Then it tells what they amount to, and what to do next.
    assert re.search(r"(?m)^GPU:0 batch 8: \d+ samples/s, .* ms, 320 MiB", done.stderr)
    fails = r"GPU:0 tried 232 \(the smallest batch that should fail\): out of memory, "
    assert re.search(fails, done.stderr)
    # The two largest may differ by less than a busy machine's noise.
    best = known(result.probes[0].solo_best)
    rate = f"{best.throughput:.0f} samples/s at batch {best.batch}"
    assert re.search(rf"(?m)^GPU:0  Quick 3: {rate}\b", done.stdout)
    assert re.search(r"[▁▂].*█ samples/s at batch 8 to 224", done.stdout)
    assert "batch limit: 224 trains, 232 does not (out of memory)" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    # Nothing is left to resume, and the result is kept.
    # A run of these devices knows what they give alone.
    assert not list((own_state / "gpubalance" / "journals").glob("*"))
    assert len(list((own_state / "gpubalance" / "probes").glob("*.json"))) == 1
    command = done.stdout.splitlines()[-1].removeprefix("next: gpubalance ")
    plan = result_of(Plan, f"{command} --rounds 1 --round-duration 0.5", *SHORT)
    assert plan.probed == result.created
    run = known(plan.run)
    solo_sum = known(run.baselines.solo_sum)
    alone = [known(probe.solo_best).throughput for probe in result.probes]
    assert solo_sum == pytest.approx(sum(alone))
    assert run.scaling_efficiency == pytest.approx(run.throughput.median / solo_sum)


@cases(
    "number, code",
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full),
)
def test_an_interrupted_probe_keeps_what_is_measured_and_goes_on(
    number: signal.Signals, code: int, own_state: Path, tmp_path: Path
) -> None:
    parallel = ("--parallel",) if number == signal.SIGTERM else ()
    command = ("probe", *FEW, "--json", *parallel)
    slowly = engine(tmp_path, SLOWLY)
    process = start(*command, environment=slowly)
    lines_until(process, "batch 16")
    out, _ = interrupted(process, code, number)
    # Of all devices at once, any may have been the first to come so far.
    curves = [probe.curve for probe in Probe.model_validate_json(out).probes]
    assert [8, 16] in [[point.batch for point in curve][:2] for curve in curves]
    attempts = [entry for entry in journals(own_state) if entry["kind"] == "Attempt"]
    measured = set()
    for entry in attempts:
        measured.add((entry["key"].split()[0], entry["record"]["trial"]["batch"]))
    again = gpubalance(*command, "--resume", code=0, environment=slowly)
    assert "continuing an unfinished measurement" in again.stderr
    result = Probe.model_validate_json(again.stdout)
    assert result.complete
    codes = {warning.code for warning in result.warnings}
    assert result.parallel == ("measured-in-parallel" in codes) == bool(parallel)
    first, second = result.probes
    assert len(first.curve) == len(second.curve)
    points = [(f"SIM-{p.device}", one.batch) for p in result.probes for one in p.curve]
    assert measured <= set(points)


@cases(
    "options",
    "--time-limit 4",
    "--config limit.toml",
    "--config short.toml --time-limit 4",
)
def test_the_time_limit_ends_it_with_what_is_measured(
    tmp_path: Path, options: str
) -> None:
    """The printed command has one that is long enough, and counts more than a config's."""
    slowly = engine(tmp_path, SLOWLY)
    (tmp_path / "limit.toml").write_text("time-limit = 4\n")
    (tmp_path / "short.toml").write_text("time-limit = 1\n")
    words = ("probe", *TINY_PAIR, *QUICK, *options.split(), "--json")
    done = here(*words, code=8, environment=slowly, cwd=tmp_path)
    assert "the time limit of 4 s passed" in done.stderr
    continues = r"--resume continues it:\n +.*gpubalance probe --resume .* --json "
    enough = known(re.search(rf"{continues}--time-limit (\d+)\n", done.stderr))
    assert int(enough[1]) > 4
    assert "--time-limit 4 " not in done.stderr
    assert Probe.model_validate_json(done.stdout).complete is False


@pytest.mark.usefixtures("forked")
def test_a_real_probe_counts_the_arithmetic_of_a_sample() -> None:
    """What part of the peak that is, and the telemetry, only a GPU has."""
    (found,) = result_of(Probe, "probe", *FEW, "--gpus", "0").probes
    assert found.flops_per_sample
    assert (found.mfu, found.curve[0].telemetry) == (None, None)


def test_a_model_that_balance_will_refuse_is_measured_and_told(tmp_path: Path) -> None:
    script = "def refused(): return {'message': 'it sums', 'remedy': 'take means'}"
    refuses = engine(tmp_path, script)
    done = here("probe", *FEW, "--gpus", "0", code=0, environment=refuses)
    says = "gpubalance balance will refuse this model: it sums"
    assert says in one_line(done.stdout)
    assert "next:" not in done.stdout
