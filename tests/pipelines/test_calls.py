"""A call means what it says: broadcasting, seeds, sizes, prompts; and refuses the rest."""

from __future__ import annotations

import dataclasses
import json

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from sana_like_pipelines import SanaPipeline

CLOSE = 1e-4


def latents_of(pipe, *prompt, **arguments):
    """Final latents, before anything is decoded."""
    return pipe(*prompt, output_type="latent", **arguments).images


@pytest.fixture
def spied(monkeypatch):
    """Counts what runs: a refused call may run nothing."""
    ran = []

    def watch(pipe):
        for name in ("text_encoder", "transformer", "vae"):
            module = getattr(pipe, name)
            monkeypatch.setattr(
                module, "forward", lambda *a, name=name, **k: ran.append(name), raising=True
            )
        return ran

    return watch


def test_several_pictures_of_several_prompts_keep_their_masks(sana, quick):
    """diffusers pairs embeddings [p0, p0, p1, p1] with masks [m0, m1, m0, m1]."""
    prompts, negatives = ["a", "a long tale of two cities"], ["bad", "much worse than that"]
    batch = latents_of(
        sana, prompts, negative_prompt=negatives, num_images_per_prompt=2,
        generator=[1, 2, 3, 4], **quick,
    )  # fmt: skip
    place = 0
    for prompt, negative in zip(prompts, negatives, strict=True):
        for _ in range(2):
            alone = latents_of(
                sana, prompt, negative_prompt=negative, generator=[place + 1], **quick
            )
            torch.testing.assert_close(batch[place], alone[0], atol=CLOSE, rtol=0)
            place += 1
    assert (batch[0] - batch[1]).abs().max() > 0.1, "two pictures of one prompt are one picture"


def test_short_list_of_masks_follows_precomputed_embeddings(sana, quick):
    embeds, mask, negative, negative_mask = sana.encode_prompt(
        ["a", "a long tale of two cities"], **text_arguments(quick)
    )
    from_embeds = latents_of(
        sana, prompt_embeds=embeds, prompt_attention_mask=mask, negative_prompt_embeds=negative,
        negative_prompt_attention_mask=negative_mask, num_images_per_prompt=2,
        generator=[1, 2, 3, 4], **quick,
    )  # fmt: skip
    from_text = latents_of(
        sana, ["a", "a long tale of two cities"], num_images_per_prompt=2,
        generator=[1, 2, 3, 4], **quick,
    )  # fmt: skip
    torch.testing.assert_close(from_embeds, from_text, atol=CLOSE, rtol=0)


def text_arguments(quick):
    return {key: quick[key] for key in ("complex_human_instruction", "max_sequence_length")}


def test_negative_embeddings_need_no_other_argument(sana, quick):
    """In diffusers they collide with the default of `negative_prompt`, which is ""."""
    embeds, mask, negative, negative_mask = sana.encode_prompt(
        "a cat", negative_prompt="a dog", **text_arguments(quick)
    )
    whole = latents_of(
        sana, prompt_embeds=embeds, prompt_attention_mask=mask, negative_prompt_embeds=negative,
        negative_prompt_attention_mask=negative_mask, generator=0, **quick,
    )  # fmt: skip
    half = latents_of(
        sana, "a cat", negative_prompt_embeds=negative,
        negative_prompt_attention_mask=negative_mask, generator=0, **quick,
    )  # fmt: skip
    text = latents_of(sana, "a cat", negative_prompt="a dog", generator=0, **quick)
    torch.testing.assert_close(whole, text, atol=CLOSE, rtol=0)
    torch.testing.assert_close(half, text, atol=CLOSE, rtol=0)


def test_precomputed_embeddings_without_a_text_encoder(saved, sana, quick):
    from sana_like.text import TextEncoding

    embeds, mask, negative, negative_mask = sana.encode_prompt("a cat", **text_arguments(quick))
    bare = SanaPipeline.from_pretrained(saved("sana").folder, tokenizer=None, text_encoder=None)
    bare.set_progress_bar_config(disable=True)
    got = latents_of(
        bare,
        prompt_embeds=TextEncoding(embeds, mask.bool()),
        negative_prompt_embeds=TextEncoding(negative, negative_mask.bool()),
        generator=0,
        **quick,
    )
    torch.testing.assert_close(
        got, latents_of(sana, "a cat", generator=0, **quick), atol=CLOSE, rtol=0
    )
    with pytest.raises(ValueError, match="without a text encoder"):
        bare("a cat", **quick)
    with pytest.raises(ValueError, match="negative_prompt_embeds"):
        bare(prompt_embeds=embeds, prompt_attention_mask=mask, **quick)


class TestSeeds:
    """One generator for each picture; noise does not depend on the batch."""

    seeds = (11, 22, 33, 44)

    @pytest.mark.parametrize("split", [(4,), (3, 1), (1, 1, 1, 1)])
    def test_pictures_do_not_depend_on_the_batch(self, sana, quick, split):
        whole, noises = self.batch(sana, quick, self.seeds)
        begin = 0
        for count in split:
            part, part_noises = self.batch(sana, quick, self.seeds[begin : begin + count])
            assert torch.equal(part_noises, noises[begin : begin + count])
            torch.testing.assert_close(part, whole[begin : begin + count], atol=CLOSE, rtol=0)
            begin += count

    @staticmethod
    def batch(sana, quick, seeds):
        seen = []
        forward = sana.transformer.forward

        def watch(latents, *args, **kwargs):
            seen.append(latents)
            return forward(latents, *args, **kwargs)

        sana.transformer.forward = watch
        try:
            latents = latents_of(
                sana, "a cat", num_images_per_prompt=len(seeds), generator=list(seeds), **quick
            )
        finally:
            sana.transformer.forward = forward
        return latents, seen[0][: len(seeds)]

    def test_bfloat16_agrees_in_any_batch(self, sana, quick):
        sana.to(torch.bfloat16)
        whole, _ = self.batch(sana, quick, self.seeds)
        alone, _ = self.batch(sana, quick, self.seeds[2:3])
        assert (whole[2] - alone[0]).abs().mean() < 2e-2

    def test_short_list_is_refused_naming_both_numbers(self, sana, quick, spied):
        ran = spied(sana)
        generators = [torch.Generator().manual_seed(seed) for seed in self.seeds[:3]]
        with pytest.raises(ValueError, match=r"3 .* 4 "):
            sana("a cat", num_images_per_prompt=4, generator=generators, **quick)
        assert ran == []

    def test_every_picture_records_its_own_seed(self, sana, quick):
        out = sana("a cat", num_images_per_prompt=2, generator=[11, 22], **quick)
        assert [recipe["seed"] for recipe in out.recipe] == [11, 22]
        out = sana("a cat", num_images_per_prompt=2, generator=7, **quick)
        assert [recipe["seed"] for recipe in out.recipe] == [7, 8]
        drawn = [recipe["seed"] for recipe in sana("a cat", **quick).recipe]
        again = latents_of(sana, "a cat", generator=drawn, **quick)
        assert torch.equal(again, latents_of(sana, "a cat", generator=drawn, **quick))

    def test_recipe_makes_the_picture_again(self, sana, quick):
        out = sana(
            ["a cat", "a dog"], negative_prompt=["x", "y"], guidance_interval=(0.0, 0.7),
            pag_scale=1.0, generator=[5, 6], output_type="np", **quick,
        )  # fmt: skip
        recipe = out.recipe[1]
        again = sana(
            recipe["prompt"], negative_prompt=recipe["negative_prompt"],
            generator=[recipe["seed"]], output_type="np", **recipe["settings"],
        )  # fmt: skip
        np.testing.assert_allclose(again.images[0], out.images[1], atol=1e-3)

    def test_numbers_of_numpy(self, sana, quick):
        numbers = {key: np.int64(quick[key]) for key in ("height", "width", "num_inference_steps")}
        seeds = list(np.array([3], dtype=np.int64))
        recipe = sana("a", generator=seeds, **quick | numbers).recipe[0]
        assert recipe["seed"] == 3 and type(recipe["seed"]) is int
        assert json.loads(json.dumps(recipe))["settings"]["num_inference_steps"] == 3

    def test_used_generator_has_no_seed_to_record(self, sana, quick):
        generator = torch.Generator().manual_seed(1)
        torch.randn(1, generator=generator)
        assert sana("a cat", generator=generator, **quick).recipe[0]["seed"] is None

    @pytest.mark.parametrize("wrong", [-1, 1.5, "7", True, [1, "2"]])
    def test_what_is_no_seed_is_refused(self, sana, quick, wrong):
        with pytest.raises(ValueError, match=r"seed|generators"):
            sana("a cat", generator=wrong, num_images_per_prompt=2, **quick)

    def test_a_seed_without_enough_successors_is_refused(self, sana, quick):
        with pytest.raises(ValueError, match="no 1 successors"):
            sana(["a", "b"], generator=2**63 - 1, **quick)
        assert sana("a", generator=2**63 - 1, **quick).recipe[0]["seed"] == 2**63 - 1


class TestSizes:
    """Any size is delivered exactly; what is no size is refused before anything runs."""

    @pytest.mark.parametrize("width", [1, 31, 33, 40])
    @pytest.mark.parametrize("height", [1, 30, 33])
    def test_delivered_exactly(self, sana, quick, width, height):
        arguments = quick | {"height": height, "width": width, "num_inference_steps": 1}
        picture = sana("a cat", **arguments).images[0]
        assert picture.size == (width, height)

    def test_middle_of_the_work_is_delivered(self, sana, quick):
        start = torch.randn(1, 4, 16, 16)
        whole = sana("a", latents=start, output_type="np", **quick).images
        cut = sana(
            "a", latents=start, output_type="np", **quick | {"height": 31, "width": 32}
        ).images
        np.testing.assert_array_equal(cut, whole[:, :31])

    @pytest.mark.parametrize(
        ("given", "nearest"),
        [(0, "1"), (-64, "1"), (512.0, "512"), ("512", "512"), (True, "1"), (None, ""), (2.7, "2")],
    )
    @pytest.mark.parametrize("side", ["height", "width"])
    def test_refused_with_the_nearest_legal_sizes(self, sana, quick, spied, given, nearest, side):
        if given is None:
            return
        ran = spied(sana)
        with pytest.raises(ValueError, match=rf"{side}={given!r}.* legal size: {nearest};"):
            sana("a cat", **quick | {side: given})
        assert ran == []

    @pytest.mark.parametrize(
        ("size", "work"),
        [
            ((1000, 1000), (1024, 1024)),
            ((1080, 1920), (1088, 1920)),
            ((788, 597), (800, 608)),
            ((1025, 1023), (1056, 1024)),
            ((31, 33), (32, 64)),
            ((4096, 32), (4096, 32)),
        ],
    )
    def test_grid_of_the_published_autoencoder(self, size, work):
        from sana_like_pipelines.sizes import plan_size

        planned = plan_size(*size, 32)
        assert (planned.work_height, planned.work_width) == work
        picture = torch.zeros(1, 3, *work)
        assert planned.deliver(picture).shape[-2:] == size
        assert planned.pad(torch.zeros(1, 3, *size)).shape[-2:] == work

    def test_resolution_bins_deliver_the_size_asked_for(self):
        """diffusers loses rows in its bins: 480x640 came out one pixel high."""
        from sana_like_pipelines.sizes import binned_size

        size = binned_size(480, 640, 32, 32)
        assert (size.work_height, size.work_width) == (832, 1152)
        picture = torch.linspace(0, 1, 1152).expand(1, 3, 832, 1152)
        delivered = size.deliver(picture)
        assert delivered.shape[-2:] == (480, 640)
        assert delivered.std() > 0.2
        for height in range(64, 2000, 104):
            for width in range(64, 2000, 88):
                size = binned_size(height, width, 32, 32)
                sides = torch.empty(1, 1, size.work_height, size.work_width, device="meta")
                if (height + width) % 3 == 0:
                    assert size.deliver(sides).shape[-2:] == (height, width)

    def test_bins_need_a_table(self, sana, quick):
        changed = sana.transformer.config | {"sample_size": 20}
        sana.transformer._internal_dict = type(sana.transformer.config)(changed)
        with pytest.raises(ValueError, match="sample_size"):
            sana("a cat", use_resolution_binning=True, **quick)


class TestPrompts:
    """Empty and long prompts at the pipeline."""

    def test_empty_prompt_is_the_unconditional_one(self, sana, quick):
        """With equal branches guidance has nothing to say."""
        plain = latents_of(sana, "", generator=1, guidance_scale=1.0, **quick)
        guided = latents_of(sana, "", generator=1, guidance_scale=7.0, **quick)
        spaces = latents_of(sana, "   ", generator=1, guidance_scale=1.0, **quick)
        torch.testing.assert_close(guided, plain, atol=CLOSE, rtol=0)
        torch.testing.assert_close(spaces, plain, atol=CLOSE, rtol=0)

    @pytest.mark.parametrize("wrong", [None, [], [None], ["a", 1], 7, b"a"])
    def test_what_is_no_prompt_is_refused(self, sana, quick, spied, wrong):
        ran = spied(sana)
        with pytest.raises(ValueError, match="prompt"):
            sana(wrong, **quick)
        assert ran == []

    def test_long_prompt_reports_what_was_cut(self, sana, quick):
        words = " ".join(f"word{i}" for i in range(20))
        with pytest.warns(UserWarning, match="prompt cut"):
            report = sana(words, **quick).reports[0]
        assert report.truncated and report.dropped_words
        assert report.tokens_used <= quick["max_sequence_length"]

    def test_short_prompt_beside_a_long_one(self, sana, quick):
        both = latents_of(sana, ["a", "a cat on a red table"], generator=[1, 2], **quick)
        alone = latents_of(sana, "a", generator=[1], **quick)
        torch.testing.assert_close(both[0], alone[0], atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_images_per_prompt": 0}, "num_images_per_prompt"),
        ({"num_images_per_prompt": 1.5}, "num_images_per_prompt"),
        ({"negative_prompt": ["a", "b"]}, "2 texts for 1 prompts"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"num_inference_steps": 2.5}, "num_inference_steps"),
        ({"timesteps": [900.0], "sigmas": [0.9]}, "not both"),
        ({"guidance_scale": "high"}, "guidance"),
        ({"guidance_scale": float("nan")}, "guidance"),
        ({"guidance_interval": (0.7, 0.2)}, "guidance_interval"),
        ({"guidance_interval": (0.7,)}, "guidance_interval"),
        ({"guidance_interval": 0.7}, "guidance_interval"),
        ({"guidance_interval": ("0", "1")}, "guidance_interval"),
        ({"max_sequence_length": "32"}, "max_sequence_length"),
        ({"max_sequence_length": 32.0}, "max_sequence_length"),
        ({"complex_human_instruction": [1, 2]}, "complex_human_instruction"),
        ({"pag_scale": -1.0}, "pag_scale"),
        ({"pag_scale": 1.0, "pag_applied_layers": 9}, "none of this model's blocks"),
        ({"eta": 0.5}, "eta"),
        ({"clean_caption": True}, "clean_caption"),
        ({"output_type": "jpg"}, "output_type"),
        ({"attention_kwargs": {"gain": 2}}, "attention_kwargs"),
        ({"latents": torch.zeros(1, 4, 8, 8)}, r"\[1, 4, 16, 16\]"),
        ({"latents": torch.full((1, 4, 16, 16), float("nan"))}, "NaN"),
        ({"prompt_embeds": torch.zeros(1, 3, 16)}, "exactly one"),
        ({"prompt_attention_mask": torch.ones(1, 3)}, "without prompt_embeds"),
        ({"negative_prompt_embeds": torch.zeros(1, 3, 16)}, "needs negative_prompt_attention_mask"),
        ({"callback_on_step_end_tensor_inputs": ["noise"]}, "noise"),
        ({"preview": print}, "latent_rgb"),
        ({"preview_every": 0}, "preview_every"),
    ],
)
def test_unusable_arguments_are_refused_before_anything_runs(
    sana, quick, spied, arguments, message
):
    ran = spied(sana)
    with pytest.raises(ValueError, match=message):
        sana("a cat", **quick | arguments)
    assert ran == []


def test_output_types(sana, quick):
    kinds = {
        kind: sana("a", generator=1, output_type=kind, **quick) for kind in ("pil", "np", "pt")
    }
    assert isinstance(kinds["pil"].images[0], Image.Image)
    assert kinds["np"].images.shape == (1, 32, 32, 3) and kinds["np"].images.dtype == np.float32
    assert kinds["pt"].images.shape == (1, 3, 32, 32)
    np.testing.assert_array_equal(kinds["pt"].images.movedim(1, -1).numpy(), kinds["np"].images)
    pixels = np.asarray(kinds["pil"].images[0])
    np.testing.assert_array_equal(pixels, (kinds["np"].images[0] * 255).round())
    as_tuple = sana("a", generator=1, output_type="np", return_dict=False, **quick)
    np.testing.assert_array_equal(as_tuple[0], kinds["np"].images)
    assert kinds["np"][0] is kinds["np"].images


def test_own_levels(sana, quick):
    """Levels instead of a count of steps: diffusers refuses them with its default sampler."""
    arguments = quick | {"generator": 1}
    counted = sana.scheduler.fresh()
    counted.set_timesteps(3)
    expected = latents_of(sana, "a", **arguments)
    by_time = latents_of(sana, "a", timesteps=counted.timesteps.tolist(), **arguments)
    by_level = latents_of(sana, "a", sigmas=counted.sigmas[:-1].tolist(), **arguments)
    torch.testing.assert_close(by_time, expected, atol=CLOSE, rtol=0)
    torch.testing.assert_close(by_level, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    "name", ["FlowDPMSolverScheduler", "FlowEulerScheduler", "FlowHeunScheduler"]
)
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_every_sampler_at_any_step_count(sana, quick, name, steps):
    import sana_like

    sana.scheduler = getattr(sana_like, name).from_config(sana.scheduler.config)
    out = sana("a", **quick | {"num_inference_steps": steps}, output_type="np")
    assert np.isfinite(out.images).all() and out.images.std() > 0.01


def test_levels_of_ones_own_are_refused_where_they_would_be_shifted_again(sana, quick):
    sana.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    assert len(sana("a", **quick).images) == 1
    levels = {"sigmas": [0.9, 0.5]}, {"timesteps": [900.0, 500.0]}
    for given in levels:
        with pytest.raises(ValueError, match=r"FlowMatchEuler.*from_published"):
            sana("a", **quick, **given)


def test_scheduler_of_the_pipeline_is_not_touched(sana, quick):
    before = dict(vars(sana.scheduler))
    sana("a", **quick)
    assert dict(vars(sana.scheduler)) == before
    assert dataclasses.is_dataclass(type(sana.text_settings)) or sana.text_settings is None


def test_sampler_of_another_kind_of_model_is_refused(sana, sprint, quick):
    sana.scheduler, sprint.scheduler = sprint.scheduler, sana.scheduler
    with pytest.raises(ValueError, match="trigflow"):
        sana("a", **quick)
    with pytest.raises(ValueError, match="SCMScheduler"):
        sprint("a", **quick)
