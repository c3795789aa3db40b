"""TF_CONFIG: the processes of a cluster, as TensorFlow and cluster managers describe them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpubalance.errors import BadInput
from gpubalance.results.common import Warning_
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.told import first_fault
from gpubalance.text import clean

_VARIABLE = "TF_CONFIG"
_Addresses = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class _Task(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    # TensorFlow takes "1" too, as shells write it
    index: Annotated[int, Field(ge=0, strict=False)]


class _Cluster(BaseModel):
    """The form of https://www.tensorflow.org/guide/distributed_training#TF_CONFIG; TensorFlow uses the other keys."""

    cluster: Annotated[dict[str, _Addresses], Field(min_length=1)]
    task: _Task


def tf_config(cluster: Cluster) -> dict[str, str]:
    """The environment variable that describes the cluster to one of its processes."""
    task = {"type": "worker", "index": cluster.rank}
    return {_VARIABLE: json.dumps({"cluster": {"worker": cluster.addresses}, "task": task})}


def cluster_of(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster in the environment and this process's place in it; None if there is none.

    The chief comes before the workers, as in TensorFlow. Raises BadInput as `cluster_ignored` does, and for a process
    that is no worker.
    """
    found = _read(environment)
    if found is None:
        return None
    workers = [(job, number) for job in ("chief", "worker") for number in range(len(found.cluster.get(job, ())))]
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


def cluster_ignored(environment: Mapping[str, str]) -> Iterator[Warning_]:
    """A warning if the environment names a cluster, as only this host is measured.

    Raises BadInput for a TF_CONFIG that TensorFlow could not read either: whoever set it believes that it works.
    """
    found = _read(environment)
    if found is not None:
        yield Warning_(
            code="tf-config-ignored",
            message=f"{_VARIABLE} names a cluster of {sum(map(len, found.cluster.values()))}: it is ignored, and this "
            "host is measured alone",
            next="nothing to do; a script that loads a plan for several hosts goes by it",
        )


def _read(environment: Mapping[str, str]) -> _Cluster | None:
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
    return BadInput(f"{_VARIABLE} is malformed: {clean(why)}", remedy=f"mend it, or leave it out: unset {_VARIABLE}")
