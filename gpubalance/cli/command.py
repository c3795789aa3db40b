"""Reads a command line, with lists as people write them (`--gpus 0 1`), and a `--config` file:

quiet = true                # for every command that has the flag
[run]                       # for `gpubalance run`; overrides what is given for every command
gpus = [0, 1]
global-batch = 1388         # a flag's long name without its dashes, or global_batch
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException
from typer.main import get_command

from gpubalance.errors import BadInput, GpubalanceError, PlanMismatch, UsageError
from gpubalance.system.files import is_among, read_toml
from gpubalance.text import clean

_REMEDY = "--config takes a TOML file: see gpubalance guide shell"


@dataclass
class Invocation:
    """What the user asked for, as far as it is known when an error is shown.

    It is Typer's context object.
    """

    context: typer.Context | None = None
    config: Path | None = None

    @property
    def verbose(self) -> bool:
        """Whether --verbose is on, from the command line or the config."""
        return self.context is not None and bool(self.context.params.get("verbose"))

    def explain(self, error: GpubalanceError) -> None:
        """Adds to an error about an option that its value is from the config."""
        if self.context is None or not isinstance(
            error, UsageError | BadInput | PlanMismatch
        ):
            return
        mentioned = re.findall(r"--[\w-]+", f"{error.message} {error.remedy}")
        from_config = []
        for flag, option in options_of(self.context.command):
            source = self.context.get_parameter_source(str(option.name))
            # Of Typer's ParameterSource, which it does not export
            if str(source).endswith("_MAP"):
                from_config.append(f"--{flag}")
        flags = [flag for flag in from_config if flag in mentioned] or from_config
        if flags:
            error.remedy = (
                f"{error.remedy}\nfrom {self.config}: {', '.join(flags)}".strip()
            )


def take(context: typer.Context, file: str | None) -> None:
    """The callback of --config: makes the file's values the defaults of the flags."""
    if context.resilient_parsing:  # a shell asks for completions
        return
    invocation = context.ensure_object(Invocation)
    invocation.context = context
    if file == "":
        raise UsageError("--config needs a value", remedy=_REMEDY)
    if file is not None:
        path = Path(file)
        invocation.config = path
        program = cast("TyperGroup", context.find_root().command)
        by_command = defaults(
            path, cast("Mapping[str, TyperCommand]", program.commands)
        )
        if context.parent is None:
            context.default_map = by_command
        else:
            context.default_map = by_command[cast("str", context.info_name)]


def defaults(
    path: Path, commands: Mapping[str, TyperCommand]
) -> dict[str, dict[str, Any]]:
    """The file's values for each command, by parameter, as a command line has them.

    That is Typer's `default_map`. Raises BadInput for a file that can't be read, and UsageError for
    a key that is no flag, with the nearest flag, and for true or false of an option that is no
    switch, or the reverse. Other wrong values are left to whatever rejects them on the command
    line.
    """

    document = read_toml(path, "config", remedy=_REMEDY)
    options = {name: dict(options_of(command)) for name, command in commands.items()}
    flags = set().union(*options.values()) - options.keys()
    # `plan` may also be a flag, and `margin` may have a value for each device.
    tables: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for key, value in document.items():
        is_table = isinstance(value, dict) and key.replace("_", "-") not in flags
        (tables if is_table else values)[key] = value
    by_name(f"{path}: ", tables, options.keys())
    shared = by_name(f"{path}: ", values, set().union(*options.values()))
    by_command = {}
    for name, known in options.items():
        own = by_name(f"{path}: [{name}] ", tables.get(name, {}), known.keys())
        typed = {}
        for flag, value in (shared | own).items():
            if flag in known:
                place = f"[{name}] {flag}" if flag in own else flag
                _refuse_wrong_kind(f"{path}: {place}", known[flag], value)
                typed[str(known[flag].name)] = as_typed(known[flag], value)
        by_command[name] = typed
    return by_command


def _refuse_wrong_kind(place: str, option: TyperOption, value: Any) -> None:
    """Raises UsageError for a switch that is not true or false, and for another option that is."""
    if option.is_flag and not isinstance(value, bool):
        raise UsageError(
            f"{place} takes true or false, not {clean(repr(value), 40)}",
            remedy="write true or false, without quotes",
        )
    if isinstance(value, bool) and not option.is_flag:
        raise UsageError(
            f"{place} takes a value, not true or false",
            remedy="give its value, or leave it out",
        )


def options_of(command: Any) -> Iterator[tuple[str, TyperOption]]:
    """Each option of a command that a config may give, under its long name, without dashes."""
    for option in command.params:
        if isinstance(option, TyperOption) and option.name not in ("config", "help"):
            flag = next(name for name in option.opts if name.startswith("--"))
            yield flag.removeprefix("--"), option


def by_name(place: str, values: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The values by name, with dashes.

    Raises UsageError, which begins with the place, for a name that is not known, and for one with
    dashes and with underscores.
    """
    by_flag: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name in by_flag:
            raise UsageError(
                f"{place}{clean(name, 40)} is given twice, with - and with _",
                remedy="leave one of them out",
            )
        by_flag[name] = value
    for name in by_flag.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"there are: {', '.join(sorted(known))}"
        if near:
            remedy = f"did you mean {near[0]}?"
        raise UsageError(
            f"{place}{clean(name, 40)}: no such command or option",
            remedy=remedy,
        )
    return by_flag


def as_typed(option: TyperOption, value: Any) -> Any:
    """The value in a command line's form: text, a list of texts, or a switch's true or false."""
    if option.is_flag:
        return value
    if isinstance(value, Mapping):  # such as margin = {0 = "2GiB"}
        value = ",".join(f"{name}={each}" for name, each in value.items())
    values = value if isinstance(value, list | tuple) else [value]
    # No command line can hold a zero byte, and a path with one can't even be looked for.
    texts = [str(value).replace("\0", "") for value in values]
    if option.multiple:
        return texts or [""]  # an empty list is no default: it is refused as --gpus ""
    return " ".join(texts)


def _show_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        with suppress(SystemExit):  # raised by Rich if the reader of a pipe has gone
            print(ctx.get_help())
        raise typer.Exit


ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read options from a TOML file; options given here override it.",
        callback=take,
        is_eager=True,
    ),
]
# Typer's own shows a <bool> beside the option
HelpOption = Annotated[
    bool,
    typer.Option(
        "--help",
        "-h",
        metavar="",
        help="Show this message and exit.",
        callback=_show_help,
        is_eager=True,
    ),
]


def common(
    verbose: Annotated[
        bool,
        typer.Option("--verbose", metavar="", help="Show the traceback of an error."),
    ] = False,
    config: ConfigOption = None,
    help: HelpOption = False,
) -> None:
    """The options of every command, which main() reads."""


_NUMBER = re.compile(r"-\d")
_TYPED = "gpubalance.typed"

# Each fits into a line of the program's help.
GROUPS = {
    "Measure": {
        "check": "Check in seconds whether a model and its data can be measured.",
        "probe": "Measure each device alone, at all batch sizes that fit.",
        "balance": "Find the best split and prove it by a measurement.",
        "plan": "Compute the best split from a probe, without any device.",
        "run": "Train with a given split, and show where the time goes.",
        "independent": "Train a model on each device, alone and all at once.",
        "layers": "Cut a model that no device can hold into stages on several.",
    },
    "Train": {
        "launch": "Run your training script on the devices of a plan.",
        "queue": "Run many commands, one at a time on each device.",
    },
    "Results": {
        "compare": "Compare results: faster, slower, or no clear difference.",
        "report": "Show results as a page with charts, as pictures, or as tables.",
    },
    "Machine and manual": {
        "devices": "List the devices, and why any of them can't be used.",
        "doctor": "Check driver, libraries and GPUs, and show how to fix them.",
        "guide": "Read the manual.",
    },
}
COMMANDS = tuple(itertools.chain(*GROUPS.values()))


class Command(TyperCommand):
    """A command by its name.

    Its module, `gpubalance.cli.NAME`, is loaded when more than its summary is asked for. It takes
    lists as people write them, and completes them: Typer knows one value for an option.
    """

    def __init__(self, name: str, summary: str, group: str | None = None) -> None:
        super().__init__(
            name,
            # The words after the name of a script to launch are the script's own.
            context_settings={"allow_interspersed_args": name != "launch"},
            short_help=summary,
            add_help_option=False,
            rich_markup_mode="rich",
            rich_help_panel=group,
        )
        # So that __getattr__ is asked for them
        del self.params, self.callback, self.help

    def __getattr__(self, name: str) -> Any:
        if name not in ("params", "callback", "help"):
            raise AttributeError(name)
        from gpubalance.cli.parameters import with_options

        function = getattr(import_module(f"gpubalance.cli.{self.name}"), str(self.name))
        alone = Typer(add_completion=False)
        alone.command()(with_options(function, common))
        loaded = get_command(alone)
        self.params, self.callback = loaded.params, loaded.callback
        for param in self.params:
            # Whose Python type the help would show, such as <list[Path]>.
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = _no_type
        self.help = f"{self.short_help}\n\n{loaded.help}"
        return vars(self)[name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments.

        For a completion the words come as the shell has cut them; see `shell_complete`.
        """
        if ctx.resilient_parsing:
            # Bash cuts --simulate=2 into three
            args = [word for word in args if word != "="]
            ctx.meta[_TYPED] = tuple(args)
        else:
            self._refuse_no_value(args)
        try:
            return super().parse_args(ctx, spread(args, self._lists))
        except TyperException:
            # An argument may be missing as a list took it: `queue --gpus 0 1 trials.txt -q`.
            for place in _ends_of_lists(args, self._lists):
                argument_first = [args[place], *args[:place], *args[place + 1 :]]
                self._refuse_no_value(argument_first)
                with suppress(TyperException):
                    return super().parse_args(ctx, spread(argument_first, self._lists))
            raise

    def _refuse_no_value(self, args: Sequence[str]) -> None:
        """Raises UsageError for an option that another one follows where its value should be.

        Typer would take that one for the value: `-o --json` would write a file of that name.
        """
        options: dict[str, TyperOption] = {}
        for param in self.params:
            if isinstance(param, TyperOption):
                options |= dict.fromkeys(param.opts + param.secondary_opts, param)
        may_follow = self.context_settings["allow_interspersed_args"]
        before = ""  # an option, whose value is next
        for word in args:
            name, equals, _ = word.partition("=")
            if before:
                ends_list = options[before].multiple and word.startswith("--")
                if ends_list or name in options:
                    remedy = f"gpubalance {self.name} --help"
                    raise UsageError(f"{before} needs a value", remedy=remedy)
                before = ""
            elif word == "--" or not (may_follow or word.startswith("-")):
                return
            elif name in options and not equals and not options[name].is_flag:
                before = word

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Raises UsageError if -o would overwrite a file that it reads."""
        output = ctx.params.get("output")
        others = [value for name, value in ctx.params.items() if name != "output"]
        if output is not None and is_among(Path(output), _files_named(others)):
            raise UsageError(
                f"-o {output} is a file that {ctx.info_name} reads",
                remedy="give another -o",
            )
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage without braces: `compare [OPTIONS] RESULT.json...`."""
        return [
            piece.strip("{}").replace("}", "")
            for piece in super().collect_usage_pieces(ctx)
        ]

    @property
    def _lists(self) -> set[str]:
        """The options that take several values."""
        names: set[str] = set()
        for param in self.params:
            if isinstance(param, TyperOption) and param.multiple:
                names.update(param.opts)
        return names

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Offers flags, or values of the last flag where Typer does not see that they are its."""
        typed: tuple[str, ...] = ctx.meta[_TYPED]
        flag = next((word for word in reversed(typed) if word.startswith("-")), "")
        values_follow = flag in self._lists or typed[-1:] == (flag,)
        if values_follow and not incomplete.startswith("-"):
            for param in self.params:
                if (
                    isinstance(param, TyperOption)
                    and flag in param.opts
                    and not param.is_flag
                ):
                    return param.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete or "-")


def _no_type(ctx: Any) -> None:
    """What the help shows as the Python type of an argument."""


def _files_named(values: Sequence[Any]) -> Iterator[str]:
    """The files that these values may name, also as `file.py:function`."""
    for value in values:
        words = value if isinstance(value, list | tuple) else [value]
        for word in map(str, words):
            yield word
            yield word.rpartition(":")[0]


def _ends_of_lists(arguments: Sequence[str], lists: Container[str]) -> Iterator[int]:
    """The places of the last value of each list option, but for numbers."""
    name = ""
    for place, word in enumerate(arguments):
        if word.startswith("-"):
            name, _, _ = word.partition("=")
            continue
        is_last = place + 1 == len(arguments) or arguments[place + 1].startswith("-")
        if name in lists and is_last and not word.isdecimal():
            yield place


def spread(arguments: Sequence[str], lists: Container[str]) -> list[str]:
    """The arguments with a list option before each of its values, as Typer wants them.

    Its values end at the next option, and at a result, which is an argument: `plan --gpus 0 1
    probe.json`. `-5` is a value, so that the error says what is wrong with it.
    """
    words: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*words, argument, *rest]
        name, equals, value = argument.partition("=")
        values = [value] if equals else []
        while (
            name in lists
            and rest
            and (not rest[0].startswith("-") or _NUMBER.match(rest[0]))
            and not (values and rest[0].endswith(".json"))
        ):
            values.append(rest.pop(0))
        words += [f"{name}={value}" for value in values] or [name]
    return words
