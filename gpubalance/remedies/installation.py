"""Errors of the installation: TensorFlow, CUDA's libraries, XLA's tools."""

from __future__ import annotations

from gpubalance.remedies.row import Known

ROWS = (
    Known(
        "tensorflow-broken",
        "TensorFlow can't be loaded",
        "its installation is incomplete, or another package in this environment does not fit it",
        "reinstall it: `pip install --force-reinstall '.[cuda]'` in gpubalance's checkout",
        (r"Failed to load the native TensorFlow runtime", r"numpy\.core\.multiarray failed to import"),
    ),
    Known(
        "cpu-too-old",
        "compiled to use AVX instructions, but these aren't available on your machine",
        "this processor, or the virtual machine, lacks instructions that TensorFlow uses",
        "give the virtual machine its host's processor type, or install a TensorFlow built for this processor",
        (r"library was compiled to use \w+ instructions, but these aren't available",),
        fatal=True,
    ),
    Known(
        "cuda-library-missing",
        "Cannot dlopen some GPU libraries; DNN library is not found",
        "a CUDA library that TensorFlow needs is not installed, or another version of it is found first",
        "`pip install '.[cuda]'` in gpubalance's checkout installs them; `unset LD_LIBRARY_PATH` if it points to "
        "another CUDA",
        (
            r"TensorFlow \S+ sees no GPU",
            r"Cannot dlopen some GPU libraries",
            r"No DNN in stream executor|DNN library is not found",
            r"Could not load dynamic library 'lib(?:cu|nccl|nv)",
            r"lib(?:cudart|cublas(?:Lt)?|cufft|cusolver|cusparse|cudnn|nccl)\.so[.\d]*: cannot open shared object",
        ),
    ),
    Known(
        "cudnn-version",
        "Loaded runtime CuDNN library: … but source was compiled with: …",
        "an older cuDNN than the one TensorFlow was built with is found first",
        "`pip install -U 'nvidia-cudnn-cu12>=9.3'`, and `unset LD_LIBRARY_PATH` if it points to another cuDNN",
        (r"Loaded runtime CuDNN library: .* but source was compiled with", r"CUDNN_STATUS_VERSION_MISMATCH"),
    ),
    Known(
        "cudnn-without-this-gpu",
        "CUDNN_STATUS_ARCH_MISMATCH; no kernel image is available",
        "the library has no code for a GPU this old: cuDNN 9.11 and later have none below compute capability 7.5",
        "`pip install nvidia-cudnn-cu12==9.10.2.21`, the last for GTX 10xx, Titan X and Xp, P100 and V100",
        (
            r"CUDNN_STATUS_ARCH_MISMATCH",
            r"CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH",
            r"no kernel image is available for execution on the device",
            r"CUDA_ERROR_NO_BINARY_FOR_GPU",
        ),
    ),
    Known(
        "capability-too-old",
        "The minimum required Cuda capability is …",
        "the GPU is older than any this TensorFlow is built for",
        "leave it out with --gpus, or install an older TensorFlow",
        (r"The minimum required Cuda capability is",),
    ),
    Known(
        "left-out",
        "TensorFlow leaves out GPU:…",
        "TensorFlow can't open the GPU: too old for this build, or its memory is full",
        "`gpubalance doctor` says which; leave it out with --gpus",
        (r"TensorFlow \S+ leaves (?:it )?out",),
    ),
    Known(
        "xla-tools",
        "libdevice not found at ./libdevice.10.bc; No PTX compilation provider is available",
        "XLA cannot find CUDA's compiler files or its assembler ptxas, or finds one that is too old",
        "`pip install nvidia-cuda-nvcc-cu12`, or `export XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda`, or leave "
        "XLA off (--no-xla)",
        (
            r"libdevice not found at|Can't find libdevice directory",
            r"No PTX compilation provider is available|ptxas not found|Couldn't (?:get|invoke) ptxas",
        ),
    ),
)
