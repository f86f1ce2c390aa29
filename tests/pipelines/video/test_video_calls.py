"""Clips from text and from pictures: counts, sizes, batches, guidance, recipes."""

from __future__ import annotations

import inspect
import json

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from sana_like import AutoencoderDC
from sana_like_pipelines import (
    Cancelled,
    SanaImageToVideoPipeline,
    SanaLongVideoPipeline,
    SanaVideoPipeline,
)
from sana_like_pipelines.preview import LatentRGB


def close(one, other, tolerance=2e-4):
    return float((one - other).detach().abs().max()) <= tolerance


@pytest.mark.parametrize("frames", [1, 2, 5, 6, 16])
def test_any_count_of_frames(text_video, brief, frames):
    clips = text_video("a", frames=frames, **brief).frames
    assert clips.shape == (1, frames, 3, 64, 64)
    if frames == 6:
        whole = text_video("a", frames=9, **brief).frames
        assert torch.equal(clips, whole[:, :6])


@pytest.mark.parametrize("frames", [0, -1, 2.5, "9", True])
def test_no_count_is_refused_before_anything_is_computed(text_video, brief, frames):
    text_video.transformer = None
    with pytest.raises((ValueError, AttributeError), match="nearest legal counts: 1"):
        text_video.clip_size(64, 64, frames)


@pytest.mark.parametrize("size", [(64, 64), (50, 70), (33, 96), (1, 1)])
def test_any_size_is_delivered_exactly(text_video, brief, size):
    height, width = size
    clips = text_video("a", frames=2, height=height, width=width, **brief).frames
    assert clips.shape == (1, 2, 3, height, width)


def test_defaults_are_those_of_the_training(text_video, brief):
    out = text_video("a", **brief)
    assert out.frames.shape == (1, 9, 3, 64, 64)
    assert out.rate == text_video.rate == 8.0


def test_batches_are_what_each_clip_is_alone(text_video, brief):
    prompts = ["a long description of a cat", "b"]
    arguments = {**brief, "generator": [1, 2, 3, 4], "frames": 5}
    batch = text_video(prompts, num_videos_per_prompt=2, **arguments).frames
    for place, (prompt, seed) in enumerate(zip("aabb", (1, 2, 3, 4), strict=True)):
        text = prompts["ab".index(prompt)]
        alone = text_video(text, **{**arguments, "generator": seed}).frames[0]
        assert close(batch[place], alone)


def test_output_types(text_video, brief):
    arguments = {**brief, "frames": 2}
    tensor = text_video("a", **arguments).frames
    array = text_video("a", **{**arguments, "output_type": "np"}).frames
    pictures = text_video("a", **{**arguments, "output_type": "pil"}).frames
    latents = text_video("a", **{**arguments, "output_type": "latent"}).frames
    assert array.shape == (1, 2, 64, 64, 3)
    assert np.allclose(array, tensor.movedim(2, -1).numpy())
    assert [len(clip) for clip in pictures] == [2] and pictures[0][0].size == (64, 64)
    assert latents.shape == (1, 8, 2, 2, 2)
    assert isinstance(text_video("a", **arguments, return_dict=False), tuple)


@pytest.mark.parametrize(
    "changes",
    [
        {"stg_scale": 2.0},
        {"stg_scale": 2.0, "stg_interval": (0.5, 1.0)},
        {"apg_eta": 0.0},
        {"guidance_interval": (0.0, 0.5)},
        {"guidance_scale": 1.0},
    ],
)
def test_guidance_acts_and_its_passes_agree(text_video, brief, changes):
    arguments = {**brief, "frames": 5, **changes}
    plain = text_video("a", **{**brief, "frames": 5}).frames
    batched = text_video("a", guidance_passes="batched", **arguments).frames
    one_by_one = text_video("a", guidance_passes="sequential", **arguments).frames
    assert close(batched, one_by_one)
    assert not close(batched, plain)


def test_guidance_that_does_nothing_changes_nothing(text_video, brief):
    arguments = {**brief, "frames": 5}
    plain = text_video("a", **arguments).frames
    assert torch.equal(plain, text_video("a", **arguments, stg_interval=(0.0, 0.0)).frames)
    assert close(plain, text_video("a", **arguments, apg_eta=1.0).frames)
    with pytest.raises(ValueError, match="stg_applied_layers"):
        text_video("a", **arguments, stg_scale=1.0, stg_applied_layers=7)
    with pytest.raises(ValueError, match="apg_norm_threshold"):
        text_video("a", **arguments, apg_eta=0.0, apg_norm_threshold=-1.0)


def test_skipped_blocks_are_skipped_for_one_branch_alone(text_video, brief, monkeypatch):
    seen = []
    forward = text_video.transformer.forward

    def watch(*args, **kwargs):
        seen.append((kwargs["skipped_layers"], kwargs["perturbed_rows"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(text_video.transformer, "forward", watch)
    text_video("a", **brief, frames=1, stg_scale=1.0, stg_applied_layers=[0, 2])
    assert seen[0][0] == (0, 2)
    assert seen[0][1].tolist() == [False, False, True]


def test_cancel_callback_and_preview(text_video, brief):
    steps, shown = [], []
    text_video.latent_rgb = LatentRGB(1, torch.zeros(3, 8), torch.zeros(3))

    def callback(pipe, step, timestep, tensors):
        steps.append(tuple(tensors["latents"].shape))
        return {"latents": tensors["latents"] * 0}

    text_video(
        "a",
        **brief,
        frames=5,
        callback_on_step_end=callback,
        preview=lambda done, total, pictures: shown.append((done, total, pictures[0].size)),
    )
    assert steps == [(1, 8, 2, 2, 2)] * 2
    assert shown == [(1, 2, (2, 2)), (2, 2, (2, 2))]
    with pytest.raises(Cancelled):
        text_video("a", **brief, frames=5, cancel=lambda: True)


def test_recipe_makes_the_clip_again(text_video, brief):
    out = text_video("a", frames=6, height=50, width=70, stg_scale=1.0, **brief)
    (recipe,) = json.loads(json.dumps(out.recipe))
    assert (recipe["pipeline"], recipe["rate"]) == ("SanaVideoPipeline", "8")
    assert recipe["settings"]["frames"] == 6
    again = text_video(
        recipe["prompt"],
        negative_prompt=recipe["negative_prompt"],
        generator=[recipe["seed"]],
        output_type="pt",
        **recipe["settings"],
    )
    assert torch.equal(again.frames, out.frames)


def test_latents_given(text_video, brief):
    noise = torch.randn(1, 8, 3, 2, 2)
    made = text_video("a", latents=noise, frames=9, **brief).frames
    assert not close(made, text_video("a", frames=9, **brief).frames)
    with pytest.raises(ValueError, match=r"needs \[1, 8, 2, 2, 2\]"):
        text_video("a", latents=noise, frames=5, **brief)


def test_what_is_refused(text_video, brief):
    for changes, message in (
        ({"use_resolution_binning": True}, "any size is delivered"),
        ({"num_videos_per_prompt": 0}, "num_videos_per_prompt=0"),
        ({"eta": 1.0}, "eta"),
        ({"guidance_passes": "both"}, "guidance_passes"),
        ({"height": 0}, "height=0"),
    ):
        with pytest.raises(ValueError, match=message):
            text_video("a", **{**brief, **changes})


def test_parts_that_do_not_fit(sana, make_video, networks):
    with pytest.raises(ValueError, match="makes pictures"):
        make_video(SanaVideoPipeline, transformer=sana.transformer)
    with pytest.raises(ValueError, match="8 latent channels"):
        transformer = type(networks["transformer"]).from_config(
            {**networks["transformer"].config, "in_channels": 4}
        )
        make_video(SanaVideoPipeline, transformer=transformer)
    ltx = diffusers.AutoencoderKLLTX2Video(
        latent_channels=8,
        block_out_channels=(8, 16, 32, 64),
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        decoder_causal=False,
    )
    with pytest.raises(ValueError, match="cannot decode a stream"):
        make_video(SanaLongVideoPipeline, vae=ltx)


def test_picture_autoencoder_makes_clips_too(make_video, networks, brief):
    known = inspect.signature(AutoencoderDC.__init__).parameters
    values = {k: v for k, v in networks["vae"].config.items() if k in known}
    pipe = make_video(SanaVideoPipeline, vae=AutoencoderDC(**values))
    assert pipe("a", **brief, frames=3).frames.shape == (1, 3, 3, 64, 64)


def test_estimate_grows_with_what_is_asked(text_video):
    small = text_video.estimate(64, 64, 1)
    assert text_video.estimate(64, 64, 81).peak > small.peak
    assert text_video.estimate(256, 256, 1).activations["decode"] > small.activations["decode"]
    assert (
        text_video.estimate(64, 64, 9, num_videos=4).activations["denoise"]
        > (text_video.estimate(64, 64, 9).activations["denoise"])
    )
    with pytest.raises(ValueError, match="num_videos"):
        text_video.estimate(num_videos=0)


def test_saving_keeps_the_settings_and_any_of_the_classes_loads(text_video, brief, tmp_path):
    text_video.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text("utf-8"))
    assert index["_class_name"] == "SanaVideoPipeline"
    assert index["transformer"] == ["diffusers", "SanaVideoTransformer3DModel"]
    before = text_video("a", frames=2, **brief).frames
    for kind in (SanaVideoPipeline, SanaImageToVideoPipeline, SanaLongVideoPipeline):
        pipe = kind.from_pretrained(tmp_path)
        assert pipe.video_settings == text_video.video_settings
        assert pipe.codec.temporal_ratio == 4
    pipe = SanaVideoPipeline.from_pretrained(tmp_path)
    pipe.set_progress_bar_config(disable=True)
    assert torch.equal(pipe("a", frames=2, **brief).frames, before)
    shared = SanaImageToVideoPipeline.from_pipe(pipe)
    assert shared.transformer is pipe.transformer
    assert shared.video_settings == pipe.video_settings


def test_published_sizes_without_settings(make_video):
    pipe = make_video(SanaVideoPipeline, video_settings=None)
    assert (pipe.trained_for.height, pipe.trained_for.frames, pipe.rate) == (64, 81, 16.0)


def picture(width=90, height=60, colour=(200, 40, 40)):
    return Image.new("RGB", (width, height), colour)


def test_the_first_latent_frame_is_the_picture(image_video, brief):
    arguments = {**brief, "output_type": "latent", "frames": 9, "height": 64, "width": 64}
    latents = image_video(picture(), "a", **arguments).frames
    encoded = image_video.codec.encode_video(
        torch.tensor([200, 40, 40]).view(1, 3, 1, 1, 1).expand(1, 3, 1, 64, 64) / 127.5 - 1
    )
    assert close(latents[:, :, :1], encoded, 1e-5)
    other = image_video(picture(colour=(0, 0, 0)), "a", **arguments).frames
    assert not close(latents[:, :, 1:], other[:, :, 1:])


def test_pictures_are_fitted_in_proportion_and_the_recipe_says_how(image_video, brief):
    out = image_video(picture(200, 50), "a", **brief, frames=1)
    height, width = out.frames.shape[-2:]
    assert (height, width) == (32, 128)  # its shape, at the trained number of pixels
    (record,) = out.recipe[0]["fitted"]
    assert (record["source"], record["target"]) == ([50, 200], [height, width])
    padded = image_video(picture(), "a", **brief, frames=1, height=64, width=64, image_fit="pad")
    (record,) = padded.recipe[0]["fitted"]
    assert record["how"] == "pad" and not any(record["cut"].values())
    with pytest.raises(ValueError, match="cut, pad"):
        image_video(picture(), "a", **brief, image_fit="stretch")


def test_several_clips_of_several_pictures(image_video, brief, monkeypatch):
    pictures = [picture(64, 64), picture(64, 64, (0, 90, 0))]
    arguments = {**brief, "generator": [1, 2, 3, 4], "frames": 5}
    encoded = []
    encode = image_video.codec.encode_video
    monkeypatch.setattr(
        image_video.codec, "encode_video", lambda x: encoded.append(len(x)) or encode(x)
    )
    batch = image_video(pictures, ["a", "b"], num_videos_per_prompt=2, **arguments).frames
    assert encoded == [2]
    for place in range(4):
        alone = image_video(
            pictures[place // 2], "ab"[place // 2], **{**arguments, "generator": place + 1}
        ).frames[0]
        assert close(batch[place], alone)
    with pytest.raises(ValueError, match="2 pictures for 3 prompts"):
        image_video(pictures, ["a", "b", "c"], **brief)
    with pytest.raises(ValueError, match="image is missing"):
        image_video(None, "a", **brief)
