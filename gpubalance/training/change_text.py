"""What is said of a split that changes while it trains."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.units import format_percent
from gpubalance.planning.follow import SplitChange

# A device's time in a split that differs by less says nothing of its speed.
_MOVED = 0.05


def change_text(change: SplitChange, labels: Sequence[str]) -> str:
    """`step 340: 944/640 → 812/772, GPU:0 became 31 % slower; 1.16 × what …`.

    It names the device whose compute time has changed most.
    """
    text = f"step {change.step}: {change.before} → {change.after}"
    moved = [ratio - 1 for ratio in change.slowdown]
    most = max(moved, key=abs)
    if abs(most) > _MOVED:
        slower = "slower" if most > 0 else "faster"
        text += (
            f", {labels[moved.index(most)]} became {format_percent(abs(most))} {slower}"
        )
    return f"{text}; {change.gain:.2f} × what the old split now gives"


def gain_text(changes: Sequence[SplitChange], gain: float | None) -> str:
    """`3 changes of the split, the first in step 340: 1.14 × what 944/640 would have given …`."""
    counted = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    text = f"{counted} of the split, the first in step {changes[0].step}: "
    if gain is None:
        return f"{text}too few steps were timestamped since to tell what it gained"
    return f"{text}{gain:.2f} × what {changes[0].before} would have given since"
