"""Trains with DistributedDataParallel in unequal shares, as one process trains the whole batch.

Copy this file, put your model, loss and data into its first functions, and start it with the
batches of `gpubalance plan --curve times.csv`, one process for each that is above 0:
`torchrun --nproc-per-node 2 torch_ddp.py --batches 256 128 --times times.csv`.
"""

import argparse
import csv
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def build_model() -> Any:
    """The same on each rank: DDP sends the first one's weights to the others.

    Batch normalisation takes the statistics of a rank's own samples, unless `nn.SyncBatchNorm`
    replaces it (GPUs only, and without micro-batches).
    """
    layers = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 14 * 14, 10))


def build_optimizer(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def mean_loss(model: Any, x: Any, y: Any) -> Any:
    """The mean over the samples; in mixed precision on a GPU."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        return nn.functional.cross_entropy(model(x), y)


def dataset() -> Any:
    """The same samples in the same order on each rank."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(4096, 3, 32, 32, generator=random)
    return TensorDataset(x, torch.randint(10, (4096,), generator=random))


class UnevenSampler:
    """A rank's part of each global batch, for DataLoader's `batch_sampler`.

    The ranks draw the same permutation and cut each batch of it in proportion, also a shorter last
    one, so that an epoch has each sample once. A rank that gets none of the last batch loads
    another one's, since it must take part in the sum, with a weight of 0.
    """

    def __init__(self, samples: int, batches: Sequence[int], rank: int) -> None:
        self.samples = samples
        self.ends = [0, *accumulate(batches)]
        self.rank = rank
        self.epoch = 0  # counts by itself; set it to continue a training

    def __len__(self) -> int:
        return -(-self.samples // self.ends[-1])

    def __iter__(self) -> Iterator[list[int]]:
        random = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.samples, generator=random).tolist()
        self.epoch += 1
        for step in range(len(self)):
            begin, end, size = self.part(step)
            first = step * self.ends[-1]
            batch = order[first : first + size]
            yield batch[begin:end] or batch[:1]

    def part(self, step: int) -> tuple[int, int, int]:
        """Where the rank's part of a global batch begins and ends, and that batch's size."""
        full = self.ends[-1]
        size = min(full, self.samples - step * full)
        begin, end = (size * edge // full for edge in self.ends[self.rank :][:2])
        return begin, end, size

    def weight(self, step: int) -> float:
        """What a sample's loss counts: 1/B, times the ranks, of which DDP takes the mean."""
        begin, end, size = self.part(step)
        return (len(self.ends) - 1) / size if end > begin else 0.0


def backward(model: Any, x: Any, y: Any, weight: float, micro_batch: int) -> None:
    """The gradients of a rank's part in micro-batches; the last one also sums over the ranks."""
    parts = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    for number, (part_x, part_y) in enumerate(parts, 1):
        with nullcontext() if number == len(parts) else model.no_sync():
            (mean_loss(model, part_x, part_y) * len(part_x) * weight).backward()


class JointTimes:
    """What each step takes: this rank's own work, and from one step's end to the next one's.

    Nothing is timed without a table to append to.
    """

    def __init__(self, model: Any, table: Path | None) -> None:
        self.table = table
        self.own_s: list[float] = []
        self.joint_s: list[float] = []
        self.at_s = {"ended": 0.0}
        if table:
            model.register_comm_hook(None, self.all_reduce)

    def all_reduce(
        self, group: Any, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's own sum. With the last bucket all gradients of this rank are computed."""
        if bucket.is_last():
            self.mark("computed")
        return allreduce_hook(group, bucket)

    def mark(self, point: str) -> None:
        """Notes when the device has come to this point of the step."""
        if self.table:
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            self.at_s[point] = time.perf_counter()

    def mark_end(self) -> None:
        before_s = self.at_s["ended"]
        self.mark("ended")
        if self.table:
            at_s = self.at_s
            update_s = at_s["ended"] - at_s["summed"]
            self.own_s.append(at_s["computed"] - at_s["began"] + update_s)
            self.joint_s.append(at_s["ended"] - before_s)

    def append(self, batches: Sequence[int]) -> None:
        """Appends a line for each rank. The ranks are the table's devices, in their order."""
        if self.table is None:
            return
        medians = [statistics.median(s[5:]) for s in (self.own_s, self.joint_s)]
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, medians)
        if dist.get_rank() == 0:
            with self.table.open("r+", newline="", encoding="utf-8") as file:
                names = {row["device"].strip(): None for row in csv.DictReader(file)}
                used = [pair for pair in zip(names, batches, strict=True) if pair[1]]
                lines = csv.writer(file, lineterminator="\n")
                for pair, (own_s, joint_s) in zip(used, of_ranks, strict=True):
                    lines.writerow([*pair, f"{own_s:.6g}", f"{joint_s:.6g}"])


def train(
    batches: Sequence[int],
    micro_batches: Sequence[int],
    epochs: int,
    table: Path | None,
) -> Any:
    """Trains this rank's part, and returns the model."""
    rank = dist.get_rank()
    place = [place for place, batch in enumerate(batches) if batch][rank]
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Without the view, gradients take their memory twice.
    model = DistributedDataParallel(
        build_model().to(device), gradient_as_bucket_view=True
    )
    optimizer = build_optimizer(model.parameters())
    samples = dataset()
    sampler = UnevenSampler(len(samples), [batch for batch in batches if batch], rank)
    loader = DataLoader(samples, batch_sampler=sampler)
    times = JointTimes(model, table)
    for epoch in range(epochs):
        began_s = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            times.mark("began")
            optimizer.zero_grad()
            backward(model, x, y, sampler.weight(step), micro_batches[place])
            times.mark("summed")
            optimizer.step()
            times.mark_end()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if rank == 0:
            rate = len(samples) / (time.perf_counter() - began_s)
            print(f"epoch {epoch + 1}: {rate:.1f} samples/s", flush=True)
    times.append(batches)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--micro-batches", type=int, nargs="+", help="of each rank")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--times", type=Path, help="table to append the steps' times to"
    )
    asked = parser.parse_args()
    is_first = os.environ["RANK"] == "0"
    if asked.times and is_first and "joint" not in asked.times.open().readline():
        parser.error(f"the first line of {asked.times} has no column joint")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    micro_batches = asked.micro_batches or asked.batches
    train(asked.batches, micro_batches, asked.epochs, asked.times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
