"""`split.fit` at an even split in turns with Keras' `fit` and with a loop written by hand under MirroredStrategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gpubalance.numbers.stats import interval95, median
from tests.bench.gpu.place import Place, show
from tests.bench.gpu.steps import Figure
from tests.bench.gpu.steps.exact import classifier

_SHARE, _REHEARSED_SHARE = 256, 64
_PAIRS, _REHEARSED_PAIRS = 6, 1


def figures(place: Place) -> Iterator[Figure]:
    """A ratio for each pair of windows."""
    devices = place.devices(2)
    show(devices)
    from gpubalance.engine.models import probe_model
    from gpubalance.engine.runtime import use_devices
    from gpubalance.settings.device import JointProfile
    from gpubalance.settings.shares import Shares
    from gpubalance.training.split import Split
    from tests.bench.loops import BareLoop, KerasFit, SplitFit
    from tests.bench.turns import in_turns

    share, pairs = (_REHEARSED_SHARE, _REHEARSED_PAIRS) if place.rehearsed else (_SHARE, _PAIRS)
    make, names, batches = classifier if place.rehearsed else probe_model, use_devices(devices), (share, share)
    ours = SplitFit(Split.of(devices, Shares(batches), JointProfile()), make)
    others: dict[str, Callable[[], KerasFit | BareLoop]] = {
        "Keras' `fit`": lambda: KerasFit(sum(batches), names, make),
        "a bare loop": lambda: BareLoop(batches, names, make),
    }
    for name, other in others.items():
        ratios = list(islice(in_turns(ours.throughput, other().throughput), pairs))
        low, high = interval95(ratios) or (None, None)
        told = f"`split.fit` over {name}: {median(ratios):.3f}" + (f" ({low:.3f} to {high:.3f})" if low else "")
        yield Figure(name, ratios, f"{told}, {pairs} pairs")
