"""What, besides the devices and the split, decides how long a step takes."""

from __future__ import annotations

from gpubalance.settings.choices import AllReduce, Gradients, Input, Precision, one_of
from gpubalance.settings.options import training_option
from gpubalance.settings.record import Bytes, Name, Record, TimeScale
from gpubalance.settings.summing import AS_USUAL, Summing


class Settings(Record):
    """What is trained, and how; recorded with every result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or
    `file.py:function`; empty in what a user asked for: the one that suits the devices. `data` is a
    function that provides samples, named like the last two; null for random samples. Simulated
    devices take `time_scale` times as long as their profile says.
    """

    model: Name = training_option(
        "--model NAME",
        "probe (default on GPUs), small (if simulated), a keras.applications name, "
        "file.py:function, package.module:function or saved.keras.",
        "",
    )
    data: Name | None = training_option(
        "--data NAME",
        "Your samples: a function, named as for --model, that gives a tf.data.Dataset, "
        "a PyDataset or arrays.",
    )
    precision: Precision = training_option(
        "--precision KIND",
        "tf32, TensorFlow's default: float32, multiplied in TF32 where the card has it; "
        "float32, which forbids TF32; mixed_float16 or mixed_bfloat16.",
        "tf32",
    )
    xla: bool = training_option(
        "--xla/--no-xla", "Compile the forward and backward pass.", default=False
    )
    input: Input = training_option(
        "--input PLACE",
        "Keep the samples on the device, or feed them from the host: device, host.",
        "device",
    )
    all_reduce: AllReduce = training_option(
        "--all-reduce KIND", f"How gradients are summed: {one_of(AllReduce)}.", "auto"
    )
    pack_bytes: Bytes | None = training_option(
        "--pack-bytes SIZE",
        "How many bytes of gradients one all-reduce sums, such as 4MiB; 0 means all. "
        "Default: what suits the link.",
    )
    gradients: Gradients = training_option(
        "--gradients KIND",
        "Sum gradients in full, or send them as bf16: half the bytes, but not exact: full, bf16.",
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
