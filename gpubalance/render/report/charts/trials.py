"""The search for each device's batch limit: every batch that was tried, in order, and whether it trained."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gpubalance.render.probe import OUTCOMES
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import BLUE, GREEN, INK, MUTED, VERMILLION, device_name, figure, legend
from gpubalance.results.probe import Trial
from gpubalance.results.subject import Subject

_LOOKS = {
    "fits": ("o", BLUE),
    "oom": ("X", VERMILLION),
    "margin": ("s", GREEN),
    "crash": ("D", INK),
    "deadline": ("v", INK),
}


def chart(subject: Subject) -> Drawing | str:
    """The trials of each device. Needs a probe, and a device with a limit."""
    trials = _trials(subject)
    if not trials:
        return "no device's limit was searched for" if subject.probed else "it is in the probe of these devices"
    return _text(subject, trials), lambda width: _draw(subject, trials, width)


def _trials(subject: Subject) -> dict[int, tuple[Trial, ...]]:
    found = ((i, one.batch_limit) for i, one in enumerate(subject.probes) if one is not None)
    return {i: limit.trials for i, limit in found if limit is not None and limit.trials}


def _text(subject: Subject, trials: dict[int, tuple[Trial, ...]]) -> str:
    lines = []
    for i, tried in trials.items():
        said = ", ".join(f"{trial.batch} {OUTCOMES[trial.outcome]}" for trial in tried[:12])
        lines.append(f"{subject.devices[i].label}: {said}{', …' if len(tried) > 12 else ''}.")
    return " ".join(lines)


def _draw(subject: Subject, trials: dict[int, tuple[Trial, ...]], width: int) -> Figure:
    made, axes = figure(width, 60 + 120 * len(trials), [1] * len(trials))
    for one, (i, tried) in zip(axes, trials.items(), strict=True):
        numbers = range(1, len(tried) + 1)
        batches = [trial.batch for trial in tried]
        one.plot(numbers, batches, color=MUTED, linewidth=0.8)
        for number, trial in zip(numbers, tried, strict=True):
            shape, colour = _LOOKS[trial.outcome]
            one.plot(number, trial.batch, marker=shape, color=colour, markersize=8)
            if len(tried) <= (6 if width <= NARROW else 14):
                one.annotate(str(trial.batch), (number, trial.batch), (0, 8), textcoords="offset points", ha="center")
        device = subject.devices[i]
        one.set_title(device_name(device))
        one.set_xlim(0.5, max(map(len, trials.values())) + 0.5)
        one.margins(y=0.35)
        one.set_ylabel("batch")
        one.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        one.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes[-1].set_xlabel("trial")
    seen = {trial.outcome for tried in trials.values() for trial in tried}
    handles = [
        Line2D([], [], marker=shape, color=colour, linestyle="none", markersize=8, label=OUTCOMES[name])
        for name, (shape, colour) in _LOOKS.items()
        if name in seen
    ]
    legend(made, handles, 2 if width <= NARROW else len(handles))
    return made
