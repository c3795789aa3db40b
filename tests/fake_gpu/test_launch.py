"""`launch --restarts` on GPUs: one that falls off its bus is left out from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpubalance.settings.device import Device
from tests.cli.program import ROOT, start
from tests.fake_gpu import Gpu, fake_gpus
from tests.support.altered import altered
from tests.support.in_process import HANGS_AFTER_S
from tests.training.plans import planned

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


def test_a_gpu_that_is_lost_is_left_out(tmp_path: Path) -> None:
    gpus = [Gpu("card", 2 << 30, uuid=f"GPU-{n}") for n in (0, 1)]
    machine = fake_gpus(tmp_path, *gpus)
    own: Any = {"name": "card", "memory_bytes": 2 << 30, "simulated": False}
    cards = [Device(index=n, uuid=f"GPU-{n}", **own) for n in (0, 1)]
    plan = altered(planned(global_batch=144, sync_s=0.0), devices=tuple(cards))
    path, script = tmp_path / "plan.json", tmp_path / "train.py"
    path.write_text(plan.model_dump_json())
    script.write_text(SCRIPT)
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
