"""What can follow a result: a command as this user types it, and lines of a training script."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.cli.command import COMMANDS
from gpubalance.cli.own_code import as_data
from gpubalance.numbers.units import all_digits
from gpubalance.settings.choices import default_model, names_file_or_code
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device
    from gpubalance.settings.settings import Settings

# A command, and the lines of a training script: empty if there is none.
Following = tuple[str, tuple[str, ...]]


def command(
    name: str,
    devices: Sequence[Device],
    settings: Settings,
    simulate: str | None,
    *split: str,
) -> str:
    """A command on these devices with these settings; the words of `split` come between the two."""
    words = [name, *_simulated(simulate), "--gpus"]
    words += [device.called for device in devices]
    words += split
    usual = type(settings)(model=default_model(simulated=devices[0].simulated))
    return _line(*words, *options_of(settings, usual))


def options_of(settings: Settings, usual: Settings) -> list[str]:
    """The options that ask for these settings where they differ from the usual ones."""
    words = []
    for field, value in settings:
        if value != getattr(usual, field):
            words.append(f"--{field.replace('_', '-')}")
            if value is not True:
                words.append(
                    all_digits(value) if isinstance(value, float) else str(value)
                )
    return words


def uses(plan: Plan, simulate: str | None, path: Path | None) -> Following:
    """The command that runs a plan, and the lines of a training script.

    Both are empty for a simulation with an unknown profile. There are no lines for devices of other
    hosts without a file of the plan, as only `launch` reaches those.
    """
    from gpubalance.devices.hosts import typed_for_hosts
    from gpubalance.settings.device import hosts_of

    if plan.devices[0].simulated and simulate is None:
        return "", ()
    run = _run_command(plan, simulate, path)
    script = _training("split", made_in_a_script(plan, simulate, path), plan.settings)
    used = [plan.devices[number] for number in plan.split.used]
    if len(hosts_of(used)) > 1 or (used[0].host is not None and not used[0].simulated):
        # Only load_plan can tell which of the processes it is in.
        if path is None:
            return run, ()
        via = typed_for_hosts()[2:]  # the plan knows its hosts
        script = (*script, f"# {_line('launch', *via, str(path), 'train.py')}")
    return run, script


def uses_elsewhere(plan: Plan, table: Path, devices: int) -> Following:
    """The commands that train with PyTorch by a plan from a table of times, and Keras' lines.

    The table has so many devices; each has its place there for a number.
    """
    from gpubalance.examples import FOLDER
    from gpubalance.settings.batch_split import BatchSplit

    batches = [0] * devices
    micro_batches = [0] * devices
    for device, share in zip(plan.devices, plan.shares, strict=True):
        batches[device.index] = share.batch
        micro_batches[device.index] = share.micro_batch
    split = BatchSplit(tuple(batches), tuple(micro_batches))
    start = f"torchrun --nproc-per-node {len(split.used)}"
    if len(split.used) < devices:
        start = f"CUDA_VISIBLE_DEVICES={','.join(map(str, split.used))} {start}"
    commands = clean_lines(
        f"cp -n {shlex.quote(str(FOLDER))}/torch_*.py .  # for PyTorch\n"
        f"  {start} torch_joint.py {shlex.quote(str(table))} {split.options}\n"
        f"  {start} torch_ddp.py {split.options}"
    )
    call = made_in_a_script(plan, None, None)
    keras = _training("split", call, plan.settings)
    return commands, ("# Keras, with GPUs numbered as in the table", *keras)


def layers_uses(
    path: Path | None, simulate: str | None, settings: Settings
) -> Following:
    """The command that draws the result in that file, and the lines that train in its stages.

    Both are empty without a file.
    """
    if path is None:
        return "", ()
    report = _line("report", str(path), "--html", str(path.with_suffix(".html")))
    loaded = f"load_layers({str(path)!r}{_simulate_argument(simulate)})"
    return report, _training("layers", loaded, settings)


def without_option(option: str, arguments: Sequence[str]) -> list[str]:
    """The arguments without an option and its value."""
    words = []
    before = ""
    for argument in arguments:
        if option not in (before, argument.partition("=")[0]):
            words.append(argument)
        before = argument
    return words


def resuming(arguments: Sequence[str]) -> str:
    """The command that resumes one with these arguments."""
    words = list(arguments)
    if "--resume" not in words:
        # At the end, --gpus would take the commands file of a queue for one more device.
        name = next(word for word in words if word in COMMANDS)
        words.insert(words.index(name) + 1, "--resume")
    return _line(*words)


def program() -> str:
    """How the user starts this program: scripts/gpubalance in a checkout says so itself."""
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("gpubalance", "__main__.py"):
        return f"{Path(sys.executable).name} -m gpubalance"
    return shlex.quote(os.environ.get("GPUBALANCE_STARTED_AS") or "gpubalance")


def _line(*words: str) -> str:
    return clean_lines(f"{program()} {shlex.join(words)}")


def typed(text: str) -> str:
    """The text with each of our commands as this user would type it: with the program's name."""
    own_command = (
        f"(?:{re.escape(program())}|gpubalance) (?=(?:{'|'.join(COMMANDS)})\\b)"
    )
    return re.sub(rf"(?<![\w./-]){own_command}", lambda _: f"{program()} ", text)


def _simulated(simulate: str | None) -> list[str]:
    from gpubalance.devices.hosts import typed_for_hosts

    words = []
    if simulate:
        words += ["--simulate", simulate]
    return [*words, *typed_for_hosts()]


def _simulate_argument(simulate: str | None) -> str:
    if not simulate:
        return ""
    return f", simulate={simulate!r}"


def made_in_a_script(plan: Plan, simulate: str | None, path: Path | None) -> str:
    """The call of `gpubalance` that makes a plan's split: from its file, or by hand without one."""
    from gpubalance.settings.device import hosts_of

    simulated = _simulate_argument(simulate)
    if path:
        return f"load_plan({str(path)!r}{simulated})"
    used = [plan.devices[number] for number in plan.split.used]
    arguments = plan.split_arguments + simulated
    # A profile names its hosts itself.
    if simulate is not None and used[0].host is not None and used[0].profile is None:
        arguments += f", hosts={list(hosts_of(used))}"
    return f"Split({arguments})"


def _training(name: str, call: str, settings: Settings) -> tuple[str, ...]:
    """The lines of a script that train with what is made, by the names of the user's functions."""
    place, _, build = settings.model.rpartition(":")
    model = "build_model()  # balance yours first"
    if place:
        model = f"{build}()  # of {place}"
    data = "dataset"
    if settings.data:
        data = as_data(settings.data)
    lines = (
        f"{name} = gpubalance.{call}",
        f"with {name}.scope(): model = {model}, compiled here too",
        f"{name}.fit(model, {data}, epochs=10)",
    )
    return tuple(map(clean_lines, lines))


def _run_command(plan: Plan, simulate: str | None, path: Path | None) -> str:
    settings = plan.settings
    if path is None:
        devices = [plan.devices[number] for number in plan.split.used]
        return command(
            "run", devices, settings, simulate, *plan.split.without_idle.options.split()
        )
    words = ["run", *_simulated(simulate), "--plan", str(path)]
    if names_file_or_code(settings.model):
        words += ["--model", settings.model]
    if settings.data:
        words += ["--data", settings.data]
    return _line(*words)
