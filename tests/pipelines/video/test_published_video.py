"""A folder that diffusers wrote loads as it is and makes the clips that diffusers makes."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.schedulers import from_published
from sana_like_pipelines import SanaImageToVideoPipeline, SanaLongVideoPipeline, SanaVideoPipeline
from tests.pipelines import conftest as tiny
from tests.pipelines.video.conftest import lively

TRANSFORMER = {
    "in_channels": 4,
    "out_channels": 4,
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": tiny.CAPTION,
    "sample_size": 2,
}


@pytest.fixture(scope="module")
def stock():
    vae = diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1,
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[2.0, 1.5, 0.5, 1.0],
    )  # fmt: skip
    pipe = diffusers.SanaVideoPipeline(
        tokenizer=tiny.tiny_tokenizer(),
        text_encoder=tiny.tiny_encoder(),
        vae=lively(vae, 2),
        transformer=lively(diffusers.SanaVideoTransformer3DModel(**TRANSFORMER), 3),
        scheduler=tiny.dpm_scheduler(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def folder(stock, tmp_path_factory):
    path = tmp_path_factory.mktemp("published")
    stock.save_pretrained(path)
    return path


CALL = {
    "complex_human_instruction": tiny.INSTRUCTION,
    "max_sequence_length": tiny.LENGTH,
    "num_inference_steps": 3,
    "guidance_scale": 3.0,
    "height": 32,
    "width": 64,
    "frames": 9,
    "use_resolution_binning": False,
}


def test_same_clips_as_diffusers(stock, folder):
    ours = SanaVideoPipeline.from_pretrained(folder)
    ours.set_progress_bar_config(disable=True)
    ours.scheduler = from_published(ours.scheduler.published_config(), compatible=True)
    noise = torch.randn(1, 4, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    wanted = stock("a cat runs", latents=noise, output_type="latent", **CALL).frames
    made = ours("a cat runs", latents=noise, output_type="latent", **CALL).frames
    assert (made - wanted).norm() <= 1e-3 * wanted.norm()
    theirs = stock("a cat runs", latents=noise, output_type="pt", **CALL).frames
    frames = ours("a cat runs", latents=noise, output_type="pt", **CALL).frames
    assert frames.shape == theirs.shape
    assert (frames - theirs).abs().mean() < 2e-3


def test_written_again_it_loads_in_diffusers(folder, tmp_path):
    ours = SanaVideoPipeline.from_pretrained(folder)
    ours.save_pretrained(tmp_path)
    again = diffusers.SanaVideoPipeline.from_pretrained(tmp_path)
    for name, tensor in again.transformer.state_dict().items():
        assert tensor.isfinite().all(), name
    assert type(again.vae).__name__ == "AutoencoderKLWan"


@pytest.mark.parametrize("size", [(16, 16), (40, 72), (33, 65)])
def test_sizes_that_the_bins_of_diffusers_cannot_make(folder, size):
    ours = SanaImageToVideoPipeline.from_pretrained(folder)
    ours.set_progress_bar_config(disable=True)
    picture = torch.rand(3, 20, 30)
    call = {**CALL, "height": size[0], "width": size[1], "frames": 2}
    clips = ours(picture, "a", output_type="pt", generator=1, **call).frames
    assert clips.shape == (1, 2, 3, *size)


def test_a_stream_through_wan_is_the_same_however_it_is_taken(folder):
    ours = SanaLongVideoPipeline.from_pretrained(folder)
    ours.set_progress_bar_config(disable=True)
    call = {k: v for k, v in CALL.items() if k not in ("use_resolution_binning", "frames")}
    call |= {"output_type": "pt", "generator": 1, "chunk": 1}
    expected = torch.stack(list(ours.stream("a", frames=9, **call)))
    stream = ours.stream("a", **call)
    begin = [next(stream) for _ in range(3)]
    rest = list(ours.stream(state=stream.state, frames=6, output_type="pt"))
    assert torch.equal(torch.stack([*begin, *rest]), expected)


def test_the_instruction_is_that_for_videos(folder):
    ours = SanaVideoPipeline.from_pretrained(folder)
    assert "motion" in (ours.active_text_settings().instruction or "")
