"""Joins processes of one device each, on one host or several, to train one model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpubalance.engine.keras_patches import eager_context
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.cluster import Cluster

# After this long the others notice a process that is stopped or cut off. They notice at once one
# that has died.
_HEARTBEAT_S = 10
# A process that ends waits this long for the others, as its parent ends them all.
_SHUTDOWN_S = 5


def join(cluster: Cluster, kind: str, all_reduce: AllReduce) -> Any:
    """The strategy of the whole cluster, once all its processes are there.

    Must be the first use of TensorFlow. Stock MultiWorkerMirroredStrategy wants the same number of
    devices in every process: here each has one, of that `kind`, `CPU` or `GPU`. The wait has no
    time limit: if a peer never comes, the parent must end the process.
    """
    # TensorFlow's own coordination service, which the strategy then leaves alone: its own deadlines
    # are minutes. It has no public interface.
    job = eager_context.coordination_config_pb2.CoordinatedJob(
        name="worker", num_tasks=len(cluster.addresses)
    )
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=[job],
        heartbeat_timeout_in_ms=_HEARTBEAT_S * 1000,
        shutdown_barrier_timeout_in_ms=_SHUTDOWN_S * 1000,
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
        num_accelerators={kind: 1},
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation_of(all_reduce, kind)
    )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def implementation_of(all_reduce: AllReduce, kind: str) -> Any:
    """How TensorFlow's collectives sum between hosts.

    `auto` is NCCL for GPUs, the ring over gRPC for CPUs. TensorFlow's own AUTO is the ring for GPUs
    too: CollectiveParamResolverLocal takes NCCL only if it is asked for.
    """
    collectives = tf.distribute.experimental.CommunicationImplementation
    by_nccl = all_reduce == "nccl" or (all_reduce == "auto" and kind == "GPU")
    return collectives.NCCL if by_nccl else collectives.RING


@functools.cache
def gather_over(
    strategy: Any, cluster: Cluster | None
) -> Callable[[float], tuple[float, ...]]:
    """A function that all processes call together; it returns all their numbers, by rank."""
    if cluster is None:
        return lambda number: (number,)
    count = len(cluster.addresses)

    @tf.function(input_signature=[tf.TensorSpec((count,), tf.float64)], autograph=False)
    def total(numbers: Any) -> Any:
        own = strategy.run(tf.identity, args=(numbers,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)

    def gather(number: float) -> tuple[float, ...]:
        numbers = [0.0] * count
        numbers[cluster.rank] = float(number)
        return tuple(total(tf.constant(numbers, tf.float64)).numpy().tolist())

    return gather
