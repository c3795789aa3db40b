"""Measure unlike GPUs, split the batch so that they finish together, and train with it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubalance.training.distribute import distribute
    from gpubalance.training.load import load_plan
    from gpubalance.training.split import Split

__all__ = ["Split", "distribute", "load_plan"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The training interface is loaded when it is first asked for, and TensorFlow not before a scope is entered."""
    if name in __all__:
        from gpubalance.training import distribute, load, split

        rooms = {"Split": split, "distribute": distribute, "load_plan": load}
        return getattr(rooms[name], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
