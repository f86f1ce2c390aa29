"""The first-block cache as an option of calls."""

from __future__ import annotations

import diffusers
import pytest
import torch

CLOSE = 1e-4
LAYERS = 3


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


def record(pipe, *prompt, **arguments):
    recipes = pipe(*prompt, output_type="latent", **arguments).recipe
    return [recipe["first_block_cache"] for recipe in recipes]


@pytest.fixture
def arguments(quick):
    return quick | {"generator": [1], "num_inference_steps": 6}


@pytest.mark.parametrize("passes", ["batched", "sequential"])
def test_first_and_last_step_are_never_skipped(sana, arguments, passes):
    arguments |= {"guidance_passes": passes}
    exact = latents_of(sana, "a", **arguments)
    torch.testing.assert_close(
        latents_of(sana, "a", first_block_cache=1e-9, **arguments), exact, atol=CLOSE, rtol=0
    )
    cached = latents_of(sana, "a", first_block_cache=1e9, **arguments)
    assert (cached - exact).abs().max() > 1e-3
    (facts,) = record(sana, "a", first_block_cache=1e9, **arguments)
    assert facts == {
        "threshold": 1e9,
        "blocks_run": 2 * (2 * LAYERS + 4),
        "blocks_in_all": 2 * 6 * LAYERS,
        "passes_skipped": 2 * 4,
    }
    assert torch.equal(latents_of(sana, "a", **arguments), exact), "nothing is left behind"


def test_an_interval_of_guidance_counts_its_own_passes(sana, arguments):
    (facts,) = record(
        sana, "a", first_block_cache=1e9, guidance_interval=(0.0, 0.5), **arguments
    )  # fmt: skip
    assert facts["blocks_in_all"] == (3 + 6) * LAYERS
    assert facts["passes_skipped"] == 2 + 4


def test_pictures_do_not_depend_on_the_batch(sana, arguments):
    """At a threshold at which some rows are skipped and others are not."""
    arguments |= {"generator": [1, 2, 3], "pag_scale": 1.0, "first_block_cache": 0.3}
    prompts = ["a cat", "b", "a red house in the snow"]
    whole = latents_of(sana, prompts, **arguments)
    facts = record(sana, prompts, **arguments)
    assert any(0 < fact["passes_skipped"] < 3 * 4 for fact in facts)
    for row, prompt in enumerate(prompts):
        alone = arguments | {"generator": [row + 1]}
        torch.testing.assert_close(
            whole[row], latents_of(sana, prompt, **alone)[0], atol=CLOSE, rtol=0
        )
        assert record(sana, prompt, **alone) == [facts[row]]


def test_control_steers_under_the_cache(controlnet, arguments):
    picture = torch.linspace(0, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    arguments |= {"control_image": picture, "control_guidance_end": 0.5}
    exact = latents_of(controlnet, "a", **arguments)
    got = latents_of(controlnet, "a", first_block_cache=1e-9, **arguments)
    torch.testing.assert_close(got, exact, atol=CLOSE, rtol=0)


def test_the_recipe_gives_the_same_again(sana, arguments):
    output = sana("a", first_block_cache=0.3, output_type="latent", **arguments)
    (recipe,) = output.recipe
    assert recipe["settings"]["first_block_cache"] == 0.3
    again = latents_of(sana, "a", generator=[1], **recipe["settings"])
    assert torch.equal(again, output.images)


def test_wrong_wishes_are_refused(sana, sprint, arguments):
    with pytest.raises(ValueError, match="positive number"):
        sana("a", first_block_cache=0, **arguments)
    sana.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(ValueError, match="disable_cache"):
        sana("a", first_block_cache=0.1, **arguments)
    with pytest.raises(TypeError):
        sprint("a", first_block_cache=0.1, **arguments)


def test_what_is_kept_counts_as_memory(sana):
    plain, cached = (sana.estimate(first_block_cache=t).activations["denoise"] for t in (None, 0.1))
    assert cached - plain == 2 * 2 * 16 * 16 * 32 * 4
