"""The steps of `scripts/bench gpu`, the most valuable first; scripts/benches/gpu_steps does them."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """A step that takes about `seconds`.

    `on_fake` tells which part of it tests/fake_gpu shows, with the tests.

    One with two `parts` needs two devices: it gets two cards, or two parts of a single card with
    these sizes in bytes, or smaller ones on a small card. One with one gets such a part of the
    first card.
    """

    name: str
    shows: str
    seconds: int
    parts: tuple[int, ...] = ()
    on_fake: str = "no"


# Small parts for what goes on until memory ends, so that this is soon.
# Each out-of-memory takes ten seconds anyway.
_SMALL = (4 << 30, 6 << 30)
_LARGE = (24 << 30, 32 << 30)


STEPS = (
    Step(
        "machine",
        "`nvidia-smi`, MPS; a product and a convolution beside the CPU's; the CUDA libraries "
        "that are loaded; `doctor`",
        45,
        on_fake=(
            "GPUs in another order, hidden, left out; copies as fast as the link (`test_program`)"
        ),
    ),
    Step(
        "stamps",
        "the engine's stamps beside CUPTI's kernel times, their cost; a GPU's idle time in "
        "`fit`, Keras' and `run`",
        85,
        on_fake="stamps beside the trace of kernels and sums (`test_engine`)",
    ),
    Step(
        "arithmetic",
        "`split.fit` over `run` in TF32 and in float32, and over Keras' `fit` on one card, "
        "with XLA as it chooses",
        75,
        on_fake="no: its speed is not a GPU's",
    ),
    Step(
        "images",
        "`split.fit` over Keras' `fit` with images of 224×224×3 from the host's memory",
        40,
        _LARGE,
        on_fake="the order of copies and kernels (`test_step`)",
    ),
    Step(
        "memory",
        "`probe` of 4 GiB until memory ends, NVML beside it; the limit in a fresh worker and "
        "after an out-of-memory",
        150,
        _SMALL[:1],
        on_fake="a probe ends where memory does (`test_measured`)",
    ),
    Step(
        "parity",
        "what the parity check says of the models of tests/training and of ResNet50, on the "
        "GPU and on the CPU",
        130,
        on_fake="no: its kernels are the CPU's",
    ),
    Step(
        "pair",
        "two unlike devices: `balance --global-batch 256`, energy by NVML's counter and by "
        "power, the all-reduce",
        240,
        _SMALL,
        on_fake=(
            "`balance` ends with shares as the GPUs are fast; sums beside compute "
            "(`test_measured`, `test_plugin`)"
        ),
    ),
    Step(
        "exact",
        "weights after 5 steps at 70/30 beside one device's, and equal runs beside each other",
        30,
        _LARGE,
        on_fake="weights after `fit` are one device's (`test_training`)",
    ),
    Step(
        "hosts",
        "`balance --global-batch 512` over two hosts that are 70 and 30 % of one card, by MPS",
        140,
        on_fake="two hosts train together (`test_program`)",
    ),
    Step(
        "recovery",
        "after an out-of-memory in a joint run and a killed worker; memory given back",
        150,
        _SMALL,
        on_fake=(
            "an out-of-memory is told of its GPU, and both train on (`test_engine`, "
            "`test_memory`, `test_training`)"
        ),
    ),
)
