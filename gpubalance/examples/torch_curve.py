"""Times your training step on each device alone, for `gpubalance plan --curve`.

It takes the model, optimizer, loss and data of torch_ddp.py beside it. Run it while nothing else
uses the devices: `python torch_curve.py times.csv`. On a second host add `--prefix` and its name.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch_ddp
from torch.utils.data import default_collate

# "Unable" is cuDNN without memory to work with. At "terminated" the kernel has ended the process,
# as it does when the host's memory runs out.
_OUT_OF_MEMORY = (
    "out of memory|ALLOC_FAILED|can't allocate memory"
    "|unable to find an engine|terminated abruptly"
)


def median_step_s(device: str, batch: int) -> float:
    """The median seconds of a step after a warm-up, within 1 % if 50 timings suffice."""
    if device != "cpu":
        torch.cuda.set_device(device)
    model = torch_ddp.build_model().to(device)
    optimizer = torch_ddp.build_optimizer(model.parameters())
    samples = torch_ddp.dataset()
    taken = [samples[number % len(samples)] for number in range(batch)]
    x, y = (part.to(device) for part in default_collate(taken))

    def timing(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(
                set_to_none=False
            )  # as torch_ddp.py, which needs that memory
            torch_ddp.mean_loss(model, x, y).backward()
            optimizer.step()
        torch.get_device_module(device).synchronize(device)
        return (time.perf_counter() - began) / steps

    warm_up: list[float] = []
    while len(warm_up) < 5 or sum(warm_up) < 1.0:
        warm_up.append(timing(1))
    steps = max(1, round(0.1 / min(warm_up)))  # so that a timing takes 0.1 s or more
    timings = [timing(steps) for _ in range(10)]
    while len(timings) < 50:
        half_width = 1.96 * statistics.stdev(timings) / len(timings) ** 0.5  # for 95 %
        if half_width <= 0.01 * statistics.median(timings):
            break
        timings.append(timing(steps))
    return statistics.median(timings)


def step_s(device: str, batch: int) -> float | None:
    """The seconds of a step in a process of its own; None if memory ran out."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        try:
            return child.submit(median_step_s, device, batch).result()
        except RuntimeError as error:
            if not re.search(_OUT_OF_MEMORY, str(error)):
                raise
            print(f"{device}, batch {batch}: {error}", file=sys.stderr)
            return None


def curve(
    device: str, multiple: int, max_batch: int
) -> Iterator[tuple[int, float | None]]:
    """Batches with their seconds: twice as many each time, then between what fits and what fails.

    Ends without a limit at `max_batch`, or where steps take over a second and gain nothing.
    """
    batch = multiple
    fits = fails = 0
    rate = 0.0  # samples/s
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
    numbers = range(torch.cuda.device_count())
    gpus = {f"cuda:{n}": f"{n} {torch.cuda.get_device_name(n)}" for n in numbers}
    with asked.table.open("a", encoding="utf-8") as file:
        if not file.tell():
            print("device,batch,seconds,joint", file=file)
        for device, name in (gpus or {"cpu": "cpu"}).items():
            for batch, seconds in curve(device, asked.multiple, asked.max_batch):
                result = "oom" if seconds is None else f"{seconds:.6g}"
                line = f"{asked.prefix} {name},{batch},{result},".strip()
                print(line, file=file, flush=True)
                print(line, flush=True)


if __name__ == "__main__":
    main()
