"""What a summary says of a device that an interrupt left unmeasured, and that what is to be copied stays whole."""

from __future__ import annotations

from gpubalance.render.probe import probe_told
from gpubalance.render.table import lines_of, prose, warning_lines
from gpubalance.results.common import Warning_
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from tests.render.samples import PROBE


def test_a_device_without_a_point_says_that_nothing_was_measured() -> None:
    probe = read_record(PROBE, Probe)
    unmeasured = {"curve": (), "batch_limit": None, "step_time_model": None, "solo_best": None, "sensible": None}
    second = probe.probes[1].model_copy(update=unmeasured)
    left = probe.model_copy(update={"probes": (probe.probes[0], second), "complete": False})
    (line,) = [line for line in lines_of(probe_told(left)) if line.startswith("GPU:1")]
    assert line == "GPU:1  GeForce GTX 1080: nothing was measured yet"


def test_a_path_in_a_warning_is_not_broken() -> None:
    path = f"/home/somebody/.local/state/gpubalance/logs/{'20261123T201039.664456-' * 3}run.log"
    warning = Warning_(code="pipeline-unknown", message="it failed", next=f"the worker's whole log is {path}")
    assert [line.strip() for line in warning_lines([warning], 80)][-1] == path


def test_a_line_does_not_end_with_the_sign_before_a_number() -> None:
    assert prose("the interval is ± 9.4 %, wider than ± 1 %", 36) == ["the interval is ± 9.4 %, wider than", "  ± 1 %"]
    assert prose("the interval is ± 9.4 %", 18) == ["the interval is", "  ± 9.4 %"]
