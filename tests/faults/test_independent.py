"""Rows 14, 15, 18 to 20, 22 to 24 and 28 where each device trains a model of its own.

When one of them fails, the others finish.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.program import TINY, one_line, typed
from tests.faults.machine import FIVE_GPUS, Machine
from tests.stand_in import TWO_UNLIKE_GPUS
from tests.workers.test_process import gone

COMMAND = ("independent", "--windows", "2", "--duration", "5", "--json", "--quiet")


def test_14_19_20_killed_hung_oom_and_the_others_finish(tmp_path: Path) -> None:
    """One is killed, one hangs, one is out of memory, and the others finish.

    The one that has too little memory fails first.

    The others fail at once, after 11 timings of warm-up and 13 alone.
    """
    steps = """
def step(devices, batches, number):
    device = devices[0].index
    note()
    if device == 1 and number > 26:
        os.kill(os.getpid(), 9)
    if device == 2 and number > 26:
        hang()
    return 0.02
def took(seconds):
    time.sleep(seconds / 20)  # so long that none is far ahead of the others
def holds(device, size):
    return device.index != 3 or size <= 32
"""
    machine = Machine(tmp_path, steps, gpus=FIVE_GPUS)
    words = typed("--batches 64 64 64 64 64 --deadline 5")
    done = machine.runs(*COMMAND, *words, code=6)
    result = json.loads(done.stdout)
    first, *failures, last = [one["failure"] for one in result["replicas"]]
    assert first is last is None
    assert [failure["exit_code"] for failure in failures] == [6, 8, 5]
    says = "SIGKILL", "sent nothing for 5 s", "out of memory"
    for number, what in enumerate(says):
        message = failures[number]["message"]
        assert f"GPU:{number + 1}" in message
        assert what in message
        assert message in done.stderr
    assert "--resume" not in done.stderr, "it would run out of memory again"
    assert result["complete"] is False
    whole = [one for one in result["replicas"] if one["failure"] is None]
    assert result["throughput"]["median"] == sum(one["throughput"] for one in whole)
    assert all(abs(one["contention"]) < 1e-6 for one in whole)
    rates = [one["throughput"] for one in result["replicas"]]
    assert rates[1:4] == [None] * 3
    assert all(map(gone, set(machine.noted())))


def test_18_of_a_pair_the_other_is_measured_alone(tmp_path: Path) -> None:
    """Of a pair the other is measured alone and nothing is said of at once."""
    steps = """
def built(devices):
    if devices[0].index == 0:
        os.abort()
"""
    done = Machine(tmp_path, steps).runs(*COMMAND, code=6)
    aborted = "error: GPU:0: the worker was ended by SIGABRT while building probe"
    assert done.stderr.startswith(aborted)
    result = json.loads(done.stdout)
    first, second = result["replicas"]
    assert first["failure"]["exit_code"] == 6
    assert second["solo_throughput"] > 0
    assert second["throughput"] is second["contention"] is result["throughput"] is None


def test_15_if_all_failed_alike_that_is_the_error(tmp_path: Path) -> None:
    steps = """
def holds(device, size):
    return False
"""
    done = Machine(tmp_path, steps).refuses(5, *COMMAND)
    both = [f"GPU:{n} ran out of memory with batches 64" for n in (0, 1)]
    assert "; ".join(both) in done.stderr


def test_28_a_model_that_can_not_be_trained_ends_it_at_once(tmp_path: Path) -> None:
    steps = """
from gpubalance.errors import BadInput
def built(devices):
    if devices[0].index == 1:
        raise BadInput("there is no such model")
"""
    done = Machine(tmp_path, steps).refuses(4, *COMMAND, "--model", TINY)
    assert done.stderr.startswith("error: there is no such model")


def test_23_24_what_gpus_told_is_in_the_result(tmp_path: Path) -> None:
    steps = """
def step(devices, batches, number):
    return 0.1
def took(seconds):
    time.sleep(seconds / 5)
"""
    hot = TWO_UNLIKE_GPUS.replace("gpu 1 throttle 0", "gpu 1 throttle 0x4")
    once = typed("independent --windows 1 --duration 1")
    done = Machine(tmp_path, steps, gpus=hot).runs(*once)
    told = "GPU:1: at once 55 °C 90 W, throttled (power cap); alone 55 °C 90 W"
    assert told in one_line(done.stdout)
    bad = f"{TWO_UNLIKE_GPUS}gpu 0 series ecc_uncorrected 7 7 9\n"
    done = Machine(tmp_path, steps, gpus=bad).runs(*COMMAND, code=6)
    assert "GPU:0 had 2 memory errors that ECC did not correct" in done.stderr
