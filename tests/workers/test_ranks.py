"""What the processes of a run over hosts promise.

The processes are real, and the engine trains nothing. A failure of one leaves the others waiting in
a collective: here they sleep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
)
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, Measure
from gpubalance.workers.party import Party
from gpubalance.workers.ranks import Ranks
from gpubalance.workers.worker import Worker
from tests.support.asked import asked
from tests.workers.test_process import gone

ROOT = Path(__file__).parents[2]
DEVICES, JOINT = simulated_devices(str(ROOT / "configs/two-hosts.toml"))
BUILD = Build(settings=Settings(model="small"), joint=JOINT)
SPLIT = BatchSplit((80, 40, 24))


@pytest.fixture
def party_that(engine_that: Callable[[str], None]) -> Callable[[str], Party]:
    """A function that makes a party over both hosts, whose engine follows the script."""

    def make(script: str) -> Party:
        engine_that(script)
        return Party(DEVICES, build=BUILD)

    return make


def pids(worker: Worker) -> tuple[int, ...]:
    assert isinstance(worker.process, Ranks)
    return tuple(member.pid for member in worker.process._members)


FAILS = """
import os, signal, sys, time
import tensorflow as tf
def step(devices, batches, number):
    if devices[0].host == "beta":
        {act}
    {others}
def progress(devices):
    return {progress} if devices[0].host == "beta" else 5
"""
OOM = "raise tf.errors.ResourceExhaustedError(0, 0, 'OOM when allocating on device:GPU:0')"
NCCL = (
    "raise tf.errors.InternalError(0, 0, 'NCCL: unhandled cuda error. Set NCCL_DEBUG=WARN for "
    "detail.')"
)
LOST = "raise tf.errors.UnavailableError(0, 0, 'x')"
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
WAITS = "time.sleep(600)"
HANGS = f"sys.stderr = None; {WAITS}"  # whatever it has put in the place of stderr


@pytest.mark.parametrize(
    ("act", "others", "progress", "kind", "says"),
    [
        (
            "os.abort()",
            WAITS,
            4,
            PartialResult,
            "^beta:0: the worker was ended by SIGABRT while",
        ),
        ("os.abort()", LOST, 4, PartialResult, "^beta:0: .* SIGABRT"),
        (
            OOM,
            WAITS,
            4,
            OutOfMemory,
            "^beta:0 ran out of memory with batches 80/40/24$",
        ),
        (
            f"time.sleep(0.3); {OOM}",
            NCCL,
            4,
            OutOfMemory,
            "^beta:0 ran out of memory with batches",
        ),
        (
            HANGS,
            LOST,
            4,
            DeadlinePassed,
            "^beta:0 said nothing while .*, and alpha:0, alpha:1 lost it$",
        ),
        (
            "pass",
            LOST,
            4,
            DeadlinePassed,
            "^alpha:0, alpha:1, beta:0 lost each other while training",
        ),
        (
            HANGS,
            WAITS,
            4,
            DeadlinePassed,
            "^beta:0 said .*; the others wait, as it has not computed its gradients$",
        ),
        (
            STOPS,
            WAITS,
            4,
            DeadlinePassed,
            "^beta:0 said .*, as it does not answer from another",
        ),
        (
            WAITS,
            WAITS,
            5,
            DeadlinePassed,
            "^alpha:0, alpha:1, beta:0 said .*; each waits for the others, or for",
        ),
    ],
    ids=[
        *(
            "a death",
            "a death that others tell of",
            "memory",
            "memory that NCCL tells of",
            "silence",
            "a cut link",
        ),
        *("a device or a program hangs", "a process is stopped", "all wait"),
    ],
)
def test_one_failure_is_told_with_its_device_and_all_are_ended(
    party_that: Callable[[str], Party],
    act: str,
    others: str,
    progress: int,
    kind: type[GpubalanceError],
    says: str,
) -> None:
    with party_that(FAILS.format(act=act, others=others, progress=progress)) as party:
        started = asked(party, pids)

        def train(worker: Worker) -> object:
            worker._deadline_s = 1.0
            return next(worker.replies(Measure(split=SPLIT), Timing))

        with pytest.raises(kind) as caught:
            asked(party, train)
        assert re.search(says, caught.value.message)
        assert all(map(gone, started))
        assert not party.alive
    if isinstance(caught.value, OutOfMemory):
        assert caught.value.replica == 2


def test_after_that_all_start_anew(
    party_that: Callable[[str], Party], tmp_path: Path
) -> None:
    mark = tmp_path / "failed"
    script = f"""
import os, time
def step(devices, *_):
    if not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, "w").close() if devices[0].host == "beta" else time.sleep(600)
        os.abort()
"""
    with party_that(script) as party:
        before = asked(party, pids)
        with pytest.raises(PartialResult, match=r"^beta:0: "):
            asked(party, lambda worker: list(worker.measure(SPLIT)))
        assert asked(party, lambda worker: list(worker.measure(SPLIT)))
        assert not set(before) & set(asked(party, pids))


def test_a_model_file_that_one_host_has_not(party_that: Callable[[str], Party]) -> None:
    """The user's own mistake is an input, wherever it shows."""
    script = (
        "from gpubalance.errors import BadInput\ndef built(devices):\n    raise BadInput('no such "
        "file')\n"
    )
    with party_that(script) as party, pytest.raises(BadInput, match=r"^no such file"):
        party.start()
    one = script.replace("    raise", "    if devices[0].host == 'beta': raise")
    with (
        party_that(one) as party,
        pytest.raises(BadInput, match=r"^beta:0: no such file"),
    ):
        party.start()
