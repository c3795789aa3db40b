"""What, besides the devices and the split, decides how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.settings.choices import AllReduce, Gradients, Input, Precision, one_of
from gpubalance.settings.record import Bytes, Name, Record, TimeScale, training_option


@dataclass(frozen=True)
class Summing:
    """By which all-reduce, in packs of how many bytes, and as which numbers.

    `pack_bytes` is None for what suits the link, and 0 for all gradients at once.
    """

    all_reduce: AllReduce = "auto"
    pack_bytes: int | None = None
    gradients: Gradients = "full"


AS_USUAL = Summing()


class Settings(Record):
    """What is trained, and how; recorded with every result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or
    `file.py:function`; empty in what a user asked for: the one that suits the devices. `data` is a
    function that provides samples, named like the last two; null for random samples. Simulated
    devices take `time_scale` times as long as their profile says.
    """

    model: Name = training_option(
        "--model NAME",
        "Built in: probe (default on GPUs) and small (default for simulated devices). "
        "Or a keras.applications name, file.py:function, package.module:function or "
        "saved.keras.",
        "",
    )
    data: Name | None = training_option(
        "--data NAME",
        "Your data: a function, named as for --model, that returns a "
        "tf.data.Dataset, a PyDataset or arrays.",
    )
    precision: Precision = training_option(
        "--precision KIND",
        "tf32 (TensorFlow's default): float32, multiplied in TF32 where the card "
        "supports it; float32: no TF32; mixed_float16; mixed_bfloat16.",
        "tf32",
    )
    xla: bool = training_option(
        "--xla/--no-xla",
        "Compile the forward and backward pass with XLA.",
        default=False,
    )
    input: Input = training_option(
        "--input PLACE",
        "Where samples come from: device (they stay on the device) or host (they are "
        "fed from the host).",
        "device",
    )
    all_reduce: AllReduce = training_option(
        "--all-reduce KIND",
        f"The all-reduce that sums gradients: {one_of(AllReduce)}.",
        "auto",
    )
    pack_bytes: Bytes | None = training_option(
        "--pack-bytes SIZE",
        "Bytes of gradients in one all-reduce, such as 4MiB; 0: all at once. "
        "Default: by the speed of the link.",
    )
    gradients: Gradients = training_option(
        "--gradients KIND",
        "How gradients are sent: full, or bf16 (half the bytes, not exact).",
        "full",
    )

    # Of the devices' profile, by --time-scale beside --simulate
    time_scale: TimeScale = 1.0

    @property
    def model_is_code(self) -> bool:
        """Whether a function of the user's builds the model."""
        return ":" in self.model

    @property
    def summing(self) -> Summing:
        """How several devices sum their gradients."""
        return Summing(self.all_reduce, self.pack_bytes, self.gradients)

    @property
    def alone(self) -> Settings:
        """Those of a device alone, which does no all-reduce."""
        return self.model_copy(update=vars(AS_USUAL))
