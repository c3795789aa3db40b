"""`--data` of `probe`, `balance`, `plan` and `independent`.

The pipeline is told first, and a plan knows its data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpubalance.render.plan import own_batch_text
from gpubalance.render.report.text import answer_of
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from tests.cli.program import QUICK_PAIR, SHORT, here, one_line, result_of
from tests.render.samples import subject
from tests.support.altered import altered
from tests.support.known import known

FILE = """
def dataset():
    return 1

def other():
    return 2

if __name__ == "__main__":
    dataset()
"""
TOO_FEW = """
from gpubalance.errors import BadInput

sizes = [0]

def step(devices, batches, number):
    sizes.extend(batches)

def samples():
    return 100 if max(sizes) >= 16 else None

def prefetched(asked):
    if asked > 100:
        raise BadInput(f"100 samples, fewer than {asked}", remedy="give more")
"""
PAIR = ("--simulate", QUICK_PAIR)
DATA = ("--data", "mine.py:dataset")


@pytest.fixture
def folder(tmp_path: Path, engine_that: Callable[[str], None]) -> Path:
    """A folder with data that comes at 100 samples/s, which no worker loads."""
    engine_that("def prefetched(samples): return samples / 100")
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def test_a_balance_that_ends_before_its_pipeline_is_measured_goes_on_there(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    engine_that("def prefetched(samples): __import__('os')._exit(9)")
    asked = ("balance", *PAIR, *DATA, *SHORT, "-o", "plan.json")
    balanced = partial(here, *asked, cwd=folder)
    assert "--resume continues it" in balanced().stderr
    path = folder / "plan.json"
    assert known(read_record(path, Plan).run).complete
    engine_that("def prefetched(samples): return samples / 100")
    balanced("--resume", code=0)
    assert known(read_record(path, Plan).pipeline).held is not None
    assert "plan.json exists" in balanced("--resume", code=2).stderr


def test_balance_and_plan_say_first_that_the_pipeline_binds(folder: Path) -> None:
    asked = ("balance", *PAIR, *DATA, *SHORT, "--epoch", "1000", "-o", "plan.json")
    made = here(*asked, code=0, cwd=folder)
    plan = read_record(folder / "plan.json", Plan)
    pipeline = known(plan.pipeline)
    assert pipeline.binds
    assert pipeline.alone.median == pytest.approx(100)
    assert pipeline.held is not None
    assert "samples/s" in made.stdout
    assert "on batches held on the devices" in one_line(made.stdout)
    again = here("plan", *PAIR, *DATA, "--epoch", "1000", cwd=folder)
    binds = "your input pipeline gives 100 samples/s"
    page = answer_of(subject(folder / "plan.json").result)
    assert page.headline.startswith(f"batches {' '.join(map(str, plan.batches))}: ")
    assert str(page.parts[0]).startswith(binds)
    for done in (made, again):
        assert done.stdout.startswith(binds)
        assert max(map(len, done.stdout.split("\nnext: ")[0].splitlines())) <= 80
        says = "10.0 s with this split; your input pipeline limits this"
        assert says in one_line(done.stdout)
    waits = "another device is not worth it until the pipeline gives more"
    assert waits in one_line(made.stdout)

    path = folder / "mine.py"
    moved = FILE.replace("    dataset()\n", "    pass\n    dataset()  # to train\n")
    path.write_text(moved)
    assert here("plan", *PAIR, *DATA, cwd=folder).returncode == 0
    path.write_text(FILE.replace("return 1", "return 3"))
    changed = here("plan", *PAIR, *DATA, code=4, cwd=folder)
    says = "with these settings and the current version of --model small"
    assert says in changed.stderr

    run = ("run", *PAIR, "--plan", "plan.json")
    unnamed = here(*run, code=4, cwd=folder)
    assert "  → name the code yourself: --data mine.py:dataset\n" in unnamed.stderr
    assert here(*run, "--data", "mine.py:other", cwd=folder).returncode == 7
    warned = here(*run, *DATA, *SHORT, "--json", code=0, cwd=folder)
    codes = [one["code"] for one in json.loads(warned.stdout)["warnings"]]
    assert codes.count("data-changed") == 1


def test_own_batches_are_told_of(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    """What becomes of one's own batches is told before a split is tried and after."""
    engine_that("def own_batch(): return 64")
    done = here("balance", *PAIR, *DATA, *SHORT, "-o", "plan.json", code=0, cwd=folder)
    made = read_record(folder / "plan.json", Plan)
    kept = known(made.predicted.best_at_own)
    rate = known(made.learning_rate)
    assert (made.own_batch, kept.split.global_batch, rate.from_batch) == (64, 64, 64)
    assert rate.linear == pytest.approx(made.global_batch / 64)
    fewer = f"{made.global_batch}: {made.global_batch / 64:.3g} × fewer steps an epoch"
    rates = f"{rate.linear:.3g} (SGD with warm-up) or {rate.square_root:.3g} (Adam)"
    told = f"your batch of 64 → {fewer}, learning rate × {rates}"
    assert f"{told}; --global-batch 64 keeps it" in one_line(done.stdout)
    first = "plan, which the measurements that follow may change: your batch of 64 → "
    assert done.stderr.index(first) < done.stderr.index("round 1")
    as_before = ("--global-batch", "64")
    same = here("balance", *PAIR, *DATA, *SHORT, *as_before, code=0, cwd=folder)
    assert "your batch of 64" not in same.stderr
    assert "global batch 64 as before: keep the learning rate" in same.stdout
    asked = here("plan", *PAIR, *DATA, "--from-batch", "100", code=0, cwd=folder)
    text = one_line(asked.stdout)
    says = "steps an epoch; --global-batch 64 keeps it and is predicted to give "
    assert says in text
    assert "learning rate: if yours was tuned for batch 100, multiply by " in text


def test_a_batch_that_is_no_multiple_is_kept_with_a_smaller_multiple(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    engine_that("def own_batch(): return 20")
    done = here("balance", *PAIR, *DATA, *SHORT, code=0, cwd=folder)
    keeping = "--global-batch 20 --batch-multiple 4"
    assert f"{keeping} keeps it" in one_line(done.stdout)
    kept = here("balance", *PAIR, *DATA, *SHORT, *keeping.split(), code=0, cwd=folder)
    assert "global batch 20 as before" in kept.stdout


def test_a_plan_with_ones_own_batch_names_the_devices_that_it_leaves(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    engine_that("def own_batch(): return 64")
    made = result_of(Plan, "balance", *PAIR, *DATA, *SHORT, cwd=folder)
    predicted = made.predicted
    assert own_batch_text(made).endswith(" samples/s on GPU:0 alone")
    both = altered(known(predicted.best_at_own), batches=(40, 24))
    made = altered(made, predicted=altered(predicted, best_at_own=both))
    assert own_batch_text(made).endswith(" samples/s")


def test_a_wide_interval_names_whose_step_time_it_is_of(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    step = "def step(devices, batches, number): return 0.001 * (1 + number % 7)"
    engine_that(f"def prefetched(samples): return 0.01\n{step}")
    asked = f"run --simulate {QUICK_PAIR} --windows 1 --duration 20 --batches 24 16"
    done = here(asked, *DATA, code=0, cwd=folder)
    text = one_line(done.stdout)
    of = "on batches held on the devices, without the input pipeline,"
    assert f"the 95 % interval of a step time {of} is ± " in text


def test_data_with_few_samples_limits_the_probe_and_the_global_batch(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    """Data with fewer samples than a batch limits what is probed and the global batch."""
    engine_that("def epoch_samples(): return 200")
    done = here("balance", *PAIR, *DATA, *SHORT, "-o", "plan.json", code=0, cwd=folder)
    made = read_record(folder / "plan.json", Plan)
    assert made.global_batch == 200
    assert made.balance is not None
    assert {tried.split.global_batch for tried in made.balance.rounds} == {200}
    tried = re.findall(r"(?m)^GPU:\d batch (\d+):", done.stderr)
    assert max(map(int, tried)) == 200
    assert "tried 200 (the data has 200 samples): " in done.stderr
    assert "asked for" not in done.stderr
    assert "has 200 samples in all, so a global batch has at most 200\n" in done.stderr
    assert [one.code for one in made.warnings] == ["few-samples"]
    for probed in ((), ("--fresh",)):
        command = ("balance", *PAIR, *DATA, *SHORT, "--global-batch", "304", *probed)
        refused = here(*command, code=4, cwd=folder).stderr
        assert "has 200 samples, fewer than the global batch of 304" in refused
        assert "for balance --global-batch 200 or less" in refused
        assert not re.search("(?m)^GPU:\\d batch ", refused)


def test_a_loss_that_is_no_number_is_not_blamed_on_random_samples(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    """A loss that is no number is not blamed on random samples where there are none."""
    engine_that("def loss_is_finite(): return False")
    told = here("run", *PAIR, *DATA, *SHORT, code=4, cwd=folder).stderr
    assert "random" not in told
    later = "dataset contain no NaN, but later ones may: read all of it once and"
    assert f"the first samples of --data mine.py:{later}" in one_line(told)
    words = "inputs are random numbers from 0 to 1"
    assert words in here("run", *PAIR, *SHORT, code=4, cwd=folder).stderr


def test_batches_that_fit_keeps_get_no_learning_rate(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    """Batches that differ in shape stay in `fit`, so the line asks the dataset for larger ones."""
    engine_that("def own_batch(): return 64\ndef own_batch_stays(): return True")
    own = ("--model", "mine.py:other", *DATA, "--script", "new.py")
    asked = ("balance", *PAIR, *own, *SHORT, "-o", "plan.json")
    done = here(*asked, code=0, cwd=folder)
    size = read_record(folder / "plan.json", Plan).global_batch
    differ = "your batches of 64 differ in shape, so"
    told = f"{differ} split.fit uses them as they are. To train with {size}, make "
    assert f"{told}batches of that size in the dataset" in one_line(done.stdout)
    # The split of the first round may be of another size.
    assert differ in one_line(done.stderr)
    assert "SGD" not in done.stdout + done.stderr
    line = f"    # Make batches of {size} in its function (batch or"
    assert line in (folder / "new.py").read_text()


def test_probe_holds_the_pipeline_against_the_devices_in_sum(folder: Path) -> None:
    asked = ("probe", *PAIR, *DATA, "--max-batch", "32", "-o", "probe.json")
    done = here(*asked, code=0, cwd=folder)
    probe = json.loads((folder / "probe.json").read_text())
    assert probe["pipeline"]["binds"]
    assert done.stdout.startswith("your input pipeline gives 100 samples/s")
    plan = here("plan", "probe.json", cwd=folder)
    assert plan.stdout.startswith("your input pipeline gives 100 samples/s")


def test_each_independent_model_has_a_pipeline_in_front(folder: Path) -> None:
    done = here("independent", *PAIR, *DATA, *SHORT, "--json", code=0, cwd=folder)
    result = json.loads(done.stdout)
    assert result["settings"]["data"] == "mine.py:dataset"
    for replica in result["replicas"]:
        for how in ("", "solo_"):
            assert replica[f"{how}throughput"] == pytest.approx(100)
            step_s = replica[f"{how}step_time_s"]["median"]
            assert 0.5 * step_s < replica[f"{how}input_wait_s"] < step_s


def test_too_few_samples_are_told_before_a_split_is_tried(
    folder: Path, engine_that: Callable[[str], None]
) -> None:
    engine_that(TOO_FEW)
    asked = here("balance", *PAIR, *DATA, "--global-batch", "128", cwd=folder)
    planned = here("balance", *PAIR, *DATA, cwd=folder)
    for done in (asked, planned):
        assert (done.returncode, done.stdout) == (4, "")
        error, remedy = done.stderr.splitlines()[-2:]  # and no --resume
        assert error.startswith("error: 100 samples, fewer than ")
        assert remedy == "  → give more"
        assert ": predicted " not in done.stderr
    assert "GPU:1" not in asked.stderr  # nothing more is measured of the first
