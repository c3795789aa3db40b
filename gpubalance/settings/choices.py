"""The words that flags and files may use.

The command line's help imports nothing heavier than this.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any, Literal, get_args

from gpubalance.errors import BadInput
from gpubalance.text import clean

Precision = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
AllReduce = Literal["auto", "nccl", "ring", "hierarchical", "one-device"]
Gradients = Literal["full", "bf16"]
Input = Literal["device", "host"]
Baseline = Literal["even", "none"]

# Where TensorBoard looks for traces below a log directory:
# https://www.tensorflow.org/guide/profiler
TRACES = "plugins/profile"

DEFAULT_BATCH = 64
BUILT_IN = ("probe", "small")  # models

# Keras' own format of saved models, loaded with its safe mode on.
SAVED_MODEL = ".keras"
# Other formats of saved models, which run code from the file when they are loaded.
UNSAFE_MODELS = (".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".pt", ".pth")


def one_of(choice: Any) -> str:
    """The words of a choice as one lists them: `auto, nccl, ring, hierarchical or one-device`."""
    *words, last = get_args(choice)
    return f"{', '.join(words)} or {last}"


def default_model(*, simulated: bool) -> str:
    """The model to train if none is named: one that computes far less than devices simulate."""
    return "small" if simulated else "probe"


def refuse_unknown_model(model: str, applications: Collection[str]) -> None:
    """Raises BadInput for a name that is neither built in nor one of `keras.applications`."""
    names = {name.lower(): name for name in [*applications, *BUILT_IN]}
    if model in names.values():
        return
    message = f"there is no model {clean(model)!r}"
    near = difflib.get_close_matches(model.lower(), names, n=1)
    if near:
        message += f": did you mean {names[near[0]]}?"
    raise BadInput(
        message,
        remedy="use probe or small, which are built in, a keras.applications name "
        "such as MobileNetV2, package.module:function, file.py:function or saved.keras",
    )


def refuse_name(option: str, name: str) -> None:
    """Raises BadInput for the name of a file that may hold code, or of no function."""
    place, _, function = name.rpartition(":")
    if option == "--model" and not place and name.lower().endswith(UNSAFE_MODELS):
        stem = clean(name.rpartition("/")[2].rpartition(".")[0])
        raise BadInput(
            f"--model {clean(name)}: a file of that kind may hold code, which loading it would run",
            remedy=f"save it again: model.save('{stem}{SAVED_MODEL}'), or give a function that "
            "builds it",
        )
    if not (place and function) and (option == "--data" or ":" in name):
        named = "a function but no file or module"
        if not function or ":" not in name:
            named = "a file or module but no function"
        raise BadInput(
            f"{option} {clean(name)!r} names {named}",
            remedy="write package.module:function or file.py:function",
        )


def names_file_or_code(model: str) -> bool:
    """Whether a model's name leads to a file or to a user's function.

    Only a command line or its config may name those.
    """
    return ":" in model or model.lower().endswith((SAVED_MODEL, *UNSAFE_MODELS))
