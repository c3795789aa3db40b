"""What the devices of a pipeline wait for: what they are given, and nothing else."""

from __future__ import annotations

from tests.fake_gpu import Gpu, operations

_SAMPLES, _MICRO_BATCHES, _UNITS = 16, 4, 24
GPUS = Gpu(kernel_ms=2.0), Gpu(kernel_ms=10.0)
PROGRAM = f"""
import json, time
import keras
import tensorflow as tf
from gpubalance.engine import runtime
from gpubalance.engine.data import as_tensors
from gpubalance.engine.pipeline.micro_batches import micro_batch_of
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.pipeline import Pipeline
from tests.engine.pipelines import graph_of, in_stages, orders_of

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
with tf.device("CPU:0"):
    model = keras.Sequential([keras.Input(({_UNITS},)), *(keras.layers.Dense({_UNITS}) for _ in range(4))])
    calls, blocks, samples = graph_of(model)
    micro = micro_batch_of(as_tensors(samples.make({_SAMPLES})), calls)
segments = in_stages(len(blocks.starts), 2)
order = orders_of(segments, blocks.graph, {_MICRO_BATCHES})
pipeline = Pipeline(CutModel(model, blocks, segments, ["GPU:0", "GPU:1"], keras.optimizers.SGD()))
batch = [pipeline.cut.held(micro)] * {_MICRO_BATCHES}
for _ in range(3):
    runtime.wait_for(["GPU:0", "GPU:1"])  # until they have nothing left to do
    began = time.perf_counter()
    pipeline.step(batch, order)
print(json.dumps(began))
"""


def test_what_a_device_gives_is_copied_when_it_is_made(
    machine: dict[str, str], told: float
) -> None:
    """What a device gives is copied when it is made and no pass is given a number.

    The second device's next inputs come while it still computes the ones before.

    It is the slower one.
    """
    done = [one for one in operations(machine) if one.queued_at_s >= told]
    size = _SAMPLES * _UNITS * 4
    between = [one for one in done if (one.kind, one.bytes) == ("between", size)]
    activations = [one for one in between if one.device == 0]
    gradients = [one for one in between if one.device == 1]
    assert [len(activations), len(gradients)] == [_MICRO_BATCHES, _MICRO_BATCHES]
    assert activations[1].ends_s < gradients[0].starts_s
    to_devices = [one.queued_at_s for one in done if one.kind == "to_device"]
    first_s, last_s = activations[0].queued_at_s, gradients[-1].queued_at_s
    # The only numbers are those of Keras' mean over samples and of its gradient.
    of_passes = [at_s for at_s in to_devices if first_s <= at_s < last_s]
    assert len(of_passes) <= 3 * _MICRO_BATCHES
