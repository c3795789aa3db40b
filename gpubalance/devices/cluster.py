"""TF_CONFIG: a cluster of several hosts, which TensorFlow would join, and gpubalance does not yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpubalance.errors import BadInput
from gpubalance.results.common import Warning_
from gpubalance.text import clean

_VARIABLE = "TF_CONFIG"
_Addresses = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class _Task(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    index: Annotated[int, Field(ge=0)]


class _Cluster(BaseModel):
    """As https://www.tensorflow.org/guide/distributed_training#TF_CONFIG has it; other keys are TensorFlow's."""

    cluster: Annotated[dict[str, _Addresses], Field(min_length=1)]
    task: _Task


def cluster_ignored(environment: Mapping[str, str]) -> Iterator[Warning_]:
    """A warning where the environment names a cluster, as only this host is measured.

    Raises BadInput for a TF_CONFIG that TensorFlow could not read either: whoever set it believes that it works.
    """
    text = environment.get(_VARIABLE, "").strip()
    if text in ("", "{}"):  # TensorFlow takes these for no cluster
        return
    try:
        found = _Cluster.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise _malformed(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None
    names, task = found.cluster.get(found.task.type), found.task
    if names is None or task.index >= len(names):
        raise _malformed(f"task: the cluster has no {task.type} {task.index}")
    hosts = sum(map(len, found.cluster.values()))
    yield Warning_(
        code="tf-config-ignored",
        message=f"{_VARIABLE} names a cluster of {hosts}: it is ignored, and this host is measured alone",
        next="nothing to do; gpubalance does not measure across hosts yet",
    )


def _malformed(why: str) -> BadInput:
    return BadInput(f"{_VARIABLE} is malformed: {clean(why)}", remedy=f"mend it, or leave it out: unset {_VARIABLE}")
