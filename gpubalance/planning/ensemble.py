"""On which device each of several trained models predicts, so that all have predicted soonest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Ways that are tried before the best so far is taken: for ten models on a few devices that is every
# way worth a look.
_MOST_TRIED = 200_000


class Trained(NamedTuple):
    """A model on each device: the seconds of a batch, None where it can't be, and the bytes that it
    takes there.

    `held` are taken for as long as it is there, `working` also while it predicts; a device's models
    do so in turn.
    """

    times_s: Sequence[float | None]
    held: Sequence[int]
    working: Sequence[int]


def place_models(models: Sequence[Trained], memory: Sequence[int | None]) -> tuple[int, ...] | None:
    """The device of each model for which the device that needs longest needs least; None if they do
    not fit.

    `memory` has the bytes of each device, None without a limit. Exact for up to some ten models:
    every way is tried but those that can't be better than the best so far, the longest models first
    and each on the devices that end soonest.
    """
    order = sorted(
        range(len(models)),
        key=lambda n: -min((t for t in models[n].times_s if t is not None), default=0.0),
    )
    least_s = [min((t for t in one.times_s if t is not None), default=0.0) for one in models]
    best: tuple[float, tuple[int, ...] | None] = (float("inf"), None)
    tried = 0
    devices = range(len(memory))

    def extend(
        depth: int,
        loads_s: list[float],
        held: list[int],
        working: list[int],
        chosen: dict[int, int],
    ) -> None:
        """Tries each device for the next model of the order, and those after it on all."""
        nonlocal best, tried
        tried += 1
        rest_s = sum(least_s[n] for n in order[depth:])
        if tried > _MOST_TRIED or max(*loads_s, (sum(loads_s) + rest_s) / len(loads_s)) >= best[0]:
            return
        if depth == len(order):
            best = max(loads_s), tuple(chosen[n] for n in range(len(models)))
            return
        number, model = order[depth], models[order[depth]]
        ends_s = {
            d: loads_s[d] + time_s for d, time_s in enumerate(model.times_s) if time_s is not None
        }
        for device in sorted(ends_s, key=lambda d: ends_s[d]):
            limit = memory[device]
            most = max(working[device], model.working[device])
            if limit is None or held[device] + model.held[device] + most <= limit:
                extend(
                    depth + 1,
                    [ends_s[device] if d == device else loads_s[d] for d in devices],
                    [held[d] + model.held[d] * (d == device) for d in devices],
                    [most if d == device else working[d] for d in devices],
                    {**chosen, number: device},
                )

    extend(0, [0.0] * len(memory), [0] * len(memory), [0] * len(memory), {})
    return best[1]
