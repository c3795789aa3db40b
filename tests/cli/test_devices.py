"""`gpubalance devices`, and `run` on GPUs that only NVML shows: the real pynvml on a compiled stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.program import QUICK_PAIR, here
from tests.faults.machine import PLAIN, TI
from tests.stand_in import TWO_UNLIKE_GPUS, environment


def test_without_nvml_one_line_says_so_and_offers_the_way_on() -> None:
    done = here("devices", code=3)
    assert done.stderr.startswith("error: no NVIDIA driver")
    assert "--simulate" in done.stderr
    listed = here("devices", "--json")
    assert (listed.returncode, listed.stderr) == (3, "")
    assert "no NVIDIA driver" in json.loads(listed.stdout)["nvidia"]["problem"]


def test_the_gpus_are_listed_with_why_they_can_not_be_used(tmp_path: Path) -> None:
    done = here("devices", code=0, environment=environment(tmp_path, TWO_UNLIKE_GPUS))
    assert "GeForce GTX 1080 Ti" in done.stdout
    for gpu in (("0  ", TI, "0000:01:00.0"), ("1  ", PLAIN, "0000:02:00.0")):
        assert all(text in done.stdout for text in gpu)
    # TensorFlow here has no CUDA: the worker that was asked says so for each.
    assert done.stdout.count("can't be used: TensorFlow") == 2


def test_the_listing_as_json_and_a_lost_gpu_that_can_not_be_named(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('what it says of them is not asked here')")
    script = TWO_UNLIKE_GPUS + "\ngpu 1 error handle 15\n"
    variables = environment(tmp_path, script) | {"PYTHONPATH": str(tmp_path)}
    gpus = json.loads(here("devices", "--json", environment=variables).stdout)["nvidia"]["gpus"]
    assert next((gpu["index"], gpu["uuid"]) for gpu in gpus) == (0, TI)
    done = here("run", "--gpus", "1", code=2, environment=variables)
    assert "there is no device '1'" in done.stderr


@pytest.mark.parametrize("source", [QUICK_PAIR, "3"])
def test_simulated_devices_are_listed(source: str) -> None:
    done = here("devices", "--simulate", source, code=0)
    assert len(done.stdout.splitlines()) == (3 if source == QUICK_PAIR else 4)
