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
    """The mean over the samples.

    For mixed precision do this in `torch.autocast("cuda", torch.bfloat16)`; cards of compute
    capability below 8.0 only emulate bfloat16.
    """
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
        self.global_batch = sum(batches)
        self.begin = sum(batches[:rank])  # of this rank's part of a full batch
        self.end = self.begin + batches[rank]
        self.ranks = len(batches)
        self.epoch = 0  # counts by itself; set it to continue a training

    def __len__(self) -> int:
        return -(-self.samples // self.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        random = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.samples, generator=random).tolist()
        self.epoch += 1
        for step in range(len(self)):
            begin, end, size = self.part(step)
            first = step * self.global_batch
            batch = order[first : first + size]
            yield batch[begin:end] or batch[:1]

    def part(self, step: int) -> tuple[int, int, int]:
        """Where the rank's part of a global batch begins and ends, and that batch's size."""
        size = min(self.global_batch, self.samples - step * self.global_batch)
        begin = size * self.begin // self.global_batch
        end = size * self.end // self.global_batch
        return begin, end, size

    def weight(self, step: int) -> float:
        """What a sample's loss counts: 1/B, times the number of ranks, by which DDP divides."""
        begin, end, size = self.part(step)
        return self.ranks / size if end > begin else 0.0


def backward(model: Any, x: Any, y: Any, weight: float, micro_batch: int) -> None:
    """The gradients of a rank's part in micro-batches; the last one also sums over the ranks."""
    parts = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    for number, (part_x, part_y) in enumerate(parts, 1):
        with nullcontext() if number == len(parts) else model.no_sync():
            (mean_loss(model, part_x, part_y) * len(part_x) * weight).backward()


def train(
    samples: Any,
    batches: Sequence[int],
    micro_batches: Sequence[int],
    epochs: int,
    watch: Callable[[Any, Any], object] = lambda *_: None,
) -> Any:
    """Trains this rank's part, and returns the model. `watch` may hook model and optimizer.

    `batches` and `micro_batches` have a number for each rank.
    """
    rank = dist.get_rank()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The view saves a second copy of the gradients; for that they are set to 0, not to None.
    model = DistributedDataParallel(
        build_model().to(device), gradient_as_bucket_view=True
    )
    optimizer = build_optimizer(model.parameters())
    watch(model, optimizer)
    sampler = UnevenSampler(len(samples), batches, rank)
    for epoch in range(epochs):
        began_s = time.perf_counter()
        for step, (x, y) in enumerate(DataLoader(samples, batch_sampler=sampler)):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad(set_to_none=False)
            backward(model, x, y, sampler.weight(step), micro_batches[rank])
            optimizer.step()
        torch.get_device_module(device).synchronize()
        if rank == 0:
            rate = len(samples) / (time.perf_counter() - began_s)
            print(f"epoch {epoch + 1}: {rate:.1f} samples/s", flush=True)
    return model


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--micro-batches", type=int, nargs="+")
    return parser


def join_ranks(asked: argparse.Namespace) -> tuple[list[int], list[int]]:
    """The batch and micro-batch of each rank: a batch of 0 has none."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    pairs = zip(asked.batches, asked.micro_batches or asked.batches, strict=True)
    used = [pair for pair in pairs if pair[0]]
    if len(used) != dist.get_world_size():
        raise SystemExit(f"{len(used)} batches need as many processes")
    return [batch for batch, _ in used], [micro_batch for _, micro_batch in used]


def main() -> None:
    parser = options()
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    batches, micro_batches = join_ranks(asked)
    train(dataset(), batches, micro_batches, asked.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
