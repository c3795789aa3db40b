"""What the tests run inside a process with fake GPUs: the engine, as a worker has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpubalance.devices.machine import read_gpus
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.settings import Settings
from tests.support.as_worker import show
from tests.support.late import keras, layers, losses, optimizers

if TYPE_CHECKING:
    from gpubalance.engine.session import Session


def session(count: int = 2, **settings: Any) -> Session:
    """The small model on the first GPUs of the machine."""
    devices = [gpu.device for gpu in read_gpus().gpus][:count]
    show(devices)
    from gpubalance.engine.session import Session

    return Session(devices, Settings(model="small", **settings), JointProfile(), seed=0)


def cnn(metrics: Sequence[str] = ()) -> Any:
    """A small compiled CNN, the same each time."""
    keras.utils.set_random_seed(3)
    pooled = layers.GlobalAveragePooling2D()  # its gradient needs the batch's size
    body = [layers.Conv2D(8, 3, activation="relu"), pooled, layers.Dense(10)]
    model = keras.Sequential([keras.Input((12, 12, 3)), *body])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    sgd = optimizers.SGD(0.05, momentum=0.9)
    model.compile(sgd, loss, metrics=list(metrics), jit_compile=False)
    return model


def steps(session: Session, split: BatchSplit, number: int) -> list[dict[str, Any]]:
    """When each of some stamped steps began and ended to be queued, and its stamps.

    Each comes behind a usual step, which began to be queued at `usual_s`. The GPUs have nothing to
    do before the first and after the last.
    """
    from gpubalance.engine import runtime

    session._train_with(split)
    session._run(stamped=True)  # traced
    runtime.wait_for(session._names)
    found = []
    for _ in range(number):
        usual_s = time.perf_counter()
        session._run()
        began_s = time.perf_counter()
        _, stamps, _ = session._run(stamped=True)
        times = {"usual_s": usual_s, "began_s": began_s, "ended_s": time.perf_counter()}
        found.append(times | {"stamps": stamps.numpy().tolist()})
    runtime.wait_for(session._names)
    return found


def failure(
    session: Session, fails: tuple[int, ...] | Callable[[], object]
) -> dict[str, Any]:
    """The error of batches that do not train, or of other work, as a worker tells it."""
    from gpubalance.engine.failures import explain

    how: Any = {"seconds": 0, "at_least": 1, "steps_per_timing": 1, "stamped": False}
    try:
        if callable(fails):
            fails()
        else:
            list(session.measure(BatchSplit(fails), **how))
    except Exception as error:  # noqa: BLE001  (whatever TensorFlow raises)
        found: Any = explain(error, session.settings, session._names)
        told = {"kind": type(found).__name__, "replica": found.replica}
        return told | {"message": (found.fault or found).message}
    raise AssertionError(f"{fails} trained")
