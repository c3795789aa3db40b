"""`plan` and `balance` as a user runs them. The engine of test_from_python.py's balance is real."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.numbers.units import format_rate
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from tests.cli.program import QUICK_PAIR, here, one_line, result_of
from tests.jobs.probes import probe_of, proof_of
from tests.support.cases import cases
from tests.support.known import known

SHORT = ("--windows", "1", "--duration", "0.6", "--round-duration", "0.5")


@cases(
    "wanted, code, told",
    ("--global-batch 128 --max-global-batch 64", 2, "128 is more than --max-global-"),
    ("--global-batch 100", 2, "→ --batch-multiple 4 allows it; or the nearest "),
    ("--margin 100GiB", 5, "no device can keep 100 GiB free: the largest has "),
    ("--global-batch 100000", 2, "a global batch of 100,000 is too large: at most "),
)
def test_what_is_not_possible_is_told_first(wanted: str, code: int, told: str) -> None:
    save(probe_of(simulated_devices(QUICK_PAIR)[0]))
    for command in (("balance", "--dry-run"), ("balance",)):
        done = here(*command, "--simulate", QUICK_PAIR, *wanted.split(), code=code)
        assert told in done.stderr
        assert "round 1" not in done.stderr


@cases(
    "command, told",
    ("run --batches 8 8", "about 40 to 60 s in all; nothing was run"),
    ("independent --batches 8 8", "s in all; nothing was run"),
    ("queue trials.txt", "2 commands, one at a time on GPU:0 Quick 3, GPU:1 Quick 2"),
    ("probe", "\n  GPU:1 alone "),
    ("layers", "in all; nothing was run"),
)
def test_a_dry_run_runs_nothing(
    command: str, told: str, tmp_path: Path, own_state: Path
) -> None:
    (tmp_path / "trials.txt").write_text("touch ran\ntouch ran\n")
    asked = f"{command} --simulate {QUICK_PAIR} --dry-run -o out.json"
    assert told in here(asked, cwd=tmp_path, code=0).stdout
    estimate = json.loads((tmp_path / "out.json").read_text())
    assert estimate["kind"] == f"{command.split()[0]}-estimate"
    assert not (tmp_path / "ran").exists()
    assert not list(own_state.rglob("*.*"))


@pytest.mark.usefixtures("stand_in")
def test_a_dry_run_says_the_phases_of_a_balance(
    tmp_path: Path, own_state: Path
) -> None:
    command = f"balance --simulate {QUICK_PAIR} --max-global-batch 32"
    path = tmp_path / "expected.json"
    dry = here(f"{command} --dry-run -o {path}", code=0).stdout
    expected = json.loads(path.read_text())
    assert expected["seconds"] == sum(phase["seconds"] for phase in expected["phases"])
    names = [phase["name"] for phase in expected["phases"]]
    assert re.findall(r"(?m)^  (.+?) +about \d+ .*s", dry) == names
    in_all = rf"about \d+ to \d+ s in all; nothing was run; this estimate is in {path}"
    assert re.search(rf"(?m)^{in_all}$", dry)
    assert "these times are guesses" in dry
    assert "Nothing like it was measured" in one_line(dry)
    assert {phase["guessed"] for phase in expected["phases"]} == {True}
    assert not list(own_state.rglob("*.*"))

    # What was measured may replace the estimate, which nobody would miss.
    err = here(f"{command} -o {path}", *SHORT, code=0).stderr
    assert json.loads(path.read_text())["kind"] == "plan"
    left = r"about \d+ .*(?:in all|left)"
    told = re.findall(rf"(?m)^… phase (\d) of 4, (.+?): {left}$", err)
    assert told == [(str(number), name) for number, name in enumerate(names, 1)]

    again = here(command, "--dry-run").stdout
    assert "GPU:0 alone" not in again
    assert "planned with the probe of " in again
    assert "So far only its probe was measured" in one_line(again)
    assert "these times are guesses" in again
    assert "guess" not in here(command, *SHORT, "--dry-run").stdout
    longer = here(command, *SHORT, "--windows", "2", "--fresh", "--dry-run").stdout
    assert "rounds, proof: guesses, as is usual for small models" in longer


@pytest.mark.usefixtures("stand_in")
def test_a_plan_after_a_balance_knows_what_it_found(tmp_path: Path) -> None:
    """A plan after a balance knows what it found of these devices together.

    This profile's joint run holds less than the probe of each alone lets hope.

    Nobody knew its sync before.
    """
    probe = probe_of(simulated_devices(QUICK_PAIR)[0])
    file = tmp_path / "probe.json"
    save(probe)
    file.write_text(probe.model_dump_json())
    command = f"plan --simulate {QUICK_PAIR}"
    before = one_line(here(command).stdout)
    assert "sync-unknown" in before
    assert "measure it with gpubalance balance" in before
    asked = (f"balance --simulate {QUICK_PAIR}", *SHORT)
    balance = result_of(Plan, *asked)
    assert known(balance.balance).rounds[0].outcome == "oom"
    assert known(balance.run).batches == balance.batches

    told = one_line(here(command).stdout)
    based = (
        "corrected by what gpubalance balance measured of these devices together: "
        f"{balance.created}"
    )
    assert based in told
    assert "sync-unknown" not in told
    assert "learning rate: if yours was tuned for batch " in told
    of_file = result_of(Plan, f"plan {file}")
    assert of_file.batches == result_of(Plan, command).batches
    (second,) = result_of(Plan, f"plan {file} --gpus 1").devices
    assert second.index == 1
    uncut = result_of(Plan, f"{command} --accumulate auto")
    rate = format_rate(uncut.predicted.throughput)
    says = f"batch split {uncut.split} {rate} by prediction"
    assert says in here(f"layers --simulate {QUICK_PAIR}", code=2).stderr
    fewer = result_of(Plan, f"{command} --max-global-batch 160 --sync 0.02")
    assert (fewer.global_batch, fewer.sync_s) == (160, 0.02)
    # A later balance that had no use for the second device has found nothing.
    # No balance says anything of other devices.
    here(*asked, "--max-global-batch", "8", code=0)
    same = result_of(Plan, command)
    assert same.balanced == fewer.balanced == balance.created
    assert result_of(Plan, f"{command} --gpus 0").balanced is None
    # A plan has no --all-reduce of its own: it is for the one whose sync was measured.
    here(*asked, "--all-reduce", "hierarchical", code=0)
    plans = [result_of(Plan, line) for line in (command, f"plan {file}")]
    assert [plan.settings.all_reduce for plan in plans] == ["hierarchical"] * 2


@pytest.mark.usefixtures("stand_in")
def test_with_a_noise_scale_what_learns_fastest_is_proven(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    scale = 60
    asked = f"balance --simulate {QUICK_PAIR} --noise-scale {scale} -o {file}"
    out = here(asked, *SHORT, code=0).stdout
    plan = read_record(file, Plan)
    goodput = {}
    for tried in known(plan.balance).rounds:
        if tried.measured:
            worth = 1 + tried.split.global_batch / scale
            goodput[tried.split] = tried.measured.throughput.median / worth
    assert goodput[plan.split] > 0.97 * max(goodput.values())
    by_rate = [one for one in plan.predicted.by_goodput if one.of == "most samples/s"]
    assert plan.global_batch < by_rate[0].global_batch
    assert "goodput at global batches of " in out
    page = tmp_path / "page.html"
    here(f"report {file} --html {page}", code=0)
    words = "efficiency and goodput by global batch"
    assert words in page.read_text()


@pytest.mark.usefixtures("stand_in")
def test_the_lines_of_a_script_train_as_was_measured() -> None:
    """A plan in a file says it itself."""
    save(probe_of(simulated_devices(QUICK_PAIR)[0]))
    summed = "--all-reduce one-device --pack-bytes 4MiB --gradients bf16"
    unusual = f"--precision mixed_float16 {summed}"
    done = here(f"balance --simulate {QUICK_PAIR} {unusual}", *SHORT, code=0)
    of_sums = "all_reduce='one-device', pack_bytes=4194304, gradients='bf16'"
    line = f"], {of_sums}, precision='mixed_float16', simulate={QUICK_PAIR!r})"
    assert line in one_line(done.stdout)


PACKS = """
def packs():
    return 8 << 20, 1 << 20
def sync_s(pack_bytes):
    return {1 << 18: 0.002, 1 << 20: 0.004, 4 << 20: 0.006}[pack_bytes]
"""


def test_other_packs_are_tried_where_sync_is_much_of_a_step(
    engine_that: Callable[[str], None], tmp_path: Path
) -> None:
    engine_that(PACKS)
    chosen = 1 << 18
    path = tmp_path / "plan.json"
    asked = f"balance --simulate 2 --max-global-batch 256 -o {path}"
    err = here(asked, *SHORT, code=0).stderr
    plan = read_record(path, Plan)
    assert all(plan.batches)
    assert plan.settings.pack_bytes == chosen
    assert proof_of(plan).pack_bytes == chosen
    assert "trying smaller and larger packs than 1.00 MiB" in one_line(err)
    # A run of the plan, and a training with it, have the same.
    run = here(f"run --simulate 2 --plan {path}", *SHORT[:4], "--json", code=0)
    assert json.loads(run.stdout)["pack_bytes"] == chosen


# In packs of any size sync takes longer than one sum of everything.
SLOW_LINK = """
count = 0
def built(devices):
    global count
    count = len(devices)
def packs():
    return 8388608, 1048576
def sync_s(pack_bytes):
    return {262144: 3.2, 1048576: 2.0, 4194304: 1.9}[pack_bytes] if count == 3 else 0.004
def sum_s(devices):
    return 1.6 if len(devices) == 3 else 0.001
"""


def test_a_host_behind_a_slow_link_is_left_out(
    engine_that: Callable[[str], None],
) -> None:
    """A host behind a slow link is left out though sync in packs is longer than a sum.

    What packs add goes with that host too: two devices are faster than one alone.
    """
    engine_that(SLOW_LINK)
    asked = "balance --simulate 3 --max-global-batch 256"
    assert sorted(result_of(Plan, asked, *SHORT).batches) == [0, 128, 128]
