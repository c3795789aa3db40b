"""Sets TensorFlow up in this process: the run's devices and no others, threads, precision."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from gpubalance.engine import precision
from gpubalance.engine.failures import used_before
from gpubalance.engine.gpus import set_up_gpus
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.choices import names_file_or_code
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system import versions


def set_up(
    devices: Sequence[Device], settings: Settings, *, seed: int, joins: bool = False
) -> tuple[str, ...]:
    """Gives TensorFlow exactly these devices, and returns its names for them: `GPU:0`, `GPU:1`.

    Must be the first use of TensorFlow in the process. Whoever started the process has set the
    environment that TensorFlow reads on import (which GPUs are visible, in which order). `joins`:
    the process joins a cluster next. What this sets, a split's `scope()` sets too, but for seeds,
    which are a script's own.

    Raises EnvironmentFault if a device is missing: a run never falls back to the CPU.
    """
    # The user's own trains by the user's own keras.json
    if not names_file_or_code(settings.model):
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
    keras.utils.set_random_seed(seed)
    precision.use(settings.precision)
    return use_devices(devices, joins=joins)


def use_devices(
    devices: Sequence[Device], *, joins: bool = False, cpus: Sequence[int] = ()
) -> tuple[str, ...]:
    """TensorFlow's names for these devices, in order; sets it up for them if it is not yet.

    `cpus` are the numbers of simulated devices' CPU devices; without them they count from 0. Raises
    EnvironmentFault if TensorFlow was used before without them, or leaves one out, and for a Keras
    older than those in keras_patches.
    """
    if versions.numbers(keras.__version__) < versions.TESTED["Keras"][0]:
        raise EnvironmentFault(
            f"Keras {keras.__version__} is too old: gpubalance needs internals that "
            "it lacks",
            remedy="pip install 'keras>=3.12'",
        )
    if devices[0].simulated:
        return _set_up_cpus(cpus or range(len(devices)))
    return set_up_gpus(devices, joins=joins)


def _set_up_cpus(numbers: Sequence[int]) -> tuple[str, ...]:
    count = max(numbers) + 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or ()
    if len(configured) < count:
        cores = len(os.sched_getaffinity(0))
        threading = tf.config.threading
        try:
            # Each device may sleep or compute in its own thread, while others pass the work on.
            threading.set_inter_op_parallelism_threads(2 * count + 2)
            # Several devices share the cores; a single one may use them all.
            threading.set_intra_op_parallelism_threads(max(1, cores // count))
            wanted = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, wanted)
        except RuntimeError:
            raise used_before(f"has fewer CPU devices than {count}") from None
    return tuple(f"CPU:{number}" for number in numbers)


def rounds(
    seconds: float, at_least: int, agreed: Callable[[bool], bool] = bool
) -> Iterator[None]:
    """Yields until `seconds` are over and `at_least` rounds are made.

    `agreed` gives all processes of a cluster the same answer.
    """
    ends_s = time.perf_counter() + seconds
    made = 0
    while made < at_least or (seconds and agreed(time.perf_counter() < ends_s)):
        yield
        made += 1


def wait_for(names: Sequence[str]) -> None:
    """Waits until every device has done all that was queued on it."""
    ends = []
    for name in names:
        with tf.device(name):
            ends.append(tf.zeros(()) + 1.0)
    for end in ends:
        end.numpy()  # the copy to the host waits for the device's stream
