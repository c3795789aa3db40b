"""On which device each of several trained models predicts, so that all have predicted soonest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Ways that are tried before the best so far is taken. For ten models on a few devices that is every
# way worth a look.
MOST_TRIED = 200_000


class Trained(NamedTuple):
    """A model on each device: the seconds of a batch, None where it can't be, and its bytes there.

    `held` are taken for as long as it is there, `working` also while it predicts; a device's models
    do so in turn.
    """

    times_s: Sequence[float | None]
    held: Sequence[int]
    working: Sequence[int]

    @property
    def min_s(self) -> float:
        """Its time on the device that is fastest with it."""
        return min(
            (time_s for time_s in self.times_s if time_s is not None), default=0.0
        )


class Placement(NamedTuple):
    """The device of each model; None if no way was found in which all fit.

    None fits if `tried_all`. Otherwise the search gave up, and there may be one, or a better one.
    """

    devices: tuple[int, ...] | None
    tried_all: bool


class _Load(NamedTuple):
    """What the models placed on a device take of it."""

    end_s: float = 0.0
    held: int = 0
    working: int = 0


def place_models(models: Sequence[Trained], memory: Sequence[int | None]) -> Placement:
    """The device of each model for which the last device ends soonest.

    `memory` has the bytes of each device, None without a limit. Exact for up to some ten models:
    every way is tried but those that can't be better than the best so far, the longest models first
    and each on the devices that end soonest.
    """
    order = sorted(range(len(models)), key=lambda number: -models[number].min_s)
    best_s = math.inf
    best: tuple[int, ...] | None = None
    tried = 0

    def place_rest(loads: list[_Load], chosen: tuple[int, ...]) -> None:
        """Tries each device for the next model of the order, and those after it on all."""
        nonlocal best, best_s, tried
        tried += 1
        ends_s = [load.end_s for load in loads]
        rest = order[len(chosen) :]
        rest_s = sum(models[number].min_s for number in rest)
        mean_s = (sum(ends_s) + rest_s) / len(ends_s)
        if tried > MOST_TRIED or max(*ends_s, mean_s) >= best_s:
            return
        if not rest:
            best_s = max(ends_s)
            best = chosen
            return
        for device, load in _ways(models[rest[0]], loads, memory):
            place_rest([*loads[:device], load, *loads[device + 1 :]], (*chosen, device))

    place_rest([_Load()] * len(memory), ())
    tried_all = tried <= MOST_TRIED
    if best is None:
        return Placement(None, tried_all)
    device_of = dict(zip(order, best, strict=True))
    devices = tuple(device_of[number] for number in range(len(models)))
    return Placement(devices, tried_all)


def _ways(
    model: Trained, loads: Sequence[_Load], memory: Sequence[int | None]
) -> list[tuple[int, _Load]]:
    """The devices on which the model fits, with their loads then, the soonest to end first."""
    ways = []
    for device, (load, time_s, limit) in enumerate(
        zip(loads, model.times_s, memory, strict=True)
    ):
        if time_s is None:
            continue
        held = load.held + model.held[device]
        working = max(load.working, model.working[device])
        if limit is None or held + working <= limit:
            ways.append((device, _Load(load.end_s + time_s, held, working)))
    return sorted(ways, key=lambda way: way[1].end_s)
