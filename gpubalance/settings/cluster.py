"""The processes of one run over several hosts, and TF_CONFIG, by which TensorFlow and cluster
managers name them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gpubalance.errors import BadInput
from gpubalance.settings.record import Record, first_fault
from gpubalance.text import clean

_VARIABLE = "TF_CONFIG"
_Addresses = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


def _with_a_port(address: str) -> str:
    """Returns the address. Raises ValueError if its port is not 1 to 65535."""
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port is 1 to 65535")
    return address


Address = Annotated[
    str, Field(pattern=r"^[^\s:]+:\d{1,5}$", max_length=260), AfterValidator(_with_a_port)
]


class Cluster(Record):
    """The `host:port` at which each process listens, one process a device in the devices' order,
    and which one this is.

    Whatever lists all devices has this order; a process has the device at its `rank`.
    """

    addresses: tuple[Address, ...]
    rank: Annotated[int, Field(ge=0)]


class _Task(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    # TensorFlow takes "1" too, as shells write it
    index: Annotated[int, Field(ge=0, strict=False)]


class _Cluster(BaseModel):
    """The form of https://www.tensorflow.org/guide/distributed_training#TF_CONFIG; TensorFlow uses
    the other keys.
    """

    cluster: Annotated[dict[str, _Addresses], Field(min_length=1)]
    task: _Task


def tf_config(cluster: Cluster) -> dict[str, str]:
    """The environment variable that describes the cluster to one of its processes."""
    task = {"type": "worker", "index": cluster.rank}
    return {_VARIABLE: json.dumps({"cluster": {"worker": cluster.addresses}, "task": task})}


def cluster_of(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster in the environment and this process's place in it; None if there is none.

    The chief comes before the workers, as in TensorFlow. Raises BadInput as `tf_config_of` does,
    and for a process that is no worker.
    """
    found = tf_config_of(environment)
    if found is None:
        return None
    workers = [
        (job, number)
        for job in ("chief", "worker")
        for number in range(len(found.cluster.get(job, ())))
    ]
    own = found.task.type, found.task.index
    if own not in workers:
        raise _malformed(f"task: a {found.task.type} does not train")
    addresses = tuple(found.cluster[job][number] for job, number in workers)
    if len(set(addresses)) < len(addresses):
        raise _malformed(f"cluster: two processes have one address, of {', '.join(addresses)}")
    try:
        return Cluster(addresses=addresses, rank=workers.index(own))
    except ValidationError:
        why = "addresses are HOST:PORT, with a port of 1 to 65535"
        raise _malformed(f"cluster: {why}, not {', '.join(addresses)}") from None


def tf_config_of(environment: Mapping[str, str]) -> _Cluster | None:
    """What TF_CONFIG says, None without one. Raises BadInput if TensorFlow could not read it
    either.
    """
    text = environment.get(_VARIABLE, "").strip()
    if text in ("", "{}"):  # TensorFlow takes these for no cluster
        return None
    try:
        found = _Cluster.model_validate_json(text)
    except ValidationError as error:
        raise _malformed(first_fault(error)) from None
    names, task = found.cluster.get(found.task.type), found.task
    if names is None or task.index >= len(names):
        raise _malformed(f"task: the cluster has no {task.type} {task.index}")
    return found


def _malformed(why: str) -> BadInput:
    return BadInput(
        f"{_VARIABLE} is malformed: {clean(why)}",
        remedy=f"mend it, or leave it out: unset {_VARIABLE}",
    )
