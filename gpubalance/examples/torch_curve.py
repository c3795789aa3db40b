"""Times a training step of yours on each device, for `gpubalance plan --curve`.

Copy this file, put your model and optimizer into `make_step`, and run it while nothing else uses
the devices: `python torch_curve.py times.csv`. On a second host add `--prefix` and its name.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch
from torch import nn

_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")


def make_step(device: str, batch: int) -> Callable[[], None]:
    """A function that trains on one batch of that size. Put yours here, with its precision."""
    layers = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU())
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 14 * 14, 10))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(batch, 3, 32, 32, device=device)
    y = torch.randint(10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def median_step_s(device: str, batch: int) -> float:
    """The median seconds of a step after a warm-up, within 1 % if 50 timings suffice."""
    step = make_step(device, batch)

    def timing(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        if device != "cpu":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / steps

    warm_up = [timing(1) for _ in range(5)]
    while sum(warm_up) < 1.0:
        warm_up.append(timing(1))
    steps = max(1, round(0.1 / min(warm_up)))  # so that a timing takes 0.1 s or more
    timings: list[float] = []
    half_width = 1.0
    while len(timings) < 10 or (half_width > 0.01 and len(timings) < 50):
        timings.append(timing(steps))
        median = statistics.median(timings)
        deviation = 1.48 * statistics.median(abs(one - median) for one in timings)
        # 95 % of a normal distribution; its median varies 1.25 times as much as its mean.
        half_width = 1.96 * 1.25 * deviation / len(timings) ** 0.5 / median
    return median


def step_s(device: str, batch: int) -> float | None:
    """The seconds of a step in a process of its own; None if memory ran out."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        try:
            return child.submit(median_step_s, device, batch).result()
        except BrokenProcessPool:  # killed, as the kernel does when memory runs out
            return None
        except RuntimeError as error:
            if not any(words in str(error) for words in _NO_MEMORY):
                raise
            return None


def curve(
    device: str, multiple: int, max_batch: int
) -> Iterator[tuple[int, float | None]]:
    """Batches with their seconds: twice as many each time, then between what fits and what fails.

    Ends without a limit at `max_batch`, or where steps take over a second and gain nothing.
    """
    batch = multiple
    fits = fails = 0
    rate = 0.0
    while fits < batch <= max_batch:
        seconds = step_s(device, batch)
        yield batch, seconds
        if seconds is None:
            fails = batch
        elif seconds > 1 and batch < 1.01 * rate * seconds and not fails:
            break
        else:
            fits, rate = batch, batch / seconds
        batch = (fits + fails) // 2 // multiple * multiple if fails else 2 * fits


def main() -> None:
    """Appends to the table, so that a long measurement that breaks off leaves its lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="CSV file to append to")
    parser.add_argument("--multiple", type=int, default=8, help="of all batches")
    parser.add_argument("--max-batch", type=int, default=4096)
    parser.add_argument("--prefix", default="", help="word before the devices' names")
    asked = parser.parse_args()
    names = {"cpu": "cpu"}
    if torch.cuda.is_available():
        numbers = range(torch.cuda.device_count())
        names = {f"cuda:{n}": f"{n} {torch.cuda.get_device_name(n)}" for n in numbers}
    with asked.table.open("a", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        if not file.tell():
            table.writerow(["device", "batch", "seconds", "joint"])
        for device, name in names.items():
            for batch, seconds in curve(device, asked.multiple, asked.max_batch):
                result = "oom" if seconds is None else f"{seconds:.6g}"
                table.writerow([f"{asked.prefix} {name}".strip(), batch, result, ""])
                file.flush()
                print(name, batch, result, flush=True)


if __name__ == "__main__":
    main()
