"""What a step consists of, as a sum."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.units import format_percent, format_seconds
from gpubalance.planning.parts import SLOW
from gpubalance.results.plan import Predicted, Share
from gpubalance.results.run import Replica, Run

_SHOWN = 1e-3  # of a step: what is less changes none of its figures


def step_text(step: Run | Predicted, parts: Sequence[Replica | Share]) -> str:
    """`step 718 ms = slowest compute 702 ms + update 3.90 ms + sync 11.9 ms; imbalance 1.007 (…)`.

    Left out are an update of no duration, what a single device has not, and what a step does not
    wait for. With noise the slowest device waits in those steps in which another one is the
    slowest. The parts are of the steps that were timed: where these took longer than the others,
    that is subtracted.
    """
    step_s = step.step_time_s.median if isinstance(step, Run) else step.step_time_s
    are_several = sum(part.batch > 0 for part in parts) > 1
    slowest = max(parts, key=lambda part: part.compute_s + part.update_s)
    terms = [f"slowest compute {format_seconds(slowest.compute_s)}"]
    if slowest.update_s:
        terms.append(f"update {format_seconds(slowest.update_s)}")
    if isinstance(slowest, Replica) and slowest.wait_s > _SHOWN * step_s:
        terms.append(f"wait {format_seconds(slowest.wait_s)}")
    if are_several:
        terms.append(f"sync {format_seconds(step.sync_s)}")
    if isinstance(step, Run):
        terms += _measured_terms(step)
    text = f"step {format_seconds(step_s)} = {' + '.join(terms)}"
    if isinstance(step, Run) and step.excess_s > _SHOWN * step_s:
        text += (
            f" − {format_seconds(step.excess_s)} (steps that were timed were slower)"
        )
    if are_several:
        text += f"; imbalance {step.imbalance:.3f} (1 = they finish together)"
    return text


def _measured_terms(run: Run) -> list[str]:
    """What no prediction has: waiting for input, and rare slow steps."""
    terms = []
    input_s = run.awaited_input_s
    if input_s is not None:
        part = format_percent(input_s / run.step_time_s.median, 1)
        terms.append(f"waiting for input {format_seconds(input_s)} ({part})")
    if run.slow_s:
        terms.append(f"rare slow steps {format_seconds(run.slow_s)}{_how_rare(run)}")
    return terms


def _how_rare(run: Run) -> str:
    """` (2 of 27 steps timed alone took over 1.5 × the median)`; empty where that is not known."""
    steps = run.slow_steps
    if steps is None:
        return ""
    if not steps.count:
        return f" (between the {steps.timed} steps timed alone, of which none was slow)"
    return f" ({steps.count} of {steps.timed} steps timed alone took over {SLOW:g} × the median)"
