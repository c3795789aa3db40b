"""The processes of one run over several hosts.

TensorFlow and cluster managers name them by TF_CONFIG.
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
_Addresses = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)
]


def _with_a_port(address: str) -> str:
    """Returns the address. Raises ValueError if its port is not 1 to 65535."""
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port is 1 to 65535")
    return address


Address = Annotated[
    str,
    Field(pattern=r"^[^\s:]+:\d{1,5}$", max_length=260),
    AfterValidator(_with_a_port),
]


class Cluster(Record):
    """The `host:port` at which each process listens, and which one this process is.

    There is one process a device. Whatever lists all devices has this order; a process has the
    device at its `rank`.
    """

    addresses: tuple[Address, ...]
    rank: Annotated[int, Field(ge=0)]


class _Task(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    # TensorFlow takes "1" too, as shells write it
    index: Annotated[int, Field(ge=0, strict=False)]


class _Config(BaseModel):
    """The keys that matter here; TensorFlow uses the others.

    https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """

    cluster: Annotated[dict[str, _Addresses], Field(min_length=1)]
    task: _Task


def tf_config(cluster: Cluster) -> dict[str, str]:
    """The environment variable that describes the cluster to one of its processes."""
    described = {
        "cluster": {"worker": cluster.addresses},
        "task": {"type": "worker", "index": cluster.rank},
    }
    return {_VARIABLE: json.dumps(described)}


def cluster_of(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster in the environment and this process's place in it; None if there is none.

    The chief comes before the workers, as in TensorFlow. Raises BadInput as `tf_config_of` does,
    and for a process that is no worker.
    """
    config = tf_config_of(environment)
    if config is None:
        return None
    task = config.task
    chiefs = config.cluster.get("chief", ())
    workers = config.cluster.get("worker", ())
    if task.type == "chief":
        rank = task.index
    elif task.type == "worker":
        rank = len(chiefs) + task.index
    else:
        raise _malformed(f"task: a {task.type} does not train")
    addresses = chiefs + workers
    listed = ", ".join(addresses)
    if len(set(addresses)) < len(addresses):
        raise _malformed(f"cluster: two processes share an address, in {listed}")
    try:
        return Cluster(addresses=addresses, rank=rank)
    except ValidationError:
        why = "addresses are HOST:PORT, with a port of 1 to 65535"
        raise _malformed(f"cluster: {why}, not {listed}") from None


def tf_config_of(environment: Mapping[str, str]) -> _Config | None:
    """What TF_CONFIG says, None without one.

    Raises BadInput if TensorFlow could not read it either.
    """
    text = environment.get(_VARIABLE, "").strip()
    if text in ("", "{}"):  # TensorFlow takes these for no cluster
        return None
    try:
        config = _Config.model_validate_json(text)
    except ValidationError as error:
        raise _malformed(first_fault(error)) from None
    task = config.task
    if task.index >= len(config.cluster.get(task.type, ())):
        raise _malformed(f"task: the cluster has no {task.type} {task.index}")
    return config


def _malformed(why: str) -> BadInput:
    return BadInput(
        f"{_VARIABLE} is malformed: {clean(why)}",
        remedy=f"fix it, or `unset {_VARIABLE}`",
    )
