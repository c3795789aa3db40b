"""The user's own functions, from files and modules, and the user's own lines behind a call."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.replacing import Method, Replacements, acting
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.results.timing import Remedy
from gpubalance.settings.choices import refuse_name

# Frames in these folders are skipped: `split.fit` and Keras' `test_on_batch`, for example, open a
# scope.
_LIBRARIES = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(keras.__file__).parent}{os.sep}",
    f"{Path(tf.__file__).parent}{os.sep}",
    "<frozen ",
)
_PYTHONS_OWN = f"{sysconfig.get_path('stdlib')}{os.sep}"
# Packages may lie in the folder of Python's own library.
_PACKAGES = {"site-packages", "dist-packages"}


def users_line() -> tuple[str, int]:
    """The file and the line number of the innermost caller outside the libraries."""
    caller = sys._getframe(1)
    while caller.f_back and is_of_library(caller.f_code.co_filename):
        caller = caller.f_back
    return caller.f_code.co_filename, caller.f_lineno


def warn_user(text: str) -> None:
    """Warns at the innermost line of the user's own code."""
    warnings.warn_explicit(text, UserWarning, *users_line())


def is_of_library(file: str) -> bool:
    """Whether a frame's file is Keras', TensorFlow's, gpubalance's or of Python's own library."""
    if file.startswith(_LIBRARIES) or "__autograph_generated_file" in file:
        return True
    return file.startswith(_PYTHONS_OWN) and not is_of_package(file)


def is_of_package(file: str) -> bool:
    """Whether a frame's file is of an installed package."""
    return not _PACKAGES.isdisjoint(Path(file).parts)


class DatasetLines:
    """On which lines a user's function makes its datasets, each of another one."""

    def __init__(self) -> None:
        # With the dataset, so that no other gets its id.
        self._lines: dict[int, tuple[Any, tuple[str, int]]] = {}

    def noting(self) -> AbstractContextManager[None]:
        """Notes all that are made inside the block."""

        def note(init: Any, dataset: Any, *arguments: Any, **named: Any) -> None:
            self._lines[id(dataset)] = dataset, users_line()
            init(dataset, *arguments, **named)

        return acting({Method.of_all(tf.data.Dataset, "__init__"): note})

    def usual_remedies(self, data: Any) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines; nothing is tried."""
        if isinstance(data, keras.utils.PyDataset):
            if data.workers > 1:
                return ()
            what = "workers= more than one, if __getitem__ may run in several threads"
            return (Remedy(where=type(data).__name__, what=what),)
        maps = []
        sequential_maps = []
        can_be_cached = True
        for dataset in _sources(data):
            if id(dataset) not in self._lines:
                continue
            kind = type(dataset).__name__
            if kind in ("_MapDataset", "_ParallelMapDataset"):
                maps.append(dataset)
            if kind == "_MapDataset":
                sequential_maps.append(dataset)
            if "Cache" in kind or dataset.cardinality() < 0:
                can_be_cached = False
        remedies = []
        if sequential_maps:
            what = "map(…, num_parallel_calls=tf.data.AUTOTUNE)"
            remedies.append(Remedy(where=self._where(sequential_maps), what=what))
        if maps and can_be_cached:
            what = (
                "cache() after this map, if its samples fit into memory and it draws nothing at "
                "random"
            )
            remedies.append(Remedy(where=self._where(maps[:1]), what=what))
        return tuple(remedies)

    def _where(self, datasets: list[Any]) -> str:
        """`train.py, line 12` or `train.py, lines 12 and 15`."""
        lines = sorted({self._lines[id(dataset)][1] for dataset in datasets})
        file = Path(lines[0][0]).name
        *others, last = [str(number) for _, number in lines]
        if others:
            return f"{file}, lines {', '.join(others)} and {last}"
        return f"{file}, line {last}"


def _sources(data: Any) -> Iterator[Any]:
    """A dataset and those that it was made of, from the last to the first."""
    while isinstance(data, tf.data.Dataset):
        yield data
        data = next(iter(data._inputs()), None)


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
    try:
        with harmless:
            spec.loader.exec_module(module)
    except BaseException:
        # Else an import of this name would get what the file has defined so far.
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
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
