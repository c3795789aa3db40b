"""Trains with DistributedDataParallel in unequal shares, as one process trains the whole batch.

Copy the programs torch_*.py and put your model, optimizer, loss and data into the first functions
of this one. Start a process for each of the batches of `gpubalance plan --curve times.csv`:
`torchrun --nproc-per-node 2 torch_ddp.py --batches 256 128`.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
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

    All ranks draw the same permutation and cut each batch of it in proportion, also a shorter last
    one, so that an epoch has each sample once. A rank that gets none of the last batch loads a
    sample of another one with a weight of 0, since each rank takes part in each sum.
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


def train(
    batches: Sequence[int],
    micro_batches: Sequence[int],
    epochs: int = 3,
    watch: Callable[[Any, Any], None] | None = None,
) -> Any:
    """Trains this rank's part, and returns the model. `watch` may hook model and optimizer."""
    rank = dist.get_rank()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Without the view, gradients take their memory twice.
    model = DistributedDataParallel(
        build_model().to(device), gradient_as_bucket_view=True
    )
    optimizer = build_optimizer(model.parameters())
    if watch:
        watch(model, optimizer)
    samples = dataset()
    used = [place for place, batch in enumerate(batches) if batch]
    sampler = UnevenSampler(len(samples), [batches[place] for place in used], rank)
    for epoch in range(epochs):
        began_s = time.perf_counter()
        for step, (x, y) in enumerate(DataLoader(samples, batch_sampler=sampler)):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            backward(model, x, y, sampler.weight(step), micro_batches[used[rank]])
            optimizer.step()
        torch.get_device_module(device).synchronize()
        if rank == 0:
            rate = len(samples) / (time.perf_counter() - began_s)
            print(f"epoch {epoch + 1}: {rate:.1f} samples/s", flush=True)
    return model


def join_ranks() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--micro-batches", type=int, nargs="+", help="of each rank")
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    join_ranks()
    train(asked.batches, asked.micro_batches or asked.batches, asked.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
