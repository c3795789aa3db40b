"""GPUs for tests on a machine without any, which TensorFlow takes for GPUs.

README.md says how to use them, and what they can't show.
"""

from tests.fake_gpu.machine import Fault, Gpu, child, child_process, fake_gpus
from tests.fake_gpu.trace import Operation, operations

__all__ = ["Fault", "Gpu", "Operation", "child", "child_process"]
__all__ += ["fake_gpus", "operations"]
