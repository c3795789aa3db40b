"""Measure unlike GPUs, split the batch so that they finish together, and train with the split."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpubalance._version import __version__ as __version__

if TYPE_CHECKING:
    from gpubalance.jobs.events import Event
    from gpubalance.results.plan import Plan
    from gpubalance.training.distribute import distribute
    from gpubalance.training.ensemble import Ensemble
    from gpubalance.training.split import Split, load_layers, load_plan

__all__ = ["Ensemble", "Split", "balance", "distribute", "load_layers", "load_plan"]


def balance(
    build: Callable[[], Any] | str,
    data: Callable[[], Any] | str | None = None,
    *,
    watch: "Callable[[Event], None] | None" = None,
    **options: Any,
) -> "Plan":
    """Find the best split for a model and its data, prove it, and return its plan.

    It does what `gpubalance balance` does. `build` is a function that returns the model, `data` one
    that returns what --data takes, None for random samples; or give names, as for these options.
    Define the functions at the top level of a file, which each worker imports, as `multiprocessing`
    does: so call this under `if __name__ == "__main__":`.

    The other options are the command's, by its names: `gpus=[0, 1]`, `simulate="pair.toml"`,
    `output="plan.json"`, `global_batch=1024`. Progress and result are shown as the command shows
    them, unless `quiet=True`, or `watch` is given, which is called with each event of
    `gpubalance.jobs.events`. `load_plan` takes the plan, or its file.

    Raises BadInput for functions that can't be imported, the errors of `gpubalance.errors` for the
    command's other exit codes, and KeyboardInterrupt once no worker is left.
    """
    from gpubalance.cli import from_python

    return from_python.balance(build, data, watch, options)


def __getattr__(name: str) -> Any:
    """Loads the training interface on first use; TensorFlow not before a scope is entered."""
    if name in __all__:
        from gpubalance.training import distribute, ensemble, split

        homes = {
            "Ensemble": ensemble,
            "Split": split,
            "distribute": distribute,
            "load_layers": split,
            "load_plan": split,
        }
        return getattr(homes[name], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
