"""Imports the user's own functions, which build models or give data, from files and modules."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.replacing import Method, Replacements, acting
from gpubalance.engine.users_lines import users_line
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.settings.choices import refuse_name

# What must not happen while a user's file is imported, and the methods that do it.
_HARMFUL: list[tuple[Any, ...]] = [
    ("trains a model", keras.Model, "fit"),
    ("trains a model", keras.optimizers.Optimizer, "apply"),
    ("trains a model", tf.GradientTape, "gradient"),
    ("saves a model", keras.Model, "save", "save_weights", "export"),
    ("saves a model", keras.saving, "save_model"),
    ("saves a model", keras.models, "save_model"),
    ("saves a model", tf.saved_model, "save"),
    ("saves a model", tf.train.Checkpoint, "save", "write"),
    ("opens a strategy's scope", tf.distribute.Strategy, "scope"),
    ("starts a balance", sys.modules["gpubalance"], "balance"),
]
# Imported files by path and time of change, to run a file once that has both the model and the
# data.
_LOADED: dict[tuple[Path, int], Any] = {}


def user_function(name: str, option: str) -> Callable[[], Any]:
    """Imports a file and returns its function: `file.py:function` or `package.module:function`.

    `__name__` is not `__main__` there, so code under `if __name__ == "__main__":` does not run.
    Raises BadInput if there is no such function, or if the import would train or save a model; its
    message names the `option`. An error in the user's own code passes through. --data may also name
    what its function would return.
    """
    refuse_name(option, name)
    place, _, attribute = name.rpartition(":")
    load = _load_file if place.endswith(".py") else _load_module
    module = load(place, option, _harmless(place, attribute))
    value = getattr(module, attribute, None)
    if value is None:
        names = []
        for own_name, own in vars(module).items():
            if inspect.isfunction(own) and own.__module__ == module.__name__:
                names.append(own_name)
        raise BadInput(
            f"{place} has no function {attribute!r}",
            remedy=f"it has: {', '.join(names) or 'none'}",
        )
    if callable(value) and not isinstance(value, keras.Model):
        _refuse_arguments(option, name, value)
        return value  # type: ignore[no-any-return]
    if option == "--data":
        return lambda: value
    raise BadInput(
        f"{option} {name} is a {type(value).__name__}, not a function",
        remedy="wrap it in a function, because each device builds its own: def "
        f"build(): return {attribute}",
    )


def _refuse_arguments(option: str, name: str, function: Callable[..., Any]) -> None:
    """Raises BadInput for a function that can't be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise BadInput(
            f"{option} {name} needs arguments: {error}",
            remedy="give the arguments defaults, or wrap the function in one that "
            "needs none",
        ) from None
    except ValueError:  # one of C's, without a signature
        return


@contextmanager
def _harmless(place: str, attribute: str) -> Iterator[None]:
    """Raises BadInput before the block trains or saves anything, and if it fails to make a split.

    A training script without a guard would train in every worker and overwrite what it has saved,
    and the plan that it loads may be the one that the command is to make.
    """
    guard = (
        f'put that under `if __name__ == "__main__":`, or move {attribute} to another '
        "file"
    )
    refused: list[BadInput] = []

    def refuser(does: str) -> Callable[..., Any]:
        """The function that replaces a method during the import."""

        def _refuse(*_args: object, **_options: object) -> None:
            file, line = users_line()
            message = f"importing {place} {does} ({Path(file).name}, line {line})"
            refused.append(
                BadInput(f"{message}; gpubalance stopped it there", remedy=guard)
            )
            raise refused[0]

        return _refuse

    refusals: Replacements = {}
    for does, owner, *names in _HARMFUL:
        for name in names:
            refusals[Method.of_all(owner, name)] = refuser(does)
    try:
        with acting(refusals):
            yield
    except Exception as error:
        if refused:  # TensorFlow replaces an error raised in a function that it traces
            raise refused[0] from None
        if isinstance(error, GpubalanceError):  # such as one of `load_plan`
            raise BadInput(
                f"importing {place} makes a split, which failed: {error.message}",
                remedy=guard,
            ) from None
        raise


def _load_file(name: str, option: str, harmless: AbstractContextManager[None]) -> Any:
    path = Path(name)
    if not path.is_file():
        raise BadInput(
            f"{option}: the file {path} does not exist",
            remedy="give the path of a file: folder/file.py:function",
        )
    key = path.resolve(), path.stat().st_mtime_ns
    if key in _LOADED:
        return _LOADED[key]
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look it up by its name
    sys.modules.setdefault(path.stem, module)
    # So that it finds the modules beside it
    sys.path.append(str(path.parent.resolve()))
    with harmless:
        spec.loader.exec_module(module)
    _LOADED[key] = module
    return module


def _load_module(name: str, option: str, harmless: AbstractContextManager[None]) -> Any:
    try:
        with harmless:
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(
                f"{option}: no module {name!r} on the path or in this folder",
                remedy="start in its folder, install it, or name its file: "
                "file.py:function",
            ) from None
        raise  # the user's module lacks another one: its own traceback says so
