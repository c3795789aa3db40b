"""One process of a cluster that trains the product's step: `python -m tests.engine.rank CLUSTER FOLDER`.

It writes each case's weights, how often its step was traced, and what its device counted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gpubalance.settings.cluster import Cluster
from gpubalance.settings.shares import proportional_split
from gpubalance.workers.serve import lean_import
from tests.engine.steps import Steps
from tests.engine.test_exact import adam, l2_model, samples, synchronised_batch_norm_model
from tests.late import keras

RAGGED = 37  # samples of the last batch
BATCHES = (70, 30)


def clipped_adam() -> Any:
    return keras.optimizers.Adam(0.01, clipnorm=0.1)


# Each with a model, an optimizer, and the size of micro-batches if there are any.
CASES = {
    "l2": (l2_model, clipped_adam, None),
    "l2 in micro-batches": (l2_model, clipped_adam, 16),
    "synchronised": (synchronised_batch_norm_model, adam, None),
}


def main(cluster: Cluster, folder: Path) -> None:
    """Trains every case, in the same order as the other processes."""
    with lean_import():
        import tensorflow  # noqa: F401
    count = len(cluster.addresses)
    for name, (make_model, make_optimizer, micro) in CASES.items():
        steps = Steps(make_model, make_optimizer, [None] * count, cluster=cluster)
        for x, y in samples(steps.model.input_shape[1:], last=RAGGED):
            batches = proportional_split(len(x), BATCHES)
            sizes = None if micro is None else [min(micro, batch) for batch in batches]
            steps.step(x, (y,), batches, sizes)
        traces = len(steps.traces(micro=micro is not None))
        clock = steps.clocks[cluster.rank]
        counted = clock.computed_steps
        np.savez(folder / f"{name}-{cluster.rank}.npz", *steps.weights(), traces=traces, counted=counted)


if __name__ == "__main__":
    main(Cluster.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # does not wait for the other processes' ends
