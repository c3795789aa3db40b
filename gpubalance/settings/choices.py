"""The words that flags and files may use. The command line's help imports nothing heavier than this."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
AllReduce = Literal["auto", "nccl", "hierarchical", "one-device"]
Input = Literal["device", "host"]
Baseline = Literal["even", "none"]
Schedule = Literal["1f1b", "gpipe"]

# Where TensorBoard looks for traces below a log directory: https://www.tensorflow.org/guide/profiler
TRACES = "plugins/profile"

DEFAULT_BATCH = 64

# Every model of keras.applications, for a shell's completion: Keras takes seconds to load. A test keeps the list true.
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


# Keras' own format of saved models, loaded with its safe mode on.
SAVED_MODEL = ".keras"
# Other formats of saved models, which run code from the file when they are loaded.
UNSAFE_MODELS = (".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".pt", ".pth")


def default_model(*, simulated: bool) -> str:
    """The model to train if none is named: on simulated devices one that computes far less than they simulate."""
    return "small" if simulated else "probe"


def names_file_or_code(model: str) -> bool:
    """Whether a model's name leads to a file or a user's function, which only a command line or its config may name."""
    return ":" in model or model.lower().endswith((SAVED_MODEL, *UNSAFE_MODELS))
