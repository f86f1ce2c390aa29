"""Classifier-free and perturbed-attention guidance, in all combinations."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like import FlowDPMSolverScheduler
from sana_like_pipelines.guidance import Guidance, Projection, choose_layers

CLOSE = 1e-4


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


def by_hand(guidance, time=1000.0, step=0, steps=4):
    """Guide constant predictions: 1 for the prompt, 3 for the negative, 7 for the perturbed."""
    values = {"prompt": 1.0, "negative": 3.0, "perturbed": 7.0}
    passes = []

    def network(latents, branches):
        passes.append(branches)
        return torch.cat([torch.full((2, 1, 1, 1), values[branch]) for branch in branches])

    result = guidance.predict(network, torch.zeros(2, 1, 1, 1), step=step, steps=steps, time=time)
    assert result.unique().numel() == 1
    return result.unique().item(), passes


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("scale", "pag", "expected"),
    [(1.0, 0.0, 1.0), (0.5, 0.0, 1.0), (4.0, 0.0, 3 - 8), (1.0, 2.0, 1 - 12), (4.0, 2.0, -5 - 12)],
)
def test_combinations(batched, scale, pag, expected):
    guidance = Guidance(scale=scale, pag_scale=pag, pag_layers=(0,), batched=batched)
    value, passes = by_hand(guidance)
    assert value == pytest.approx(expected)
    rows = 1 + (scale > 1) + (pag > 0)
    assert len(passes) == (1 if batched else rows)
    assert sum(len(branches) for branches in passes) == rows


def test_interval_is_a_part_of_the_steps():
    guidance = Guidance(scale=4.0, interval=(0.25, 0.75))
    values = [by_hand(guidance, step=step, steps=8)[0] for step in range(8)]
    assert values == [1, 1, -5, -5, -5, -5, 1, 1]
    assert by_hand(Guidance(scale=4.0), step=7, steps=8)[0] == -5
    assert by_hand(Guidance(scale=4.0, interval=(0.0, 0.0)), step=0)[0] == 1


def test_adaptive_perturbation_falls_to_zero():
    guidance = Guidance(pag_scale=2.0, pag_adaptive_scale=0.004)
    values = [by_hand(guidance, time=time)[0] for time in (1000.0, 750.0, 500.0, 0.0)]
    assert values == pytest.approx([1 - 12, 1 - 6, 1, 1])


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (None, (10,)),
        (3, (3,)),
        ("1", (1,)),
        ("transformer_blocks.1", (1,)),
        ("blocks.1", (1,)),
        ("blocks.(0|1)", (0, 1)),
        (r"blocks\.(0|1)", (0, 1)),
        ([2, "blocks.14"], (2, 14)),
        (r"blocks\.1\d", tuple(range(10, 20))),
    ],
)
def test_choice_of_layers(wish, expected):
    assert choose_layers(wish, 20) == expected


def test_a_broken_expression_is_refused():
    with pytest.raises(ValueError, match="no expression"):
        choose_layers("blocks.(", 20)


@pytest.mark.parametrize("wish", ["blocks.20", 20, -1, "attn", ["1", "x"]])
def test_layers_that_do_not_exist(wish):
    with pytest.raises(ValueError, match="none of this model's blocks 0 to 19"):
        choose_layers(wish, 20)


@pytest.mark.parametrize("guidance_scale", [1.0, 4.5])
def test_batched_and_single_passes_agree(sana, quick, guidance_scale):
    arguments = quick | {"guidance_scale": guidance_scale, "pag_scale": 1.5, "generator": [1, 2]}
    together = latents_of(sana, ["a", "a blue dog"], guidance_passes="batched", **arguments)
    apart = latents_of(sana, ["a", "a blue dog"], guidance_passes="sequential", **arguments)
    torch.testing.assert_close(together, apart, atol=CLOSE, rtol=0)


def test_perturbed_attention_agrees_with_diffusers(saved, sana, quick):
    """Without query/key norm, where diffusers' version is right."""
    stock = saved("sana").stock
    theirs = diffusers.SanaPAGPipeline(
        **stock.components, pag_applied_layers="transformer_blocks.1"
    )
    theirs.set_progress_bar_config(disable=True)
    processors = stock.transformer.attn_processors
    start = torch.randn(1, 4, 16, 16)
    try:
        expected = theirs(
            "a cat", latents=start, pag_scale=2.0, use_resolution_binning=False,
            output_type="latent", **quick,
        ).images  # fmt: skip
    finally:
        stock.transformer.set_attn_processor(processors)
    sana.scheduler = FlowDPMSolverScheduler.from_config(
        sana.scheduler.config, truncate_timesteps=True
    )
    ours = latents_of(
        sana, "a cat", latents=start, pag_scale=2.0, pag_applied_layers="blocks.1", **quick
    )
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("qk_norm", [None, "rms_norm_across_heads"])
def test_perturbed_attention_honours_query_key_norm(sana, quick, qk_norm):
    """In diffusers the other two branches lose their norms while PAG is on.

    With a weight too small to matter PAG must change nothing, whatever it does inside.
    """
    transformer = type(sana.transformer)(**dict(sana.transformer.config) | {"qk_norm": qk_norm})
    for name, parameter in transformer.named_parameters():
        if "norm_" in name:
            torch.nn.init.normal_(parameter, mean=1.5, std=0.5)
    sana.transformer = transformer.eval()
    plain = latents_of(sana, "a cat", generator=1, **quick)
    tiny = latents_of(sana, "a cat", generator=1, pag_scale=1e-7, **quick)
    torch.testing.assert_close(tiny, plain, atol=CLOSE, rtol=0)
    strong = latents_of(sana, "a cat", generator=1, pag_scale=3.0, **quick)
    assert (strong - plain).abs().max() > 1e-2


def test_perturbed_attention_leaves_the_model_alone(sana, quick):
    """diffusers swaps processors of the shared model, and keeps them after an error."""
    before = latents_of(sana, "a cat", generator=1, **quick)
    modules = {name: id(module) for name, module in sana.transformer.named_modules()}
    state = {name: dict(vars(module)) for name, module in sana.transformer.named_modules()}

    def fail(pipe, step, timestep, tensors):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sana("a cat", pag_scale=3.0, callback_on_step_end=fail, **quick)
    assert {name: id(module) for name, module in sana.transformer.named_modules()} == modules
    for name, module in sana.transformer.named_modules():
        assert vars(module).keys() == state[name].keys(), name
    assert torch.equal(latents_of(sana, "a cat", generator=1, **quick), before)


def test_text_is_projected_once_per_call(sana, quick, monkeypatch):
    calls = []
    prepare = type(sana.transformer).prepare_text

    def count(self, *args):
        calls.append(args[0].shape)
        return prepare(self, *args)

    monkeypatch.setattr(type(sana.transformer), "prepare_text", count)
    sana(["a", "b"], num_images_per_prompt=3, **quick | {"num_inference_steps": 5})
    assert len(calls) == 2, "one for the prompts, one for the negative ones"
    assert all(shape[0] == 2 for shape in calls), "pictures of one prompt share its projection"


def test_first_block_cache_of_the_transformer(sana, quick):
    """Caches are kept apart by branch, and forgotten between calls."""
    arguments = quick | {"generator": 1, "num_inference_steps": 6, "guidance_interval": (0.0, 0.5)}
    exact = latents_of(sana, "a", **arguments)
    sana.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=1e-9))
    torch.testing.assert_close(latents_of(sana, "a", **arguments), exact, atol=CLOSE, rtol=0)
    sana.transformer.disable_cache()
    sana.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=1e9))
    cached = latents_of(sana, "a", **arguments)
    assert (cached - exact).abs().max() > 1e-3, "nothing was skipped"
    assert torch.equal(latents_of(sana, "a", **arguments), cached)
    sana.transformer.disable_cache()
    assert torch.equal(latents_of(sana, "a", **arguments), exact)


def test_guidance_is_off_without_the_negative_prompt(sana, quick):
    """At a scale of 1 the negative prompt has no effect and is not encoded."""
    encoded = []
    encode = sana.text_encoder.forward
    sana.text_encoder.forward = lambda *a, **k: encoded.append(1) or encode(*a, **k)
    first = latents_of(sana, "a", negative_prompt="x", generator=1, guidance_scale=1.0, **quick)
    runs = len(encoded)
    second = latents_of(sana, "a", negative_prompt="yy", generator=1, guidance_scale=1.0, **quick)
    assert torch.equal(first, second)
    assert len(encoded) - runs == 1, "only the prompt, its instruction is kept from the first call"


def _projected(projection, scale=5.0, steps=1, dims=(2, 4, 3, 5, 5)):
    """Guided velocities of `steps` evaluations on fixed predictions, and what they came from."""
    torch.manual_seed(0)
    latents, prompt, negative = (torch.randn(dims) for _ in range(3))
    guidance = Guidance(scale=scale, projection=projection)
    parts = {"prompt": prompt, "negative": negative}

    def network(_, branches):
        return torch.cat([parts[branch] for branch in branches])

    results = [
        guidance.predict(network, latents, step=step, steps=steps, time=800.0)
        for step in range(steps)
    ]
    return results, latents, prompt, negative


def test_projection_that_keeps_everything_is_plain_guidance():
    (guided,), _, prompt, negative = _projected(Projection(eta=1.0))
    assert torch.allclose(guided, negative + 5.0 * (prompt - negative), atol=1e-4)


def test_projection_drops_what_points_along_the_clean_latents():
    (guided,), latents, prompt, _ = _projected(Projection(eta=0.0))
    clean, moved = latents - 0.8 * prompt, 0.8 * (prompt - guided)
    along = (clean * moved).flatten(1).sum(1) / clean.flatten(1).norm(dim=1)
    assert along.abs().max() < 1e-3
    assert moved.flatten(1).norm(dim=1).min() > 1


def test_projection_limits_the_step():
    (guided,), _, prompt, _ = _projected(Projection(eta=1.0, norm_threshold=2.0))
    moved = 0.8 * (prompt - guided)
    assert torch.allclose(moved.flatten(1).norm(dim=1), torch.full((2,), 4 * 2.0), atol=1e-3)


def test_projection_remembers_the_step_before_within_a_run():
    results, _, prompt, negative = _projected(Projection(eta=1.0, momentum=-0.5), steps=2)
    plain = negative + 5.0 * (prompt - negative)
    assert torch.allclose(results[0], plain, atol=1e-4)
    assert torch.allclose(results[1] - prompt, 0.5 * (plain - prompt), atol=1e-4)
    projection = Projection(eta=1.0, momentum=-0.5)
    first = _projected(projection)[0][0]
    assert torch.equal(_projected(projection)[0][0], first)  # a new run begins without memory


@pytest.mark.parametrize(
    "values", [{"eta": float("nan")}, {"norm_threshold": -1.0}, {"momentum": 1.0}, {"eta": "1"}]
)
def test_projection_refuses_what_has_no_meaning(values):
    with pytest.raises(ValueError, match="apg_"):
        Projection(**values)


def test_perturbed_branch_has_its_own_interval():
    asked = []

    def network(latents, branches):
        asked.append(branches)
        return latents

    guidance = Guidance(pag_scale=1.0, pag_interval=(0.25, 0.75))
    for step in range(4):
        guidance.predict(network, torch.zeros(1, 4, 2, 2, 2), step=step, steps=4, time=500.0)
    assert asked == [("prompt",), ("prompt", "perturbed"), ("prompt", "perturbed"), ("prompt",)]
    with pytest.raises(ValueError, match="perturbed branch"):
        Guidance(pag_interval=(0.5, 0.2))
