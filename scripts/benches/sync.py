"""Gradients summed in packs against all at once, in turns.

They go over a link, over loopback and within one host.

The hosts are network namespaces of this machine, each with one core and a plain CPU device, if who
runs this may make them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.numbers.stats import median
from gpubalance.numbers.units import format_seconds
from gpubalance.settings.planning import PlanRequest
from scripts.benches.loops import SplitFit, repeated
from scripts.benches.models import BATCH, MODELS
from scripts.benches.namespaces import NoNamespacesError, hosts_with_links
from scripts.benches.turns import in_processes, measured, printed_by, ratio_of
from scripts.benches.wanted import Wanted, judged
from tests.cli.program import PROGRAM, ROOT
from tests.jobs.probes import of_config, probe_of

_RATE = "100mbit"
_FASTER = Wanted(1.25)
_NO_SLOWER = Wanted(0.98)
_MOST = 12
_ALL_AT_ONCE = ("--pack-bytes", "0")
_ONE_CORE_EACH = (
    "host=$1; shift; number=${host#gph}; exec ip netns exec $host taskset -c $((${number%%x*} - "
    "1)) "
)


def main() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            with hosts_with_links(_RATE, _RATE) as names:
                prefix = folder / "prefix.sh"
                prefix.write_text(f'{_ONE_CORE_EACH} "$@"\n')
                yield from _over(
                    folder,
                    names,
                    f"sh {prefix} {{host}}",
                    f"a link of {_RATE}",
                    _FASTER,
                )
        except NoNamespacesError as error:
            yield f"not over a link: {error}"
        yield from _over(
            folder, ["alpha", "beta"], "env ON={host}", "loopback", _NO_SLOWER
        )
    for name in MODELS:
        on_one = in_processes("scripts.benches.sync", name)
        yield f"{name}, two devices of one host, Split.fit: {judged(on_one, _NO_SLOWER, _MOST)}"


def _over(
    folder: Path, hosts: Sequence[str], via: str, where: str, wanted: Wanted
) -> Iterator[str]:
    """The lines about two hosts.

    `wanted` is of the convnet; a model with few weights gains little.
    """
    for name in MODELS:
        bound = wanted if name == "convnet" else _NO_SLOWER
        runs = _Runs(hosts, via, name)
        yield f"{name}, {where}, run: {judged(runs.ratios(), bound, _MOST)}; {runs.syncs()}"
        yield (
            f"{name}, {where}, Split.fit: "
            f"{judged(_trained(folder, hosts, via, name), bound, _MOST)}"
        )


class _Runs:
    """Pairs of runs over hosts, in packs and all at once, and the sync that each tells."""

    def __init__(self, hosts: Sequence[str], via: str, model: str) -> None:
        self._asked = [
            "run",
            "--simulate",
            "1",
            "--hosts",
            ",".join(hosts),
            "--via",
            via,
        ]
        self._asked += [
            "--model",
            f"scripts.benches.models:{model}",
            "--batches",
            *[str(BATCH)] * len(hosts),
        ]
        self._asked += ["--baseline", "none", "--windows", "1", "--duration", "4"]
        self._in_packs: list[float] = []
        self._at_once: list[float] = []

    def ratios(self) -> Iterator[float]:
        """Endless ratios of throughputs."""
        while True:
            in_packs = self._run(self._in_packs)
            at_once = self._run(self._at_once, *_ALL_AT_ONCE)
            yield in_packs / at_once

    def syncs(self) -> str:
        """The usual sync of either."""
        in_packs = median(self._in_packs)
        at_once = median(self._at_once)
        return f"sync {format_seconds(in_packs)}, all at once {format_seconds(at_once)}"

    def _run(self, syncs_s: list[float], *more: str) -> float:
        found: dict[str, Any] = json.loads(
            measured(*self._asked, *more, PYTHONPATH=str(ROOT))
        )
        syncs_s.append(found["sync_s"])
        return float(found["throughput"]["median"])


def _trained(
    folder: Path, hosts: Sequence[str], via: str, model: str
) -> Iterator[float]:
    """Endless ratios, each of two processes that train in turns: see synced.py."""
    paced = of_config("two-hosts")[0][::2]
    made = plan(probe_of(paced), paced, PlanRequest(global_batch=2 * BATCH, sync_s=0.0))
    plain, _ = simulated_devices(1, hosts)
    path = folder / f"{'-'.join(hosts)}.json"
    path.write_text(made.model_copy(update={"devices": plain}).model_dump_json())
    script = folder / "train.py"  # whose folder Python looks into first
    script.write_text(
        "import sys\nfrom scripts.benches.synced import main\nmain(*sys.argv[1:])\n"
    )
    command = [
        PROGRAM,
        "launch",
        "--via",
        via,
        str(path),
        str(script),
        model,
        ",".join(hosts),
    ]
    while True:
        said = printed_by(command, PYTHONPATH=str(ROOT))
        yield float(said.rpartition("|")[2])


def _on_one_host(name: str) -> float:
    from gpubalance.training.split import Split

    def data() -> Any:
        return repeated(2 * BATCH)

    in_packs, at_once = (
        SplitFit(
            Split(batches=(BATCH, BATCH), simulate=2, pack_bytes=size),
            MODELS[name],
            data,
        )
        for size in (None, 0)
    )
    return ratio_of(in_packs.throughput, at_once.throughput, 4)


if __name__ == "__main__":
    import sys

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(_on_one_host(sys.argv[1]))
