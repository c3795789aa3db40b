"""`launch --restarts`: a training that loses processes and hosts ends as an undisturbed one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.program import ROOT, start, typed
from tests.support.in_process import HANGS_AFTER_S
from tests.support.late import keras
from tests.training.cases import largest
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
import os, shutil, signal, sys
from pathlib import Path
import numpy as np, psutil
import gpubalance
from gpubalance.workers.serve import lean_import
from tests.training.rank import build, data

with lean_import():
    import keras
folder, simulate, plan = Path(sys.argv[1]), *sys.argv[2:4]
split = gpubalance.load_plan(plan, simulate=simulate)
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
    lost = {"session": [session], "process": [script]}.get(what, [session, agent, script])
    for process in lost:
        process.send_signal(signal.SIGSTOP if what == "silence" else signal.SIGKILL)

if what == "process":
    for left in folder.glob("down-*"):
        left.unlink()
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


def undisturbed(backup: Path) -> list[Any]:
    """The weights of a training on one device that goes on from the backup."""
    model = build()
    restore = keras.callbacks.BackupAndRestore(str(backup), double_checkpoint=True)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(*data(), BATCH, callbacks=[restore], **options)
    return list(model.get_weights())


@pytest.mark.full  # fifteen processes; cli/test_launch.py restarts small ones
def test_a_training_survives_the_loss_of_processes_and_hosts(tmp_path: Path) -> None:
    """The session on a host, the whole host, a process, and the link to the host are lost.

    While the host is down the others train; it is used again when it is back.
    """
    via, script = tmp_path / "via.sh", tmp_path / "train.py"
    via.write_text(VIA.format(folder=tmp_path))
    script.write_text(SCRIPT.replace("EPOCHS", str(EPOCHS)))
    losses = ("session@beta", "host@beta", "process@alpha", "silence@beta")
    plan = str(write_plan(tmp_path))
    options = ("--via", f"sh {via} {{host}}", *typed("--restarts 4 --at-least 2"))
    given = (plan, str(script), str(tmp_path), TWO_HOSTS, plan, *losses)
    environment = {"PYTHONPATH": str(ROOT)}
    process = start("launch", *options, *given, environment=environment)
    out, err = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, err
    told = "\n".join(re.findall("^launch .*", err, re.MULTILINE))
    goes_on = re.findall("training continues with epoch (.)", told)
    assert goes_on == ["2", "3", "4", "5"], told
    as_before = "with the global batch of 144 as before"
    restarts = re.findall(rf"restart \d of 4: (.*), {as_before}", told)
    of_all, of_alpha = "alpha:0 80, alpha:1 40, beta:0 24", "alpha:0 96, alpha:1 48"
    assert restarts == [of_all, of_alpha, of_all, of_alpha], told
    # What is lost is found a step later
    where = r"since the last backup: [123]; training was in step [123] of epoch (.)"
    lost = re.findall(where, told)
    assert lost == ["2", "3", "4", "5"], told
    assert told.count("beta can't be reached: ") == 2, told
    # One epoch of five steps was left to the last start; its backup has all that came before
    assert "alpha:0, alpha:1 | trained epochs [4] steps 25\n" in out
    # Each start would have ended with these weights if it had lost nothing.
    found = np.load(tmp_path / "weights.npz")
    for number in range(1, 5):
        expected = undisturbed(tmp_path / f"backup-{number}")
        assert largest([found[name] for name in found.files], expected) < TOLERANCE
