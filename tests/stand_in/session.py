"""An engine that trains nothing: takes the place of gpubalance.engine.session in a worker.

All above it is real: the program, its workers, messages, deadlines and logs; so is what sorts the
exceptions of a step, for which `import tensorflow` gives their classes and nothing else. A
simulated device is held to its profile, a GPU takes 10 ms and 0.1 ms a sample; both only count
these times and wait for nothing, so a command takes a second. What else happens is Python, in the
file that ENGINE_STAND_IN_SCRIPT names, which may have

    built(devices)                     called when the model is built
    refused()                          message and remedy of why no split can train the model
    packs()                            bytes of gradients, and of the packs in which several devices sum them by arithmetic
    sync_s(pack_bytes)                 seconds of sync of several devices that sum gradients in packs of that size
    sum_s(devices)                     seconds of a sum of gradients over these, with nothing else to do
    step(devices, batches, number)     called at each timing, counted from 1 in each worker; may return seconds a step
    needs(device, size)                bytes that a device needs for so many samples at a time
    holds(device, size)                whether so many samples at a time fit; where not, it is out of memory
    prefetched(samples)                seconds in which the user's data gives a batch of so many; else 10 µs a sample
    own_batch()                        samples in the user's own batches; else that is not known
    own_batch_stays()                  whether `split.fit` leaves them as they are; else it does not
    samples()                          how many samples the user's data has; else that is not known
    epoch_samples()                    the same, as it is known before anything is measured
    loss_is_finite()                   whether a timing's loss is a number
    unlike()                           whether batches differ in shape
    late_part()                        the part of steps that took longer than by the profile; else that is not known
    progress(devices)                  steps that have this process's gradients
    took(seconds)                      called with what each timing takes

What one of these leaves out, or returns None for, is as the profile says. In a cluster the devices
are those of this process, one; each process counts the times of all, and tells of its own.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path
from typing import Any

from gpubalance.engine.pace import ComputeTimes, noise_seed
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.timing import Prefetched, Remedy, Timing

_GRADIENT_BYTES = 2592
_SCRIPT = os.environ.get("ENGINE_STAND_IN_SCRIPT")


class Session:
    """As the real one, from outside."""

    def __init__(
        self,
        devices: Any,
        settings: Any,
        joint: Any,
        *,
        seed: int,
        cluster: Any = None,
        combine_rules: Any = None,
    ) -> None:
        self._combine_rules = combine_rules
        self.settings = settings
        self.source = self
        self.in_cluster = cluster is not None
        self._devices = devices
        self._own = slice(cluster.rank, cluster.rank + 1) if cluster else slice(None)
        self._joint = joint
        among = joint.among(device.profile for device in devices)
        self._sync_s = among.sync_s if len(devices) > 1 else 0.0
        self._contention, self._at_once = joint.contention, len(devices) > 1
        self._extra_memory = joint.extra_memory if len(devices) > 1 else 0
        self._times, updates_s = {}, []
        for replica, device in enumerate(devices):
            profile, own_seed = device.profile, noise_seed(seed, replica)
            if profile:
                self._times[device.uuid] = ComputeTimes(profile, seed=own_seed)
            updates_s.append(profile.update_s if profile else 0.0)
        self._updates_s = tuple(updates_s)
        self._elapsed_s = 0.0
        has_script = _SCRIPT and Path(_SCRIPT).exists()
        self._script = runpy.run_path(str(_SCRIPT)) if has_script else {}
        self._number = 0
        self._sizes: tuple[int, ...] = (1,) * len(devices)
        self._call("built", devices[self._own])
        gradient_bytes, usual = self._call("packs") or (_GRADIENT_BYTES, 0)
        self._gradient_bytes: int = gradient_bytes
        self._pack_bytes = usual if settings.pack_bytes is None else settings.pack_bytes
        if len(devices) > 1 and "sync_s" in self._script:
            self._sync_s = self._call("sync_s", self._pack_bytes)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._script[name](*arguments) if name in self._script else None

    def facts(self) -> dict[str, Any]:
        model = {"name": self.settings.model, "parameters": 648}
        limits = tuple(device.memory_bytes for device in self._devices[self._own])
        return {
            "model": model | {"gradient_bytes": self._gradient_bytes},
            "memory_limit_bytes": limits,
            "combine_rules": self._combine_rules
            or CombineRules(refused=self._call("refused")),
            "pack_bytes": self._pack_bytes if len(self._devices) > 1 else None,
            "own_batch": self._call("own_batch") if self.settings.data else None,
            "own_batch_stays": bool(self._call("own_batch_stays")),
            "samples": self._call("epoch_samples") if self.settings.data else None,
        }

    def step_flops(self) -> float | None:
        return None

    def time_sums(self, groups: Any, nbytes: int) -> tuple[float, ...]:
        del nbytes
        seconds = []
        for places in groups:
            group = [self._devices[place] for place in places]
            joint = self._joint.among(device.profile for device in group)
            told = self._call("sum_s", group)
            seconds.append(joint.sync_s if told is None else told)
        return tuple(seconds)

    def measure(
        self,
        split: Any,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
        at_once: bool = False,
        pipeline: bool = False,
    ) -> Any:
        self._sizes = split.micro_batches
        self._at_once = at_once or len(self._devices) > 1
        self._hold(self._sizes)
        end = time.monotonic() + seconds
        given = 0
        spent = 0.0
        while (
            at_once
            or given < at_least
            or (spent < seconds and (self.in_cluster or time.monotonic() < end))
        ):
            self._number += 1
            own_devices = self._devices[self._own]
            told = self._call("step", own_devices, split.batches, self._number)
            steps = 1 if stamped else steps_per_timing
            computes = [self._step(split) for _ in range(steps)]
            busy_s = steps * told if told else sum(map(self._taken_s, computes))
            taken_s = busy_s
            if pipeline:
                taken_s = max(busy_s, steps * self._prefetched_s(split.global_batch))
            self._call("took", taken_s)
            spent += taken_s
            given += 1
            own = {"compute_s": computes[0][self._own], "step_s": busy_s}
            own["update_s"] = self._updates_s[self._own]
            stamps: Any = own if stamped else {}
            if self._call("loss_is_finite") is False:
                stamps["loss_is_finite"] = False
            if self._call("unlike"):
                stamps["shapes_differ"] = True
            stamps["input_wait_s"] = taken_s - busy_s
            yield Timing(steps=steps, seconds=taken_s, **stamps)

    @property
    def computed_steps(self) -> int:
        return self._call("progress", self._devices[self._own]) or 0

    def pull(self, global_batch: int, *, seconds: float, at_least: int) -> Any:
        del seconds
        for _ in range(at_least):
            taken_s = self._prefetched_s(global_batch)
            yield Prefetched(batches=1, seconds=taken_s, cpu_s=0.0)

    def _prefetched_s(self, samples: int) -> float:
        return self._call("prefetched", samples) or 1e-5 * samples

    @property
    def samples(self) -> int | None:
        return self._call("samples") if self.settings.data else None

    def joined_from(self, _: int) -> None:
        """Batches have one shape."""

    def usual_remedies(self) -> tuple[Remedy, ...]:
        return ()

    def _step(self, split: Any) -> tuple[float, ...]:
        """Each device's compute time in one step; advances the time that drift depends on."""
        sizes = zip(self._devices, split.batches, split.micro_batches, strict=True)
        computes = tuple(self._compute_s(*each) for each in sizes)
        self._elapsed_s += self._taken_s(computes)
        return computes

    def _taken_s(self, computes: Any) -> float:
        """A step's time.

        A device begins its next batch once its own update is over, and all meet in the all-reduce.
        """
        return max(map(sum, zip(computes, self._updates_s, strict=True))) + self._sync_s

    def _compute_s(self, device: Any, batch: int, micro_batch: int) -> float:
        if device.profile is None:
            return 0.010 * -(-batch // micro_batch) + 0.0001 * batch
        times = self._times[device.uuid]
        alone_s = times.next_s(batch, micro_batch, elapsed_s=self._elapsed_s)
        if self.settings.xla:
            alone_s *= device.profile.xla_factor or 1.0
        return alone_s * (self._contention if self._at_once else 1.0)

    def _hold(self, sizes: Any) -> None:
        shares = list(enumerate(zip(self._devices, sizes, strict=True)))
        for replica, (device, size) in shares[self._own]:
            if not self._holds(device, size):
                import tensorflow as tf

                where = f"when allocating tensor on GPU:{device.index}"
                if device.profile:
                    where = f"on replica {replica}"
                raise tf.errors.ResourceExhaustedError(None, None, f"OOM {where}")

    def _holds(self, device: Any, size: int) -> bool:
        told = self._call("holds", device, size)
        if told is None and device.profile and device.profile.memory:
            needed = device.profile.memory_at(size, self._extra_memory)
            return bool(needed <= device.profile.memory)
        return told is not False

    def trace(self, split: Any, tracing: Any) -> None:
        """Writes an empty file in the trace's place."""
        del split
        folder = Path(tracing.folder, "plugins", "profile", tracing.name)
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").touch()

    def late_part(self) -> float | None:
        late: float | None = self._call("late_part")
        return late

    def memory_peaks(self) -> tuple[int | None, ...]:
        return tuple(map(self._needs, self._devices[self._own], self._sizes[self._own]))

    def _needs(self, device: Any, size: int) -> int | None:
        told = self._call("needs", device, size)
        if told is None and device.profile and device.profile.memory:
            return int(device.profile.memory_at(size, self._extra_memory))
        return int(told) if told is not None else None
