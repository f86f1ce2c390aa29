"""What happens around a step: callbacks, cancelling, previews, and a scheduler of its own."""

from __future__ import annotations

import threading

import pytest
import torch
from diffusers.callbacks import PipelineCallback
from PIL import Image

from sana_like_pipelines import Cancelled, SanaPipeline, fit_latent_rgb
from sana_like_pipelines.preview import LatentRGB

CLOSE = 1e-4


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


@pytest.fixture
def with_previews(sana):
    sana.latent_rgb = fit_latent_rgb(sana.vae, torch.rand(4, 3, 32, 32) * 2 - 1, patch=2)
    return sana


class TestCallbacks:
    def test_sees_every_step_and_what_it_asked_for(self, sana, quick):
        seen = []

        def look(pipe, step, timestep, tensors):
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            seen.append((step, float(timestep), shapes))
            assert pipe is sana and pipe.num_timesteps == 3
            return {}

        names = ["latents", "prompt_embeds", "negative_prompt_embeds", "prompt_attention_mask"]
        sana(
            ["a", "b"], num_images_per_prompt=2, callback_on_step_end=look,
            callback_on_step_end_tensor_inputs=names, **quick,
        )  # fmt: skip
        assert [step for step, _, _ in seen] == [0, 1, 2]
        assert seen[0][2] == {
            "latents": (4, 4, 16, 16),
            "prompt_embeds": (4, 32, 16),
            "negative_prompt_embeds": (4, 32, 16),
            "prompt_attention_mask": (4, 32),
        }

    def test_changed_latents_are_used(self, sana, quick):
        def blank(pipe, step, timestep, tensors):
            return {"latents": torch.zeros_like(tensors["latents"])} if step == 2 else None

        assert not latents_of(sana, "a", callback_on_step_end=blank, **quick).any()

    def test_changed_prompt_is_used_in_both_directions(self, sana, quick):
        """In diffusers a changed negative embedding has no effect."""
        other, _, other_negative, _ = sana.encode_prompt(
            "zzz", negative_prompt="yyy",
            **{k: quick[k] for k in ("complex_human_instruction", "max_sequence_length")},
        )  # fmt: skip
        arguments = quick | {"generator": 1}
        base = latents_of(sana, "a b c", negative_prompt="d e f", **arguments)
        for name, value in {
            "prompt_embeds": other,
            "negative_prompt_embeds": other_negative,
        }.items():

            def swap(pipe, step, timestep, tensors, name=name, value=value):
                return {name: value}

            changed = latents_of(
                sana, "a b c", negative_prompt="d e f", callback_on_step_end=swap,
                callback_on_step_end_tensor_inputs=[name], **arguments,
            )  # fmt: skip
            assert (changed - base).abs().max() > 1e-3, name

    def test_returning_what_came_changes_nothing(self, sana, quick):
        arguments = quick | {"generator": 1}
        echo = latents_of(
            sana, "a", callback_on_step_end=lambda p, i, t, tensors: tensors,
            callback_on_step_end_tensor_inputs=["latents", "prompt_embeds"], **arguments,
        )  # fmt: skip
        assert torch.equal(echo, latents_of(sana, "a", **arguments))

    def test_guidance_can_be_changed(self, sana, quick):
        arguments = quick | {"generator": 1}

        def lower(pipe, step, timestep, tensors):
            pipe._guidance_scale = 1.0

        cut = latents_of(sana, "a", callback_on_step_end=lower, **arguments)
        interval = latents_of(sana, "a", guidance_interval=(0.0, 1 / 3), **arguments)
        torch.testing.assert_close(cut, interval, atol=CLOSE, rtol=0)

    def test_guidance_cannot_be_raised_without_a_negative_prompt(self, sana, quick):
        def raise_it(pipe, step, timestep, tensors):
            pipe._guidance_scale = 5.0

        with pytest.raises(ValueError, match="guidance was raised"):
            sana("a", guidance_scale=1.0, callback_on_step_end=raise_it, **quick)

    def test_unknown_results_are_refused(self, sana, quick):
        with pytest.raises(ValueError, match="latent"):
            sana("a", callback_on_step_end=lambda *_: {"latent": 1}, **quick)
        with pytest.raises(ValueError, match=r"latents of shape \[1, 4, 3, 3\]"):
            sana("a", callback_on_step_end=lambda *_: {"latents": torch.ones(1, 4, 3, 3)}, **quick)

    def test_callback_objects_of_diffusers(self, sana, quick):
        class Look(PipelineCallback):
            steps = 0

            @property
            def tensor_inputs(self):
                return ["prompt_embeds"]

            def callback_fn(self, pipeline, step_index, timestep, callback_kwargs):
                assert set(callback_kwargs) == {"prompt_embeds"}
                self.steps += 1
                return callback_kwargs

        look = Look(cutoff_step_ratio=None, cutoff_step_index=1)
        sana("a", callback_on_step_end=look, **quick)
        assert look.steps == 3


class TestCancel:
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_ends_the_call_without_a_picture(self, sana, quick, after):
        answers = iter([False] * after + [True])
        with pytest.raises(Cancelled) as caught:
            sana("a", cancel=lambda: next(answers), **quick)
        assert caught.value.step == after

    def test_next_call_is_not_affected(self, sana, quick):
        arguments = quick | {"generator": 1}
        before = latents_of(sana, "a", **arguments)
        with pytest.raises(Cancelled):
            sana("a", cancel=lambda: True, **quick)
        assert torch.equal(latents_of(sana, "a", **arguments), before)

    @pytest.mark.parametrize("attribute", ["interrupt", "_interrupt"])
    def test_interrupt_gives_the_picture_as_it_is(self, sana, quick, attribute):
        seen = []

        def stop(pipe, step, timestep, tensors):
            seen.append(tensors["latents"])
            setattr(pipe, attribute, step == 1)

        result = latents_of(sana, "a", callback_on_step_end=stop, **quick)
        assert len(seen) == 2
        assert torch.equal(result, seen[-1])


class TestPreviews:
    def test_small_pictures_as_it_goes(self, with_previews, quick):
        seen = []
        with_previews(
            ["a", "b"], preview=lambda *event: seen.append(event), preview_every=2,
            **quick | {"num_inference_steps": 5},
        )  # fmt: skip
        assert [(done, total) for done, total, _ in seen] == [(2, 5), (4, 5), (5, 5)]
        pictures = seen[0][2]
        assert len(pictures) == 2 and isinstance(pictures[0], Image.Image)
        assert pictures[0].size == (32, 32)

    def test_map_is_the_least_squares_one(self):
        """Where a linear map exists it is found exactly."""

        class Linear:
            spatial_compression_ratio, device, dtype = 4, torch.device("cpu"), torch.float32

            class config:
                latent_channels, scaling_factor = 12, 0.5

            @staticmethod
            def encode(pictures):
                cells = torch.nn.functional.adaptive_avg_pool2d(pictures, (8, 8))
                latent = torch.nn.functional.pixel_unshuffle(cells, 2)
                return type("Out", (), {"latent": latent * 3 + 1})

        pictures = torch.rand(4, 3, 16, 16) * 1.8 - 0.9
        mapping = fit_latent_rgb(Linear, [pictures[:1], pictures[1:]], patch=2)
        expected = torch.nn.functional.adaptive_avg_pool2d(pictures, (8, 8)) / 2 + 0.5
        got = mapping(Linear.encode(pictures).latent * 0.5)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        again = LatentRGB.from_dict(mapping.to_dict())
        torch.testing.assert_close(again(torch.ones(1, 12, 2, 2)), mapping(torch.ones(1, 12, 2, 2)),
                                   atol=1e-3, rtol=0)  # fmt: skip

    def test_travels_with_the_folder(self, with_previews, tmp_path):
        with_previews.save_pretrained(tmp_path)
        again = SanaPipeline.from_pretrained(tmp_path)
        torch.testing.assert_close(
            again.latent_rgb.weight, with_previews.latent_rgb.weight, atol=1e-3, rtol=0
        )

    @pytest.mark.parametrize(
        "values", [{}, {"patch": 2, "weight": [[1.0]], "bias": [0.0]}, {"patch": "x"}]
    )
    def test_broken_maps_are_refused(self, values):
        with pytest.raises(ValueError, match="latent_rgb"):
            LatentRGB.from_dict(values)

    def test_too_few_pictures(self, sana):
        with pytest.raises(ValueError, match="more pictures"):
            fit_latent_rgb(sana.vae, torch.zeros(1, 3, 2, 2), patch=2)
        with pytest.raises(ValueError, match="divide"):
            fit_latent_rgb(sana.vae, torch.zeros(1, 3, 32, 32), patch=3)


def test_two_requests_at_once_do_not_meet(sana, quick):
    """Each call has a sampler of its own, so threads may share a pipeline."""
    arguments = quick | {"num_inference_steps": 4}
    expected = {
        steps: latents_of(sana, "a", generator=1, **arguments | {"num_inference_steps": steps})
        for steps in (3, 4)
    }
    results, barrier = {}, threading.Barrier(2)

    def run(steps):
        def wait(pipe, step, timestep, tensors):
            barrier.wait(timeout=20) if step < 3 else None

        results[steps] = latents_of(
            sana, "a", generator=1, callback_on_step_end=wait,
            **arguments | {"num_inference_steps": steps},
        )  # fmt: skip

    threads = [threading.Thread(target=run, args=(steps,)) for steps in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for steps, latents in expected.items():
        assert torch.equal(results[steps], latents)
