"""`launch --restarts`: a training that loses processes and hosts ends as an undisturbed one."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan as plan_of
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import ROOT, start
from tests.jobs.probes import probe_of
from tests.support.in_process import HANGS_AFTER_S
from tests.support.late import keras
from tests.support.namespaces import NoNamespacesError, hosts_with_links
from tests.training.rank import build, data
from tests.training.test_hosts import TOLERANCE, TWO_HOSTS, write_plan

EPOCHS, BATCH = 5, 144
# A host that is down lets nobody in; the session on it is a process of its own.
VIA = """
host=$1; shift
[ ! -e {folder}/down-$host ] || exit 255
ON=$host "$@"
exit $?
"""
# Each start loses what is named for it, in the second step after the epoch with which it begins.
SCRIPT = """
import os, shutil, signal, subprocess, sys
from pathlib import Path
import numpy as np, psutil
import gpubalance
from gpubalance.workers.serve import lean_import
from tests.training.rank import build, data

with lean_import():
    import keras
folder, simulate, plan = Path(sys.argv[1]), *sys.argv[2:4]
split = gpubalance.load_plan(plan, simulate=int(simulate) if simulate == "1" else simulate)
start = len(list(folder.glob("backup-*")))
what, _, host = [*sys.argv[4:], ""][start].partition("@")
down = folder / f"down-{host}"
epochs = []

def lose(batch, logs):
    if batch != 1 or not epochs or os.environ["ON"] != host:
        return
    script = psutil.Process()
    agent = script.parent()
    session = agent.parent()
    if what in ("host", "silence"):
        down.touch()
    if what == "link":
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        return
    lost = {"session": [session], "process": [script]}.get(what, [session, agent, script])
    for process in lost:
        process.send_signal(signal.SIGSTOP if what == "silence" else signal.SIGKILL)

if what == "process":
    for left in folder.glob("down-*"):
        left.unlink()
if "link" in sys.argv[4]:
    subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
with split.scope():
    model = build()
x, y = data()
callbacks = [
    keras.callbacks.BackupAndRestore(str(folder / "backup"), double_checkpoint=True),
    keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epochs.append(epoch), on_train_batch_end=lose
    ),
]
if split.is_first:
    (folder / "backup").mkdir(exist_ok=True)
    shutil.copytree(folder / "backup", folder / f"backup-{start}")
split.fit(model, x, y, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
print("trained epochs", epochs, "steps", int(model.optimizer.iterations.numpy()))
if split.is_first:
    np.savez(folder / "weights.npz", *model.get_weights())
"""


def launched(
    folder: Path, plan: Path, simulate: str, via: str, *losses: str
) -> tuple[str, str]:
    """What a launch that goes on after these losses prints: by the script, and by itself."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("EPOCHS", str(EPOCHS)))
    process = start(
        "launch",
        *("--via", via, "--restarts", str(len(losses)), "--at-least", "2"),
        *(str(plan), str(script), str(folder), simulate, str(plan), *losses),
        environment={"PYTHONPATH": str(ROOT)},
    )
    out, err = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, err
    return out, "\n".join(re.findall("^launch .*", err, re.MULTILINE))


def undisturbed(backup: Path) -> list[Any]:
    """The weights of a training on one device that goes on from the backup."""
    model = build()
    restore = keras.callbacks.BackupAndRestore(str(backup), double_checkpoint=True)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(*data(), BATCH, callbacks=[restore], **options)
    return list(model.get_weights())


def check_weights(folder: Path, restarts: int) -> None:
    """Asserts that each start would have ended with these weights if it had lost nothing."""
    found = np.load(folder / "weights.npz")
    for number in range(1, restarts + 1):
        expected = undisturbed(folder / f"backup-{number}")
        for name, weight in zip(found.files, expected, strict=True):
            assert np.max(np.abs(found[name] - weight)) < TOLERANCE, (number, name)


@pytest.mark.full  # fifteen processes; cli/test_launch.py restarts small ones
def test_a_training_survives_the_loss_of_processes_and_hosts(tmp_path: Path) -> None:
    """The session on a host, the whole host, a process, and the link to the host are lost.

    While the host is down the others train; it is used again when it is back.
    """
    via = tmp_path / "via.sh"
    via.write_text(VIA.format(folder=tmp_path))
    losses = ("session@beta", "host@beta", "process@alpha", "silence@beta")
    plan = write_plan(tmp_path)
    out, told = launched(tmp_path, plan, TWO_HOSTS, f"sh {via} {{host}}", *losses)
    assert re.findall("it goes on with epoch (.)", told) == ["2", "3", "4", "5"], told
    as_before = "the global batch of 144 as before"
    restarts = re.findall(rf"restart \d of 4: (.*), {as_before}", told)
    of_all, of_alpha = "alpha:0 80, alpha:1 40, beta:0 24", "alpha:0 96, alpha:1 48"
    assert restarts == [of_all, of_alpha, of_all, of_alpha], told
    # What is lost is found a step later
    where = r"since the last backup: [123]; it was in step [123] of epoch (.)"
    lost = re.findall(where, told)
    assert lost == ["2", "3", "4", "5"], told
    assert told.count("beta can't be reached: ") == 2, told
    # One epoch of five steps was left to the last start; its backup has all that came before
    assert "alpha:0, alpha:1 | trained epochs [4] steps 25\n" in out
    check_weights(tmp_path, 4)


@pytest.mark.campaign
def test_a_training_survives_a_cut_link(tmp_path: Path) -> None:
    """The hosts are namespaces of this machine; the one that cuts itself off comes back."""
    with ExitStack() as made:
        try:
            names = made.enter_context(hosts_with_links(None, None))
        except NoNamespacesError as error:
            pytest.skip(str(error))
        paced = [simulated_devices(TWO_HOSTS)[0][number] for number in (0, 2)]
        plain, _ = simulated_devices(1, names)
        request = PlanRequest(global_batch=BATCH, sync_s=0.0)
        made_plan = plan_of(probe_of(paced), paced, request)
        path = tmp_path / "plan.json"
        of_plain = made_plan.model_copy(update={"devices": plain})
        path.write_text(of_plain.model_dump_json())
        via = "env ON={host} ip netns exec {host}"
        out, told = launched(tmp_path, path, "1", via, f"link@{names[1]}")
    assert "since the last backup: 2; it was in step 2 of epoch 2" in told, told
    assert f"{names[1]}:0 | trained epochs [1, 2, 3, 4] steps 25\n" in out
    check_weights(tmp_path, 1)
