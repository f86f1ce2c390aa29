"""One interface over every autoencoder: normalised latents, counts of frames, chunks."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.autoencoders.codec import video_codec
from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.dc_ae_video import AutoencoderDCVideo
from sana_like.state import load_parts, save_parts

SMALL = {
    "latent_channels": 8,
    "encoder_block_types": "GLUMBConv",
    "decoder_block_types": "GLUMBConv",
    "encoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "decoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "encoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "decoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "encoder_qkv_multiscales": ((),) * 6,
    "decoder_qkv_multiscales": ((),) * 6,
    "resample_empty_stages": True,
    "norm_type": "layer_norm",
    "decoder_norm_types": "layer_norm",
    "scaling_factor": 0.5,
}
LTX2 = {
    "latent_channels": 8,
    "block_out_channels": (8, 16, 32, 64),
    "decoder_block_out_channels": (8, 16, 32),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "scaling_factor": 0.7,
}


def wan():
    return diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1,
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[2.0, 1.5, 0.5, 1.0],
    )  # fmt: skip


def ltx2(**changes):
    model = diffusers.AutoencoderKLLTX2Video(**LTX2 | changes)
    model.latents_mean.copy_(torch.linspace(-1, 1, 8))
    model.latents_std.copy_(torch.linspace(0.5, 2, 8))
    return model


MAKERS = {
    "picture": lambda: AutoencoderDC(**SMALL),
    "dc-ae-v": lambda: AutoencoderDCVideo(**SMALL),
    "wan": wan,
    "ltx2": ltx2,
}
RATIOS = {"picture": (32, 1), "dc-ae-v": (32, 4), "wan": (8, 4), "ltx2": (32, 8)}


def error(out, wanted):
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture(params=MAKERS)
def codec(request):
    torch.manual_seed(0)
    model = MAKERS[request.param]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "temporal" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    codec = video_codec(model)
    assert (codec.spatial_ratio, codec.temporal_ratio) == RATIOS[request.param]
    return codec


@torch.no_grad()
def test_counts_and_normalisation(codec):
    ratio, side = codec.temporal_ratio, codec.spatial_ratio
    clip = torch.rand(1, 3, 1 + 2 * ratio, 2 * side, 3 * side) * 2 - 1
    latents = codec.encode_video(clip)
    assert latents.shape == (1, codec.latent_channels, 3, 2, 3)
    assert codec.latent_frames(1 + 2 * ratio) == 3 and codec.pixel_frames(3) == 1 + 2 * ratio
    assert codec.latent_frames(2) == 2 and codec.pixel_frames(2, start=False) == 2 * ratio
    torch.testing.assert_close(codec._normalise(codec._restore(latents)), latents)
    assert codec.decode_video(latents).shape == clip.shape
    fewer = codec.encode_video(clip[:, :, : 2 + ratio])
    assert fewer.shape[2] == codec.latent_frames(2 + ratio)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [2, 3], [1, 4]])
@torch.no_grad()
def test_chunks_are_the_whole(sizes, codec, tmp_path):
    latents = torch.randn(2, codec.latent_channels, 5, 2, 3)
    whole, cache, parts, held = codec.decode_video(latents), None, [], []
    for part in latents.split(sizes, dim=2):
        start = cache is None
        if not start and sizes == [2, 3]:
            save_parts(tmp_path / "cache.safetensors", {"decoder": cache})
            kinds = {"decoder": codec.cache_type}
            cache = load_parts(tmp_path / "cache.safetensors", kinds)[0]["decoder"]
        frames, cache = codec.decode_chunk(part, cache)
        assert frames.shape[2] == codec.pixel_frames(part.shape[2], start=start)
        parts.append(frames)
        held.append(cache.nbytes)
    assert error(torch.cat(parts, dim=2), whole) <= 1e-4
    assert len(set(held[2:])) <= 1
    streamed = torch.cat(list(codec.decode_stream(latents.split(sizes, dim=2))), dim=2)
    assert torch.equal(streamed, torch.cat(parts, dim=2))


@torch.no_grad()
def test_tiling_can_be_turned_on_and_off(codec):
    latents = torch.randn(1, codec.latent_channels, 4, 2, 2)
    whole = codec.decode_video(latents)
    codec.enable_tiling()
    assert codec.model.use_tiling
    assert codec.decode_video(latents).shape == whole.shape
    codec.disable_tiling()
    assert torch.equal(codec.decode_video(latents), whole)


def test_published_normalisation():
    codec = video_codec(wan())
    raw = torch.randn(1, 4, 2, 1, 1)
    wanted = (raw - torch.tensor([0.1, -0.2, 0.3, 0.0]).view(1, 4, 1, 1, 1)) / torch.tensor(
        [2.0, 1.5, 0.5, 1.0]
    ).view(1, 4, 1, 1, 1)
    torch.testing.assert_close(codec._normalise(raw), wanted)
    codec = video_codec(ltx2())
    pipeline = diffusers.pipelines.ltx2.pipeline_ltx2.LTX2Pipeline
    raw, model = torch.randn(1, 8, 2, 1, 1), codec.model
    wanted = pipeline._normalize_latents(raw, model.latents_mean, model.latents_std, 0.7)
    torch.testing.assert_close(codec._normalise(raw), wanted)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"decoder_causal": False}, "looks ahead"), ({"decoder_inject_noise": True}, "draws noise")],
)
def test_decoders_that_cannot_be_cut_say_so(changes, reason):
    codec = video_codec(ltx2(**changes))
    assert not codec.streams
    with pytest.raises(ValueError, match=reason):
        codec.decode_chunk(torch.randn(1, 8, 2, 1, 1))


def test_wrong_inputs_are_refused():
    codec = video_codec(AutoencoderDC(**SMALL))
    for call, message in (
        (lambda: codec.encode_video(torch.randn(1, 3, 32, 32)), "frames, height, width"),
        (lambda: codec.encode_video(torch.randn(1, 3, 1, 30, 32)), "multiples of 32"),
        (lambda: codec.decode_video(torch.randn(1, 7, 1, 1, 1)), r"\[B, 8, frames"),
        (lambda: video_codec(torch.nn.Linear(1, 1)), "AutoencoderKLWan"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
