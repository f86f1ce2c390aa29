"""Decoding: errors are told, not hidden; NaN never becomes a picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sana_like_pipelines import DecodeMemoryError, NonFiniteError
from sana_like_pipelines.decode import decode_latents


def starve(vae, monkeypatch, largest):
    """Let decoding of more than `largest` latent cells run out of memory."""
    decode, asked = vae._decode, []

    def limited(z):
        cells = z.shape[0] * z.shape[1] * z.shape[2]
        asked.append((cells, vae.use_tiling))
        if cells > largest and not vae.use_tiling:
            raise torch.OutOfMemoryError("tried to allocate 99 GiB")
        return decode(z)

    monkeypatch.setattr(vae, "_decode", limited)
    return asked


def test_decode_that_runs_out_of_memory_is_repeated_in_tiles(sana, quick, monkeypatch):
    """In diffusers the error turns into an UnboundLocalError."""
    expected = sana("a", generator=1, output_type="np", **quick).images
    starve(sana.vae, monkeypatch, largest=0)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        got = sana("a", generator=1, output_type="np", **quick).images
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert not sana.vae.use_tiling and not sana.vae.use_slicing
    assert sana.vae.tile_sample_min_height == 1024


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_decode_that_never_fits_names_the_remedy(sana, quick, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(sana.vae, "_decode", fail)
    with pytest.warns(RuntimeWarning), pytest.raises(DecodeMemoryError, match="smaller tiles"):
        sana("a", **quick)
    assert not sana.vae.use_tiling
    sana.vae.enable_tiling()
    with pytest.raises(DecodeMemoryError, match="enable_model_cpu_offload"):
        sana("a", **quick)


def test_other_errors_pass_through(sana, quick, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("something else")

    monkeypatch.setattr(sana.vae, "_decode", fail)
    with pytest.raises(RuntimeError, match="something else"):
        sana("a", **quick)


def test_tiles_asked_for_beforehand_act(sana, quick):
    """A 96 px picture in 32 px tiles; nothing swallows the setting."""
    arguments = quick | {"height": 96, "width": 96, "generator": 1, "output_type": "np"}
    whole = sana("a", **arguments).images
    sana.vae.enable_tiling(tile_sample_min_height=32, tile_sample_min_width=32)
    tiled = sana("a", **arguments).images
    np.testing.assert_allclose(tiled, whole, atol=2 / 255)


@pytest.mark.parametrize(
    ("component", "parameter", "stage"),
    [
        ("text_encoder", "embed_tokens.weight", "text"),
        ("transformer", "proj_out.bias", "step 1 of 3"),
        ("vae", "decoder.conv_out.bias", "decoding"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_name_the_stage_and_give_no_picture(
    sana, quick, component, parameter, stage, value
):
    with torch.no_grad():
        getattr(sana, component).get_parameter(parameter).fill_(value)
    with pytest.raises(NonFiniteError, match=stage) as caught:
        sana("a", **quick)
    assert stage in caught.value.stage
    assert isinstance(caught.value, ValueError)


def test_overflow_in_half_precision_names_the_remedy(sana, quick):
    with torch.no_grad():
        sana.transformer.proj_out.weight.fill_(6e4)
    sana.transformer.half()
    sana.vae.half()
    with pytest.raises(NonFiniteError, match="bfloat16"):
        sana("a", **quick)


def test_overflow_inside_the_transformer_names_the_layer(sana, quick):
    with torch.no_grad():
        sana.transformer.transformer_blocks[1].ff.conv_point.weight.fill_(6e4)
    sana.transformer.half()
    with pytest.raises(NonFiniteError, match=r"transformer_blocks\.1"):
        sana("a", **quick)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_single(sana, quick, dtype):
    arguments = quick | {"generator": 1, "output_type": "np", "guidance_scale": 2.0}
    expected = sana("a cat", **arguments).images
    sana.transformer.to(dtype)
    sana.vae.to(dtype)
    got = sana("a cat", **arguments).images
    assert got.dtype == np.float32
    assert np.abs(got - expected).mean() < 0.03


def test_single_colour_is_warned_of(sana, quick):
    with torch.no_grad():
        sana.vae.decoder.conv_out.weight.zero_()
    with pytest.warns(RuntimeWarning, match="picture 0, 1 of the batch"):
        sana("a", num_images_per_prompt=2, **quick)


def test_decode_latents_is_scaled(sana):
    latents = torch.randn(1, 4, 8, 8)
    expected = sana.vae.decode(latents / sana.vae.config.scaling_factor).sample
    pictures, tiles = decode_latents(sana.vae, latents)
    assert torch.equal(pictures, expected) and tiles is None
