"""About how long the phases of a command take: as long as last time here, else as usual."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.probe.devices import phase_names, queues, stand_ins
from gpubalance.results.estimate import PhaseEstimate
from gpubalance.settings.record import Seconds
from gpubalance.settings.requests import (
    BalanceRequest,
    IndependentRequest,
    LayersRequest,
    MeasureRequest,
    ProbeRequest,
    RunRequest,
)
from gpubalance.system.state import state_folder, write_whole

# What is usual, for small models on a machine with two cores.
_START_S = 10.0  # until the first window: loads TensorFlow, builds the model, warms up
_PROBE_S = 12.0
# On a GPU. Fresh workers took 8 to 18 s each on an H200, and a search for the limit needs several.
_GPU_START_S = 20.0
_GPU_PROBE_S = 120.0
_SIZES = 10
_BLOCKS_S = 12.0
_OWN_CODE_S = 3.0
# Until the first round: its worker loads TensorFlow while the devices are probed
_ROUNDS_START_S = 4.0
_ROUND_S = 3.0
# The user's input pipeline alone
_PIPELINE_S = 6.0
_WINDOW_S = 5.0
# Of steps so long that their number decides
_WARM_UP_STEPS = 10
_WINDOW_STEPS = 8
_ROUNDS = 2
_KEPT = 500
_DURATIONS = TypeAdapter(dict[str, Seconds])  # by the phases' keys
# These fields change nothing about how long a phase takes.
_BESIDE: dict[str, bool | dict[str, bool]] = {
    "tracing": True,
    "fresh": True,
    "force": True,
    "deadline_s": True,
    "time_limit_s": True,
    "least_samples": True,
    "measuring": {"deadline_s": True, "time_limit_s": True},
}


def phases_of(request: MeasureRequest, step_s: float = 0.0) -> list[PhaseEstimate]:
    """The phases of a command, those of a probe that it may have to make first.

    `step_s` is about what a step takes, if that is known yet.
    """
    phases: list[PhaseEstimate] = []
    uncut = request.uncut if isinstance(request, LayersRequest) else request
    if isinstance(uncut, BalanceRequest):
        phases += phases_of(uncut.probe, step_s)
    as_json = request.model_dump_json(exclude=_BESIDE)
    last_s = _last_durations()
    for name, usual_s in _usual_s(request, step_s).items():
        key = content_key(name, as_json)
        seconds = max(1, round(last_s.get(key, usual_s)))
        guessed = key not in last_s
        phases.append(
            PhaseEstimate(name=name, seconds=seconds, guessed=guessed, key=key)
        )
    return phases


def keep_durations(took_s: dict[str, float]) -> None:
    """Keeps how long the latest phases took, by their keys, for the next time."""
    others = _last_durations()
    for key in took_s:
        others.pop(key, None)  # a key that comes again is among the latest
    durations = [*others.items(), *took_s.items()]
    with suppress(OSError):
        write_whole(_path(), _DURATIONS.dump_json(dict(durations[-_KEPT:]), indent=1))


def _usual_s(request: MeasureRequest, step_s: float) -> dict[str, float]:
    """The seconds that the phases of a command usually take, without those of a probe."""
    if isinstance(request, ProbeRequest):
        return _usual_of_probe_s(request)
    devices = len(request.devices)
    is_simulated = request.devices[0].simulated
    warm_up_s = _WARM_UP_STEPS * step_s + _own_s(request)
    start_s = warm_up_s + (_START_S if is_simulated else _GPU_START_S)
    measuring = request.measuring
    window_s = max(_WINDOW_S, _WINDOW_STEPS * step_s)
    windows_s = measuring.windows * (measuring.duration_s or window_s)
    splits = 2 if measuring.baseline == "even" and devices > 1 else 1
    match request:
        case BalanceRequest():
            start_s = warm_up_s + (_ROUNDS_START_S if is_simulated else _GPU_START_S)
            round_s = request.round_s or max(_ROUND_S, _WINDOW_STEPS * step_s)
            rounds_s = start_s + _ROUNDS * round_s
            pipeline_s = _PIPELINE_S if request.settings.data else 0.0
            return {"rounds": rounds_s, "proof": splits * windows_s + pipeline_s}
        case LayersRequest():
            rounds_s = start_s + _ROUNDS * (request.round_s + window_s)
            return {
                "blocks": devices * _BLOCKS_S,
                "rounds": rounds_s,
                "proof": windows_s,
            }
        case IndependentRequest():
            return {"independent": devices * start_s + (devices + 1) * windows_s}
        case RunRequest():
            if request.settings.data is not None:
                splits += 1
            return {"run": start_s + splits * windows_s}


def _usual_of_probe_s(request: ProbeRequest) -> dict[str, float]:
    names = phase_names(request)
    probe_s = _PROBE_S if request.devices[0].simulated else _GPU_PROBE_S
    probe_s += _own_s(request)
    device_s = probe_s + _SIZES * (request.duration_s or 0.0)
    if len(set(names)) > 1:  # a phase for each device
        return dict.fromkeys(names, device_s)
    probed = set(stand_ins(request))
    longest = max(len(probed.intersection(queue)) for queue in queues(request))
    return dict.fromkeys(names, longest * device_s)


def _own_s(request: MeasureRequest) -> float:
    """What building the user's own model takes longer, whose step is tried in parts."""
    return _OWN_CODE_S if request.settings.model_is_code else 0.0


def _path() -> Path:
    return state_folder("durations") / "phases.json"


def _last_durations() -> dict[str, float]:
    """The seconds that phases took last on this machine, by their keys."""
    with suppress(OSError, ValueError):  # none yet, or damaged
        return _DURATIONS.validate_json(_path().read_bytes())
    return {}
