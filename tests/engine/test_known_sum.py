"""What an all-reduce gives is checked before the first step, with any number of devices."""

from __future__ import annotations

from gpubalance.errors import EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from tests.engine.steps import plain_replicas
from tests.support.cases import cases
from tests.support.late import keras
from tests.support.told import refused
from tests.training.cases import largest


@cases("all_reduce", "auto", "hierarchical", "one-device")
@cases("count", 2, 3, 4, 5, 6)
def test_a_device_gets_all_or_it_is_named(count: int, all_reduce: AllReduce) -> None:
    """NCCL needs GPUs. TensorFlow's hierarchical one drops a device where their number is odd."""
    from gpubalance.engine.step.parity import check_sum

    replicas = plain_replicas(count, all_reduce)
    if all_reduce != "hierarchical" or count % 2 == 0:
        check_sum(replicas)
        return
    with refused("^the all-reduce hierarchical gives a ", EnvironmentFault) as caught:
        check_sum(replicas)
    assert f"the numbers from CPU:{count - 1} do not reach" in caught.value.message
    assert caught.value.remedy == known_error("wrong-sum").remedy


def test_a_step_is_not_trained_by_a_wrong_sum() -> None:
    import numpy as np

    from gpubalance.engine.data import as_tensors
    from gpubalance.engine.feed import Feed
    from gpubalance.engine.step.functions import Functions

    replicas = plain_replicas(3, "hierarchical")
    with replicas.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    batch = as_tensors((np.ones((6, 4), np.float32), np.ones((6, 2), np.float32)))
    dispatched = Feed(replicas, BatchSplit((3, 2, 1))).deal(batch)
    for _ in range(2):  # it is not believed the second time either
        with refused("hierarchical gives a wrong sum", EnvironmentFault):
            Functions(model, replicas).train(dispatched)
    assert largest(model.get_weights(), before) == 0
