"""Rows 14 to 17 and 41: memory runs out.

The engine's stand-in raises what TensorFlow raises; what sorts it is real.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.remedies import known_errors
from gpubalance.results.plan import Plan
from tests.cli.program import typed
from tests.faults.machine import BRIEF, NOTES, Machine, in_step
from tests.jobs.probes import probe_of
from tests.support.known import known

PLAINLY = "ResourceExhaustedError(None, None, 'OOM when allocating tensor')"
DISGUISED = "InternalError(None, None, 'CUDNN_STATUS_ALLOC_FAILED')"


@pytest.mark.parametrize(("fits", "error"), [(24, PLAINLY), (16, DISGUISED)])
def test_14_16_out_of_memory_narrows_it(tmp_path: Path, fits: int, error: str) -> None:
    """An out of memory narrows the search and a disguised one too where a smaller batch passes."""
    steps = in_step(f"raise tf.errors.{error}", when=f"max(batches) > {fits}")
    words = typed("--gpus 0 --max-batch 40 --duration 0.2 --no-ahead")
    probe = Machine(tmp_path, steps).result("probe", *words)
    limit = probe["probes"][0]["batch_limit"]
    assert (limit["fits"], limit["fails"]) == (fits, fits + 8)
    larger = [trial for trial in limit["trials"] if trial["batch"] > fits]
    assert {trial["outcome"] for trial in larger} == {"oom"}


def test_15_out_of_memory_at_one_sample_tells_needed_and_free(tmp_path: Path) -> None:
    """A simulated device knows what it would have needed; a real allocator what it held."""
    profile = tmp_path / "tiny.toml"
    profile.write_text(
        '[[device]]\nname = "tiny"\nalpha_s = 0.01\nbeta_s = 0.001\n'
        'memory = "64 MiB"\nbase_memory = "60 MiB"\nmemory_per_sample = "8 MiB"\n'
    )
    machine = Machine(tmp_path)
    for command in map(typed, ("run --batches 16", "probe --no-ahead --duration 0.1")):
        done = machine.runs(*command, "--simulate", str(profile), "--quiet", code=5)
        assert bool(done.stdout.strip()) == (command[0] == "probe")
        assert "needs 68.0 MiB, and 64.0 MiB are free" in done.stderr
        assert "use a smaller model" in done.stderr


EQUAL = """
[[device]]
name = "equal"
alpha_s = 0.01
beta_s = 0.0001
memory = "512 MiB"
memory_per_sample = "4 MiB"
"""


JOINT = typed("run --gpus 0 1 --batches 64 64")
TOLD = "ResourceExhaustedError(None, None, 'OOM on replica 1')"
NO_ALGORITHM = "NotFoundError(None, None, 'No algorithm worked! [[{{node replica_1/conv/Conv2D}}]]')"


def test_41_a_disguised_lack_of_memory_is_its_devices(tmp_path: Path) -> None:
    """A disguised lack of memory in a joint run is of its device and what fits is told."""
    steps = in_step(f"raise tf.errors.{NO_ALGORITHM}", when="batches[1] > 32")
    done = Machine(tmp_path, steps).refuses(5, *JOINT)
    told = "error: out of memory: GPU:1 (NVIDIA GeForce GTX 1080) at batch 64"
    assert told in done.stderr
    assert "this fits (tried): --batches 64 32\n" in done.stderr


def test_41_what_no_smaller_batch_mends_is_the_fault_told(tmp_path: Path) -> None:
    """One sample each tells that: a worker of a GPU takes long to start."""
    machine = Machine(tmp_path, NOTES + in_step(f"raise tf.errors.{NO_ALGORITHM}"))
    done = machine.refuses(3, *JOINT)
    told = "error: training probe failed on the device: No algorithm worked! [[{{node replica_1/"
    assert told in done.stderr
    assert known_errors()["no-room"].remedy in done.stderr
    assert len(machine.noted()) == 2


def balanced(
    tmp_path: Path, fails: str, *options: str, code: int = 0, error: str = TOLD
) -> subprocess.CompletedProcess[str]:
    """A balance whose joint run runs out of memory if `fails`.

    Each device alone holds 128 samples.
    """
    pair = tmp_path / "pair.toml"
    pair.write_text(2 * EQUAL)
    save(probe_of(simulated_devices(str(pair))[0]))
    steps = in_step(f"raise tf.errors.{error}", when=fails)
    short = (*BRIEF, *typed("--round-duration 0.2 --accumulate off --json"), *options)
    command = ("balance", "--simulate", str(pair), *short)
    return Machine(tmp_path, steps).runs(*command, code=code)


@pytest.mark.parametrize("error", [TOLD, NO_ALGORITHM], ids=["told", "disguised"])
def test_17_41_a_joint_out_of_memory_steps_back(tmp_path: Path, error: str) -> None:
    """An out of memory of the joint run only steps back and is told."""
    done = balanced(tmp_path, "max(batches) > 64", error=error)
    plan = Plan.model_validate_json(done.stdout)
    rounds = known(plan.balance).rounds
    assert (rounds[0].outcome, rounds[-1].outcome) == ("oom", "measured")
    assert max(plan.batches) <= 128
    assert plan.batches[1] <= 64
    told = "ran out of memory at batch 120 when all devices trained together: planning with up to "
    assert told in done.stderr


def test_17_and_is_a_partial_result_where_no_step_back_helps(tmp_path: Path) -> None:
    """What is tried to find what fits does fit, and no split of whole multiples does."""
    done = balanced(tmp_path, "batches[0] % 8 == 0", "--rounds", "1", code=6)
    assert done.stdout == ""
    told = "error: every split that was tried ran out of memory, 3 of them"
    assert told in done.stderr


@pytest.mark.parametrize(("mib", "fresh"), [(64, False), (96, True)])
def test_the_largest_has_its_own_worker(mib: int, fresh: bool, tmp_path: Path) -> None:
    """The largest batch that was asked for has a worker of its own if it needs most memory.

    A new one takes 8 to 18 s on a GPU; here 64 samples take 4 or 6 of 11 GiB.
    """
    steps = f"def needs(device, size):\n    return size * {mib} << 20"
    words = typed("probe --gpus 0 --max-batch 64 --duration 0.1 --no-ahead")
    (found,) = Machine(tmp_path, steps).result(*words)["probes"]
    (trial,) = found["batch_limit"]["trials"]
    assert (trial["batch"], trial["outcome"], trial["fresh"]) == (64, "fits", fresh)
    assert found["children"] == 1 + fresh


def test_an_out_of_memory_far_below_memory_moves_no_limit(tmp_path: Path) -> None:
    """An out of memory by chance far below what memory predicts moves no limit.

    Each device fails once.

    One fails while its curve is measured, and one as its limit is tried. The third is one whose
    memory is not known.
    """
    profile = tmp_path / "three.toml"
    common = 'alpha_s = 0.01\nbeta_s = 0.001\nbase_memory = "64 MiB"\nmemory_per_sample = "4 MiB"\n'
    device = f'[[device]]\n{common}name = "{{}}"\n'
    of_known = [f'{device.format(n)}memory = "512 MiB"\n' for n in ("early", "late")]
    profile.write_text("".join([*of_known, device.format("unknown")]))
    script = f"""
CHANCE = {{"early": 8, "late": 112, "unknown": 64}}
def step(devices, batches, number):
    name = devices[0].name
    failed = pathlib.Path({str(tmp_path)!r}, name)
    by_chance = batches[0] == CHANCE[name] and not failed.exists()
    if by_chance or batches[0] > 112:
        failed.touch()
        raise tf.errors.ResourceExhaustedError(None, None, "OOM on replica 0")
"""
    words = typed("--duration 0.1 --no-ahead --max-batch 4096 --simulate")
    found = Machine(tmp_path, script).result("probe", *words, str(profile))
    limits = [item["batch_limit"] for item in found["probes"]]
    assert [(one["fits"], one["fails"]) for one in limits] == [(112, 120)] * 3
