"""The shares that a user types, in a script or on a command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubalance.errors import UsageError
from gpubalance.settings.batch_split import BatchSplit


def shares_of(
    sizes: Sequence[int],
    micro_batches: Sequence[int],
    devices: int,
    *,
    what: str = "batches",
    order: str = "gpus",
) -> BatchSplit:
    """The shares of these sizes. Raises UsageError, with what to give.

    Errors call the sizes `what`: batches or ratios. `order` is what names the devices: gpus in a
    script, --gpus on a command line.
    """
    remedy = (
        f"give one whole number per device, in {order} order (0 leaves a device out)"
    )
    if what == "ratios":
        remedy += "; for ratios of 0.6 to 0.4 write 3 and 2"
    for name, values in ((what, sizes), ("micro-batches", micro_batches)):
        if not isinstance(values, Iterable) or any(
            type(size) is not int for size in values
        ):
            raise UsageError(
                f"{name} must be a list of whole numbers, not {values!r}", remedy=remedy
            )
    if len(sizes) != devices:
        raise UsageError(
            f"{what}: {len(sizes) or 'none'} given for {devices} devices", remedy=remedy
        )
    try:
        return BatchSplit(tuple(sizes), tuple(micro_batches))
    except ValueError as error:
        raise UsageError(
            str(error).replace("batches", what, 1), remedy=remedy
        ) from None
