"""Results of real runs on simulated devices as they were written, and variants for tests."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.report import read_subjects
from gpubalance.results.common import Throughput
from gpubalance.results.independent import HeldAgainst, Independent
from gpubalance.results.probe import Failure, Probe
from gpubalance.results.queue import Queue, QueuedCommand, QueueShare, Try
from gpubalance.results.records import read_record
from gpubalance.results.run import InputPipeline, Run, SlowSteps, SoloBest, StepSpread
from gpubalance.results.subject import ReportSubject
from gpubalance.results.timing import Moment, Remedy, Telemetry
from gpubalance.settings.planning import PlanRequest
from tests.jobs.probes import QUICK, point_of
from tests.support.altered import altered
from tests.support.known import known

DATA = Path(__file__).with_name("data")
BALANCE, RUN, PROBE, PLAN = (
    DATA / f"pair-{kind}.json" for kind in ("balance", "run", "probe", "plan")
)
FOUR = DATA / "four-balance.json"
FOUR_PROBE = DATA / "four-probe.json"


def document(path: Path) -> dict[str, Any]:
    """A result's JSON."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def written(folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Writes a changed result to a file."""
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def subject(path: Path, *beside: Path) -> ReportSubject:
    """The report's subject for a file, with others given beside it."""
    return read_subjects([path, *beside])[0]


def with_telemetry(of: ReportSubject) -> ReportSubject:
    """The subject as if its devices were GPUs with telemetry.

    The second gets hot and is throttled.

    Simulated devices have no telemetry, so no real run has it.
    """
    run = known(of.run)
    end = (run.step_time_s.at_s or (10.0,))[-1]
    replicas = tuple(
        altered(replica, telemetry=_telemetry(replica.device, end))
        for replica in run.replicas
    )
    changed = altered(run, replicas=replicas)
    plan = known(of.plan)
    result = altered(plan, balance=altered(known(plan.balance), run=changed))
    return ReportSubject(of.name, result, of.probes, of.probe_from)


def goodput() -> ReportSubject:
    """The subject of a plan with a noise scale, in up to 8 micro-batches, and its probe."""
    probe = read_record(PROBE, Probe)
    wanted = PlanRequest(noise_scale=3000.0, accumulate="auto", sync_s=0.03)
    made = plan(probe, probe.devices, wanted)
    made = altered(made, created=probe.created)
    return ReportSubject("goodput.json", made, probe.probes, "pair-probe.json")


def contended() -> ReportSubject:
    """Two unlike models at once behind pipelines: the first is slower, and the second one failed."""
    result = read_record(DATA / "pair-independent.json", Independent)
    first, second = result.replicas
    heat = _telemetry(1, 9.0)
    slower: Any = {"contention": 0.2, "contention_ci95": (0.18, 0.22)}
    slower |= {"input_wait_s": 0.004, "telemetry": heat, "solo_telemetry": heat}
    died = Failure(exit_code=6, message="it died")
    failed = altered(second, model="other.py:build", failure=died)
    joint = HeldAgainst(
        batches=(820, 568),
        micro_batches=(410, 568),
        created=result.created,
        throughput=Throughput(median=1800.0, ci95=(1500.0, 2000.0)),
    )
    changes: Any = {"replicas": (altered(first, **slower), failed), "joint": joint}
    changes["settings"] = altered(result.settings, data="data.py:read")
    result = altered(result, **changes, complete=False)
    return ReportSubject("contended.json", result, (None, None))


def fed_run() -> ReportSubject:
    """A run in micro-batches that its input pipeline binds, whose batches differ in shape."""
    run = read_record(RUN, Run)
    pipeline = InputPipeline(
        alone=Throughput(median=1900.0, ci95=(1850.0, 1950.0)),
        processor_use=0.75,
        held=Throughput(median=2160.0, ci95=None),
        binds=True,
        remedies=(Remedy(where="data.py:7", what="prefetch"),),
        joined_from=30,
    )
    bests = []
    for device, throughput, xla_ratio in ((0, 1500.0, 1.2), (1, 900.0, None)):
        rates = {"throughput": throughput, "at_global_batch": 0.8 * throughput}
        alone: Any = {"samples_per_joule": 6.0, "xla_ratio": xla_ratio, **rates}
        bests.append(SoloBest(device=device, batch=2000, **alone))
    settings = {"data": "data.py:read", "gradients": "bf16", "input": "host"}
    baselines = {"solo_best": tuple(bests), "solo_sum": 2400.0}
    changes: Any = {"pipeline": pipeline, "micro_batches": (410, 568)}
    changes |= {"settings": altered(run.settings, **settings)}
    changes |= {"baselines": altered(run.baselines, **baselines)}
    changes |= {"pack_bytes": 4 << 20, "input_wait_s": 0.035, "slow_s": 0.012}
    changes |= {"slow_steps": SlowSteps(count=3, timed=240), "scaling_efficiency": 0.9}
    changes |= {"step_spread": StepSpread(p50_s=0.6, p95_s=0.9, steps=14)}
    result = altered(run, **changes, complete=False)
    return ReportSubject("fed.json", result, (None, None))


def rough_probe() -> ReportSubject:
    """A probe whose first device is no line, not steady and faster with XLA, and a failed one."""
    probe = read_record(PROBE, Probe)
    first, second = probe.probes
    rough = {"steady": False, "precise": False, "telemetry": _telemetry(1, 9.0)}
    curve = (altered(first.curve[0], **rough), *first.curve[1:])
    off = {"residual": 0.08, "curve": ((8, 0.05), (944, 0.71))}
    model = altered(known(first.step_time_model), planned_with="curve", **off)
    changes: Any = {"curve": curve, "step_time_model": model, "steady": False}
    changes |= {"update_s": 0.03, "with_xla": point_of(QUICK, 944, 0.5)}
    changes |= {"flops_per_s": 5e12, "mfu": 0.4, "samples_per_joule": 6.25}
    gpu = altered(probe.devices[0], simulated=False, profile=None)
    died = Failure(exit_code=6, message="its worker died")
    limit = altered(known(second.batch_limit), fails=None)
    failed = altered(second, batch_limit=limit, failures=(died,))
    probes = (altered(first, **changes), failed)
    devices = (gpu, probe.devices[1])
    result = altered(probe, devices=devices, probes=probes, complete=False)
    return ReportSubject("rough.json", result, result.probes, "rough.json")


def queue(*, complete: bool) -> Queue:
    """The queue of a pair: all commands ended well, or some failed in different ways."""

    def tried(device: int, start_s: float, end_s: float, **how: Any) -> Try:
        return Try(device=device, start_s=start_s, end_s=end_s, **{"exit": 0, **how})

    commands = [
        QueuedCommand(number=1, command="train a", tries=(tried(0, 0.5, 60.0),)),
        QueuedCommand(number=2, command="train b", tries=(tried(1, 0.5, 150.2),)),
        QueuedCommand(number=3, command="train c", tries=(tried(0, 61.0, 140.0),)),
    ]
    if not complete:
        full = tried(1, 0.5, 9.0, exit=1, out_of_memory=True)
        failed = tried(0, 141.0, 150.0, exit=3)
        fault = tried(1, 10.0, 11.0, exit=None, fault="its process was lost")
        later, before = tried(0, 61.0, 140.0), tried(1, 0.0, 7.0)
        tail = ("Traceback", "", "ValueError")
        commands[1:] = [
            QueuedCommand(number=2, command=90 * "b", tries=(full, later)),
            QueuedCommand(
                number=3, command="c", tries=(failed,), log="3.log", tail=tail
            ),
            QueuedCommand(number=4, command="d", tries=(fault,), tail=("e",)),
            QueuedCommand(number=5, command="e", tries=(before,), resumed=True),
            QueuedCommand(number=6, command="f"),
        ]
    shares = []
    for device, speed in enumerate((1.0, 0.625)):
        mine = [one for one in commands if one.tries and one.tries[-1].device == device]
        counts: Any = {"ended_well": sum(one.ended_well for one in mine)}
        counts["busy_s"] = sum(one.tries[-1].duration_s for one in mine)
        shares.append(QueueShare(device=device, speed=speed, **counts))
    probe = read_record(PROBE, Probe)
    return Queue(
        created=probe.created,
        devices=probe.devices,
        commands=tuple(commands),
        shares=tuple(shares),
        makespan_s=150.2,
        alone_s=232.0 if complete else None,
        speedup=1.545 if complete else None,
        complete=complete,
    )


def _telemetry(device: int, end_s: float) -> Telemetry:
    moments = []
    for number in range(60):
        at_s = end_s * number / 59
        heat = min(40, number)
        hot = device == 1 and number > 40
        moments.append(
            Moment(
                at_s=round(at_s, 3),
                temperature_c=50 + heat - 10 * device,
                power_w=180.5 + heat / 2 - 40 * device,
                sm_clock_mhz=1500 if hot else 1800 + 30 * device,
                memory_clock_mhz=5005 + 500 * device,
                throttle_reasons=("thermal",) if hot else (),
            )
        )
    figures: Any = {"temperature_c": 90, "power_w": 170.25, "energy_j": 1702.5}
    figures |= {"sm_clock_mhz": 1800, "memory_clock_mhz": 5005, "ecc_uncorrected": 0}
    figures["throttle_reasons"] = ("thermal",) if device == 1 else ()
    times: Any = {"readings": 60, "duration_s": end_s, "course": tuple(moments)}
    return Telemetry(**figures, **times)


class Page(HTMLParser):
    """A page's tables by their titles, its text, its tags, its ids, and its references."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self._heading = ""
        self._open: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action", "data", "srcset", "background"):
                self.references.append(value or "")
            if name.startswith("on"):
                self.tags.append(f"@{name}")
        if tag == "h4":
            self._heading = ""
            self._open = tag
        elif tag == "table":
            self._rows = self.tables.setdefault(self._heading, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._open = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open == "h4":
            self._heading += data
        elif self._open is not None:
            self._rows[-1][-1] += data
