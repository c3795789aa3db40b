"""Devices on several hosts, as a profile names them: every host's are processes of this machine."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import psutil
import pytest

import gpubalance
from gpubalance.cli.next_command import uses
from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.checkup import Checkups
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from gpubalance.results.run import Run
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import (
    ROOT,
    SHORT,
    TINY,
    children_of,
    here,
    result_of,
    start,
    typed,
)
from tests.faults.machine import PLAIN, TI
from tests.jobs.probes import probe_of
from tests.stand_in import environment
from tests.support.altered import altered
from tests.support.in_process import Program
from tests.support.known import known

TWO_HOSTS = str(ROOT / "configs" / "two-hosts.toml")
DEVICES, JOINT = simulated_devices(TWO_HOSTS)
LABELS = ["alpha:0", "alpha:1", "beta:0"]


# It waits, as data that is given as fast as it can be keeps all cores busy.
DATA = """
import time
import numpy as np
import tensorflow as tf

def waits(values):
    time.sleep(0.01)
    return values

def samples():
    data = tf.data.Dataset.from_tensor_slices((np.ones((300, 8), "float32"), np.ones((300, 4), "float32")))
    slowly = lambda x, y: (tf.ensure_shape(tf.numpy_function(waits, [x], tf.float32), (None, 8)), y)
    return data.repeat().batch(144).map(slowly)
"""


@pytest.mark.full  # launch sums over hosts in training/test_hosts.py
@pytest.mark.usefixtures("forked")
def test_a_run_over_two_hosts_is_measured_compared_and_reported(tmp_path: Path) -> None:
    """Each host is behind a prefix, with TensorFlow's real collectives between two processes.

    Both processes read the user's samples.
    """
    path = tmp_path / "run.json"
    (tmp_path / "mine.py").write_text(DATA)
    split = typed(f"--gpus alpha:0 beta:0 --batches 120 24 --baseline none -o {path}")
    own = ("--model", TINY, "--data", f"{tmp_path}/mine.py:samples")
    reached = ("--hosts", "alpha,beta", "--via", "env ON={host}")
    done = here("run", "--simulate", TWO_HOSTS, *reached, *own, *split, *SHORT, code=0)
    labels = ["alpha:0", "beta:0"]
    rows = [one for one in LABELS if re.search(rf"(?m)^{one} ", done.stdout)]
    assert rows == labels
    assert "building" in done.stderr
    assert done.stdout.startswith("your input pipeline alone gives ")  # and keeps up
    run = read_record(path, Run)
    assert [device.host for device in run.devices] == ["alpha", "beta"]
    for device, replica in zip(run.devices, run.replicas, strict=True):
        profile = known(device.profile)
        alone_s = profile.alpha_s + profile.beta_s * replica.batch
        assert replica.compute_s >= alone_s - 1e-6
        held = profile.memory_at(replica.batch, JOINT.extra_memory)
        assert replica.memory_peak_bytes == held
    # It is what medians of other parts leave of a step
    assert run.sync_s >= 0.8 * JOINT.sync_s
    assert run.complete
    assert known(run.pipeline).alone.median > run.throughput.median

    compared = here("compare", str(path), str(path), code=0)
    assert all(label in compared.stdout for label in labels)
    here("report", str(path), "--html", str(tmp_path / "run.html"), code=0)
    assert all(label in (tmp_path / "run.html").read_text() for label in labels)


@pytest.mark.usefixtures("stand_in")
def test_plain_devices_on_hosts() -> None:
    hosts = ("--simulate", "1", "--hosts", "alpha,beta", "--via", "env ON={host}")
    listed = here("devices", *hosts, code=0)
    rows = re.findall(r"(?m)^(\w+:\d) +CPU", listed.stdout)
    assert rows == ["alpha:0", "beta:0"]
    run = result_of(Run, "run", *hosts, "--batches", "8", "4", *SHORT)
    found = [(device.host, device.profile) for device in run.devices]
    assert found == [("alpha", None), ("beta", None)]


@pytest.mark.usefixtures("stand_in")
def test_some_devices_of_some_hosts() -> None:
    two = ("--gpus", "beta:0", "alpha:1", "--batches", "8", "8")
    run = result_of(Run, "run", "--simulate", TWO_HOSTS, *two, *SHORT)
    found = [(device.host, device.index) for device in run.devices]
    assert found == [("beta", 0), ("alpha", 1)]
    probe = f"probe --simulate {TWO_HOSTS} --gpus beta:0 --max-batch 16"
    assert result_of(Probe, probe).probes[0].device == 0


@pytest.mark.usefixtures("forked")
def test_a_split_on_one_host_trains_with_the_ring_asked_for_all() -> None:
    """A split that leaves all but one host out trains with the ring that was asked for all."""
    run = f"run --simulate {TWO_HOSTS} --all-reduce ring --model {TINY} --baseline none"
    split = ("--batches", "16", "8", "0")
    assert result_of(Run, run, *split, *SHORT).batches == (16, 8, 0)


@pytest.mark.parametrize("gpus", ["gamma:0", "alpha:2", "alpha", "0"])
def test_an_unknown_device_of_a_host_is_refused(gpus: str, in_process: Program) -> None:
    code, _, err = in_process(["run", "--simulate", TWO_HOSTS, "--gpus", gpus])
    assert code == 2
    assert f"there is no device '{gpus}'" in err
    assert all(label in err for label in LABELS)


@pytest.fixture
def three_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Two hosts with a GPU each, as NVML tells of it, and gamma, which can't be reached.

    TensorFlow can't be loaded on the two.
    """
    for host, uuid in (("alpha", TI), ("beta", PLAIN)):
        (tmp_path / host).mkdir()
        own = f"driver 550.54.14\ngpu 0 uuid {uuid}\n"
        variables = environment(tmp_path / host, own)
    fails = "raise ImportError('what it says of them is not asked here')"
    (tmp_path / "tensorflow.py").write_text(fails)
    monkeypatch.setenv("LD_LIBRARY_PATH", variables["LD_LIBRARY_PATH"])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    script = Path(variables["NVML_STAND_IN"])
    prefix = tmp_path / "prefix"
    named = script.parent.parent / "$1" / script.name
    greets = f'echo "Hello {{$1}} {{}}"; export NVML_STAND_IN={named}; shift; '
    greets += '"$@"; code=$?; echo "bye }"; exit $code'
    prefix.write_text(f"[ $1 = gamma ] && exit 255; {greets}\n")
    return "--hosts", "alpha,beta,gamma", "--via", f"sh {prefix} {{host}}"


def test_devices_are_listed_and_a_lost_host_named(three_hosts: tuple[str, ...]) -> None:
    """Devices of hosts are listed and one that can not be reached is named."""
    done = here("devices", *three_hosts, code=3)
    assert done.stderr.startswith("error: gamma can't be reached: sh ")
    of_alpha, of_beta = done.stdout.split("\n\n")
    assert of_alpha.startswith("alpha\n")
    assert TI in of_alpha
    assert of_beta.startswith("beta\n")
    assert PLAIN in of_beta


def test_hosts_check_themselves_at_the_same_time(three_hosts: tuple[str, ...]) -> None:
    done = here("doctor", *three_hosts, *typed("--gpus alpha:0 gamma:0 --json"), code=3)
    assert "error: this failed on alpha: TensorFlow\n" in done.stderr
    found = Checkups.model_validate_json(done.stdout)
    assert [host.host for host in found.hosts] == ["alpha", "gamma"]
    here_, there = (host.checks for host in found.hosts)
    assert [check.status for check in here_ if check.code == "driver"] == ["ok"]
    assert [(check.code, check.status) for check in there] == [("host", "failure")]
    assert "gamma can't be reached" in there[0].detail


def test_an_interrupt_waits_for_no_host() -> None:
    via = ("--via", "sh -c 'sleep 600; true' {host}")
    process = start("devices --hosts alpha,beta", *via)
    while len(children_of(process.pid)) < 4:
        time.sleep(0.05)
    there = children_of(process.pid)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not psutil.wait_procs(there, timeout=30)[1]


def test_a_probe_of_other_hosts_is_refused(in_process: Program) -> None:
    Path("probe.json").write_text(probe_of(DEVICES).model_dump_json())
    code, _, err = in_process(["plan", "probe.json", "--hosts", "alpha"])
    assert code == 2
    says = "error: --hosts lacks beta, where some of the probe's devices are"
    assert err.startswith(says)


def test_the_printed_lines_are_for_the_device_that_was_planned() -> None:
    """The printed lines are for the device that was planned and not for one of that number here."""
    made = plan(probe_of(DEVICES), DEVICES[1:2], PlanRequest(sync_s=0.0, accumulate=1))
    made_here = uses(made, TWO_HOSTS, None)[1][0]
    assert made_here.startswith("split = gpubalance.Split(['alpha:1'], [")
    split = eval(made_here.removeprefix("split = "), {"gpubalance": gpubalance})  # noqa: S307  (our own line)
    assert [device.label for device in split.devices] == ["alpha:1"]
    elsewhere = altered(made, devices=(altered(DEVICES[1], simulated=False),))
    assert uses(elsewhere, None, None)[1] == ()
    (*_, line) = uses(elsewhere, None, Path("plan.json"))[1]
    assert line == "# gpubalance launch plan.json train.py"


def test_the_printed_lines_name_the_hosts_of_plain_devices(tmp_path: Path) -> None:
    plain, _ = simulated_devices("1", ("alpha", "beta"))
    asked = PlanRequest(sync_s=0.0, accumulate=1)
    of_a_profile = plan(probe_of(DEVICES), DEVICES[2:], asked)
    made = altered(of_a_profile, devices=plain[1:])
    file = tmp_path / "plan.json"
    file.write_text(made.model_dump_json())
    for path in (None, file):
        line = uses(made, "1", path)[1][0]
        split = eval(line.removeprefix("split = "), {"gpubalance": gpubalance})  # noqa: S307  (our own line)
        assert [device.label for device in split.devices] == ["beta:0"]
