"""Image to image and inpainting."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from sana_like import FlowDPMSolverScheduler
from sana_like.schedulers.flow import shift_sigma, unshift_sigma
from sana_like_pipelines import SanaImg2ImgPipeline, SanaInpaintPipeline
from sana_like_pipelines.pictures import fit, read_pictures

CLOSE = 1e-4


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


def picture(seed: int, height: int = 32, width: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def img2img(sana):
    pipe = SanaImg2ImgPipeline.from_pipe(sana)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def inpaint(sana):
    pipe = SanaInpaintPipeline.from_pipe(sana)
    pipe.set_progress_bar_config(disable=True)
    return pipe


class TestStrength:
    @pytest.mark.parametrize("steps", [1, 2, 3, 20])
    def test_default_uses_the_picture(self, img2img, quick, steps):
        """diffusers' few-step image to image ignores it at its defaults."""
        arguments = quick | {"generator": 1, "num_inference_steps": steps}
        one = latents_of(img2img, "a", image=picture(1), **arguments)
        two = latents_of(img2img, "a", image=picture(2), **arguments)
        assert (one - two).abs().max() > 0.05

    def test_full_strength_is_text_to_image(self, img2img, sana, quick):
        arguments = quick | {"generator": 1}
        full = latents_of(img2img, "a", image=picture(1), strength=1.0, **arguments)
        plain = latents_of(sana, "a", **arguments)
        assert (full - plain).abs().max() < 0.02

    def test_weaker_means_closer_to_the_picture(self, img2img, quick):
        source = read_pictures("image", picture(1))[0]
        clean = img2img.vae.encode(source).latent * img2img.vae.config.scaling_factor
        distances = [
            (
                latents_of(
                    img2img, "a", image=picture(1), strength=strength, generator=1,
                    **quick | {"num_inference_steps": 10},
                )
                - clean
            ).abs().mean()
            for strength in (0.02, 0.3, 0.8)
        ]  # fmt: skip
        assert distances == sorted(distances)
        assert distances[0] < 0.3 * distances[2]

    def test_number_of_steps_and_first_level(self, img2img, quick):
        seen = []
        arguments = quick | {"num_inference_steps": 10}
        img2img(
            "a", image=picture(1), strength=0.5, **arguments,
            callback_on_step_end=lambda p, i, t, _: seen.append(float(t)),
        )  # fmt: skip
        assert len(seen) == 5
        shifted = 3 * 0.5 / (1 + 2 * 0.5)
        assert seen[0] == pytest.approx(1000 * shifted, rel=1e-3)

    @pytest.mark.parametrize("name", ["FlowEulerScheduler", "FlowHeunScheduler"])
    def test_other_samplers(self, img2img, quick, name):
        import sana_like

        img2img.scheduler = getattr(sana_like, name).from_config(img2img.scheduler.config)
        assert img2img("a", image=picture(1), **quick).images[0].size == (32, 32)

    @pytest.mark.parametrize("strength", [0.5, 1.0])
    def test_samplers_that_cannot_start_in_the_middle_are_refused(self, img2img, quick, strength):
        img2img.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
        with pytest.raises(ValueError, match="from_published"):
            img2img("a", image=picture(1), strength=strength, **quick)

    def test_another_time_scale_keeps_the_first_level(self, img2img, quick):
        img2img.scheduler = FlowDPMSolverScheduler(num_train_timesteps=100)
        seen = []
        img2img(
            "a", image=picture(1), strength=0.5, **quick | {"num_inference_steps": 200},
            callback_on_step_end=lambda p, i, t, _: seen.append(float(t)),
        )  # fmt: skip
        levels = FlowDPMSolverScheduler(num_train_timesteps=100)
        levels.set_timesteps(100)
        assert len(seen) == 100
        half = unshift_sigma(float(levels.sigmas[0]), 3.0) / 2
        assert seen[0] == pytest.approx(100 * shift_sigma(half, 3.0), rel=1e-6)

    @pytest.mark.parametrize("strength", [0, -0.1, 1.1, "0.5", None, True])
    def test_what_is_no_strength_is_refused(self, img2img, quick, strength):
        with pytest.raises(ValueError, match="strength"):
            img2img("a", image=picture(1), strength=strength, **quick)


class TestSources:
    def test_size_of_the_picture_is_the_default(self, img2img, quick):
        arguments = quick | {"height": None, "width": None}
        assert img2img("a", image=picture(1, 33, 47), **arguments).images[0].size == (47, 33)

    def test_other_sizes_keep_its_proportions(self, img2img, quick):
        wide = torch.linspace(0, 1, 64).expand(1, 3, 16, 64)
        cut = fit(wide, 32, 32)
        assert cut.shape[-2:] == (32, 32)
        assert cut.mean().item() == pytest.approx(0.5, abs=0.02)
        assert cut[0, 0, 0, -1] - cut[0, 0, 0, 0] == pytest.approx(0.25, abs=0.03)

    def test_one_for_all_or_one_for_each_prompt(self, img2img, quick):
        arguments = quick | {"num_images_per_prompt": 2, "generator": [1, 2, 3, 4]}
        both = latents_of(img2img, ["a", "b"], image=[picture(1), picture(2)], **arguments)
        second = latents_of(img2img, "b", image=picture(2), **quick | {"generator": [4]})
        torch.testing.assert_close(both[3], second[0], atol=CLOSE, rtol=0)
        with pytest.raises(ValueError, match="3 pictures for 2 prompts"):
            img2img(["a", "b"], image=[picture(i) for i in range(3)], **quick)

    def test_every_picture_is_encoded_once(self, img2img, quick, monkeypatch):
        rows = []
        encode = img2img.vae.encode
        monkeypatch.setattr(
            img2img.vae, "encode", lambda x, **k: rows.append(len(x)) or encode(x, **k)
        )
        img2img("a", image=picture(1), num_images_per_prompt=3, **quick)
        assert rows == [1]

    def test_kinds_of_pictures_mean_the_same(self, tmp_path):
        source = picture(1)
        source.save(tmp_path / "source.png")
        pixels = np.asarray(source)
        kinds = [
            source,
            tmp_path / "source.png",
            str(tmp_path / "source.png"),
            pixels,
            pixels.astype(np.float32) / 255,
            torch.from_numpy(pixels.copy()).movedim(-1, 0),
            torch.from_numpy(pixels.copy()).movedim(-1, 0)[None] / 255,
        ]
        planes = [read_pictures("image", kind)[0] for kind in kinds]
        for plane in planes:
            assert plane.shape == (1, 3, 32, 32)
            torch.testing.assert_close(plane, planes[0], atol=1e-6, rtol=0)
        assert len(read_pictures("image", np.stack([pixels, pixels]))) == 2

    def test_transparency_is_flattened(self):
        clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
        assert (read_pictures("image", clear)[0] == 1).all()

    @pytest.mark.parametrize(
        "wrong",
        [None, [], 7, torch.zeros(2), torch.zeros(1, 5, 4, 4), torch.full((3, 4, 4), 2.0),
         torch.full((3, 4, 4), float("nan")), np.zeros((4, 4, 7))],
    )  # fmt: skip
    def test_what_is_no_picture_is_refused(self, img2img, quick, wrong):
        with pytest.raises(ValueError, match="image"):
            img2img("a", image=wrong, **quick)

    def test_recipe_knows_the_picture(self, img2img, quick):
        arguments = quick | {"generator": 1}
        first = img2img("a", image=picture(1), **arguments).recipe[0]
        again = img2img("a", image=picture(1), **arguments).recipe[0]
        other = img2img("a", image=picture(2), **arguments).recipe[0]
        assert first == again and first != other
        assert first["settings"]["strength"] == 0.6


class TestInpainting:
    mask = np.zeros((32, 32), dtype=np.uint8)
    mask[8:20, 10:25] = 255

    @pytest.mark.parametrize("size", [(32, 32), (31, 29)])
    def test_unmasked_pixels_are_exactly_the_sources(self, inpaint, quick, size):
        source = picture(1, *size)
        mask = Image.fromarray(self.mask[: size[0], : size[1]])
        arguments = quick | {"height": None, "width": None}
        result = inpaint("a", image=source, mask_image=mask, **arguments).images[0]
        kept = np.asarray(mask) == 0
        np.testing.assert_array_equal(np.asarray(result)[kept], np.asarray(source)[kept])
        assert np.abs(np.asarray(result)[~kept].astype(int) - np.asarray(source)[~kept]).mean() > 5

    def test_half_precision_keeps_them_too(self, inpaint, quick):
        inpaint.to(torch.bfloat16)
        source, mask = picture(1), Image.fromarray(self.mask)
        result = inpaint("a", image=source, mask_image=mask, **quick).images[0]
        kept = self.mask == 0
        np.testing.assert_array_equal(np.asarray(result)[kept], np.asarray(source)[kept])

    def test_latents_outside_the_mask_are_the_sources(self, inpaint, quick):
        source, seen = picture(1), []
        clean = inpaint.vae.encode(read_pictures("image", source)[0]).latent
        clean = clean * inpaint.vae.config.scaling_factor
        result = latents_of(
            inpaint, "a", image=source, mask_image=Image.fromarray(self.mask), **quick,
            callback_on_step_end=lambda p, i, t, tensors: seen.append(tensors["latents"]) or {},
        )  # fmt: skip
        outside = torch.ones(16, 16, dtype=torch.bool)
        outside[4:10, 5:13] = False
        torch.testing.assert_close(result[..., outside], clean[..., outside], atol=CLOSE, rtol=0)
        assert (result[..., ~outside] - clean[..., ~outside]).abs().mean() > 0.1
        assert (seen[0][..., outside] - clean[..., outside]).abs().mean() > 0.1, "noised in between"

    def test_pixels_are_kept_by_choice(self, inpaint, quick):
        arguments = quick | {"image": picture(1), "mask_image": Image.fromarray(self.mask)}
        kept = inpaint("a", generator=1, output_type="np", **arguments).images
        free = inpaint("a", generator=1, output_type="np", keep_unmasked=False, **arguments).images
        assert not np.array_equal(kept, free)
        inside = self.mask > 0
        np.testing.assert_allclose(kept[0][inside], free[0][inside], atol=1e-6)

    def test_empty_mask_gives_the_source_back(self, inpaint, quick):
        source, black = picture(1), Image.new("L", (32, 32), 0)
        result = inpaint("a", image=source, mask_image=black, **quick).images[0]
        np.testing.assert_array_equal(np.asarray(result), np.asarray(source))

    def test_full_mask_is_image_to_image(self, inpaint, img2img, quick):
        white = Image.new("L", (32, 32), 255)
        arguments = quick | {"image": picture(1), "generator": 1, "strength": 0.7}
        painted = latents_of(inpaint, "a", mask_image=white, **arguments)
        torch.testing.assert_close(
            painted, latents_of(img2img, "a", **arguments), atol=CLOSE, rtol=0
        )

    def test_mask_has_an_effect_in_every_row(self, inpaint, quick):
        """Two prompts with masks of their own; the argument is not ignored."""
        masks = [Image.fromarray(self.mask), Image.fromarray(self.mask.T.copy())]
        result = inpaint(
            ["a", "b"], image=picture(1), mask_image=masks, num_images_per_prompt=2, **quick
        ).images
        for place, mask in enumerate([masks[0], masks[0], masks[1], masks[1]]):
            kept = np.asarray(mask) == 0
            same = (np.asarray(result[place]) == np.asarray(picture(1))).all(axis=-1)
            assert same[kept].all() and not same[~kept].all()

    def test_mask_of_another_size_is_refused(self, inpaint, quick):
        with pytest.raises(ValueError, match=r"16x16.*32x32"):
            inpaint("a", image=picture(1), mask_image=Image.new("L", (16, 16)), **quick)
        with pytest.raises(ValueError, match="mask_image"):
            inpaint("a", image=picture(1), **quick)


@pytest.mark.parametrize(("height", "width"), [(10, 4000), (4000, 10), (31, 1001)])
def test_long_strips_are_not_enlarged_whole(height, width, monkeypatch):
    """Only the middle of a strip is kept, so only that is resized; the result is the same."""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    strip = (0.5 + 0.5 * torch.sin((rows + columns) / 9)).expand(1, 3, -1, -1)
    ratio = max(64 / height, 64 / width)
    size = (round(height * ratio), round(width * ratio))
    whole = torch.nn.functional.interpolate(strip, size=size, mode="bicubic", antialias=True)
    above, left = (size[0] - 64) // 2, (size[1] - 64) // 2
    expected = whole[..., above : above + 64, left : left + 64]
    resize, sizes = torch.nn.functional.interpolate, []

    def spied(*args, **arguments):
        sizes.append(arguments["size"])
        return resize(*args, **arguments)

    monkeypatch.setattr(torch.nn.functional, "interpolate", spied)
    result = fit(strip, 64, 64)
    assert (result - expected).abs().max() < 0.02
    assert max(sizes[0]) < 300
