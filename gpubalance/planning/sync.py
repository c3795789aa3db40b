"""A step's sync over several hosts, and the hosts that a split may do without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.problem import Problem

_ROUNDING = 1e-9


def sync_over_hosts(measured: Mapping[int, float], hosts: int) -> tuple[float, ...]:
    """Seconds of sync over 1, 2, … `hosts` hosts, from measurements over some numbers of hosts.

    A ring all-reduce of g bytes takes w + α·2(H − 1) + 2(H − 1)/H · g/v: w within a host, α the network's latency, v
    its slowest link. The terms are fitted, none below 0, and as few as explain the measurements: only the link's for a
    single measurement. Measured values are returned as they are.
    """
    every = range(1, hosts + 1)
    known = measured.keys() >= set(every) or not measured
    fitted_s = {} if known else _fitted(measured, hosts)
    return tuple(measured.get(number, fitted_s.get(number, 0.0)) for number in every)


def _fitted(measured: Mapping[int, float], hosts: int) -> dict[int, float]:
    """The first of the nearest fits by a subset of the terms, with no term below 0."""
    seconds = np.array(list(measured.values()))
    table, whole = _terms(list(measured)), _terms(range(1, hosts + 1))
    best, nearest = np.zeros(hosts), np.inf
    for count in (1, 2, 3):
        for terms in combinations(range(3), count):
            fitted, *_ = np.linalg.lstsq(table[:, terms], seconds)
            off = float(np.abs(table[:, terms] @ fitted - seconds).max())
            if fitted.min() >= 0 and off < nearest - _ROUNDING:
                best, nearest = whole[:, terms] @ fitted, off
    return dict(enumerate(best.tolist(), 1))


def _terms(hosts: Iterable[int]) -> NDArray[np.float64]:
    """The factor of each term for so many hosts: the link's, the latency's, and that of the time within a host."""
    h = np.array(list(hosts), float)
    return np.column_stack([2 * (h - 1) / h, 2 * (h - 1), np.ones_like(h)])


def with_sync(problem: Problem, measured: Mapping[int, float]) -> Problem:
    """The problem with the sync measured over these numbers of hosts."""
    over = sync_over_hosts(measured, len({load.host for load in problem.loads}))
    return replace(problem, sync_s=over[-1], sync_of_fewer_s=over[:-1])


def of_some(problem: Problem, devices: Iterable[int]) -> Problem:
    """The problem of some of its devices alone, with the sync over the hosts that have them."""
    loads = tuple(problem.loads[device] for device in devices)
    over = (*problem.sync_of_fewer_s, problem.sync_s)
    most = len({load.host for load in loads}) if problem.sync_of_fewer_s else 1
    return replace(problem, loads=loads, sync_s=over[most - 1], sync_of_fewer_s=over[: most - 1])


def on_fewer_hosts(problem: Problem) -> Iterator[Problem]:
    """The problem on each host alone, and on the 2, 3, … hosts that give the most; each with its own sync."""
    rates = defaultdict[int, float](float)  # of each host's devices, each alone at its limit
    for load in problem.loads if problem.sync_of_fewer_s else ():
        rates[load.host] += load.limit / (load.model.step_time_s(load.limit) + load.update_s) if load.limit else 0.0
    hosts = sorted(rates, key=lambda host: (-rates[host], host))
    for count, sync_s in enumerate(problem.sync_of_fewer_s, 1):
        for left in [{*hosts[:count]}] if count > 1 else [{host} for host in hosts]:
            loads = tuple(load if load.host in left else replace(load, limit=0) for load in problem.loads)
            yield replace(problem, loads=loads, sync_s=sync_s, sync_of_fewer_s=())
