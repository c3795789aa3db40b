"""`scripts/bench gpu`, without a GPU.

It is rehearsed and refused, and it is shown what it would make of a GPU's answers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubalance.settings.device import Device
from scripts.benches.gpu import FIGURES
from scripts.benches.gpu_steps.evidence import evidence
from scripts.benches.gpu_steps.kernels import Window, idle_part, marks_of, read_windows
from scripts.benches.gpu_steps.machine import cuda_libraries
from scripts.benches.gpu_steps.place import PROGRAM_VARIABLES
from scripts.benches.gpu_steps.runner import Campaign, error_in, figures_of, run_steps
from tests import stand_in
from tests.cli.program import ROOT
from tests.guide.generate import steps_on_a_gpu
from tests.support.gpu import parts
from tests.support.gpu.steps import STEPS, Step
from tests.support.gpu.table import Outcome
from tests.support.known import known

UUID = "GPU-1080aaaa-0000-4000-8000-000000000001"
ONE_GPU = "\n".join(
    line
    for line in stand_in.TWO_UNLIKE_GPUS.splitlines()
    if not line.startswith("gpu 1")
)


def bench(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "scripts.benches", "gpu", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def rehearsed(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the evidence of a rehearsal, whose table is no evidence of a GPU's."""
    code, out, err = bench("--rehearse", "-o", str(folder), *arguments)
    assert out == (folder / "gpu.md").read_text() + "\n", err
    assert "Seen on no GPU, rehearsed;" in out
    with pytest.raises(ValueError, match="no evidence"):
        steps_on_a_gpu([folder / "gpu.json"])
    found = json.loads((folder / "gpu.json").read_text())
    assert [item["step"] for item in found["steps"]] == [step.name for step in STEPS]
    return code, found


# Some time passes in a step, as a worker is killed in one; a GPU's sample takes 4 MiB.
ENGINE = """
import time

def step(devices, batches, number):
    time.sleep(0.01)

def needs(device, size):
    return None if device.simulated else (256 + 4 * size) << 20

def holds(device, size):
    return None if device.simulated else needs(device, size) <= device.memory_bytes
"""


@pytest.mark.campaign
@pytest.mark.timeout(900)  # most of it is loading TensorFlow, six times
def test_a_rehearsal_does_every_step_and_writes_table_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the program's workers do not load it: `scripts/bench gpu --rehearse` has those too."""
    monkeypatch.setenv(PROGRAM_VARIABLES, json.dumps(stand_in.engine(tmp_path, ENGINE)))
    code, found = rehearsed(tmp_path / "found", "--minutes", "60")
    assert {item["outcome"] for item in found["steps"]} == {"done"}
    assert code == 0
    each = {
        step.name: figures_of(step.name, tmp_path / "found" / FIGURES) for step in STEPS
    }
    assert [[f["told"] for f in item["figures"]] for item in found["steps"]] == [
        [f["told"] for f in figures if f["told"]] for figures in each.values()
    ]
    figures = {
        (step, figure["name"]): figure
        for step, found in each.items()
        for figure in found
    }
    assert figures["memory", "limit"]["value"]["fails"] == 232
    without_idle = [
        figure["value"]["outcome"]
        for figure in each["memory"]
        if figure["name"] == "used"
    ]
    assert without_idle == ["out of memory", "out of memory", "fits"]
    assert {
        figure["value"]
        for figure in each["machine"]
        if figure["name"] in ("matmul", "convolution")
    } == {0.0}
    assert [figure["value"]["differ"] for figure in each["parity"]] == [{}, {}, {}]
    assert sum(figures["hosts", "`balance` ends with"]["value"]["batches"]) == 24
    assert figures["pair", "all_reduce"]["value"] == "CollectiveAllReduce, RING"
    assert figures["exact", "sgd"]["value"]["split"] < 1e-6
    assert int(figures["recovery", "out_of_memory"]["value"]["split"][0]) > 200


def test_what_there_is_no_time_for_is_in_table_and_json_too(tmp_path: Path) -> None:
    code, found = rehearsed(tmp_path / "found", "--minutes", "0.01")
    assert code == 6
    assert {item["outcome"] for item in found["steps"]} == {"not run"}
    assert (tmp_path / "found" / "gpu.md").read_text().count(
        "**not run**: the time was over"
    ) == len(STEPS)


def test_a_step_that_fails_or_takes_too_long_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that fails or takes too long keeps what it had and the others their turn.

    The program that `memory` starts never gets to its first line.
    """
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv(PROGRAM_VARIABLES, json.dumps({"PYTHONPATH": str(tmp_path)}))
    steps = [Step("nowhere", "", 60), Step("memory", "", 6), Step("exact", "", 10**6)]
    outcomes = list(
        run_steps(
            steps, Campaign(tmp_path, tmp_path / FIGURES, (), True), 11 / 60, print
        )
    )
    assert [outcome.outcome for outcome in outcomes] == ["failed", "cut off", "not run"]
    assert (
        outcomes[0].told
        == "**failed**: ModuleNotFoundError: No module named 'scripts.benches.gpu_steps.nowhere'"
    )
    assert outcomes[2].told == "**not run**: the time was over"


def test_an_error_of_many_lines_is_told_by_those_that_say_it(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    error = (
        "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:"
    )
    log.write_text(
        f"a window of GPU:0\nTraceback:\n{error}\n\n  File\nNo compiler\n\t [[{{{{node Call}}}}]]\n"
    )
    assert error_in(log) == "InternalError: Graph execution error: No compiler"
    log.write_text("Killed\n")
    assert error_in(log) == "Killed"


def test_without_a_gpu_it_says_so_and_what_works(tmp_path: Path) -> None:
    code, out, err = bench("-o", str(tmp_path / "found"))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.endswith("; --rehearse runs the steps without a GPU\n")
    assert not (tmp_path / "found").exists()
    (tmp_path / FIGURES).touch()
    code, _, err = bench("--rehearse", "-o", str(tmp_path))
    assert code == 2
    assert f"-o {tmp_path}: File exists" in err


@pytest.mark.full  # fourteen commands, on the compiled NVML library
def test_steps_that_only_use_the_program_do_so_on_a_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML and the engine are stand-ins, and there is one card, of which the steps get parts."""
    variables = stand_in.environment(tmp_path, ONE_GPU) | stand_in.engine(
        tmp_path, ENGINE
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # the tests' own
    card = Device(
        index=0, uuid=UUID, name="GTX 1080 Ti", memory_bytes=11 << 30, simulated=False
    )
    folder = tmp_path / "found"
    folder.mkdir()
    steps = [step for step in STEPS if step.name in ("memory", "recovery")]
    campaign = Campaign(folder, folder / FIGURES, [card], rehearsed=False)
    outcomes = {one.step: one for one in run_steps(steps, campaign, 60.0, print)}
    assert {name: one.why for name, one in outcomes.items()} == dict.fromkeys(
        outcomes, ""
    )
    told = {name: one.told for name, one in outcomes.items()}
    assert "960 fits, 1024 fails" in told["memory"]
    assert "NVML at" in told["memory"]
    assert re.search(
        "1024 in the used process: out of memory .*; 960 in the used process: fits",
        told["memory"],
    )
    assert re.search(
        r"killed worker is told .*; memory is back after 0.0 s; the same run afterwards",
        told["recovery"],
    )
    assert re.search(
        r"1001/16 out of memory, 686/16 found in .*; which runs", told["recovery"]
    )


def test_the_engine_sets_gpus_up_where_the_parts_of_one_take_its_place(
    tensorflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to TensorFlow, which has no GPU here to divide."""
    from gpubalance.engine import memory, runtime

    assert callable(memory.memory_limit_bytes)
    monkeypatch.setattr(
        runtime, "set_up_gpus", runtime.set_up_gpus
    )  # to have them back
    monkeypatch.setattr(memory, "memory_limit_bytes", memory.memory_limit_bytes)
    parts.divide(runtime, UUID)
    card = Device(
        index=0, uuid=f"{UUID}+0", name="part", memory_bytes=4 << 30, simulated=False
    )
    with pytest.raises(IndexError):
        runtime.use_devices([card])


def test_a_stamped_step_is_found_in_what_cupti_tells(
    tensorflow: Any, tmp_path: Path
) -> None:
    """A trace as TensorFlow writes it: a window of the host's, in which a GPU has two streams."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    write(
        space.planes.add(name="/host:CPU"),
        "python",
        [("window#step_num=1#", 0, 100), ("other", 5, 9)],
    )
    gpu = space.planes.add(name="/device:GPU:0")
    write(
        gpu,
        "Stream #1(Compute)",
        [("conv", 4, 9), ("conv", 12, 30), ("conv", 28, 40), ("adam", 60, 70)],
    )
    write(
        gpu,
        "Stream #2(MemcpyD2H)",
        [("MemcpyD2H", at, at + 1) for at in (10, 50, 55, 80, 150)],
    )
    write(gpu, "Stream #3(MemcpyH2D)", [("MemcpyH2D", 2, 3)])
    write(gpu, "Steps", [("not a kernel", 0, 100)])
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    (window,) = read_windows(tmp_path)
    assert (len(window.kernels), len(window.to_host)) == (4, 4)
    marks = known(marks_of(window))
    assert (marks.compute_s, marks.step_s, marks.busy) == pytest.approx(
        (40, 70, 28 / 40)
    )
    assert marks_of(Window(window.kernels, window.to_host[:3])) is None
    assert idle_part(window) == pytest.approx((3 + 20) / 66)
    assert idle_part(Window((), window.to_host)) is None


def write(plane: Any, name: str, events: list[tuple[str, int, int]]) -> None:
    """Writes (begin, end) events in seconds on their own line, which begins at second 7."""
    line = plane.lines.add(name=name, timestamp_ns=7 * 10**9)
    for event, began, ended in events:
        number = len(plane.event_metadata) + 1
        plane.event_metadata[number].name = event
        line.events.add(
            metadata_id=number,
            offset_ps=began * 10**12,
            duration_ps=(ended - began) * 10**12,
        )


def test_libraries_are_known_by_what_they_resolve_to() -> None:
    maps = (
        "7f-80 r-xp 00000000 08:01 7  /opt/cuda 13/lib/libcublas.so.13.0.2\n7f-80 rw-p 00000000 "
        "00:00 0\n"
    )
    maps += "7f-80 r-xp 00000000 08:01 8  /usr/lib/libc.so.6\n" * 2
    assert cuda_libraries(maps) == ["/opt/cuda 13/lib/libcublas.so.13.0.2"]


def test_what_a_gpu_showed_is_what_the_guide_says(tmp_path: Path) -> None:
    """And "not yet" for each step that no GPU was seen by.

    Of a step that ran twice it has what was seen last.
    """
    nothing = steps_on_a_gpu([])
    assert nothing.startswith("No GPU was seen yet.\n")
    assert nothing.count("| not yet |") == len(STEPS)
    here = {
        "driver": "580.65.06",
        "gpubalance": "0.1.0",
        "tensorflow": "2.21.0",
        "keras": None,
        "python": "3.12.3",
    }
    one = {
        "step": "exact",
        "outcome": "cut off",
        "why": "after its 9 s",
        "seconds": 9.0,
    }
    one["figures"] = [{"name": "sgd", "value": 1e-7, "told": "sgd: 1e-07 | apart"}]
    found = {
        "kind": "gpu-evidence",
        "date": "2026-12-01",
        "cards": ["H200, 139 GiB"],
        "environment": here,
    }
    first = tmp_path / "first.json"
    first.write_text(json.dumps({**found, "steps": [one]}))
    told = steps_on_a_gpu([first])
    assert (
        "H200, 139 GiB; driver 580.65.06, gpubalance 0.1.0, TensorFlow 2.21.0, Python 3.12.3, "
        "2026-12-01"
    ) in told
    assert r"| sgd: 1e-07 \| apart. **cut off**: after its 9 s |" in told
    assert told.count("| not yet |") == len(STEPS) - 1

    last = tmp_path / "last.json"
    images = {**one, "step": "images"}
    cut_off = {**one, "figures": []}
    later = {**found, "date": "2027-01-02", "cards": ["L4, 24 GiB"]}
    last.write_text(json.dumps({**later, "steps": [images, cut_off]}))
    told = steps_on_a_gpu([first, last])
    assert told.index("1: Seen on H200") < told.index("2: Seen on L4")
    assert r"| 1: sgd: 1e-07 \| apart. **cut off**: after its 9 s |" in told
    assert r"| 2: sgd: 1e-07 \| apart. **cut off**: after its 9 s |" in told


def test_what_is_kept_names_no_machine_and_no_user() -> None:
    told = [{"name": "seen", "value": UUID, "told": f"{UUID} in {Path.home()}/x"}]
    (step,) = evidence([Outcome("exact", "failed", f"no {UUID}", 1.0, told)], ())[
        "steps"
    ]
    assert step["why"] == "no GPU-…"
    assert step["figures"] == [{"name": "seen", "told": "GPU-… in ~/x"}]


def test_what_was_seen_on_fake_gpus_is_in_tests_of_theirs() -> None:
    for step in STEPS:
        tests = re.findall(r"`(test_\w+)`", step.on_fake)
        assert bool(tests) != step.on_fake.startswith("no")
        assert all((ROOT / "tests/fake_gpu" / f"{name}.py").is_file() for name in tests)
