"""`--redact`: a result that tells nobody whose machine it is from."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from gpubalance.cli.output import Output
from gpubalance.devices.planned import planned_devices
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import PlanMismatch
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Failure, Probe
from gpubalance.results.redact import Identity, Redaction, identity
from gpubalance.settings.device import Device, DeviceProfile
from tests.cli.program import QUICK_PAIR, here
from tests.jobs.probes import probe_of
from tests.stand_in import TWO_UNLIKE_GPUS, engine, environment

ALICE = Identity(homes=("/home/alice",), users=("alice",), hosts=("lab7.example.org", "lab7"))
HERS = {"HOME": "/home/alice", "USER": "alice", "LOGNAME": "alice", "HOSTNAME": "lab7"}
PERSONAL = ("alice", "lab7", "1080aaaa", "1080bbbb", ":01:00.0", ":02:00.0")


def gpus() -> tuple[Device, ...]:
    """The stand-in's pair of GPUs; a profile says what a probe of them would find."""
    pair = (("GPU-1080aaaa-0000-4000-8000-000000000001", 1), ("GPU-1080bbbb-0000-4000-8000-000000000002", 2))
    return tuple(
        Device(
            index=index,
            uuid=uuid,
            name="NVIDIA GeForce GTX 1080",
            memory_bytes=8 << 30,
            simulated=False,
            bus_id=f"0000:0{number}:00.0",
            profile=DeviceProfile(
                name="x",
                alpha_s=0.05,
                beta_s=0.001 * number,
                memory=8 << 30,
                base_memory=1 << 30,
                memory_per_sample=8 << 20,
            ),
        )
        for index, (uuid, number) in enumerate(pair)
    )


def her_probe() -> Probe:
    """A probe with everything that a result could reveal about its user."""
    probe = probe_of(gpus())
    first = gpus()[0]
    text = f"alice@lab7.example.org: {first.uuid} at {first.bus_id}: no room in /home/alice/nets, PID 4242 holds it"
    failed = probe.probes[0].model_copy(update={"failures": (Failure(exit_code=3, message=text),)})
    return probe.model_copy(
        update={
            "settings": probe.settings.model_copy(update={"model": "/home/alice/nets/train.py:build"}),
            "probes": (failed, probe.probes[1]),
            "warnings": (Warning_(code="x", message=text, next="ssh lab7"),),
        }
    )


def test_a_result_tells_neither_who_nor_where() -> None:
    cleaned = Redaction(ALICE).record(her_probe())
    text = cleaned.model_dump_json()
    assert not [word for word in PERSONAL if word in text]
    assert Probe.model_validate_json(text).model_dump_json() == text
    assert [device.uuid for device in cleaned.devices] == ["GPU-redacted-0", "GPU-redacted-1"]
    assert [device.bus_id for device in cleaned.devices] == ["bus-redacted-0", "bus-redacted-1"]
    assert cleaned.settings.model == "~/nets/train.py:build"
    told = "user@host: GPU-redacted-0 at bus-redacted-0: no room in ~/nets, PID redacted holds it"
    assert cleaned.warnings[0].message == cleaned.probes[0].failures[0].message == told
    assert cleaned.warnings[0].next == "ssh host"
    # Everything else, and what it was made of, is as it was.
    assert cleaned.probes[1] == her_probe().probes[1]
    assert Redaction(ALICE).record(cleaned) == cleaned


def test_simulated_devices_and_words_of_a_fixed_choice_stay() -> None:
    probe = probe_of(simulated_devices(QUICK_PAIR)[0])
    for user in ("probe", "float32", "line", "auto"):
        assert Redaction(Identity((), (user,), ())).record(probe) == probe


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/alice", "~"),
        ("/home/alicent/x", "/home/alicent/x"),
        ("/mnt/home/alice/x", "/mnt/home/user/x"),
        ("/data/alice/x", "/data/user/x"),
        ("malice, alice_2, Alice", "malice, alice_2, Alice"),
        ("lab7:8080, lab70", "host:8080, lab70"),
        ("MIG-GPU-1080aaaa-0000-4000-8000-000000000001/1/0", "MIG-redacted-0"),
        ("MIG-1080aaaa-0000-4000-8000-000000000001", "MIG-redacted-0"),
        ("at 00000000:01:00.0", "at bus-redacted-0"),
        ("2026-11-21T14:25:59+00:00", "2026-11-21T14:25:59+00:00"),
    ],
)
def test_a_name_is_taken_out_where_it_is_a_name(text: str, shown: str) -> None:
    assert Redaction(ALICE).text(text) == shown


def test_who_it_is_comes_from_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**HERS, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    whose = identity()
    assert str(tmp_path) in whose.homes
    assert "alice" in whose.users
    assert {"lab7", os.uname().nodename} <= set(whose.hosts) | {"localhost"}
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("USER", "root")
    assert "/" not in identity().homes
    assert "root" not in identity().users


def test_a_plan_says_that_it_can_not_be_run_and_gives_its_split(tmp_path: Path) -> None:
    path, plan = tmp_path / "probe.json", tmp_path / "plan.json"
    path.write_text(her_probe().model_dump_json())
    done = here("plan", str(path), "--redact", "-o", str(plan), environment={**HERS})
    assert done.returncode == 0, done.stderr
    written = Plan.model_validate_json(plan.read_text())
    assert not [word for word in PERSONAL if word in plan.read_text() + done.stdout]
    assert [warning.code for warning in written.warnings] == ["sync-unknown", "redacted"]
    batches = " ".join(map(str, written.batches))
    assert f"next: gpubalance run --gpus 0 1 --batches {batches} --model" in done.stdout
    assert f"Split([0, 1], {list(written.batches)}" in done.stdout
    assert "--plan plan.json" not in done.stdout

    with pytest.raises(PlanMismatch) as caught:
        planned_devices(written, gpus())
    assert "taken out by --redact" in caught.value.message
    assert f"--gpus 0 1 --batches {batches}" in caught.value.remedy
    named = shlex.split(done.stdout.split("next: ")[1].splitlines()[0])[-2:]  # a plan starts no code by itself
    assert named == ["--model", "~/nets/train.py:build"]
    run = here("run", "--plan", str(plan), "--model", "small", environment=environment(tmp_path, TWO_UNLIKE_GPUS))
    assert run.returncode == 7
    assert run.stderr.startswith("error: the plan does not say which GPUs it is for")


def test_what_is_printed_is_redacted_where_it_is_not_of_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a command that is suggested, with a path that was typed."""
    monkeypatch.setenv("HOME", "/home/alice")
    probe = her_probe()
    text = f"next: gpubalance run --plan /home/alice/plan.json, on {probe.devices[1].uuid}"
    Output(json=False, path=None, redact=True).give(probe, lambda _: text)
    assert capsys.readouterr().out == "next: gpubalance run --plan ~/plan.json, on GPU-redacted-1\n"


def test_the_listing_of_devices_loses_other_peoples_processes(tmp_path: Path) -> None:
    """In MIG mode, so that TensorFlow needs not be asked."""
    more = [f"gpu {index} mig 1" for index in (0, 1)]
    more += ["gpu 0 process compute 4242 1000 /home/alice/secret.py", "gpu 1 process graphics 77 none /usr/bin/Xorg"]
    variables = environment(tmp_path, "\n".join([TWO_UNLIKE_GPUS, *more])) | HERS
    open_ = here("devices", environment=variables)
    assert "secret.py (PID 4242)" in open_.stdout
    done = here("devices", "--redact", environment=variables)
    listed = here("devices", "--redact", "--json", environment=variables)
    for text in (done.stdout, listed.stdout):
        assert not [word for word in (*PERSONAL, "4242", "secret", "Xorg") if word in text]
    assert "a process holds 1000 B" in done.stdout
    first, second = json.loads(listed.stdout)["nvidia"]["gpus"]
    assert (first["uuid"], second["bus_id"]) == ("GPU-redacted-0", "bus-redacted-1")
    assert first["processes"] == [{"pid": None, "name": None, "memory_bytes": 1000}]
    assert json.loads(listed.stdout)["environment"]["driver"] == "550.54.14"


def test_an_error_and_the_log_that_it_quotes_are_redacted_too(tmp_path: Path) -> None:
    variables = HERS | {"HOME": str(tmp_path)}
    missing = tmp_path / "nowhere.json"
    assert str(missing) in here("plan", str(missing), environment=variables).stderr
    done = here("plan", str(missing), "--redact", environment=variables)
    assert "can't read ~/nowhere.json" in done.stderr
    assert str(tmp_path) not in done.stderr


def test_a_run_of_ones_own_model(tmp_path: Path) -> None:
    """The whole way: what is trained has a path, which the worker is told as it is and the result is not."""
    (tmp_path / "net.py").write_text(
        "from keras import Sequential, layers\n\n\ndef build():\n"
        "    return Sequential([layers.Input((2,)), layers.Dense(1)])\n"
    )
    model = f"{tmp_path}/net.py:build"
    variables = HERS | {"HOME": str(tmp_path)}
    done = here(
        *("run", "--simulate", "1", "--batches", "4", "--model", model, "--redact", "--json", "--quiet"),
        *("--windows", "1", "--duration", "0.3"),
        environment=variables | engine(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["settings"]["model"] == "~/net.py:build"
    assert result["devices"][0]["uuid"] == "CPU-0"
    assert str(tmp_path) not in done.stdout
