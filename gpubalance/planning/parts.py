"""Where a step's time goes: compute, update, wait and sync, from the stamps of some steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubalance.numbers.stats import median


@dataclass(frozen=True)
class StepParts:
    """Each replica's compute + update + wait + sync + input wait − excess is the step time, in seconds.

    `excess_s` is how much longer the stamped steps' straggler took than a whole unstamped step: 0 unless measuring
    slows the step down.
    """

    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    sync_s: float
    input_wait_s: float
    excess_s: float

    @property
    def imbalance(self) -> float:
        """max (c + u) / mean (c + u): 1 is perfect."""
        busy = _sums(self.compute_s, self.update_s)
        return max(busy) * len(busy) / sum(busy)


def split_step(
    step_time_s: float,
    computes: Sequence[Sequence[float]],
    updates: Sequence[Sequence[float]],
    input_wait_s: float,
    middle: Callable[[Sequence[float]], float] = median,
) -> StepParts:
    """Divides a step of `step_time_s` seconds by the compute and update times of some steps ([step][replica]).

    At least one step is needed. Replica i computes cᵢ and updates uᵢ, the `middle` over steps; m is the middle of the
    slowest replica's sum of both. Then wᵢ = m − cᵢ − uᵢ and s = T − input wait − m. (m, not max (cᵢ + uᵢ): with noise
    another replica is the slowest in each step, and the others wait for it.) A single replica neither waits nor syncs:
    the rest of its step counts as compute.
    """
    compute, update = (_of_replicas(times, middle) for times in (computes, updates))
    if len(compute) == 1:
        compute = (max(*compute, step_time_s - input_wait_s - update[0]),)
    busy = _sums(compute, update)
    slowest = [max(_sums(*step)) for step in zip(computes, updates, strict=True)]
    barrier = busy[0] if len(busy) == 1 else max(middle(slowest), *busy)
    left = step_time_s - input_wait_s - barrier
    return StepParts(
        compute_s=compute,
        update_s=update,
        wait_s=tuple(barrier - own for own in busy),
        sync_s=max(0.0, left),
        input_wait_s=input_wait_s,
        excess_s=max(0.0, -left),
    )


def _of_replicas(steps: Sequence[Sequence[float]], middle: Callable[[Sequence[float]], float]) -> tuple[float, ...]:
    """The middle of each replica's times over the steps."""
    return tuple(middle(times) for times in zip(*steps, strict=True))


def _sums(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
