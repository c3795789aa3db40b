"""Times joint steps of torch_ddp.py, for `gpubalance plan --curve`.

It trains 55 steps with the model and data of torch_ddp.py beside it, and appends a line for each
rank to the table: `torchrun --nproc-per-node 2 torch_joint.py times.csv --batches 256 128`.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_ddp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

_STEPS = 55
_WARM_UP = 5  # of these steps


class EnoughStepsError(Exception):
    """Ends the training on all ranks, after the same step."""


class StepTimes:
    """What each step takes: this rank's own work, and from one step's end to the next one's."""

    def __init__(self) -> None:
        self.at_s = {"ended": 0.0}
        self.own_s: list[float] = []
        self.joint_s: list[float] = []

    def watch(self, model: Any, optimizer: Any) -> None:
        """Has the points of each step marked. The model's forward pass begins a micro-batch."""
        model.register_forward_pre_hook(self.mark_beginning)
        model.register_comm_hook(None, self.all_reduce)
        optimizer.register_step_pre_hook(lambda *_: self.mark("summed"))
        optimizer.register_step_post_hook(self.mark_end)

    def mark(self, point: str) -> None:
        """Notes when the device has come to this point of the step."""
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self.at_s[point] = time.perf_counter()

    def mark_beginning(self, *_: Any) -> None:
        if "began" not in self.at_s:
            self.mark("began")

    def all_reduce(
        self, group: Any, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's own sum. With the last bucket all gradients of this rank are computed."""
        if bucket.is_last():
            self.mark("computed")
        return allreduce_hook(group, bucket)

    def mark_end(self, *_: Any) -> None:
        before_s = self.at_s["ended"]
        self.mark("ended")
        at_s = self.at_s
        update_s = at_s["ended"] - at_s["summed"]
        self.own_s.append(at_s["computed"] - at_s["began"] + update_s)
        self.joint_s.append(at_s["ended"] - before_s)
        self.at_s = {"ended": at_s["ended"]}
        if len(self.own_s) == _STEPS:
            raise EnoughStepsError

    @property
    def medians_s(self) -> list[float]:
        return [statistics.median(s[_WARM_UP:]) for s in (self.own_s, self.joint_s)]


def measured(batches: Sequence[int], micro_batches: Sequence[int]) -> StepTimes:
    times = StepTimes()
    with suppress(EnoughStepsError):
        torch_ddp.train(batches, micro_batches, _STEPS, times.watch)
    return times


def append(table: Path, batches: Sequence[int], times: StepTimes) -> None:
    """Appends a line for each rank. The ranks are the table's devices, in their order."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, times.medians_s)
    if dist.get_rank() > 0:
        return
    with table.open("r+", newline="", encoding="utf-8") as file:
        devices = dict.fromkeys(row["device"].strip() for row in csv.DictReader(file))
        used = [pair for pair in zip(devices, batches, strict=True) if pair[1]]
        for (device, batch), (own_s, joint_s) in zip(used, of_ranks, strict=True):
            file.write(f"{device},{batch},{own_s:.6g},{joint_s:.6g}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--micro-batches", type=int, nargs="+", help="of each rank")
    asked = parser.parse_args()
    if "joint" not in asked.table.open().readline():
        parser.error(f"the first line of {asked.table} has no column joint")
    torch_ddp.join_ranks()
    times = measured(asked.batches, asked.micro_batches or asked.batches)
    append(asked.table, asked.batches, times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
