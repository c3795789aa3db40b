"""`gpubalance balance`, and the training script that it writes."""

from __future__ import annotations

import os
import shlex
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpubalance.cli.next_command import made_in_a_script
from gpubalance.cli.options import (
    Devices,
    Epoch,
    Reporting,
    RunControl,
    Scripting,
    request_fields,
)
from gpubalance.cli.output import check_file, write_file
from gpubalance.cli.own_code import as_data
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.measuring import Proof
from gpubalance.settings.planning import PlanRequest, Rounds
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings
from gpubalance.text import clean, clean_lines

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan
    from gpubalance.settings.settings import Settings


_SCRIPT = '''"""Trains {build} of {place} with the split that gpubalance found.

It is yours to change.
"""

import os
import sys

import gpubalance

# Where gpubalance was started.
os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), {start!r}))
sys.path[:0] = {folders!r}

if __name__ == "__main__":
    split = gpubalance.{made}
    with split.scope():  # before anything else uses TensorFlow, as your file may
        from {model_module} import {build}
        from {data_module} import {data}

        model = {build}()
    if not model.compiled:
        sys.exit("compile the model in {build}: model.compile(optimizer, loss)")
{note}    data = {data_value}
    # Arrays are (x, y) or (x, y, sample_weight).
    parts = data if isinstance(data, tuple) else (data,)
    split.fit(model, **dict(zip(("x", "y", "sample_weight"), parts)), epochs=10)
'''


def check_script(path: Path, settings: Settings) -> None:
    """Raises UsageError if there is nothing to write, or the file exists.

    Raises EnvironmentFault if it can't be written.
    """
    if not settings.model_is_code or settings.data is None:
        raise UsageError(
            "--script needs a model and data of your own",
            remedy="name both: --model train.py:build --data train.py:dataset",
        )
    if path.exists():
        raise UsageError(
            f"{path} exists, and --script never overwrites a file",
            remedy="give another name",
        )
    _refuse_names(settings.model.rpartition(":")[0], settings.data.rpartition(":")[0])
    check_file("--script", path, overwrite=False)


def _refuse_names(*places: str) -> None:
    """Raises UsageError for files and modules that the script's lines can't import."""
    for place in places:
        parts = [Path(place).stem] if place.endswith(".py") else place.split(".")
        if not all(part.isidentifier() and not iskeyword(part) for part in parts):
            raise UsageError(
                f"the script cannot import {clean(place)} by its name",
                remedy="rename it: letters, digits and _ only, such as my_train.py",
            )
    first, second = places
    if first != second and _module(first) == _module(second):
        raise UsageError(
            f"{clean(first)} and {clean(second)} have the same module name, so the "
            "script cannot import both",
            remedy="rename one of them",
        )


def following_script(path: Path | None) -> tuple[str, ...]:
    """The line that starts the script, if one is wanted."""
    if path is None:
        return ()
    command = shlex.join(["python", str(path)])
    return (clean_lines(f"{command}  # written by --script"),)


def write_script(
    path: Path, plan: Plan, plan_file: Path | None, simulate: str | None
) -> None:
    """Writes a script that trains in the current folder, wherever it is started.

    Raises EnvironmentFault.
    """
    place, _, build = plan.settings.model.rpartition(":")
    data_place, _, data = (plan.settings.data or "").rpartition(":")
    places = (place, data_place)
    files = [file for file in places if file.endswith(".py")]
    folders = sorted({str(Path(file).parent) for file in files})
    if len(files) < len(places) and "." not in folders:
        # For a module. Last, so that no file here has the name of one that was given by its path.
        folders.append(".")
    text = _SCRIPT.format(
        build=build,
        data=data,
        place=_in_a_docstring(place),
        start=os.path.relpath(Path.cwd(), path.resolve().parent),
        folders=folders,
        made=made_in_a_script(plan, simulate, plan_file),
        model_module=_module(place),
        data_module=_module(data_place),
        note=_note(plan),
        data_value=as_data(plan.settings.data or ""),
    )
    write_file("--script", path, text)


def _in_a_docstring(text: str) -> str:
    """The text as a docstring in the script has it: no backslash or quote of it counts as code."""
    return text.replace("\\", r"\\").replace('"', r"\"")


def _note(plan: Plan) -> str:
    """What the script says of batches that split.fit keeps; empty of all others."""
    if not plan.wants_larger_batches:
        return ""
    return (
        f"    # The data's batches of {plan.own_batch} differ in shape, so split.fit "
        "keeps them.\n"
        f"    # Make batches of {plan.global_batch} in its function (batch or "
        "padded_batch).\n"
    )


def _module(place: str) -> str:
    return Path(place).stem if place.endswith(".py") else place


def balance(
    gpus: Devices,
    settings: Settings,
    split: Annotated[PlanRequest, Without("sync_s")],
    epoch: Epoch,
    search: Rounds,
    measuring: Annotated[Proof, Without("baseline")],
    control: RunControl,
    reporting: Reporting,
    scripting: Scripting,
    *,
    watch: Any = None,
) -> Any:
    """It probes, plans, runs the plan, and corrects the plan from what was measured.

    Example: gpubalance balance --gpus 0 1 -o plan.json
    """
    # `watch` is for Python: it gets the events, and nothing is shown. Returns the plan, None after
    # a dry run.
    from gpubalance.cli.job import dry_run, job_of
    from gpubalance.cli.next_command import uses
    from gpubalance.cli.output import summed_up
    from gpubalance.jobs.balance.balance import balance as measure
    from gpubalance.render.plan import plan_summary

    machine = gpus.machine()
    fields = request_fields(machine, gpus, settings)
    request = BalanceRequest(**fields, plan=split, measuring=measuring, **dict(search))
    if scripting.script is not None:
        check_script(scripting.script, request.settings)

    def text(plan: Plan) -> str:
        command, lines = uses(plan, gpus.simulate, reporting.output)
        script = following_script(scripting.script) or lines
        return summed_up(plan, plan_summary(plan, epoch.epoch), command, script)

    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return None
    with job_of(machine, request, control, reporting, text, watch=watch) as job:
        job.result = measure(job.request, job.watch, job.journal)
    if scripting.script is not None:
        write_script(scripting.script, job.result, reporting.output, gpus.simulate)
    return job.result
