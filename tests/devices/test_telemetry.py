"""What is read of GPUs while they work.

The real pynvml reads a library that answers as GPUs or drivers would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.machine import PLAIN, TI
from tests.stand_in import TWO_UNLIKE_GPUS, child, environment
from tests.support.known import known

GENEROUS_S = 60.0
NO_FIGURES = ["temperature_c", "power_w", "energy_j", "ecc_uncorrected"]
NO_FIGURES += ["sm_clock_mhz", "memory_clock_mhz", "throttle_reasons"]
# Watches GPUs until each has so many readings, or its thread has ended.
WATCH = """
import json, threading, time
from contextlib import ExitStack
from gpubalance.devices.telemetry import TelemetryRecorder

courses = {{uuid: TelemetryRecorder() for uuid in {uuids}}}
until = time.monotonic() + 60
with ExitStack() as stack:
    for uuid, course in courses.items():
        stack.enter_context(course.watching(uuid, interval_s=0.005))
    for uuid, course in courses.items():
        while course.readings < {readings} and time.monotonic() < until:
            if not any(thread.name.endswith(uuid) for thread in threading.enumerate()[1:]):
                break
            time.sleep(0.002)
told = [course.telemetry() for course in courses.values()]
print(json.dumps([one and one.model_dump() for one in told]))
"""
FULL = """
gpu 0 uuid GPU-1
gpu 0 temperature 60
gpu 0 power 250000
gpu 0 series energy 5000000 5001000 5002500
gpu 0 clock_sm 1900
gpu 0 clock_memory 5005
gpu 0 throttle 0
gpu 0 ecc_uncorrected 2
"""


def watched_all(
    folder: Path, script: str, uuids: list[str], readings: int = 4
) -> list[dict[str, Any] | None]:
    code = WATCH.format(uuids=uuids, readings=readings)
    told = child(code, environment(folder, script), GENEROUS_S)
    result: list[dict[str, Any] | None] = json.loads(told)
    return result


def seen(folder: Path, script: str, readings: int = 4) -> dict[str, Any]:
    (telemetry,) = watched_all(folder, script, ["GPU-1"], readings)
    assert known(telemetry)["readings"] >= readings
    return known(telemetry)


def each_with(faults: Sequence[str]) -> tuple[str, list[str]]:
    """A script of as many GPUs, each with one of these lines first, and their UUIDs.

    Each line says `gpu 0`, which becomes the GPU's own number.
    """
    uuids = [f"GPU-{number}1" for number in range(len(faults))]
    scripts = []
    for number, (fault, uuid) in enumerate(zip(faults, uuids, strict=True)):
        script = f"{fault}\n{FULL}".replace("gpu 0", f"gpu {number}")
        scripts.append(script.replace("GPU-1", uuid))
    return "\n".join(scripts), uuids


def test_every_field(tmp_path: Path) -> None:
    telemetry = seen(tmp_path, FULL)
    assert telemetry.pop("readings") >= 4
    assert telemetry.pop("duration_s") > 0
    course = telemetry.pop("course")
    assert len(course) >= 4
    assert course[-1].pop("at_s") > course[0]["at_s"]
    gauges: dict[str, Any] = {"temperature_c": 60, "power_w": 250.0}
    gauges |= {"sm_clock_mhz": 1900, "memory_clock_mhz": 5005, "throttle_reasons": []}
    assert course[-1] == gauges
    assert telemetry == gauges | {"energy_j": 2.5, "ecc_uncorrected": 0, "ended": None}


def test_what_is_not_supported_or_refused_is_null_alone(tmp_path: Path) -> None:
    mig = "gpu 1 mig 1\ngpu 1 slice 0 uuid MIG-1\ngpu 1 power 1000"
    nothing = f"gpu 0 uuid GPU-1\ngpu 1 uuid GPU-2\n{mig}"
    # A MIG slice has no figures of its own.
    for telemetry in watched_all(tmp_path, nothing, ["GPU-1", "MIG-1"]):
        assert {known(telemetry)[field] for field in NO_FIGURES} == {None}
    refused = {
        "temperature 3": "temperature_c",
        "power 4": "power_w",
        "clock_sm 999": "sm_clock_mhz",
        "clock_memory 13": "memory_clock_mhz",
        "throttle 3": "throttle_reasons",
        "ecc_uncorrected 3": "ecc_uncorrected",
    }
    faults = [f"gpu 0 error {error}" for error in refused]
    told = watched_all(tmp_path, *each_with(faults))
    for telemetry, missing in zip(told, refused.values(), strict=True):
        untold = [name for name, value in known(telemetry).items() if value is None]
        assert untold == [missing, "ended"]


def test_a_driver_without_newer_and_a_pynvml_without_older_calls(
    tmp_path: Path,
) -> None:
    """A driver without the newer calls and a pynvml without the older ones.

    These are to go with CUDA 14.
    """
    old = "\ngpu 0 error temperature_v 13\ngpu 0 error throttle_events 13\ngpu 0 series throttle 0x8"
    telemetry = seen(tmp_path, FULL + old)
    assert telemetry["temperature_c"] == 60
    assert telemetry["throttle_reasons"] == ["hardware slowdown"]
    without = "import pynvml\ndel pynvml.nvmlDeviceGetTemperature\n"
    without += "del pynvml.nvmlDeviceGetCurrentClocksThrottleReasons\n"
    code = without + WATCH.format(uuids=["GPU-1"], readings=2)
    variables = environment(tmp_path, "gpu 0 uuid GPU-1\ngpu 0 power 1000")
    (telemetry,) = json.loads(child(code, variables))
    assert telemetry["temperature_c"] is telemetry["throttle_reasons"] is None
    assert telemetry["power_w"] == 1.0


def test_a_gpu_that_is_lost_keeps_what_was_seen(tmp_path: Path) -> None:
    """A GPU that is lost keeps what was seen and one that is not known has no telemetry."""
    lost = "gpu 0 series temperature 60 60 !15"
    reset = "gpu 0 series energy 1 2 3 !16"
    script, uuids = each_with([lost, reset, "gpu 0 error handle 15"])
    told = watched_all(tmp_path, script, [*uuids, "GPU-2"], readings=1000)
    ends = [record and (record["readings"], record["ended"]) for record in told]
    lost_at_2, reset_at_3 = (2, "gpu-lost"), (3, "gpu-needs-reset")
    assert ends == [lost_at_2, reset_at_3, (0, "gpu-lost"), None]
    assert watched_all(tmp_path, "init_error 9", ["GPU-1"]) == [None]


def test_a_gpu_that_must_be_reset_is_not_read_any_more(tmp_path: Path) -> None:
    code = """
import json, time
from gpubalance.devices.telemetry import TelemetryRecorder
course = TelemetryRecorder()
with course.watching("GPU-1", interval_s=0.005):
    while course.ended is None:
        time.sleep(0.002)
seen = course.telemetry()
with course.watching("GPU-1", interval_s=0.005):
    time.sleep(0.1)
print(json.dumps([seen == course.telemetry(), course.latest, seen.model_dump()]))
"""
    script = f"gpu 0 series power 1000 2000 !16 3000\n{FULL}"
    told = child(code, environment(tmp_path, script), GENEROUS_S)
    is_all, latest, telemetry = json.loads(told)
    assert (is_all, latest) == (True, None)
    assert (telemetry["readings"], telemetry["power_w"]) == (2, 1.5)


def test_several_at_once(tmp_path: Path) -> None:
    """Each in its thread; NVML counts its users, and the last one out shuts it down."""
    uuids = [TI, PLAIN, "GPU-none"]
    code = f"""{WATCH.format(uuids=uuids, readings=3)}
import pynvml
for thread in threading.enumerate()[1:]:
    thread.join(60)
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError_Uninitialized as error:
    print(error)
"""
    variables = environment(tmp_path, TWO_UNLIKE_GPUS)
    told, ended = child(code, variables, GENEROUS_S).splitlines()
    *seen, none = json.loads(told)
    figures = [[one[name] for name in NO_FIGURES[:2]] for one in seen]
    assert figures == [[60, 120.0], [55, 90.0]]
    assert [one["sm_clock_mhz"] for one in seen] == [1900, 1800]
    assert (none, ended) == (None, "Uninitialized")


def test_a_call_that_hangs_is_left_with_what_was_seen_before(tmp_path: Path) -> None:
    telemetry = seen(tmp_path, f"gpu 0 series energy 5000000 ~600\n{FULL}", readings=1)
    figures = [telemetry[name] for name in ("readings", "temperature_c", "power_w")]
    assert figures == [1, 60, 250.0]
    assert (telemetry["energy_j"], telemetry["ecc_uncorrected"]) == (None, None)


def test_nvml_that_hangs_from_the_start_delays_nobody(tmp_path: Path) -> None:
    hangs_at_start = f"init_error ~600\n{FULL}"
    assert watched_all(tmp_path, hangs_at_start, ["GPU-1"], readings=0) == [None]
    hangs = each_with(["gpu 0 error handle ~600", "gpu 0 error all ~600"])
    assert watched_all(tmp_path, *hangs, readings=0) == [None, None]


def test_the_end_does_not_wait_for_the_next_reading(tmp_path: Path) -> None:
    # With this patience the test also passes on a machine under load.
    patient = "from gpubalance.devices import telemetry\ntelemetry.PATIENCE_S = 60\n"
    code = patient + WATCH.format(uuids=["GPU-1"], readings=1).replace("0.005", "600")
    (telemetry,) = json.loads(child(code, environment(tmp_path, FULL), GENEROUS_S))
    assert (telemetry["readings"], telemetry["energy_j"]) == (1, 1.0)


def test_a_fault_is_passed_on_and_a_pause_belongs_to_no_block(tmp_path: Path) -> None:
    """A fault within the block is passed on and a pause belongs to no block."""
    code = """
import json, time
from gpubalance.devices.telemetry import TelemetryRecorder
course = TelemetryRecorder()
for readings in (2, 4):
    try:
        with course.watching("GPU-1", interval_s=0.005):
            while course.readings < readings:
                time.sleep(0.002)
            raise ValueError("the caller's")
    except ValueError as error:
        said = str(error)
    time.sleep(0.3)
print(json.dumps([said, course.telemetry().model_dump()]))
"""
    said, telemetry = json.loads(child(code, environment(tmp_path, FULL), GENEROUS_S))
    assert said == "the caller's"
    assert telemetry["readings"] >= 4
    times = [moment["at_s"] for moment in telemetry["course"]]
    assert telemetry["duration_s"] <= times[-1] - times[0] - 0.3 + 0.1
    assert {moment["temperature_c"] for moment in telemetry["course"]} == {60}
