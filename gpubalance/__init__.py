"""Measure unlike GPUs, split the batch so that they finish together, and train with it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubalance.training.distribute import distribute
    from gpubalance.training.split import Split, load_plan

__all__ = ["Split", "distribute", "load_plan"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The training interface is loaded when it is first asked for, and TensorFlow not before a scope is entered."""
    if name in __all__:
        from gpubalance.training import distribute, split

        return getattr(distribute if name == "distribute" else split, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
