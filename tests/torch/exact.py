"""Trains with torch_ddp.py on two ranks and in one process, and prints how far apart they end.

For each case it is a line of JSON: the largest difference of a weight, that between the ranks, and
how often each sample counted. Run by test_ddp.py.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpubalance.examples import torch_ddp

EPOCHS = 2
RATE = 0.05


@dataclass(frozen=True)
class Case:
    """What is trained: with 100 samples a step, and what is left in an epoch's last one."""

    batches: tuple[int, ...]
    samples: int
    micro_batches: tuple[int, ...] = ()
    dtype: str = "float32"


CASES = {
    "70/30": Case((70, 30), 500),
    "99/1": Case((99, 1), 500),
    "70/30, last 40": Case((70, 30), 440),
    "99/1, last 40": Case((99, 1), 440),
    "99/1, last 1": Case((99, 1), 401),
    "70/30 in 32/30": Case((70, 30), 440, (32, 30)),
    "99/1 in 25/1": Case((99, 1), 440, (25, 1)),
    "70/30 in 32/8, float64": Case((70, 30), 440, (32, 8), "float64"),
    "30/70, one left out": Case((30, 0, 70), 440, (30, 0, 35)),
}


def convnet() -> Any:
    torch.manual_seed(3)
    body = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GELU())
    return nn.Sequential(*body, nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 64, 5))


def optimizer_of(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9, weight_decay=1e-3)


def images(samples: int) -> Any:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(
        samples, 1, 12, 12, generator=random, dtype=torch.get_default_dtype()
    )
    return TensorDataset(x, torch.randint(5, (samples,), generator=random))


def weights_of(model: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def whole(case: Case) -> list[Any]:
    """The weights of one process that trains each global batch as one."""
    model = convnet()
    optimizer = optimizer_of(model.parameters())
    data = images(case.samples)
    size = sum(case.batches)
    for epoch in range(EPOCHS):
        random = torch.Generator().manual_seed(epoch)
        order = torch.randperm(case.samples, generator=random)
        for x, y in DataLoader(data, size, sampler=order.tolist()):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return weights_of(model)


def train(rank: int, folder: str) -> None:
    """One rank's part of all cases; saves its weights."""
    torch_ddp.build_model = convnet
    torch_ddp.build_optimizer = optimizer_of
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    for name, case in CASES.items():
        torch.set_default_dtype(getattr(torch, case.dtype))
        data = images(case.samples)
        pairs = zip(case.batches, case.micro_batches or case.batches, strict=True)
        batches, micro_batches = zip(*[pair for pair in pairs if pair[0]], strict=True)
        model = torch_ddp.train(data, batches, micro_batches, EPOCHS)
        torch.save(weights_of(model), place(folder, name, rank))
    dist.barrier()
    os._exit(0)  # not through the end of torch's threads, which aborted once in 15 runs


def place(folder: str, name: str, rank: int) -> Path:
    return Path(folder) / f"{list(CASES).index(name)}-{rank}.pt"


def counted(case: Case) -> list[int]:
    """How often each sample counts in an epoch, over the ranks: those with a weight of 0 do not."""
    times = [0] * case.samples
    batches = [batch for batch in case.batches if batch]
    for rank in range(len(batches)):
        sampler = torch_ddp.UnevenSampler(case.samples, batches, rank)
        for step, numbers in enumerate(sampler):
            for number in numbers:
                times[number] += sampler.weight(step) > 0
    return sorted(set(times))


def results() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (folder,), nprocs=2)
        for name, case in CASES.items():
            torch.set_default_dtype(getattr(torch, case.dtype))
            first, second = (torch.load(place(folder, name, rank)) for rank in (0, 1))
            found = {
                "difference": furthest(first, whole(case)),
                "between_ranks": furthest(first, second),
                "moved": furthest(first, weights_of(convnet())),
                "counted": counted(case),
            }
            yield json.dumps({"case": name, **found})


def furthest(weights: list[Any], others: list[Any]) -> float:
    pairs = zip(weights, others, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in results():
        sys.stdout.write(line + "\n")
