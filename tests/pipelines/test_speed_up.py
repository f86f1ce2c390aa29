"""`speed_up`: what it switches on, what it refuses, and what recipes say of it."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

from sana_like_pipelines import speed
from sana_like_pipelines.compile_clock import CompileClock, CompileReport, is_compiled, uncompiled
from sana_like_pipelines.step_graphs import StepGraphs

CLOSE = 1e-4


def latents_of(pipe, **arguments):
    return pipe("a", output_type="latent", generator=1, **arguments).images


def recipe_of(pipe, quick):
    return pipe("a", output_type="latent", **quick).recipe[0]


@pytest.fixture
def uncompiling(monkeypatch, sana):
    """Compiling without a compiler."""
    cls = type(sana.transformer)
    compile_blocks = cls.compile_repeated_blocks
    monkeypatch.setattr(
        cls, "compile_repeated_blocks", lambda self: compile_blocks(self, backend="eager")
    )
    return sana


def test_nothing_is_on_by_itself(sana, quick):
    assert "speed" not in recipe_of(sana, quick)
    sana.speed_up()
    assert "speed" not in recipe_of(sana, quick)


def test_graphs_replay_the_evaluations(sana, quick, monkeypatch):
    """With a capture that needs no GPU; sequential branches share one graph."""
    replays = []

    def capture(function, device):
        result = function()[:] * 1

        def replay():
            replays.append(1)
            result.copy_(function())

        return replay, result

    arguments = quick | {"guidance_passes": "sequential", "pag_scale": 1.0}
    exact = latents_of(sana, **arguments)
    monkeypatch.setattr(type(sana), "_check_graphs", lambda *_: None)
    sana.speed_up(cuda_graphs=True)
    sana._graphs = StepGraphs(capture)
    assert torch.equal(latents_of(sana, **arguments), exact)
    assert len(replays) == 3 * 3
    assert recipe_of(sana, quick)["speed"] == {"cuda_graphs": True}
    with pytest.raises(ValueError, match="cache skips blocks"):
        latents_of(sana, first_block_cache=0.1, **arguments)


def test_graphs_are_dropped_with_the_weights_they_saw(sana):
    mark = speed.weights_mark(sana.transformer)
    assert mark == speed.weights_mark(sana.transformer)
    sana.transformer.to(torch.bfloat16)
    assert mark != speed.weights_mark(sana.transformer)


def test_graphs_without_cuda_are_refused(sana):
    with pytest.raises(ValueError, match=r"needs a CUDA device, .* on cpu"):
        sana.speed_up(cuda_graphs=True, quantize="int8", compile=True)
    assert sana.speed_record() == {}, "nothing was changed"


@pytest.mark.parametrize(
    ("change", "scheme", "message"),
    [
        (lambda pipe: pipe.transformer.half(), None, "needs bfloat16 or float32"),
        (lambda pipe: None, "int8", "does not go together with int8"),
        (
            lambda pipe: pipe.transformer.enable_group_offload(
                torch.device("cpu"), torch.device("cpu"), offload_type="leaf_level"
            ),
            None,
            "these are offloaded",
        ),
    ],
)
def test_what_graphs_cannot_do(sana, change, scheme, message):
    change(sana)
    with pytest.raises(ValueError, match=message):
        sana._check_graphs(torch.device("cuda"), scheme)


def test_compiled_blocks_give_the_same_and_report(uncompiling, quick, caplog):
    sana = uncompiling
    caplog.set_level(logging.INFO)
    exact = latents_of(sana, **quick)
    sana.speed_up(compile=True)
    assert is_compiled(sana.transformer)
    torch.testing.assert_close(latents_of(sana, **quick), exact, atol=CLOSE, rtol=0)
    report = sana.compile_report
    assert report is not None and report.evaluations == 3 and report.pictures == 1
    assert report.eager > 0 and report.compiled > 0
    assert str(report) in caplog.text
    caplog.clear()
    latents_of(sana, **quick)
    assert "compiling" not in caplog.text, "told once for each size"
    assert recipe_of(sana, quick)["speed"] == {"compile": True}
    with uncompiled(sana.transformer):
        assert not is_compiled(sana.transformer)
    assert is_compiled(sana.transformer)


def test_the_clock_tells_compiling_from_computing():
    """First evaluation 10 s, later ones 1 s, not compiled 3 s."""
    model = torch.nn.Linear(2, 2)
    now = itertools.count()
    durations = {"first": 10.0, "next": 1.0, "eager": 3.0}
    time = [0.0]

    def compiled(x):
        time[0] += durations["first" if next(now) == 0 else "next"]
        return x

    def eager(x):
        time[0] += durations["eager"]
        return x

    model.forward = eager
    clock = CompileClock(model, clock=lambda: time[0])
    clock.begin()
    for _ in range(20):
        clock(compiled, torch.zeros(1, 2))
    report = clock.report(pictures=2)
    assert report == CompileReport(9.0, 3.0, 1.0, evaluations=20, pictures=2)
    assert report.saved == 20.0
    assert "saves 20.00 s per picture" in str(report) and "after 1 pictures" in str(report)
    clock.begin()
    clock(compiled, torch.zeros(1, 2))
    assert clock.report(1) is None


def test_compiling_that_does_not_pay_is_told():
    report = CompileReport(30.0, 1.0, 1.1, evaluations=20, pictures=1)
    assert "does not pay" in str(report)


def test_quantised_and_recorded(sana, quick):
    pytest.importorskip("torchao")
    exact = latents_of(sana, **quick)
    sana.speed_up(quantize="int8-weights", attention_backend="_native_math")
    got = latents_of(sana, **quick)
    assert 0 < (got - exact).norm() / exact.norm() < 0.1
    facts = {"quantize": "int8-weights", "attention_backend": "_native_math"}
    assert recipe_of(sana, quick)["speed"] == facts
    with pytest.raises(ValueError, match="quantised already"):
        sana.speed_up(quantize="int8")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"quantize": "int4"}, "unknown; legal on cpu: int8"),
        ({"quantize": "fp8"}, "need a GPU"),
        ({"attention_backend": "flash"}, "legal on cpu: native"),
    ],
)
def test_wishes_that_cannot_be_met(sana, wish, message):
    with pytest.raises(ValueError, match=message):
        sana.speed_up(**wish)
    assert sana.speed_record() == {}


def test_quantising_comes_before_offloading(sana):
    sana.enable_group_offload(torch.device("cpu"))
    with pytest.raises(ValueError, match="before offloading"):
        sana.speed_up(quantize="int8")
