"""`doctor`: NVML, real workers, and the program itself.

NVML answers through the compiled stand-in; the workers die, hang and lack GPUs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.health import (
    PcieLink,
    nvidia_cards,
    own_link,
    read_peer_to_peer,
    watched_links,
)
from gpubalance.devices.machine import read_gpus
from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.doctor import machine
from gpubalance.jobs.doctor.check import guarded, install_command
from gpubalance.jobs.doctor.machine import (
    available_memory,
    driver_checks,
    gpu_checks,
    looked,
)
from gpubalance.jobs.doctor.on_devices import (
    DoctorSteps,
    links,
    memory_growth,
    tensorflow_devices,
)
from gpubalance.remedies import known_error
from gpubalance.results.checkup import Check, Checkup
from gpubalance.settings.device import Device
from gpubalance.system import versions
from gpubalance.system.versions import numbers
from gpubalance.workers.messages import Inspected, Surveyed
from tests.cli.program import here
from tests.cli.terminal import command_in_terminal
from tests.faults.machine import PLAIN, TI
from tests.jobs.drawn import quiet
from tests.jobs.probes import SMALL
from tests.stand_in import TWO_UNLIKE_GPUS, environment, loaded
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

# The build info and metadata of TensorFlow 2.21 from PyPI say this, with all its libraries loaded.
BUILD = Inspected(
    tensorflow="2.21.0",
    keras="3.15.1",
    cuda="12.5.1",
    cudnn="9.3.0.75",
    capabilities=("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"),
    libraries={"libcudart.so.12": None, "libcudnn.so.9": None},
    cudnn_loaded="9.10.2",
)


def checks_of(
    folder: Path, script: str, shown: str | None = None
) -> tuple[Reading, dict[str, list[Check]]]:
    """The checks of the stand-in's GPUs by code.

    If `shown` is set, they are those of the GPUs that CUDA_VISIBLE_DEVICES shows.
    """
    with pytest.MonkeyPatch.context() as patch, loaded(environment(folder, script)):
        patch.delenv("CUDA_VISIBLE_DEVICES")  # the tests' own
        if shown is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", shown)
        reading = read_gpus()
        found = [*driver_checks(reading), *gpu_checks(reading.gpus)]
    by_code: dict[str, list[Check]] = {}
    for check in found:
        by_code.setdefault(check.code, []).append(check)
    return reading, by_code


def gpu(index: int, capability: str) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", compute_capability=capability)


def card(index: int, uuid: str, **more: str) -> Device:
    own: Any = {"memory_bytes": 1, "simulated": False, **more}
    return Device(index=index, uuid=uuid, name="card", **own)


@cases(
    "script, code, says",
    ("init_error 9\nnvml 12.550.54.14", "driver-not-loaded", "550.54.14"),
    ("init_error 18\nnvml 12.560.35.03", "driver-mismatch", "560.35.03"),
    ("init_error 18", "driver-mismatch", "but its library is of unknown version"),
    ("init_error 4", "no-permission", "no permission"),
    ("init_error 999", "nvml-broken", "NVML does not work: Unknown Error"),
    ("init_error 27", "nvml-broken", "NVML does not work: stand-in error 27"),
    ("driver 550.54.14", "no-gpu-seen", "sees no GPU"),
)
def test_a_driver_that_does_not_work_is_one_failure(
    tmp_path: Path, script: str, code: str, says: str
) -> None:
    reading, found = checks_of(tmp_path, script)
    assert (list(found), reading.gpus) == (["driver"], ())
    (check,) = found["driver"]
    assert check.status == "failure"
    assert says in check.detail
    assert known_error(code).cause in check.detail
    assert check.next == known_error(code).remedy == reading.remedy


def test_an_old_driver_names_the_one_that_is_needed(tmp_path: Path) -> None:
    old = TWO_UNLIKE_GPUS.replace("550.54.14", "470.57.02")
    reading, found = checks_of(tmp_path, old.replace("cuda 12040", "cuda 11040"))
    assert [check.status for check in found["driver"] + found["nvml"]] == ["ok", "ok"]
    check = machine.driver_for_build(BUILD, reading)
    assert check.status == "failure"
    assert "470.57.02 supports CUDA up to 11.4" in check.detail
    assert "525.60.13 or newer" in check.detail
    assert (check.next or "").startswith(known_error("driver-too-old").remedy)
    reading, _ = checks_of(tmp_path, TWO_UNLIKE_GPUS)
    assert machine.driver_for_build(BUILD, reading).status == "ok"
    told_nothing = altered(reading, cuda_driver_version=None)
    assert machine.driver_for_build(BUILD, told_nothing).status == "skipped"
    other = TWO_UNLIKE_GPUS.replace("nvml 12.550.54.14", "nvml 12.560.35.03")
    (nvml,) = checks_of(tmp_path, other)[1]["nvml"]
    assert nvml.status == "warning"
    assert nvml.next == known_error("driver-mismatch").remedy


@cases(
    "error, code",
    ("handle 15", "gpu-lost"),
    ("all 16", "gpu-needs-reset"),
    ("handle 4", "no-permission"),
)
def test_a_gpu_that_is_lost_or_forbidden_is_named_and_the_other_is_read(
    tmp_path: Path, error: str, code: str
) -> None:
    script = f"{TWO_UNLIKE_GPUS}\ngpu 1 error {error}\ngpu 0 persistence 0"
    _, found = checks_of(tmp_path, script)
    lost, good = found["gpu"]
    assert (lost.status, good.status) == ("failure", "ok")
    assert lost.detail.startswith("GPU:1 can't be used")
    assert lost.next == known_error(code).remedy.replace("-i N", "-i 1")
    assert good.detail == "can be used (GPU:0)"
    assert found["persistence"][0].next == "sudo nvidia-smi -i 0 -pm 1"


def test_unsupported_fields_are_skipped_and_nothing_is_made_up(tmp_path: Path) -> None:
    reading, found = checks_of(tmp_path, "gpu 0 uuid GPU-a\ngpu 1 uuid GPU-b")
    untold = ("display", "persistence", "power-cap", "throttling", "ecc")
    assert {*found} == {"driver", "nvml", "gpu", "processes", *untold}
    for code, (check,) in found.items():
        assert check.status == ("skipped" if code in untold else "ok")
        assert code not in untold or check.detail.endswith("(GPU:0, GPU:1)")
    assert machine.driver_for_build(BUILD, reading).status == "skipped"
    assert machine.capabilities(BUILD, reading.gpus).status == "skipped"


def test_what_slows_a_gpu_down_has_the_command_that_mends_it(tmp_path: Path) -> None:
    script = f"""{TWO_UNLIKE_GPUS}
gpu 0 persistence 0
gpu 1 persistence 1
gpu 0 display 0
gpu 1 display 1
gpu 0 power_default 250000
gpu 1 power_default 220000
gpu 0 series throttle 0x1
gpu 1 series throttle 0x60
gpu 0 ecc_uncorrected 0
gpu 0 ecc_corrected 7
gpu 1 ecc_uncorrected 3
gpu 1 process compute 4242 1073741824 python train.py
"""
    _, found = checks_of(tmp_path, script)
    every = [check for checks in found.values() for check in checks]
    bad = {check.code: check for check in every if check.status != "ok"}
    warned = ("processes", "display", "persistence", "power-cap", "throttling")
    assert {*bad} == {*warned, "ecc"}
    for code, check in bad.items():
        assert check.status == ("failure" if code == "ecc" else "warning")
        assert check.next
    assert bad["persistence"].next == "sudo nvidia-smi -i 0 -pm 1"
    assert bad["power-cap"].next == "sudo nvidia-smi -i 1 -pl 220"
    slowed = "GPU:1 is throttled now: software thermal, thermal"
    assert slowed in bad["throttling"].detail
    assert "GPU:1 has 3 uncorrected" in bad["ecc"].detail
    assert "PID 4242 holds 1.00 GiB" in bad["processes"].detail
    for code in ("processes", "display"):
        assert "`gpubalance balance --margin 1=1GiB`" in known(bad[code].next)
    corrected = "no uncorrected errors, 7 corrected"
    good = {f"{told} (GPU:0)" for told in ("none now", corrected, "250 W")}
    assert good <= {check.detail for check in every if check.status == "ok"}


def test_mig_and_hidden_gpus_are_no_failures(tmp_path: Path) -> None:
    mig = "gpu 0 uuid GPU-a100\ngpu 0 mig 1\ngpu 0 slice 0 uuid MIG-1\ngpu 1 uuid GPU-b"
    _, found = checks_of(tmp_path, mig, shown="GPU-a100")
    first, second = found["gpu"]
    assert (first.status, second.status) == ("warning", "warning")
    assert "MIG mode is on" in first.detail
    assert "sudo nvidia-smi -i 0 -mig 0" in (first.next or "")
    assert "hidden by CUDA_VISIBLE_DEVICES=GPU-a100" in second.detail
    assert "unset CUDA_VISIBLE_DEVICES" in (second.next or "")


def test_peer_to_peer_is_what_the_driver_says(tmp_path: Path) -> None:
    script = f"{TWO_UNLIKE_GPUS}\ngpu 0 p2p 1 0\ngpu 1 p2p 0 1"
    pairs = ((TI, PLAIN), (PLAIN, TI), (TI, "GPU-none"))
    with loaded(environment(tmp_path, script)):
        told = [read_peer_to_peer(*pair) for pair in pairs]
    assert told == ["direct", "not by this chipset", None]


def test_libraries_are_told_by_name_and_broken_ones_with_why() -> None:
    assert machine.libraries(BUILD).status == "ok"
    gone = "libcudnn.so.9: cannot open shared object file: No such file"
    short = "libnccl.so.2: file too short"
    found = {"libcudnn.so.9": gone, "libnccl.so.2": short}
    check = machine.libraries(altered(BUILD, libraries=found))
    assert check.status == "failure"
    told = f"can't be loaded: libcudnn.so.9, libnccl.so.2 ({short})"
    assert check.detail.startswith(told)
    assert check.next == known_error("cuda-library-missing").remedy
    # A build without CUDA is a failure only where there are GPUs.
    plain = altered(BUILD, cuda=None, cudnn=None, libraries={}, capabilities=())
    (check,) = machine.software_checks(plain, Reading(), [gpu(0, "8.6")])
    assert check.status == "failure"
    (check,) = machine.software_checks(plain, None, [])
    assert check.status == "ok"


@cases(
    "loaded, capability, status, row",
    ("9.10.2", "6.1", "ok", None),
    ("9.21.0", "7.0", "failure", "cudnn-without-this-gpu"),
    ("9.21.0", "7.5", "ok", None),
    ("9.1.0", "8.6", "failure", "cudnn-too-old"),
    ("9.3.0", "8.6", "ok", None),
    (None, "8.6", "skipped", None),
)
def test_cudnn_is_held_against_each_gpu(
    loaded: str | None, capability: str, status: str, row: str | None
) -> None:
    found = altered(BUILD, cudnn_loaded=loaded, cudnn_file="/opt/cudnn/libcudnn.so.9")
    check = machine.cudnn(found, [gpu(0, "8.9"), gpu(1, capability)])
    if row == "cudnn-too-old":
        told = f"{loaded} was loaded from /opt/cudnn/libcudnn.so.9, TensorFlow is built for 9.3.0.75"
        assert check.detail.startswith(told)
    assert check.status == status
    assert check.next == (known_error(row).remedy if row else None)
    if row == "cudnn-without-this-gpu":
        assert f"GPU:1 (compute capability {capability})" in check.detail
        assert "GPU:0" not in check.detail


@cases(
    "capability, status, row",
    ("6.1", "ok", None),
    ("8.6", "ok", None),
    ("10.0", "warning", None),
    ("12.0", "failure", "gpu-too-new"),  # an RTX 50
    ("5.2", "failure", "capability-too-old"),
)
def test_the_build_or_the_driver_has_code_for_a_gpu(
    capability: str, status: str, row: str | None
) -> None:
    pair = [gpu(0, "8.6"), gpu(1, capability)]
    check = machine.capabilities(BUILD, pair)
    assert check.status == status
    if status != "ok":
        told = f"none for GPU:1 (compute capability {capability})"
        assert check.detail.startswith(told)
    if row is not None:
        assert check.next == known_error(row).remedy
    own = f"sm_{capability.replace('.', '')}"
    built = altered(BUILD, capabilities=(*BUILD.capabilities, own))
    assert machine.capabilities(built, pair).status == "ok"
    newer = altered(BUILD, capabilities=("sm_89", "compute_50"))
    assert machine.capabilities(newer, [gpu(0, "8.6")]).status == "warning"


def test_a_driver_that_tensorflow_crashes_on_is_told_though_cuda_allows_it() -> None:
    reading = Reading(driver_version="525.78.01", cuda_driver_version="12.0")
    check = machine.driver_for_build(BUILD, reading)
    assert check.status == "warning"
    assert "525.78.01 is new enough for CUDA 12." in check.detail
    assert "another process" not in f"{check.detail} {check.next}"
    older = altered(BUILD, tensorflow="2.17.1")
    assert machine.driver_for_build(older, reading).status == "ok"
    newer = altered(reading, driver_version="535.54.03")
    assert machine.driver_for_build(BUILD, newer).status == "ok"


def test_the_installed_tensorflow_says_which_cudnn_it_needs() -> None:
    assert numbers(versions.min_cudnn())[:1] == (9,)


LINKS = """
gpu 0 max_link_width 16
gpu 0 max_link_generation 3
gpu 0 link_width 16
gpu 0 series link_generation 1 1 3
gpu 1 max_link_width 16
gpu 1 max_link_generation 3
gpu 1 link_width 4
gpu 1 link_generation 3
"""


def test_a_card_in_a_slot_of_fewer_lanes_is_told_under_load(tmp_path: Path) -> None:
    """The first one lowers its generation while it is idle."""
    ti = card(0, TI, bus_id="0000:00:00.0")
    plain = card(1, PLAIN, bus_id="0000:01:00.0")
    with loaded(environment(tmp_path, TWO_UNLIKE_GPUS + LINKS)):
        with watched_links([TI, PLAIN, "GPU-none"]) as seen:
            while seen.get(TI) != PcieLink(16, 3):
                time.sleep(0.05)
        good, slow = links([ti, plain], seen)
        assert (good.status, good.detail) == ("ok", "PCIe 3.0 x16 under load (GPU:0)")
        told = "GPU:1 (card) ran at PCIe 3.0 x4 under load, but the card supports PCIe 3.0 x16: "
        assert (slow.status, slow.next) == ("warning", known_error("pcie-link").remedy)
        assert slow.detail.startswith(told)
        (unseen,) = links([plain], {})
        assert unseen.status == "skipped"
        # NVML may count only what card and slot have together; Linux says what the card has.
        (tmp_path / "0000:00:00.0").mkdir()
        (tmp_path / "0000:00:00.0" / "max_link_width").write_text("32\n")
        assert own_link(ti, tmp_path) == PcieLink(32, 3)
        assert own_link(plain, tmp_path) == PcieLink(16, 3)
    with loaded(environment(tmp_path, TWO_UNLIKE_GPUS)):
        assert own_link(ti, tmp_path) is None


def test_tensorflows_list_is_held_against_nvmls() -> None:
    devices = [card(number, f"GPU-{number}") for number in range(3)]
    why = "TensorFlow 2.21.0 leaves it out"
    surveyed = Surveyed(missing={"GPU-1": why, "GPU-2": why}, memory_growth=True)
    found = list(tensorflow_devices(surveyed, devices))
    assert [check.status for check in found] == ["failure", "failure", "ok", "ok"]
    assert found[0].detail == f"GPU:1 (card): {why}"
    assert found[0].next == known_error("left-out").remedy
    assert "both list GPU:0" in found[2].detail
    assert memory_growth(True, None).status == "ok"
    assert memory_growth(False, None).next == "export TF_FORCE_GPU_ALLOW_GROWTH=true"
    assert memory_growth(True, "false").next == "unset TF_FORCE_GPU_ALLOW_GROWTH"


def test_the_hosts_memory_and_disk(tmp_path: Path) -> None:
    def room(free: int) -> tuple[int, Path]:
        return free, tmp_path

    gib = 2**30
    rooms = {
        "host-memory": (8 * gib, 2 * gib, gib // 2),
        "disk": (8 * gib, gib // 2, 0),
        "shared-memory": (gib, 1, -1),
    }
    for code, frees in rooms.items():
        good, few, none = (next(looked(code, partial(room, free))) for free in frees)
        assert [good.status, few.status, none.status] == ["ok", "warning", "failure"]
        assert (good.next, few.next) == (None, none.next)
        assert none.next
    # A container's limit is what its programs have, not the host's memory.
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available_memory(tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > gib // 8


def test_a_check_that_raises_or_hangs_is_a_failed_check() -> None:
    def broken() -> tuple[int, None]:
        raise OSError(28, "No space left on device")

    def hanging() -> tuple[int, None]:
        time.sleep(600)
        raise AssertionError

    (raised,) = guarded("disk", looked("disk", broken))
    (hung,) = guarded("disk", looked("disk", hanging, 0.1))
    assert (raised.status, raised.next) == ("failure", known_error("disk-full").remedy)
    assert hung.status == "failure"
    assert "no answer" in hung.detail


@pytest.mark.full
def test_without_a_driver_it_says_so_first_and_checks_the_rest(tmp_path: Path) -> None:
    if nvidia_cards():
        pytest.skip("this machine has an NVIDIA card")
    path = tmp_path / "checkup.json"
    done = here("doctor", "-o", str(path), code=3)
    lines = done.stdout.splitlines()
    assert lines[0] == "1 failure, 1 skipped, 6 ok"
    assert lines[1].startswith("failure  driver                  no NVIDIA driver")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    checkup = Checkup.model_validate_json(path.read_text())
    codes = [check.code for check in checkup.checks]
    assert codes[:5] == ["driver", "no-gpu", "host-memory", "disk", "tensorflow"]
    assert codes[5:] == ["training-step", "peer-to-peer", "all-reduce"]
    statuses = [check.status for check in checkup.checks]
    assert statuses == ["failure", "skipped", *["ok"] * 6]
    assert [device.label for device in checkup.devices] == ["CPU:0", "CPU:1"]
    copies = [(copy.source, copy.target, copy.intact) for copy in checkup.copies]
    assert copies == [(0, 1, True), (1, 0, True)]
    # No rate is told, as it would be that of the host's memory.
    assert checkup.checks[6].detail.endswith("all intact")
    assert known(checkup.all_reduce).bytes > 1000
    assert "… a training step of small on CPU:0, CPU:1" in done.stderr
    told = " ".join(done.stdout.split())
    assert told.count("libnvidia-ml.so.1 was not found") == 1
    assert install_command() in told
    error = "error: this failed: driver\n  → fix it first, as described above\n"
    assert done.stderr.endswith(error)


@cases(
    "release, command",
    ({"ID": "debian"}, "sudo apt-get install nvidia-driver"),
    ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "sudo ubuntu-drivers install"),
    ({"ID": "fedora"}, "sudo dnf install akmod-nvidia"),
    ({}, ""),
)
def test_a_driver_is_installed_by_the_distribution_s_own_command(
    release: dict[str, str], command: str
) -> None:
    assert install_command(release).partition(" (")[0] == command


def test_a_maybe_lack_of_memory_is_told_as_is(
    engine_that: Callable[[str], None],
) -> None:
    """Nothing smaller is tried."""
    raised = "tf.errors.NotFoundError(None, None, 'No algorithm worked!')"
    engine_that(f"import tensorflow as tf\ndef step(*_):\n    raise {raised}\n")
    (check,) = DoctorSteps(SMALL, quiet).checks(*simulated_devices("1"))
    told = "CPU:0: training small failed on the device: No algorithm worked!: "
    assert check.detail.startswith(told)
    assert check.next == known_error("no-room").remedy


def test_a_loss_that_is_no_number_is_all_that_a_step_reports(
    engine_that: Callable[[str], None],
) -> None:
    """Not also that the step is ok."""
    engine_that("def loss_is_finite(): return False")
    (check,) = DoctorSteps(SMALL, quiet).checks(*simulated_devices("1"))
    assert check.status == "warning"
    assert check.detail == "CPU:0: the loss is NaN or infinite on random data"


def test_a_crash_of_a_step_is_a_failed_check(
    engine_that: Callable[[str], None],
) -> None:
    engine_that("import os\ndef built(devices):\n    os.abort()\n")
    steps = DoctorSteps(SMALL, quiet)
    (check,) = steps.checks(*simulated_devices("1"))
    assert (steps.size, check.status) == (None, "failure")
    told = "CPU:0: the worker was ended by SIGABRT while building"
    assert check.detail.startswith(told)
    assert "its whole log is" in known(check.next)


def test_colour_is_for_terminals_that_want_it() -> None:
    code = """
import os
from gpubalance.cli.doctor import _paint
for name, value in (("TERM", "xterm"), ("TERM", "dumb"), ("TERM", "xterm"), ("NO_COLOR", "1")):
    os.environ[name] = value
    print(_paint()("failure", "failure"))
"""
    _, seen = command_in_terminal([sys.executable, "-c", code], 80)
    lines = seen.written.splitlines()
    assert all(b"failure" in line for line in lines)
    assert [b"\x1b[" in line for line in lines] == [True, False] * 2
