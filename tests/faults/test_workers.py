"""Rows 18 to 24, 29 and 30: a worker, its GPU or its parent fails on the way.

The workers are real, and really ended. What a GPU would do comes from the stand-ins of NVML and
of the engine.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gpubalance.errors import DeadlinePassed
from gpubalance.remedies import known_error
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.workers.messages import Measure
from gpubalance.workers.ranks import worker_process
from tests.cli.program import typed
from tests.faults.machine import (
    BRIEF,
    FIVE_GPUS,
    HOLDS_32,
    NOTES,
    Machine,
    first_line,
    in_step,
    warning_of,
)
from tests.stand_in import TWO_UNLIKE_GPUS
from tests.support.told import refused
from tests.workers.test_process import PAIR, gone

SILENCE = "5"  # seconds: more than a worker takes to start on a busy machine


# NVML's third answer about the second GPU is that it is lost. A reading takes two answers, so that
# is the program's second look.
def lost(gpus: str = TWO_UNLIKE_GPUS) -> str:
    return gpus.replace("gpu 1 capability 6 1", "gpu 1 series capability 6 1 !15")


MANY = ("--windows", "500", "--duration", "0.1", "--json", "--quiet")
FEW = ("--max-batch", "16", "--duration", "0.2", "--no-ahead")


def test_18_20_22_a_probe_keeps_it_and_the_others_go_on(tmp_path: Path) -> None:
    """One crashes, one is lost, one hangs, and the last has the whole of its curve."""
    steps = """
import sys
def step(devices, batches, number):
    device = devices[0].index if max(batches) > 8 else None
    if device == 0:
        print("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", file=sys.stderr, flush=True)
        os.abort()
    if device == 1:
        note()
        raise tf.errors.InternalError(None, None, "CUDA_ERROR_UNKNOWN")
    if device == 2:
        hang()
"""
    machine = Machine(tmp_path, steps, gpus=lost(FIVE_GPUS))
    words = typed("probe --gpus 0 1 2 3 --each --json --deadline")
    done = machine.runs(*words, SILENCE, *FEW, code=6)
    *failed, whole = json.loads(done.stdout)["probes"]
    assert whole["complete"]
    told = "SIGABRT", "is lost", "sent nothing for 5 s"
    for one, code, says in zip(failed, (6, 6, 8), told, strict=True):
        assert [point["batch"] for point in one["curve"]] == [8]
        assert one["failures"][0]["exit_code"] == code
        assert says in one["failures"][0]["message"]
    assert "| CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr
    assert known_error("illegal-address").remedy in done.stderr
    assert len(machine.noted()) == 1  # what is lost is not tried again


SILENT = "error: the worker sent nothing for 5 s while training with batches 64/64"
ANOTHER = "try another all-reduce, in case this one hangs: --all-reduce one-device"


LACKS = "probably because the host ran out of memory", known_error("host-memory").remedy
ENDS = [
    ("os.kill(os.getpid(), 9)", 6, LACKS),
    ("hang()", 8, (SILENT, "a step or an all-reduce hangs", ANOTHER)),
]


@pytest.mark.parametrize(("how", "code", "says"), ENDS)
def test_19_20_21_how_a_worker_ended_is_told_and_what_was_measured_is_kept(
    tmp_path: Path, how: str, code: int, says: tuple[str, ...]
) -> None:
    machine = Machine(tmp_path, NOTES + in_step(how, when="number > 40"))
    words = ("run", "--deadline", SILENCE, "--all-reduce", "hierarchical", *MANY)
    done = machine.runs(*words, code=code)
    assert says[0] in first_line(done)
    assert all(part in done.stderr for part in says)
    assert json.loads(done.stdout)["complete"] is False
    assert all(map(gone, machine.noted()))


def test_18_what_died_is_tried_again_by_a_probe_that_goes_on(tmp_path: Path) -> None:
    """The cause may have been mended: the batch is no limit that was found."""
    broken = tmp_path / "broken"
    broken.touch()
    is_broken = f"batches == (16,) and os.path.exists({str(broken)!r})"
    dies = in_step("os.abort()", when=is_broken)
    machine = Machine(tmp_path, HOLDS_32 + dies)
    command = ("probe", "--gpus", "0", "--duration", "0.1", "--no-ahead")
    machine.runs(*command, code=6)
    broken.unlink()
    (found,) = machine.result(*command, "--resume")["probes"]
    assert (found["batch_limit"]["fits"], found["batch_limit"]["fails"]) == (32, 40)
    assert found["failures"] == []


@pytest.mark.parametrize(("command", "where"), [("run", "built"), ("probe", "step")])
def test_20_a_time_limit_ends_a_worker(
    tmp_path: Path, command: str, where: str
) -> None:
    """No wait is longer than the time limit.

    That goes for the model and for the first step, which may take 900 s by themselves.
    """
    steps = f"""
def {where}(*_):
    note()
    hang()
"""
    machine = Machine(tmp_path, steps)
    done = machine.refuses(8, command, "--time-limit", "2", "--quiet")
    told = "error: the time limit of 2 s passed before there was a result"
    assert first_line(done) == told
    assert all(map(gone, machine.noted()))


@pytest.mark.usefixtures("own_processes", "stand_in")
def test_20_a_stopped_worker_that_takes_nothing_in_is_ended_too() -> None:
    """A request may be larger than what a pipe holds: its sender must not wait for ever either."""
    with worker_process(PAIR, "test") as worker:
        worker.greeted()
        os.kill(worker.pid, signal.SIGSTOP)
        worker.send(Measure(split=BatchSplit((1,) * 100_000), seconds=1.0, at_least=1))
        with refused(r"sent nothing for 0\.2 s while training", DeadlinePassed):
            worker.receive(0.2, "training")
    assert gone(worker.pid)


@pytest.mark.campaign
def test_20_nvml_that_hangs_is_given_up(tmp_path: Path) -> None:
    done = Machine(tmp_path, gpus="init_error ~600").refuses(3, "run")
    assert first_line(done) == "error: NVML does not answer"


def test_20_progress_counts_silence_does_not(tmp_path: Path) -> None:
    """Ten samples of 0.7 s each are no silence of 5 s."""
    machine = Machine(tmp_path, in_step("time.sleep(0.7)", when="number < 11"))
    result = machine.result("run", "--deadline", SILENCE, *BRIEF)
    assert result["throughput"]["median"] > 0


LOSSES = {
    "error": "raise tf.errors.InternalError(None, None, 'CUDA_ERROR_UNKNOWN')",
    "death": "os.abort()",
    "silence": "hang()",
}


@pytest.mark.parametrize("how", LOSSES.values(), ids=LOSSES)
def test_22_a_lost_gpu_is_called_that_and_left(tmp_path: Path, how: str) -> None:
    steps = NOTES + in_step(how, when="devices[-1].index == 1 and number > 40")
    machine = Machine(tmp_path, steps, gpus=lost())
    done = machine.runs("run", "--deadline", SILENCE, *MANY, code=6)
    assert first_line(done).startswith("error: GPU:1 (NVIDIA GeForce GTX 1080) is lost")
    assert "reboot" in done.stderr
    assert json.loads(done.stdout)["complete"] is False
    assert len(machine.noted()) == 1


SLOWLY = """
def step(devices, batches, number):
    time.sleep(0.05)
    return 0.05
"""


def test_23_a_hot_gpu_marks_the_run_and_is_measured_again(tmp_path: Path) -> None:
    """A GPU that gets hot marks the run with NVML's reason and is measured again."""
    hot = TWO_UNLIKE_GPUS.replace("gpu 1 throttle 0", "gpu 1 throttle 0x40")
    done = Machine(tmp_path, SLOWLY, gpus=hot).runs("run", *BRIEF, "--json")
    result = json.loads(done.stdout)
    warning = warning_of(result, "throttled")
    assert "GPU:1 was throttled (thermal)" in warning["message"]
    assert result["replicas"][1]["telemetry"]["throttle_reasons"] == ["thermal"]
    assert done.stderr.count("measuring once more") == 1


@pytest.mark.parametrize(
    "words", ["run --windows 1", "independent --windows 1", "probe --max-batch 8"]
)
def test_22_a_gpu_to_be_reset_is_in_the_result(tmp_path: Path, words: str) -> None:
    """It trains on, and NVML says nothing of it any more: neither heat nor errors of its memory."""
    reset = f"{TWO_UNLIKE_GPUS}gpu 1 series temperature 55 55 !16\n"
    command = typed(f"{words} --duration 0.5")
    result = Machine(tmp_path, SLOWLY, gpus=reset).result(*command)
    warning = warning_of(result, "telemetry-ended")
    told = "GPU:1 must be reset: NVML no longer reports anything about it. "
    assert warning["message"].startswith(told)
    assert warning["next"] == known_error("gpu-needs-reset").remedy


@pytest.mark.parametrize("command", ["run", "probe"])
def test_24_memory_errors_spoil_the_result(tmp_path: Path, command: str) -> None:
    bad = f"{TWO_UNLIKE_GPUS}gpu 0 series ecc_uncorrected 7 7 9\n"
    few = "--windows 5" if command == "run" else "--max-batch 8"
    words = typed(f"{command} {few} --duration 0.5 --gpus 0 --json")
    done = Machine(tmp_path, SLOWLY, gpus=bad).runs(*words, code=6)
    assert "2 memory errors that ECC did not correct" in done.stderr
    if done.stdout:
        assert json.loads(done.stdout)["complete"] is False


HANGS = in_step("note(), hang()")
# The worker starts a process of the model's own, as a data pipeline may.
STARTS = """
def step(devices, batches, number):
    if number == 1 and os.fork() == 0:
        note()
        time.sleep(600)
    time.sleep(0.05)
"""


@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize(
    ("number", "code", "steps"),
    [
        (signal.SIGINT, 130, HANGS),
        (signal.SIGKILL, -9, HANGS),
        (signal.SIGKILL, -9, STARTS),
    ],
)
def test_29_30_even_a_worker_that_hangs_ends_if_its_parent(
    tmp_path: Path, number: int, code: int, steps: str
) -> None:
    machine = Machine(tmp_path, steps)
    with machine.starts("run", "--windows", "500") as process:
        pid = machine.wait_for_note()
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    assert gone(pid)


@pytest.mark.usefixtures("own_processes")
def test_18_a_crash_is_seen_though_a_child_holds_the_pipe(tmp_path: Path) -> None:
    forks = "os.fork() or (note(), time.sleep(600))"
    steps = in_step(f"{forks}; os.kill(os.getpid(), signal.SIGSEGV)")
    machine = Machine(tmp_path, steps)
    done = machine.refuses(6, "run", "--quiet")
    assert "SIGSEGV" in first_line(done)
    assert all(map(gone, machine.noted()))
