"""`gpubalance devices`, and `run` on GPUs that only NVML shows.

The real pynvml loads a compiled stand-in.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.program import broken, here
from tests.faults.machine import PLAIN, TI
from tests.stand_in import TWO_UNLIKE_GPUS, environment


def test_without_nvml_one_line_says_so_and_offers_the_way_on() -> None:
    done = here("devices", code=3)
    assert done.stderr.startswith("error: no NVIDIA driver")
    assert "--simulate" in done.stderr
    planned = here("plan", code=3).stderr
    assert "`gpubalance plan PROBE.json`" in planned
    assert "--curve TIMES.csv" in planned
    listed = here("devices", "--json")
    assert (listed.returncode, listed.stderr) == (3, "")
    assert "no NVIDIA driver" in json.loads(listed.stdout)["nvidia"]["problem"]


def test_simulated_devices_fit_in_80_columns() -> None:
    lines = here("devices --simulate gtx1080ti-gtx1080", code=0).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("GPU:0: name GeForce GTX 1080 Ti, a step takes 49.0 ms ")


def test_the_gpus_are_listed_with_why_they_can_not_be_used(tmp_path: Path) -> None:
    """The GPUs are listed with why they can not be used and a lost one can not be named.

    Why the real TensorFlow can't use them a run says: see tests/faults/test_environment.py.
    """
    without = broken(tmp_path, error="ImportError('of a library that is not there')")
    variables = environment(tmp_path, TWO_UNLIKE_GPUS) | without
    done = here("devices", code=0, environment=variables)
    assert "GeForce GTX 1080 Ti" in done.stdout
    for gpu in (("0  ", TI, "0000:01:00.0"), ("1  ", PLAIN, "0000:02:00.0")):
        assert all(text in done.stdout for text in gpu)
    assert done.stdout.count("can't be used: TensorFlow") == 2
    lost = f"{TWO_UNLIKE_GPUS}\ngpu 1 error handle 15\n"
    variables = environment(tmp_path, lost) | without
    listed = json.loads(here("devices", "--json", environment=variables).stdout)
    first = listed["nvidia"]["gpus"][0]
    assert (first["index"], first["uuid"]) == (0, TI)
    done = here("run", "--gpus", "1", code=2, environment=variables)
    assert "there is no device '1'" in done.stderr
