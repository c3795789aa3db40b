"""The words that flags and files may use. Light: the command line's help imports this and nothing heavier."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
AllReduce = Literal["auto", "nccl", "hierarchical", "one-device"]
Input = Literal["device", "host"]
Baseline = Literal["even", "none"]

DEFAULT_MODEL_ON_GPU = "probe"
DEFAULT_MODEL_SIMULATED = "small"
DEFAULT_BATCH = 64

# Every model of keras.applications: a shell completes them, and Keras takes seconds to load. A test holds them true.
APPLICATIONS = (
    *("ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtSmall", "ConvNeXtTiny", "ConvNeXtXLarge"),
    *("DenseNet121", "DenseNet169", "DenseNet201"),
    *(f"EfficientNetB{n}" for n in range(8)),
    *(f"EfficientNetV2{kind}" for kind in ("B0", "B1", "B2", "B3", "L", "M", "S")),
    *("InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Large", "MobileNetV3Small"),
    *("NASNetLarge", "NASNetMobile"),
    *("ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2"),
    *("VGG16", "VGG19", "Xception"),
)


def names_code(model: str) -> bool:
    """Whether a model's name is that of a user's own function: only a command line or its config may start that."""
    return ":" in model
