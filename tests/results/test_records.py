"""Results in files: real ones are read, and what does not go together in one is told with its place.

Files that are damaged in other ways are in tests/faults/test_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record, read_result
from tests.cli.program import ROOT

DATA = ROOT / "tests" / "render" / "data"


def changed(tmp_path: Path, name: str, change: Callable[[Any], object]) -> Path:
    """A real result with something else in it."""
    content = json.loads((DATA / f"{name}.json").read_text())
    change(content)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_real_results_are_read(path: Path) -> None:
    assert read_result(path).schema_version == 1


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("pair-balance", lambda p: p.update(micro_batches=[0, 0]), "not 0 of 944"),
        ("pair-balance", lambda p: p["shares"][0].update(device=7), "shares.0.device: there is no device 7"),
        ("pair-balance", lambda p: p["shares"].pop(), "shares: 1 of 2 devices"),
        ("pair-balance", lambda p: p["devices"][1].update(uuid="SIM-0"), "two have the same UUID"),
        ("pair-balance", lambda p: p["devices"][0]["profile"].update(memory=[]), "devices.0.profile.memory: "),
        ("pair-balance", lambda p: p["balance"]["solo_gap"].update(slowdown=[1.0]), "solo_gap.slowdown"),
        ("pair-balance", lambda p: p["balance"]["run"]["replicas"][0].update(micro_batch=0), "micro_batch: "),
        ("pair-balance", lambda p: p.update(extra={"a": 1}), "extra: "),
        ("pair-run", lambda p: p["throughput"].update(median=0), "throughput.median: "),
        ("pair-run", lambda p: p["replicas"][1].update(device=0), "replicas: a device is there twice"),
        ("pair-run", lambda p: p["baselines"]["even"]["replicas"].pop(), "baselines.even"),
        ("pair-run", lambda p: p.update(kind="plans"), "is a plans, not a probe or plan or run"),
        (
            "pair-probe",
            lambda p: p["probes"][0]["step_time_model"].update(alpha_s=0, beta_s=0),
            "a step that takes no time",
        ),
        ("pair-probe", lambda p: p["probes"][0]["step_time_model"].update(curve=[[8, 1], [8, 2]]), "must rise"),
    ],
)
def test_what_does_not_go_together_is_told_with_its_place(
    tmp_path: Path, name: str, change: Callable[[Any], object], says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_result(changed(tmp_path, name, change))
    assert says in caught.value.message


def test_texts_of_a_file_are_harmless_to_show(tmp_path: Path) -> None:
    name = "\x1b[31mred\x1b[0m \x9b2J\u202e[red]<b>"
    path = changed(tmp_path, "pair-balance", lambda p: p["devices"][0].update(name=name))
    assert read_record(path, Plan).devices[0].name == "red [red]<b>"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(b"\xef\xbb\xbf" + (DATA / "pair-probe.json").read_bytes())
    assert read_record(path, Probe).kind == "probe"
