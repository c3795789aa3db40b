"""`launch` on GPUs: those of two hosts, and one that falls off its bus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpubalance.settings.device import Device
from tests.cli.program import PROGRAM, ROOT, start
from tests.fake_gpu import Gpu, fake_gpus, operations
from tests.support.altered import altered
from tests.support.in_process import HANGS_AFTER_S
from tests.training.plans import planned
from tests.workers.test_plain_shell import typed

CARD: dict[str, Any] = {"name": "card", "memory_bytes": 2 << 30, "simulated": False}
SCRIPT = """
import os, signal, sys
from pathlib import Path
import gpubalance
import keras
from tests.training.rank import build, data

split = gpubalance.load_plan(sys.argv[1])
epochs = []

def lose(batch, logs):
    machine = Path(os.environ["NVML_STAND_IN"])
    lines = machine.read_text().splitlines(keepends=True)
    if epochs and len(split.batches) == 2:
        machine.write_text("".join(line for line in lines if not line.startswith("gpu 1")))
        os.kill(os.getpid(), signal.SIGABRT)  # as TensorFlow does when a GPU is gone

with split.scope():
    model = build(normalised=False)
x, y = data()
callbacks = [
    keras.callbacks.BackupAndRestore(sys.argv[2]),
    keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epochs.append(epoch), on_train_batch_end=lose
    ),
]
split.fit(model, x, y, epochs=3, verbose=0, callbacks=callbacks)
print("trained", split.batches, epochs)
"""

OVER_HOSTS = """
import sys
import gpubalance
from tests.training.rank import build, data

split = gpubalance.load_plan(sys.argv[1])
with split.scope():
    model = build(normalised=False)
x, y = data()
losses = split.fit(model, x, y, epochs=2, verbose=0).history["loss"]
print(split.batches, losses[1] < losses[0])
"""


def written(folder: Path, cards: list[Device], code: str) -> tuple[Path, Path]:
    """A plan for these cards, and a script."""
    plan = altered(planned(global_batch=144, sync_s=0.0), devices=tuple(cards))
    path, script = folder / "plan.json", folder / "train.py"
    path.write_text(plan.model_dump_json())
    script.write_text(code)
    return path, script


def test_a_script_trains_on_gpus_of_two_hosts(tmp_path: Path) -> None:
    """It is typed in a plain shell: a fork of the tests would have TensorFlow set up."""
    machines, cards = {}, []
    for host in ("alpha", "beta"):
        (tmp_path / host).mkdir()
        gpu = Gpu("card", 2 << 30, uuid=f"GPU-{host}")
        machines[host] = fake_gpus(tmp_path / host, gpu)
        cards.append(Device(index=0, uuid=f"GPU-{host}", host=host, **CARD))
    shell = machines["alpha"] | {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    shell["PYTHONPATH"] += f":{ROOT}"
    names = ("NVML_STAND_IN", "FAKEGPU_TRACE")
    values = [f"{name}={shell[name].replace('alpha', '{host}')}" for name in names]
    path, script = map(str, written(tmp_path, cards, OVER_HOSTS))
    words = ("launch", "--via", " ".join(["env", *values]), path, script, path)
    done = typed(PROGRAM, *words, at=tmp_path, env=shell)
    lines = [f"{host}:0 | (88, 56) True" for host in machines]
    assert sorted(done.stdout.splitlines()) == lines
    for host, batch in (("alpha", 88), ("beta", 56)):
        copied = {one.bytes for one in operations(machines[host])}
        assert batch * 16 * 4 in copied  # 16 numbers of float32


def test_a_gpu_that_is_lost_is_left_out(tmp_path: Path) -> None:
    gpus = [Gpu("card", 2 << 30, uuid=f"GPU-{n}") for n in (0, 1)]
    machine = fake_gpus(tmp_path, *gpus)
    cards = [Device(index=n, uuid=f"GPU-{n}", **CARD) for n in (0, 1)]
    path, script = written(tmp_path, cards, SCRIPT)
    files = map(str, (path, script, path, tmp_path / "backup"))
    words = ("launch", "--restarts", "1", *files)
    environment = {**machine, "PYTHONPATH": f"{machine['PYTHONPATH']}:{ROOT}"}
    process = start(*words, environment=environment)
    out, err = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, err
    assert "launch | the process of GPU:0, GPU:1 was ended by SIGABRT\n" in err
    as_before = "with the global batch of 144 as before"
    assert f"launch | restart 1 of 1: GPU:0 144, {as_before}\n" in err
    assert out == "GPU:0 | trained (144,) [1, 2]\n"
