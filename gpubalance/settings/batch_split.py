"""A split: how many samples each device takes in a step, and how many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from gpubalance.errors import UsageError
from gpubalance.settings.record import Batch


@dataclass(frozen=True)
class BatchSplit:
    """Each device's batch, in samples and in device order; 0 leaves a device out.

    A device takes its batch in micro-batches of the size in `micro_batches`; the first is smaller
    if that does not divide the batch. Without `micro_batches` each device takes its batch in one
    piece. Raises ValueError for sizes that no step can have.
    """

    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...] = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        object.__setattr__(self, "micro_batches", self.micro_batches or self.batches)
        if len(self.batches) != len(self.micro_batches):
            raise ValueError(
                f"each batch needs one micro-batch size: {len(self.micro_batches)} given "
                f"for {len(self.batches)} batches"
            )
        if not all(isinstance(size, int) for size in self.batches + self.micro_batches):
            raise ValueError("batches and micro-batches must be whole numbers")
        if min(self.batches, default=0) < 0:
            raise ValueError("batches must not be below 0")
        if not any(self.batches):
            raise ValueError("at least one device needs a batch above 0")
        for batch, micro in zip(self.batches, self.micro_batches, strict=True):
            if not min(1, batch) <= micro <= batch:
                raise ValueError(
                    f"a micro-batch must have from 1 to its batch's {batch} samples, "
                    f"not {micro}"
                )

    @classmethod
    def even(cls, global_batch: int, devices: int) -> BatchSplit:
        """Equal batches, as MirroredStrategy has them; the first devices take what is left over.

        Raises ValueError when there are fewer samples than devices.
        """
        if not 0 < devices <= global_batch:
            raise ValueError(
                f"{global_batch} samples are too few for {devices} devices"
            )
        batch, rest = divmod(global_batch, devices)
        return cls((batch + 1,) * rest + (batch,) * (devices - rest))

    @property
    def global_batch(self) -> int:
        """Samples of all devices in a step."""
        return sum(self.batches)

    @property
    def used(self) -> tuple[int, ...]:
        """The places of the devices that have samples."""
        return tuple(device for device, batch in enumerate(self.batches) if batch)

    @property
    def without_idle(self) -> BatchSplit:
        """The same split without the devices that have no samples, which are no replicas."""
        batches = tuple(self.batches[device] for device in self.used)
        micro_batches = tuple(self.micro_batches[device] for device in self.used)
        return BatchSplit(batches, micro_batches)

    @property
    def accumulates(self) -> bool:
        """Whether any device takes its batch in several micro-batches."""
        return self.micro_batches != self.batches

    @property
    def counts(self) -> tuple[int, ...]:
        """How many micro-batches each device takes in a step."""
        sizes = zip(self.batches, self.micro_batches, strict=True)
        return tuple(-(-batch // max(1, micro)) for batch, micro in sizes)

    @property
    def first_micro_batches(self) -> tuple[int, ...]:
        """Samples in each device's first micro-batch, which has what the others leave."""
        sizes = zip(self.batches, self.micro_batches, self.counts, strict=True)
        return tuple(batch - (count - 1) * micro for batch, micro, count in sizes)

    @property
    def smallest(self) -> int:
        """The samples in the smallest part of a batch: a first micro-batch if it accumulates."""
        return min(self.without_idle.first_micro_batches)

    @property
    def options(self) -> str:
        """`--batches 1640 568 --micro-batches 820 568`, as `gpubalance run` takes it."""
        text = f"--batches {' '.join(map(str, self.batches))}"
        if self.accumulates:
            text += f" --micro-batches {' '.join(map(str, self.micro_batches))}"
        return text

    def __str__(self) -> str:
        """`1640/568`, followed by ` in micro-batches 820/568` if any device takes several."""
        text = "/".join(map(str, self.batches))
        if self.accumulates:
            text += f" in micro-batches {'/'.join(map(str, self.micro_batches))}"
        return text


def pieces(batch: int, micro_batch: int) -> tuple[tuple[int, int], ...]:
    """A device's batch as pairs of (how many, of what size).

    1000 in 300 is one of 100 and three of 300.
    """
    count, first = divmod(batch, max(1, micro_batch))
    parts = []
    if first:
        parts.append((1, first))
    if count:
        parts.append((count, micro_batch))
    return tuple(parts)


def pieces_text(batch: int, micro_batch: int) -> str:
    """`820` for a batch in one piece, `2×820` for equal micro-batches, `100+3×300` for others."""
    sizes = []
    for count, size in pieces(batch, micro_batch):
        text = str(size)
        if count > 1:
            text = f"{count}×{size}"
        sizes.append(text)
    return "+".join(sizes) or "0"


def count_text(micro_batches: int, size: int) -> str:
    """`16 micro-batches of 32`."""
    noun = "micro-batches" if micro_batches > 1 else "micro-batch"
    return f"{micro_batches} {noun} of {size}"


def run_text(first: int, last: int) -> str:
    """`0–8`, or `8` for one block."""
    if last > first:
        return f"{first}–{last}"
    return str(first)


def share_text(batch: int, micro_batch: int) -> str:
    """`820`, or `1640 = 2×820` if it is taken in several micro-batches."""
    if batch == micro_batch:
        return str(batch)
    return f"{batch} = {pieces_text(batch, micro_batch)}"


def proportional_split(
    samples: int, weights: Sequence[int], minimum: int = 1
) -> tuple[int, ...]:
    """Shares of `samples` in proportion to the weights, by largest remainders.

    Of equals the first gets more. Every device with a weight gets at least `minimum` samples if
    there are enough: an empty share is no replica.
    """
    replicas = sum(weight > 0 for weight in weights)
    if samples < minimum * replicas:
        minimum = 0
    total = sum(weights)
    shares = []
    remainders = []
    for weight in weights:
        share, remainder = divmod(samples * weight, total)
        if weight:
            share = max(share, minimum)
        shares.append(share)
        remainders.append(remainder)
    by_remainder = sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)
    for device in by_remainder[: max(0, samples - sum(shares))]:
        shares[device] += 1
    while sum(shares) > samples:  # a least share had to come from the largest
        shares[shares.index(max(shares))] -= 1
    return tuple(shares)


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
