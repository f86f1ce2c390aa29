"""Times of one short call, again and again, on a GPU or a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
# Written between two calls on a GPU: more than any cache holds, and it keeps the GPU busy until the
# host has sent the next call.
FLUSHED = 2**29


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        warm_ups: calls before the first that counts.
        fewest, most: calls that count.
        seconds: stop after so long, but not before `fewest`.
    """

    warm_ups: int = 25
    fewest: int = 10
    most: int = 100
    seconds: float = 0.5


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, quartiles, and how many calls there were.

    `captured` says whether a GPU replayed them as a graph; if not, the host may have held it up.
    """

    median: float
    low: float
    high: float
    count: int
    captured: bool = False


def time_call(function: Call, device: torch.device, effort: Effort | None = None) -> Timing:
    """Time `function`, whose work is on `device`.

    On a GPU the call is captured as a graph where it can be, the cache is emptied before each
    replay, and the GPU's own clock is read.
    """
    effort = effort or Effort()
    return (_on_gpu if device.type == "cuda" else _on_cpu)(function, effort)


def _on_cpu(function: Call, effort: Effort) -> Timing:
    for _ in range(effort.warm_ups):
        function()

    def once() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return _summary(_repeat(once, effort), captured=False)


def _on_gpu(function: Call, effort: Effort) -> Timing:
    replay, captured = _captured(function, effort.warm_ups)
    cache = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")

    def once() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        start.record()
        replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    return _summary(_repeat(once, effort), captured=captured)


def _captured(function: Call, warm_ups: int) -> tuple[Call, bool]:
    """A replay of `function`; itself where it does what a graph cannot hold."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(max(warm_ups, 1)):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            function()
    except RuntimeError:
        torch.cuda.synchronize()
        return function, False
    return graph.replay, True


def _repeat(once: Callable[[], float], effort: Effort) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + effort.seconds
    while len(times) < effort.most and (len(times) < effort.fewest or time.perf_counter() < end):
        times.append(once())
    return times


def _summary(times: list[float], captured: bool) -> Timing:
    low, median, high = (
        statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    )
    return Timing(median, low, high, len(times), captured)
