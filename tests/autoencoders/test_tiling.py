"""Tiled encode and decode equal the whole; work per call follows the tile."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.tiling import map_tiles, tile_spans


def tiny(kind: str, **config: object) -> AutoencoderDC:
    torch.manual_seed(0)
    blocks = ("ResBlock",) * 3 + (kind,) * 3
    return AutoencoderDC(
        latent_channels=8,
        attention_head_dim=8,
        encoder_block_types=blocks,
        decoder_block_types=blocks,
        encoder_block_out_channels=(4, 4, 8, 16, 16, 16),
        decoder_block_out_channels=(4, 4, 8, 16, 16, 16),
        encoder_layers_per_block=(1, 2, 1, 1, 1, 1),
        decoder_layers_per_block=(2, 1, 1, 1, 1, 1),
        **config,  # type: ignore[arg-type]
    ).eval()


MODELS = {
    "attention, interpolate": lambda: tiny(
        "EfficientViTBlock", upsample_block_type="interpolate", downsample_block_type="conv"
    ),
    "attention, shuffle": lambda: tiny("EfficientViTBlock"),
    "convolutions only": lambda: tiny("GLUMBConv"),
}


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 9))
def test_tiles_deliver_every_cell_once(length: int, core: int, halo: int) -> None:
    delivered = []
    for read, deliver, inner in tile_spans(length, core, halo):
        cells = range(length)
        assert list(cells[read])[inner] == list(cells[deliver])
        assert read.stop - read.start <= core + 2 * halo
        delivered += cells[deliver]
    assert delivered == list(range(length))


def test_empty_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="core >= 1"):
        list(tile_spans(10, 0, 1))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9))
def test_a_convolution_is_tiled_exactly(height: int, width: int, core: int) -> None:
    plane = torch.randn(1, height, width, 2)
    kernel = torch.randn(3, 2, 5, 5)

    def convolve(part: Tensor) -> Tensor:
        return F.conv2d(part.permute(0, 3, 1, 2), kernel, padding=2).permute(0, 2, 3, 1)

    tiled = map_tiles(plane, convolve, core=(core, 7), halo=2, scale=Fraction(1))
    assert torch.allclose(tiled, convolve(plane), atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("height", "width", "batch"), [(8, 8, 1), (9, 13, 2), (1, 5, 1)])
@torch.no_grad()
def test_decode_in_tiles_equals_the_whole(model: str, height: int, width: int, batch: int) -> None:
    autoencoder = MODELS[model]()
    latents = torch.randn(batch, 8, height, width)
    whole = autoencoder.decode(latents).sample
    autoencoder.enable_tiling(128, 128, 96, 96)
    tiled = autoencoder.decode(latents).sample
    assert tiled.shape == whole.shape == (batch, 3, 32 * height, 32 * width)
    assert (tiled - whole).norm() / whole.norm() < 1e-5


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_encode_in_tiles_equals_the_whole(model: str) -> None:
    autoencoder = MODELS[model]()
    pictures = torch.randn(1, 3, 290, 200)
    whole = autoencoder.encode(pictures).latent
    autoencoder.enable_tiling(128, 128, 96, 64)
    tiled = autoencoder.encode(pictures).latent
    assert tiled.shape == whole.shape == (1, 8, 10, 7)
    assert (tiled - whole).norm() / whole.norm() < 1e-5


@torch.no_grad()
def test_a_tile_larger_than_the_latent_is_bit_equal() -> None:
    autoencoder = MODELS["attention, shuffle"]()
    latents = torch.randn(1, 8, 5, 6)
    whole = autoencoder.decode(latents).sample
    autoencoder.enable_tiling(256, 256)
    assert torch.equal(autoencoder.decode(latents).sample, whole)


@torch.no_grad()
def test_work_per_call_follows_the_tile() -> None:
    autoencoder = MODELS["attention, interpolate"]()
    seen: list[int] = []
    autoencoder.decoder.conv_out.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].shape[1] * args[0].shape[2])
    )
    autoencoder.enable_tiling(128, 128)
    for side in (8, 16):
        seen.clear()
        autoencoder.decode(torch.randn(1, 8, side, side))
        assert max(seen) <= (128 + 2 * 8 * autoencoder.decoder.halo) ** 2
        assert len(seen) == (side // 4) ** 2


def test_tiles_off_the_grid_are_refused() -> None:
    autoencoder = MODELS["convolutions only"]()
    with pytest.raises(ValueError, match="multiples of 32"):
        autoencoder.enable_tiling(500, 512)
    with pytest.raises(ValueError, match="multiples of 32"):
        autoencoder.enable_tiling(512, 512, 100, 512)
    for size in (0, -32, 512.0):
        with pytest.raises(ValueError, match="multiples of 32"):
            autoencoder.enable_tiling(size, 512)  # type: ignore[arg-type]
    assert not autoencoder.use_tiling


@pytest.mark.parametrize("kind", ["ResBlock", "EfficientViTBlock"])
@torch.no_grad()
def test_an_empty_first_stage_of_any_kind_is_tiled(kind: str) -> None:
    torch.manual_seed(0)
    autoencoder = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=(kind, "ResBlock", "EfficientViTBlock"),
        decoder_block_types=(kind, "ResBlock", "EfficientViTBlock"),
        **{
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in {
                "block_out_channels": (4, 8, 8),
                "layers_per_block": (0, 1, 1),
                "qkv_multiscales": ((), (), (5,)),
            }.items()
        },  # type: ignore[arg-type]
    ).eval()
    latents = torch.randn(1, 4, 9, 5)
    whole = autoencoder.decode(latents).sample
    encoded = autoencoder.encode(whole).latent
    autoencoder.enable_tiling(16, 16, 12, 8)
    assert (autoencoder.decode(latents).sample - whole).norm() / whole.norm() < 1e-5
    assert (autoencoder.encode(whole).latent - encoded).norm() / encoded.norm() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width", "batch"),
    [(32, 32, 1), (32, 32, 3), (33, 47, 1), (33, 47, 3), (1, 5, 3), (128, 128, 1)],
)
@torch.no_grad()
def test_large_latents_have_no_seams(height: int, width: int, batch: int) -> None:
    """Tiles of 16 latent cells every 12: no step at a seam above that between other pixels."""
    autoencoder = MODELS["attention, interpolate"]()
    latents = torch.randn(batch, 8, height, width)
    whole = autoencoder.decode(latents).sample
    autoencoder.enable_tiling(512, 512, 384, 384)
    tiled = autoencoder.decode(latents).sample
    assert tiled.shape == whole.shape == (batch, 3, 32 * height, 32 * width)
    assert (tiled - whole).abs().mean() < 1e-5
    for axis in (2, 3):
        steps = tiled.diff(dim=axis).abs().movedim(axis, 0).flatten(1).mean(dim=1)
        seams = steps[383::384]
        assert not len(seams) or seams.max() <= 1.5 * steps[31::32].max()
    autoencoder.enable_tiling(8192, 8192)
    assert torch.equal(autoencoder.decode(latents).sample, whole)
