"""A plan from step times that somebody measured elsewhere."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from gpubalance.errors import BadInput, PlanMismatch
from gpubalance.examples import FOLDER
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.plan import plan_of_times
from gpubalance.jobs.plan.times import read_times
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.planning import PlanRequest
from gpubalance.training.split import load_plan
from tests.support.cases import cases
from tests.support.in_process import Program

HEAD = "device,batch,seconds\n"
# Each is more than 3 % off any line, so no line is planned with.
TIMES = {
    "4090": {64: 0.050, 128: 0.080, 192: 0.140, 256: 0.170},
    "3090": {64: 0.080, 128: 0.140, 192: 0.260},
}


def table(folder: Path, *more: str) -> Path:
    """The times as a file, with more lines."""
    lines = [HEAD]
    for name, times in TIMES.items():
        lines += [f"{name},{batch},{seconds}\n" for batch, seconds in times.items()]
    path = folder / "resnet.csv"
    path.write_text("".join([*lines, *more]), encoding="utf-8")
    return path


def written(folder: Path, text: str) -> Path:
    path = folder / "times.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def planned(path: Path, **request: object) -> Plan:
    times = read_times(path)
    asked = PlanRequest(**{"accumulate": 1, **request})
    return plan_of_times(times, times.probe.devices, asked)


def test_the_split_is_the_best_of_all_that_the_table_knows(tmp_path: Path) -> None:
    sync_s = 0.02

    def rate(pair: tuple[int, ...]) -> float:
        of_device = zip(TIMES.values(), pair, strict=True)
        used_s = [times[batch] for times, batch in of_device if batch]
        return sum(pair) / (max(used_s) + sync_s * (len(used_s) > 1))

    splits = product(*([0, *times] for times in TIMES.values()))
    best = max((pair for pair in splits if any(pair)), key=rate)
    made = planned(table(tmp_path), sync_s=sync_s)
    assert made.batches == best
    assert made.predicted.throughput == pytest.approx(rate(best))
    assert [device.name for device in made.devices] == list(TIMES)
    assert made.batch_multiple == 64


def test_a_batch_slower_than_a_larger_one_is_kept_and_told(tmp_path: Path) -> None:
    times = ((32, 0.05), (64, 0.03), (96, 0.0301), (128, 0.03))
    lines = [f"card,{batch},{seconds}\n" for batch, seconds in times]
    path = written(tmp_path, HEAD + "".join(lines))
    made = planned(path)
    assert made.curves[0][0] == (32, 0.05)
    assert made.curves[0][1][1] == pytest.approx(0.03)
    assert made.batches == (128,)
    assert made.predicted.step_time_s == pytest.approx(0.03, 0.01)
    assert planned(path, global_batch=32).predicted.step_time_s == 0.05
    smallest = made.predicted.by_global_batch[0]
    assert (smallest.batches, smallest.step_time_s) == ((32,), 0.05)
    (told,) = made.warnings
    assert told.code == "slower-than-larger"
    assert "a step of 32 samples takes 50.0 ms, longer than one of 64" in told.message


def test_between_two_batches_a_time_lies_between(tmp_path: Path) -> None:
    """Between two batches a time lies between and the largest is the limit."""
    made = planned(table(tmp_path, "4090,32,0.03\n"), global_batch=352)
    assert made.batch_multiple == 32
    assert made.batches == (224, 128)
    assert made.shares[0].compute_s == pytest.approx((0.140 + 0.170) / 2)
    assert [share.limit for share in made.shares] == [256, 192]


def test_below_its_smallest_batch_a_device_takes_less(tmp_path: Path) -> None:
    """64 samples take 50 ms, 96 take 100 ms: half of 64 takes half as long."""
    path = written(tmp_path, HEAD + "card,64,0.05\ncard,96,0.1\ncard,128,0.2\n")
    made = planned(path, global_batch=32)
    assert made.predicted.step_time_s == pytest.approx(0.025)
    assert planned(path).predicted.throughput == pytest.approx(64 / 0.05)


def test_of_several_times_of_a_batch_the_median_counts(tmp_path: Path) -> None:
    probe = read_times(table(tmp_path, "4090,256,0.172\n", "4090,256,9.0\n")).probe
    assert probe.probes[0].curve[-1].step_time_s.median == 0.172


@cases(
    "text, why",
    ("", "has no column device"),
    ("device,size,seconds\n", "no column batch, only device, size, seconds"),
    (HEAD + "a,64,fast\n", "line 2: seconds 'fast' should be a valid number"),
    (HEAD + "a,64,0.1\na,0,0.1\n", "line 3: batch '0' should be greater"),
    (HEAD + "a,64,0.1\na,128\n", "line 3: seconds"),
    (HEAD + "a,64,1e-7\n", "line 2: seconds '1e-7' should be greater than"),
    (HEAD + "a,2000000,1\n", "line 2: batch '2000000' should be less than"),
    (HEAD + "\n  \n,64,1\n", "line 4: device: String should have at least 1"),
    (HEAD + "\x1b[2J,64,1\n", "line 2: device: String should have at least 1"),
    (HEAD + "a,64,0.1\nb,64,0.2\n", "a has fewer than two batch sizes"),
    (HEAD + '"a,64,0.1\n', "is not a CSV table"),
    (HEAD.replace(",", ";") + "a;64;0,1\n", "has semicolons between its columns"),
    (HEAD + 'a,64,"0,1"\n', "line 2: 0,1 has a decimal comma"),
    (HEAD + "a,64,0,1\n", "line 2 has more columns than the header"),
    (HEAD + "a,64,50\na,128,80.5\n", "takes 50 s or more, up to 80.5 s: are these"),
    ("\udcff", "is not a CSV table"),
    (HEAD, "has a header but no rows"),
    ids=str,
)
def test_what_is_wrong_has_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(BadInput, match=r"times\.csv") as caught:
        read_times(written(tmp_path, text))
    assert why in caught.value.message


@cases("column, seconds", ("ms", 0.05), ("Milliseconds", 0.05), ("s", 50.0))
def test_the_column_says_the_unit(tmp_path: Path, column: str, seconds: float) -> None:
    path = written(tmp_path, f"device,batch,{column}\na,64,50\na,128,80.5\n")
    curve = read_times(path).probe.probes[0].curve
    assert curve[0].step_time_s.median == pytest.approx(seconds)


def test_spaces_and_capitals_make_no_difference(tmp_path: Path) -> None:
    first = 'a,8,0.01\n a ,16, 0.02\n"a",32,0.03\n'
    second = "b\t1,8,0.1\nb 1,16,0.2"
    text = f" Device, BATCH ,Seconds\n{first} \t\n{second}"
    probe = read_times(written(tmp_path, text)).probe
    assert [device.name for device in probe.devices] == ["a", "b 1"]
    assert [len(entry.curve) for entry in probe.probes] == [3, 2]


JOINT = "device,batch,seconds,joint\n"


def joint_table(folder: Path, *lines: str) -> Path:
    """Two devices whose steps alone are on lines, 10 + batch and 20 + 2 · batch ms, and more."""
    path = folder / "joint.csv"
    alone = [f"a,{b},{10 + b}\nb,{b},{20 + 2 * b}\n" for b in (8, 16, 32, 64)]
    text = JOINT.replace("seconds", "ms") + "".join([*alone, *lines])
    path.write_text(text, encoding="utf-8")
    return path


def test_a_joint_step_corrects_sync_and_each_device(tmp_path: Path) -> None:
    """As after a round of a balance: b takes 1.5 times as long beside a, which takes as long."""
    before = planned(joint_table(tmp_path), global_batch=96)
    assert before.batches == (64, 32)
    assert [told.code for told in before.warnings] == ["joint-unknown"]
    path = joint_table(tmp_path, "a,64,74,140\n", "b,32,126,141\n")
    made = planned(path, global_batch=96)
    assert made.sync_s == pytest.approx(0.1405 - 0.126)
    assert made.batches == (64, 32)  # a has no room for more
    assert made.shares[1].compute_s == pytest.approx(0.126)
    assert made.predicted.step_time_s == pytest.approx(0.1405)
    assert made.warnings == ()
    assert planned(joint_table(tmp_path), global_batch=80).batches == (56, 24)
    path = joint_table(tmp_path, "a,64,74,140\n", "b,32,126,141\n")
    smaller = planned(path, global_batch=80)
    assert smaller.batches == (64, 16)  # 78 ms, where 56/24 takes 102
    assert smaller.shares[1].compute_s == pytest.approx(0.052 * 1.5)


def test_each_joint_step_counts_and_the_asked_sync_stays(tmp_path: Path) -> None:
    steps = "b,32,84,90\na,64,74,90\na,32,42,60\nb,16,52,58\n"
    path = joint_table(tmp_path, steps)
    assert len(read_times(path).joint) == 2
    made = planned(path, global_batch=48)
    assert made.sync_s == pytest.approx(0.059 - 0.052)  # the last one's
    assert planned(path, global_batch=48, sync_s=0.03).sync_s == 0.03
    times = read_times(path)
    alone = plan_of_times(times, times.probe.devices[:1], PlanRequest(accumulate=1))
    assert alone.shares[0].compute_s == pytest.approx(0.074)  # as it was without b


def test_steps_of_fewer_devices_end_where_the_table_begins_anew(tmp_path: Path) -> None:
    """As torch_joint.py appends them: one of b alone, then one of both; or in any other order."""
    both = "a,64,74,140\n", "b,32,126,141\n"
    for lines, devices in (
        (("b,32,84,90\n", *both), [["b"], ["a", "b"]]),
        ((*both, "b,32,84,90\n"), [["a", "b"], ["b"]]),
        ((*reversed(both), *reversed(both)), [["b", "a"], ["b", "a"]]),
    ):
        found = read_times(joint_table(tmp_path, *lines)).joint
        assert [list(step.lines) for step in found] == devices


def test_a_joint_step_in_micro_batches_counts_for_those(tmp_path: Path) -> None:
    path = joint_table(tmp_path, "a,128,222,300\n", "b,32,84,300\n")
    times = read_times(path)
    devices = times.probe.devices
    known = DeviceEstimates(times.probe, devices, PlanRequest(accumulate=2))
    split, measured = times.joint[0].measured(devices, known.problem) or (None, None)
    assert split == BatchSplit((128, 32), (64, 32))
    assert measured
    assert [one.wait_s for one in measured.replicas] == [0, pytest.approx(0.138)]
    assert planned(path, accumulate=2).warnings == ()


def test_what_ran_out_of_memory_is_above_the_limit(tmp_path: Path) -> None:
    """Alone the limit is the largest batch below it that was timed; together a multiple less."""
    alone = planned(joint_table(tmp_path, "a,48,oom,\n", "a,56,OOM,\n"))
    assert [share.limit for share in alone.shares] == [32, 64]
    assert alone.shares[0].binds == "memory"
    together = planned(joint_table(tmp_path, "a,64,74,oom\n"))
    assert [share.limit for share in together.shares] == [56, 64]
    with pytest.raises(BadInput, match="b has fewer than two batch sizes that it "):
        read_times(joint_table(tmp_path, "b,8,oom,\n"))


def test_lines_that_tell_of_different_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a joint step of a, b takes 0.1 to 0.2 s"):
        read_times(joint_table(tmp_path, "a,64,74,100\n", "b,32,84,200\n"))
    with pytest.raises(BadInput, match="line 10: joint 'slow' should be a valid"):
        read_times(joint_table(tmp_path, "a,64,74,slow\n"))


def test_times_in_proportion_to_the_batch_are_planned_with(tmp_path: Path) -> None:
    """Their curve meets 0 at no samples, where rounding must not make it negative."""
    path = written(tmp_path, HEAD + "a,10,0.021\na,20,0.042\na,40,0.1\n")
    made = planned(path, global_batch=20)
    assert made.predicted.step_time_s == pytest.approx(0.042)


def test_the_command_takes_it_as_a_probe(tmp_path: Path, in_process: Program) -> None:
    path = str(table(tmp_path))
    done = in_process(["plan", "--curve", path, "--sync", "0.02", "--gpus", "0"])
    assert done.code == 0
    assert "batches 128: 1600 samples/s predicted, model resnet" in done.out
    # The place of each device in the table counts, also of one that is not chosen.
    assert "CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node 1 torch_ddp.py" in done.out
    assert f"torch_joint.py {path} --batches 128 0" in done.out
    without_sync = in_process(["plan", "--curve", path])
    told = " ".join(without_sync.out.split())
    assert "sync, taken as 0 s here" in told
    assert f"next: cp -n {FOLDER}/torch_*.py ." in told
    assert "torchrun --nproc-per-node 2 torch_ddp.py --batches 128 64" in told
    assert "split = gpubalance.Split([0, 1], [128, 64])" in told
    assert "gpubalance guide pytorch" in told
    assert "gpubalance balance" not in told
    both = in_process(["plan", "--curve", path, "--simulate", "2"])
    assert both.code == 2
    assert "--curve brings its own devices" in both.err


def test_what_needs_this_machines_gpus_refuses_a_tables_plan(
    tmp_path: Path, in_process: Program
) -> None:
    """Nothing in it is a simulation, and no profile has its devices."""
    path = str(table(tmp_path, "a100,64,0.08\n", "a100,128,0.14\n"))
    plan, script = str(tmp_path / "slow.json"), tmp_path / "train.py"
    script.write_text("raise SystemExit('was started')")
    assert in_process(["plan", "--curve", path, "--gpus", "2,0", "-o", plan]).code == 0
    what_to_do = r"Split\(\[2, 0\], \[64, 128\]\)"
    with pytest.raises(PlanMismatch, match=what_to_do):
        load_plan(plan)
    for words in (["launch", plan, str(script)], ["run", "--plan", plan]):
        done = in_process(words)
        assert done.code == 7
        assert re.search(what_to_do, done.err)
        assert "run --gpus 2 0 --batches 64 128" in done.err
        assert "simulate" not in done.err
