"""Times joint steps of torch_ddp.py, for `gpubalance plan --curve`.

It trains 55 full steps with the model and data of torch_ddp.py beside it, and appends a line for
each rank to the table: `torchrun --nproc-per-node 2 torch_joint.py times.csv --batches 256 128`.
"""

import csv
import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_ddp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import Subset

_HEAD = "device,batch,seconds,joint"
_WARM_UP = 5  # steps
# The mean of so many steps is one time: a training does one over the mean of them a second.
_TIMED = 10
_STEPS = _WARM_UP + 5 * _TIMED


def now() -> Any:
    """The host's time; with GPUs an event, which notes when the GPU comes to this point."""
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(begin: Any, end: Any) -> float:
    if torch.cuda.is_available():
        return float(begin.elapsed_time(end)) / 1000
    return float(end - begin)


class WatchedSteps:
    """The points of each step, and what they say: this rank's own work, and the whole step.

    A step lasts from the end of the step before to its own end, as in training. Loading a batch,
    waiting for another rank, and work between backward pass and optimizer count as sync.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def watch(self, model: Any, optimizer: Any) -> None:
        """Has the points marked. DDP's own module sends buffers before the model's begins."""
        model.module.register_forward_pre_hook(self.begin)
        model.register_comm_hook(None, self.all_reduce)
        optimizer.register_step_pre_hook(lambda *_: self.mark("summed"))
        optimizer.register_step_post_hook(lambda *_: self.mark("ended"))

    def mark(self, point: str) -> None:
        self.steps[-1][point] = now()

    def begin(self, *_: Any) -> None:
        """Begins a step, unless this is a further micro-batch of it."""
        if not self.steps or "ended" in self.steps[-1]:
            self.steps.append({"began": now()})

    # DDP reads these annotations: they may not be strings.
    def all_reduce(
        self, group: Any, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's own sum. With the last bucket all gradients of this rank are computed."""
        if bucket.is_last():
            self.mark("computed")
        return allreduce_hook(group, bucket)

    @property
    def medians_s(self) -> tuple[float, float]:
        own_s = []
        for step in self.steps[_WARM_UP:]:
            compute_s = seconds(step["began"], step["computed"])
            own_s.append(compute_s + seconds(step["summed"], step["ended"]))
        ends = [step["ended"] for step in self.steps[_WARM_UP - 1 :: _TIMED]]
        joint_s = [seconds(*pair) / _TIMED for pair in itertools.pairwise(ends)]
        return statistics.median(own_s), statistics.median(joint_s)


def measured(batches: list[int], micro_batches: list[int]) -> WatchedSteps:
    """The times of steps with full batches: the samples begin again where they are too few."""
    samples = torch_ddp.dataset()
    numbers = [number % len(samples) for number in range(_STEPS * sum(batches))]
    times = WatchedSteps()
    repeated = Subset(samples, numbers)
    torch_ddp.train(repeated, batches, micro_batches, 1, times.watch)
    return times


def devices_of(table: Path) -> list[str]:
    """The table's devices, in their order."""
    head, *lines = table.read_text().splitlines()
    if head != _HEAD:
        raise SystemExit(f"the first line of {table} must be {_HEAD}")
    return list(dict.fromkeys(row[0].strip() for row in csv.reader(lines) if row))


def append(table: Path, used: list[tuple[str, int]], times: WatchedSteps) -> None:
    """Appends a line for each rank: its device and batch, its own time and the step's."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, times.medians_s)
    if dist.get_rank() > 0:
        return
    is_ended = table.read_text().endswith("\n")
    with table.open("a", newline="") as file:
        file.write("" if is_ended else "\n")
        lines = csv.writer(file, lineterminator="\n")
        for pair, times_s in zip(used, of_ranks, strict=True):
            lines.writerow([*pair, *(f"{time_s:.6g}" for time_s in times_s)])


def main() -> None:
    parser = torch_ddp.options()
    parser.add_argument("table", type=Path)
    asked = parser.parse_args()
    used = []
    if os.environ["RANK"] == "0":
        devices = devices_of(asked.table)
        if len(devices) != len(asked.batches):
            parser.error(f"{asked.table} has {len(devices)} devices: give each a batch")
        used = [pair for pair in zip(devices, asked.batches, strict=True) if pair[1]]
    batches, micro_batches = torch_ddp.join_ranks(asked)
    append(asked.table, used, measured(batches, micro_batches))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
