"""The program sees the fake GPUs as it would see real ones.

It does so in whatever order they come, and whichever of them it may use.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gpubalance.remedies import known_error
from tests.cli.program import TINY, gpubalance, typed
from tests.fake_gpu import Fault, Gpu, Operation, fake_gpus, operations
from tests.support.python import python

# TensorFlow's CUDA has this UUID for the first GPU, as the last line of a key is the plugin's.
# It is none of NVML's UUIDs.
UNKNOWN = "uuid GPU-ffffffff-0000-4000-8000-000000000000"
REST = "0000-0000-4000-8000-000000000000"
# The first is too small for TensorFlow, which leaves it out.
GPUS = (
    Gpu("NVIDIA GeForce GTX 750", uuid=f"GPU-7500{REST}", more=(UNKNOWN,)),
    Gpu("NVIDIA GeForce RTX 3050", kernel_ms=0.2, uuid=f"GPU-3050{REST}"),
    Gpu("NVIDIA GeForce RTX 3060", kernel_ms=0.2, uuid=f"GPU-3060{REST}"),
)
SAMPLE_BYTES = 8 * 4
SHORT = ("--windows", "1", "--duration", "0.2", "--baseline", "none")
TRAIN = ("--batches", "16,8", "--model", TINY, *SHORT, "--json")
HOST_UUID = "0000000-0000-4000-8000-000000000000"


def test_two_of_three_train_in_another_order(tmp_path: Path) -> None:
    visible = f"{GPUS[2].uuid},{GPUS[1].uuid}"
    machine = fake_gpus(tmp_path, *GPUS) | {"CUDA_VISIBLE_DEVICES": visible}
    listed = gpubalance("devices", code=0, environment=machine).stdout
    assert all(gpu.name in listed for gpu in GPUS)
    assert "hidden by CUDA_VISIBLE_DEVICES" in listed
    train = ("run", "--gpus", "2,1", *TRAIN)
    result = json.loads(gpubalance(*train, code=0, environment=machine).stdout)
    assert [device["index"] for device in result["devices"]] == [2, 1]
    assert [device["simulated"] for device in result["devices"]] == [False, False]
    done = operations(machine)
    assert {one.device for one in done} == {1, 2}
    for device, batch in ((2, 16), (1, 8)):
        check([one for one in done if one.device == device], batch)


def check(done: list[Operation], batch: int) -> None:
    """Asserts that a GPU has trained on so many samples, together with another."""
    assert {"allocate", "kernel", "all_reduce"} <= {one.kind for one in done}
    copied = {one.bytes for one in done if one.kind == "to_device"}
    assert batch * SAMPLE_BYTES in copied


def test_a_gpu_that_tensorflow_leaves_out_is_named(tmp_path: Path) -> None:
    machine = fake_gpus(tmp_path, *GPUS)
    run = (*typed("run --gpus 1,0 --batches 16,8 --model"), TINY)
    done = gpubalance(*run, environment=machine, code=3)
    assert "leaves out GPU:0 (NVIDIA GeForce GTX 750" in done.stderr
    assert not any(one.kind == "kernel" for one in operations(machine))


def test_what_nccl_can_not_do_is_told_with_what_avoids_it(tmp_path: Path) -> None:
    other = Gpu("other", faults=(Fault("nccl", "CollectiveReduceV2"),))
    machine = fake_gpus(tmp_path, Gpu("one"), other)
    run = (*typed("run --gpus 0,1 --batches 16,8 --model"), TINY)
    done = gpubalance(*run, environment=machine, code=3)
    assert "NCCL: unhandled cuda error" in done.stderr
    assert known_error("nccl").remedy in done.stderr


def test_two_gpus_on_two_hosts_train_together(tmp_path: Path) -> None:
    """A host is a folder with a machine of its own, reached by a plain prefix."""
    for number, host in enumerate(("alpha", "beta")):
        (tmp_path / host).mkdir()
        gpu = Gpu(host, kernel_ms=0.2, uuid=f"GPU-{number}{HOST_UUID}")
        machine = fake_gpus(tmp_path / host, gpu)
    names = ("NVML_STAND_IN", "FAKEGPU_TRACE")
    files = [f"{tmp_path}/{{host}}/{Path(machine[name]).name}" for name in names]
    of_host = dict(zip(names, files, strict=True))
    via = " ".join(["env", *(f"{name}={value}" for name, value in of_host.items())])
    hosts = ("--hosts", "alpha,beta", "--via", via, "--gpus", "alpha:0,beta:0")
    train = ("run", *hosts, *TRAIN)
    result = json.loads(gpubalance(*train, code=0, environment=machine).stdout)
    assert [device["host"] for device in result["devices"]] == ["alpha", "beta"]
    for host, batch in (("alpha", 16), ("beta", 8)):
        check(operations({"FAKEGPU_TRACE": files[1].format(host=host)}), batch)


def test_copies_are_as_fast_as_links(two_gpus: dict[str, str]) -> None:
    """Each one is made: TensorFlow keeps what it has copied of a tensor."""
    done = gpubalance("doctor", "--model", TINY, "--json", environment=two_gpus)
    found = json.loads(done.stdout)
    copies = found["copies"]
    ways = [(one["source"], one["target"], one["intact"]) for one in copies]
    assert ways == [(0, 1, True), (1, 0, True)]
    made = [one for one in operations(two_gpus) if one.kind == "between"]
    whole_s = [one.ends_s - one.starts_s for one in made if one.bytes == 64 << 20]
    assert all(copy["seconds"] >= min(whole_s) for copy in copies)


def test_any_command_runs_on_such_a_machine(tmp_path: Path, monkeypatch: Any) -> None:
    # The test process hides GPUs from its own TensorFlow.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpus = ["--memory", "3GiB,2GiB", "--names", "A,B", "--folder", str(tmp_path / "m")]
    asked = ("--", "gpubalance", "devices")
    done = python("-m", "tests.fake_gpu", *gpus, *asked, check=True)
    assert re.search(r"(?m)^0 +A +0000:01:00.0 +8.6 +3.00 GiB", done.stdout)
    assert re.search(r"(?m)^1 +B +0000:02:00.0 +8.6 +2.00 GiB", done.stdout)
