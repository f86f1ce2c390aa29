"""CUDA graphs of the transformer's evaluations: captured once per shape, replayed at every step.

A replay launches all kernels at once, so small models are not held up by the host. The logic is
apart from the capturing, which alone needs a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Capture = Callable[[Callable[[], Tensor], torch.device], tuple[Callable[[], Any], Tensor]]
"""A function without arguments, and its device, to what replays it and the result it fills."""
WARM_UPS = 3
LARGEST_COUNT = 4
"""Graphs that are kept, each with the memory of an evaluation."""


def cuda_capture(
    function: Callable[[], Tensor], device: torch.device
) -> tuple[Callable[[], Any], Tensor]:
    """Capture `function` on a CUDA device."""
    with torch.cuda.device(device):
        present = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
        present.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function()
    return graph.replay, result


class StepGraphs:
    """Evaluations by graphs; as a function it takes the place of the transformer.

    Args:
        capture: what captures a function.
    """

    def __init__(self, capture: Capture = cuda_capture) -> None:
        self._capture = capture
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._weights: Hashable = None

    def require(self, weights: Hashable) -> None:
        """Forget all graphs if the weights, by a mark of theirs, are not those captured."""
        if weights != self._weights:
            self._graphs.clear()
            self._weights = weights

    def __call__(self, function: Callable[..., tuple[Tensor]], *args: Any, **kwargs: Any) -> Tensor:
        """`function(*args, **kwargs)[0]`, captured when such arguments come for the first time.

        Args:
            function: launches the same kernels for arguments of the same shapes.
            *args, **kwargs: tensors, plain values, dataclasses and containers of them.

        Returns:
            A tensor of its own, which later calls leave alone.
        """
        given = (args, kwargs)
        tensors = list(tensors_in(given))
        key = shape_of(given)
        graph = self._graphs.get(key)
        if graph is None:
            graph = _Graph(self._capture, function, given, tensors)
            self._graphs[key] = graph
            if len(self._graphs) > LARGEST_COUNT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return graph.run(tensors)


class _Graph:
    """One captured evaluation with inputs of its own."""

    def __init__(
        self, capture: Capture, function: Callable[..., Any], given: Any, tensors: list[Tensor]
    ) -> None:
        self._inputs = [tensor.clone() for tensor in tensors]
        self._sources: list[tuple[Tensor, int] | None] = [None] * len(tensors)
        args, kwargs = rebuilt(given, iter(self._inputs))
        self._replay, self._result = capture(
            lambda: function(*args, **kwargs)[0], tensors[0].device
        )
        # A graph reads addresses. What a module keeps beside its weights, such as the table of
        # positions of one size, it may replace; here it lives as long as the graph.
        self._held = list(_held_by(function))

    def run(self, tensors: list[Tensor]) -> Tensor:
        for place, tensor in enumerate(tensors):
            source = self._sources[place]
            # The text is the same tensor at every step and is not copied again.
            if source is None or source[0] is not tensor or source[1] != tensor._version:
                self._inputs[place].copy_(tensor)
                self._sources[place] = (tensor, tensor._version)
        self._replay()
        return self._result.clone()


def _held_by(function: Any) -> Iterator[Tensor]:
    """Tensors that the modules of a model hold as plain attributes."""
    if isinstance(function, nn.Module):
        for module in function.modules():
            yield from tensors_in([*vars(module).values()])


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in _parts(value):
            yield from tensors_in(part)


def shape_of(value: Any) -> Hashable:
    """A value with shapes, types and places of its tensors instead of these."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.device
    if isinstance(value, Mapping):
        return tuple((name, shape_of(part)) for name, part in value.items())
    parts = _parts(value)
    return (type(value), *map(shape_of, parts)) if parts or _is_container(value) else value


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """A value with other tensors in the places of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {name: rebuilt(part, tensors) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(rebuilt(part, tensors) for part in value)
    if _is_container(value):
        changes = {
            field.name: rebuilt(getattr(value, field.name), tensors) for field in fields(value)
        }
        return replace(value, **changes)
    return value


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if _is_container(value):
        return [getattr(value, field.name) for field in fields(value)]
    return []


def _is_container(value: Any) -> bool:
    dataclass = is_dataclass(value) and not isinstance(value, type)
    return dataclass or isinstance(value, (list, tuple, Mapping))
