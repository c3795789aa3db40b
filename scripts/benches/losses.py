"""A training under `launch --restarts` over ssh that loses a process, a session, a host, a link."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan as plan_of
from gpubalance.settings.planning import PlanRequest
from scripts.benches.answering import answering
from scripts.benches.clusters import NotServedError, Way
from scripts.benches.quotas import empty
from scripts.benches.turns import printed
from scripts.benches.unlike_hosts import Host, Hosts
from tests.cli.program import PROGRAM, ROOT
from tests.jobs.probes import of_config, probe_of
from tests.support.late import keras
from tests.training.rank import build, data

# What each start loses on the last host, which comes back but for the last time
_LOSSES = ("process", "session", "host", "link")
_EPOCHS, _BATCH = len(_LOSSES) + 1, 144
_STEPS = 5  # in an epoch
_TOLERANCE = 1e-5
_TRAINS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from scripts.benches.losses import train
train(*sys.argv[1:])
"""


def line_about(hosts: Hosts, way: Way) -> str:
    """What was lost, what was trained all the same, and how far the weights are off."""
    plan = _write_plan(hosts)
    script = hosts.folder / "survives.py"
    script.write_text(_TRAINS)
    restarts = ("--restarts", str(len(_LOSSES)))
    words = [
        PROGRAM,
        "launch",
        *restarts,
        plan,
        str(script),
        plan,
        hosts.all[-1].address,
    ]
    with _coming_back(hosts, way):
        done = hosts.typed(words)
    trained = re.findall(r"trained (\d+) steps", done.stdout)
    if done.returncode or not trained:
        raise NotServedError(f"launch --restarts: {done.stderr[-2000:]}")
    off = float(printed("scripts.benches.losses", str(hosts.folder)))
    wanted = _EPOCHS * _STEPS
    met = "met" if int(trained[-1]) == wanted and off < _TOLERANCE else "missed"
    lost = ", ".join(_LOSSES)
    weights = (
        f"weights {off:.1e} off those of an undisturbed training, wanted {_TOLERANCE}"
    )
    return f"lost {lost}; trained {trained[-1]} of {wanted} steps, {weights}: {met}"


def _write_plan(hosts: Hosts) -> str:
    """A plan for a plain device on the first and on the last host."""
    paced = of_config("two-hosts")[0][::2]
    made = plan_of(probe_of(paced), paced, PlanRequest(global_batch=_BATCH, sync_s=0.0))
    plain, _ = simulated_devices(1, [hosts.all[0].name, hosts.all[-1].name])
    path = hosts.folder / "survives.json"
    path.write_text(made.model_copy(update={"devices": plain}).model_dump_json())
    return str(path)


@contextmanager
def _coming_back(hosts: Hosts, way: Way) -> Iterator[None]:
    """Ends all on the last host when the training asks for it, and starts its sshd again."""
    host = hosts.all[-1]

    def come_back(_: str) -> None:
        empty(host.group)
        way.serve(host)

    try:
        with answering(hosts.folder / "lost-host", come_back):
            yield
    finally:
        _link(host, "up")


def _link(host: Host, state: str) -> None:
    subprocess.run(["ip", "-n", host.name, "link", "set", "eth0", state], check=True)


def train(plan: str, loses_at: str) -> None:
    """One process's part of the training, which loses something after its first epoch."""
    import gpubalance

    folder = Path(plan).parent
    start = len(list(folder.glob("backup-*")))
    ended: list[int] = []

    def lose(batch: int, logs: object) -> None:
        if batch == 1 and ended and os.environ["SSH_CONNECTION"].split()[2] == loses_at:
            _lose(_LOSSES[start], folder)

    split = gpubalance.load_plan(plan, simulate=1)
    with split.scope():
        model = build()
    if split.is_first:
        (folder / "backup").mkdir(exist_ok=True)
        shutil.copytree(folder / "backup", folder / f"backup-{start}")
    callbacks = keras.callbacks
    backup = callbacks.BackupAndRestore(str(folder / "backup"), double_checkpoint=True)
    loss = callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, _: ended.append(epoch), on_train_batch_end=lose
    )
    how = {
        "epochs": _EPOCHS,
        "shuffle": False,
        "verbose": 0,
        "callbacks": [backup, loss],
    }
    split.fit(model, *data(), **how)
    if split.is_first:
        np.savez(folder / "weights.npz", *model.get_weights())
        print(f"trained {int(model.optimizer.iterations.numpy())} steps")


def _lose(what: str, folder: Path) -> None:
    """Ends the process, the session of sshd that holds it, all on the host, or its network."""
    script = psutil.Process()
    agent = script.parent()
    if what == "process":
        script.send_signal(signal.SIGKILL)
    elif what == "session":
        agent.parent().send_signal(signal.SIGKILL)
    elif what == "host":
        (folder / "lost-host").touch()
        signal.pause()
    else:
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


def _off(folder: Path) -> float:
    """How far the weights are at most from what a device alone makes of each start's backup."""
    found = np.load(folder / "weights.npz")
    off = 0.0
    for number in range(1, len(_LOSSES) + 1):
        model = build()
        restore = keras.callbacks.BackupAndRestore(
            str(folder / f"backup-{number}"), double_checkpoint=True
        )
        how = {
            "epochs": _EPOCHS,
            "shuffle": False,
            "verbose": 0,
            "callbacks": [restore],
        }
        model.fit(*data(), _BATCH, **how)
        for name, weight in zip(found.files, model.get_weights(), strict=True):
            off = max(off, float(np.max(np.abs(found[name] - weight))))
    return off


if __name__ == "__main__":
    print(_off(Path(sys.argv[1])))
