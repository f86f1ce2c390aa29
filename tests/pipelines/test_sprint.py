"""Few-step sampling with SANA-Sprint."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sana_like_pipelines import SanaPipeline, SanaSprintPipeline


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
def test_every_step_count_works(sprint, quick, steps):
    """In diffusers one step fails unless the intermediate time is set to None."""
    seen = []
    forward = sprint.transformer.forward

    def watch(*args, **kwargs):
        seen.append(kwargs["timestep"])
        return forward(*args, **kwargs)

    sprint.transformer.forward = watch
    picture = sprint("a cat", output_type="np", **quick | {"num_inference_steps": steps}).images
    assert picture.std() > 0.01
    assert len(seen) == steps
    assert float(seen[0]) == pytest.approx(1.0, abs=1e-4), "flow time, from 1 down"
    assert all(a > b for a, b in itertools.pairwise(seen))


def test_own_times(sprint, quick):
    """In diffusers own times are always a TypeError."""
    arguments = quick | {"generator": 1}
    two = latents_of(sprint, "a cat", **arguments | {"num_inference_steps": 2})
    same = latents_of(sprint, "a cat", timesteps=[1.57080, 1.3], **arguments)
    other = latents_of(sprint, "a cat", timesteps=[1.57080, 0.9], **arguments)
    torch.testing.assert_close(same, two, atol=1e-4, rtol=0)
    assert (other - two).abs().max() > 1e-2


def test_intermediate_time_matters_in_two_steps_only(sprint, quick):
    def run(steps, intermediate):
        return latents_of(
            sprint, "a", generator=1, intermediate_timesteps=intermediate,
            **quick | {"num_inference_steps": steps},
        )  # fmt: skip

    assert torch.equal(run(3, 1.3), run(3, 0.5))
    assert not torch.equal(run(2, 1.3), run(2, 0.5))
    assert not torch.equal(run(2, 1.3), run(2, None))


def test_guidance_reaches_the_network(sprint, quick):
    weak = latents_of(sprint, "a", generator=1, guidance_scale=1.0, **quick)
    strong = latents_of(sprint, "a", generator=1, guidance_scale=8.0, **quick)
    assert (weak - strong).abs().max() > 1e-3


def test_pictures_do_not_depend_on_the_batch(sprint, quick):
    """Noise is drawn anew at every step, for each picture by its own generator."""
    arguments = quick | {"num_inference_steps": 4}
    whole = latents_of(sprint, "a", num_images_per_prompt=3, generator=[1, 2, 3], **arguments)
    for row, seed in enumerate([1, 2, 3]):
        alone = latents_of(sprint, "a", generator=[seed], **arguments)
        torch.testing.assert_close(whole[row], alone[0], atol=1e-4, rtol=0)


def test_interrupted_run_gives_the_prediction_so_far(sprint, quick):
    def stop(pipe, step, timestep, tensors):
        pipe.interrupt = step == 0

    arguments = quick | {"generator": 1, "num_inference_steps": 4}
    part = latents_of(sprint, "a", callback_on_step_end=stop, **arguments)
    one = latents_of(sprint, "a", **quick | {"generator": 1, "num_inference_steps": 1})
    torch.testing.assert_close(part, one, atol=1e-4, rtol=0)


def test_start_latents_are_unit_normal(sprint, quick):
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(4))
    given = latents_of(sprint, "a", latents=noise, **quick | {"num_inference_steps": 1})
    drawn = latents_of(sprint, "a", generator=[4], **quick | {"num_inference_steps": 1})
    assert torch.equal(given, drawn)


def test_weights_of_the_other_kind_are_refused(saved, sana, sprint, quick):
    with pytest.raises(ValueError, match="SanaSprintPipeline"):
        SanaPipeline.from_pretrained(saved("sprint").folder)
    with pytest.raises(ValueError, match="SanaPipeline"):
        SanaSprintPipeline.from_pretrained(saved("sana").folder)
    sana.transformer, sprint.transformer = sprint.transformer, sana.transformer
    with pytest.raises(ValueError, match="use SanaSprintPipeline"):
        sana("a", **quick)
    with pytest.raises(ValueError, match="use SanaPipeline"):
        sprint("a", **quick)


def test_recipe(sprint, quick):
    recipe = sprint("a", generator=9, **quick).recipe[0]
    assert recipe["pipeline"] == "SanaSprintPipeline"
    assert recipe["negative_prompt"] is None and recipe["seed"] == 9
    again = sprint(recipe["prompt"], generator=[9], output_type="np", **recipe["settings"]).images
    first = sprint("a", generator=9, output_type="np", **quick).images
    np.testing.assert_array_equal(again, first)
