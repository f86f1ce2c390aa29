"""Replaying of captured evaluations, with a capture that needs no GPU."""

from __future__ import annotations

import pytest
import torch

from sana_like.transformers.text_context import TextContext
from sana_like_pipelines.step_graphs import LARGEST_COUNT, StepGraphs, rebuilt, shape_of, tensors_in


class Recorder:
    """Captures like a GPU: a replay reads the captured inputs and overwrites one result."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, function, device):
        assert device == torch.device("cpu")
        self.captured += 1
        result = function().clone()

        def replay():
            self.replayed += 1
            result.copy_(function())

        return replay, result


@pytest.fixture
def capture():
    return Recorder()


@pytest.fixture
def graphs(capture):
    return StepGraphs(capture)


def text(seed, tokens=3, mask=False):
    generator = torch.Generator().manual_seed(seed)
    keys, values = (
        tuple(torch.randn(2, 1, tokens, 4, generator=generator) for _ in range(2)) for _ in range(2)
    )
    return TextContext(keys, values, torch.ones(2, tokens, dtype=torch.bool) if mask else None)


def network(latents, context, *, timestep, guidance=1.0, residuals=()):
    out = latents * timestep * guidance + context.keys[1].sum() + context.values[0].sum()
    if context.mask is not None:
        out = out + context.mask.sum()
    return (out + sum(residual.sum() for residual in residuals),)


def test_replays_give_what_the_function_gives(graphs, capture):
    texts = [text(1), text(2)]
    results = []
    for step in range(6):
        latents = torch.randn(2, 4)
        arguments = {"timestep": torch.tensor(float(step)), "residuals": (torch.randn(3),)}
        got = graphs(network, latents, texts[step % 2], **arguments)
        results.append((got, network(latents, texts[step % 2], **arguments)[0]))
    for got, expected in results:
        torch.testing.assert_close(got, expected)  # all at the end: none may have been overwritten
    assert (capture.captured, capture.replayed) == (1, 6)


def test_each_kind_of_call_has_its_graph(graphs, capture):
    latents, time = torch.randn(2, 4), torch.tensor(1.0)
    calls = [
        (latents, text(1)),
        (latents[:1], text(1)),
        (latents.double(), text(1)),
        (latents, text(1, tokens=5)),
    ]
    for call in calls:
        expected = network(*call, timestep=time)[0]
        torch.testing.assert_close(graphs(network, *call, timestep=time), expected)
    assert capture.captured == len(calls) == LARGEST_COUNT
    graphs(network, latents, text(3), timestep=time, guidance=2.0)
    graphs(network, latents, text(3, mask=True), timestep=time)
    assert capture.captured == LARGEST_COUNT + 2
    graphs(network, latents, text(1), timestep=time)
    assert capture.captured == LARGEST_COUNT + 3, "the oldest were dropped"


def test_inputs_that_are_the_same_are_copied_once(graphs, monkeypatch):
    copied = []
    copy = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda self, other: copied.append(self.shape) or copy(self, other)
    )
    context, latents = text(1), torch.randn(2, 4)
    graphs(network, latents, context, timestep=torch.tensor(1.0))
    copied.clear()
    latents.add_(1)
    got = graphs(network, latents, context, timestep=torch.tensor(2.0))
    assert copied[:2] == [(2, 4), ()], "the latents that changed in place, and the new time"
    monkeypatch.undo()
    torch.testing.assert_close(got, network(latents, context, timestep=torch.tensor(2.0))[0])


def test_other_weights_are_captured_anew(graphs, capture):
    call = (torch.randn(2, 4), text(1))
    for mark in ("a", "a", "b"):
        graphs.require(mark)
        graphs(network, *call, timestep=torch.tensor(1.0))
    assert capture.captured == 2


def test_values_are_taken_apart_and_put_together():
    value = ((torch.zeros(2), text(1, mask=True)), {"a": [torch.ones(1), 3], "b": None})
    parts = list(tensors_in(value))
    assert len(parts) == 1 + 5 + 1
    again = rebuilt(value, iter([(part * 2).to(part.dtype) for part in parts]))
    assert shape_of(again) == shape_of(value) and hash(shape_of(value)) is not None
    assert again[1]["a"][1] == 3 and again[1]["b"] is None
    assert torch.equal(again[0][1].keys[0], value[0][1].keys[0] * 2)
    assert shape_of(((torch.zeros(2),), {})) != shape_of(((torch.zeros(3),), {}))


def test_what_modules_replace_lives_as_long_as_the_graph(graphs):
    """Such as a table of positions, which is kept for one size at a time."""

    class Table(torch.nn.Module):
        kept = None

        def forward(self, size):
            self.kept = (3, torch.full((len(size),), 2.0))
            return (size * self.kept[1],)

    model = Table()
    graphs(model, torch.ones(2))
    (graph,) = graphs._graphs.values()
    (held,) = graph._held
    graphs(model, torch.ones(5))
    assert model.kept[1] is not held and torch.equal(held, torch.full((2,), 2.0))
