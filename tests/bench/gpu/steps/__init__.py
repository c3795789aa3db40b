"""The steps, the most valuable first. Each is a module here with `figures(place)`, which yields its findings."""

from __future__ import annotations

from typing import Any, NamedTuple


class Step(NamedTuple):
    """A step that takes about `seconds`. One with `parts` needs two devices; `on_fake` tells what of it tests/fake_gpu
    shows, with the tests.

    It gets two cards, or two parts of a single card with these sizes in bytes, or smaller ones on a small card.
    """

    name: str
    shows: str
    seconds: int
    parts: tuple[int, ...] = ()
    on_fake: str = "no"


# Small parts for what goes on until memory ends, so that this is soon: each out-of-memory takes ten seconds anyway.
_SMALL = (4 << 30, 6 << 30)
_LARGE = (24 << 30, 32 << 30)


class Figure(NamedTuple):
    """A finding: `value` is for the JSON, `told` a phrase for the table."""

    name: str
    value: Any
    told: str


STEPS = (
    Step(
        "machine",
        "`doctor`, `devices`, versions; the CUDA libraries that are loaded",
        40,
        on_fake="GPUs in another order, hidden, left out; copies as fast as the link (`test_program`, `test_doctor`)",
    ),
    Step(
        "alone",
        "`probe`: curve, batch limit with real out-of-memory errors, NVML beside it",
        120,
        on_fake="a probe ends where memory does (`test_measured`)",
    ),
    Step(
        "stamps",
        "the engine's stamps beside CUPTI's kernel times, their cost, launch latency",
        45,
        on_fake="stamps beside the trace of kernels and sums (`test_engine`)",
    ),
    Step(
        "pair",
        "two unlike devices: `balance` to its end, and the all-reduce",
        120,
        _SMALL,
        on_fake="`balance` ends with shares as the GPUs are fast; sums beside compute (`test_measured`, `test_plugin`)",
    ),
    Step(
        "exact",
        "weights after 5 steps at 70/30 beside one device's, and equal runs beside each other",
        25,
        _LARGE,
        on_fake="weights after `fit` are one device's (`test_training`)",
    ),
    Step(
        "recovery",
        "after an out-of-memory in a joint run and a killed worker; memory given back",
        90,
        _SMALL,
        on_fake="an out-of-memory is told of its GPU, and both train on (`test_memory`, `test_training`)",
    ),
    Step(
        "training",
        "`split.fit` over Keras' `fit` and over a bare loop at an even split, in turns",
        40,
        _LARGE,
        on_fake="no: its speed is not a GPU's",
    ),
)
