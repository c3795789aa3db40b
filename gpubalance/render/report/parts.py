"""The distance from the solo sum, a cause a part, as `balance` divides it."""

from __future__ import annotations

from typing import NamedTuple

from gpubalance.render.report.subject import Subject
from gpubalance.results.gap import SoloGap


class Loss(NamedTuple):
    """A cause, and the samples per second that it takes; below 0 is a gain."""

    cause: str
    rate: float


def gap_of(subject: Subject) -> SoloGap | None:
    """The division, where it is known."""
    plan = subject.plan
    return plan.balance.solo_gap if plan is not None and plan.balance is not None else None


def losses(subject: Subject, gap: SoloGap) -> tuple[Loss, ...]:
    """Every part, in the order in which one goes from the solo sum to what the devices give together."""
    slower = [
        Loss(f"{device.label} slower than alone", rate)
        for device, rate in zip(subject.devices, gap.slowdown, strict=True)
    ]
    return (
        Loss("left out", gap.left_out),
        Loss("batches that are not the best alone", gap.batch_sizes),
        *slower,
        Loss("waiting for the slowest", gap.imbalance),
        Loss("sync", gap.sync),
    )
