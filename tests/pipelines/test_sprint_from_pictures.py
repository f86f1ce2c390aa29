"""Image to image with SANA-Sprint."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from sana_like_pipelines import SanaSprintImg2ImgPipeline
from sana_like_pipelines.pictures import read_pictures


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


def picture(seed: int, height: int = 32, width: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def img2img(sprint):
    pipe = SanaSprintImg2ImgPipeline.from_pipe(sprint)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_picture_is_seen_at_the_defaults(img2img, quick, steps):
    """In diffusers the start is pure noise at the defaults: every picture gives the same."""
    arguments = quick | {"generator": 1, "num_inference_steps": steps}
    one = latents_of(img2img, "a", image=picture(1), **arguments)
    two = latents_of(img2img, "a", image=picture(2), **arguments)
    assert (one - two).abs().max() > 0.02


def test_full_strength_is_text_to_image(img2img, sprint, quick):
    arguments = quick | {"generator": 1, "num_inference_steps": 2}
    full = latents_of(img2img, "a", image=picture(1), strength=1.0, **arguments)
    torch.testing.assert_close(full, latents_of(sprint, "a", **arguments), atol=1e-3, rtol=0)


def test_weaker_means_closer_to_the_picture(img2img, quick):
    source = read_pictures("image", picture(1))[0]
    clean = img2img.vae.encode(source).latent * img2img.vae.config.scaling_factor
    arguments = quick | {"generator": 1, "image": picture(1)}
    distances = [
        (latents_of(img2img, "a", strength=strength, **arguments) - clean).abs().mean()
        for strength in (0.02, 0.3, 0.9)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.3 * distances[2]


def test_times_are_shortened_and_every_step_is_run(img2img, quick):
    def times(**arguments):
        seen = []
        img2img(
            "a", image=picture(1), **quick | arguments,
            callback_on_step_end=lambda p, i, t, _: seen.append(float(t)),
        )  # fmt: skip
        return seen

    assert times(num_inference_steps=2, strength=0.5) == pytest.approx([0.7854, 0.65], abs=1e-4)
    own = times(timesteps=[1.0, 0.4], strength=0.1)
    assert own == pytest.approx([1.0, 0.4]), "own times are taken as they are"


def test_pictures_do_not_depend_on_the_batch(img2img, quick):
    arguments = quick | {"num_inference_steps": 2}
    pictures = [picture(1), picture(2)]
    whole = latents_of(img2img, ["a", "b"], image=pictures, generator=[3, 4], **arguments)
    for row, (prompt, one) in enumerate(zip("ab", pictures, strict=True)):
        alone = latents_of(img2img, prompt, image=one, generator=[3 + row], **arguments)
        torch.testing.assert_close(whole[row], alone[0], atol=1e-4, rtol=0)


def test_size_recipe_and_saving(img2img, quick, tmp_path):
    arguments = quick | {"height": None, "width": None, "image": picture(1, 33, 47), "generator": 5}
    output = img2img("a", **arguments)
    assert output.images[0].size == (47, 33)
    (recipe,) = output.recipe
    assert recipe["pipeline"] == "SanaSprintImg2ImgPipeline"
    assert recipe["settings"]["strength"] == 0.6 and len(recipe["inputs"]["image"]) == 1
    img2img.save_pretrained(tmp_path)
    again = SanaSprintImg2ImgPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    settings = recipe["settings"] | {"image": picture(1, 33, 47)}
    assert again("a", generator=[5], **settings).images[0].tobytes() == output.images[0].tobytes()


@pytest.mark.parametrize("strength", [0, 1.1, "0.5", None, True])
def test_what_is_no_strength_is_refused(img2img, quick, strength):
    with pytest.raises(ValueError, match="strength"):
        img2img("a", image=picture(1), strength=strength, **quick)


def test_no_picture_and_other_samplers_are_refused(img2img, quick):
    with pytest.raises(ValueError, match="image"):
        img2img("a", **quick)
    img2img.scheduler = diffusers.SCMScheduler()
    with pytest.raises(ValueError, match=r"use sana_like\.SCMScheduler"):
        img2img("a", image=picture(1), **quick)
