"""`AutoencoderDC` against the peer's class on the same weights, and its own properties."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from sana_like.autoencoders.blocks import quadratic_attention
from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.presets import AUTOENCODER_PRESETS, autoencoder_preset


def reduced(config: dict[str, Any]) -> dict[str, Any]:
    """One block per non-empty stage, an eighth of the width, so that tests are quick."""
    small = dict(config)
    for side in ("encoder", "decoder"):
        widths = tuple(width // 8 for width in config[f"{side}_block_out_channels"])
        layers = tuple(min(1, n) for n in config[f"{side}_layers_per_block"])
        small[f"{side}_block_out_channels"] = widths
        small[f"{side}_layers_per_block"] = layers
    small["latent_channels"] = max(4, config["latent_channels"] // 8)
    small["attention_head_dim"] = 8
    return small


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and tensor.ndim == 1:
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.data.copy_(0.5 + noise if "weight" in name or "var" in name else noise - 0.5)


def pair(config: dict[str, Any]) -> tuple[AutoencoderDC, diffusers.AutoencoderDC]:
    torch.manual_seed(0)
    theirs = diffusers.AutoencoderDC(**config).eval()
    randomise(theirs)
    ours = AutoencoderDC(**config).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def error(out: Tensor, reference: Tensor) -> float:
    return float((out.double() - reference.double()).norm() / reference.double().norm())


@pytest.mark.parametrize("name", AUTOENCODER_PRESETS)
@torch.no_grad()
def test_parity_of_reduced_presets(name: str) -> None:
    ours, theirs = pair(reduced(autoencoder_preset(name).config))
    ratio = ours.spatial_compression_ratio
    z_dim = ours.config.latent_channels
    for y, x in ((1, 2), (4, 5)):
        pictures = torch.randn(2, 3, y * ratio, x * ratio)
        assert error(ours.encode(pictures).latent, theirs.encode(pictures).latent) < 1e-5
        latents = torch.randn(2, z_dim, y, x)
        assert error(ours.decode(latents).sample, theirs.decode(latents).sample) < 1e-5


@torch.no_grad()
def test_parity_on_both_attention_branches() -> None:
    """A grid of at most head-width cells takes quadratic attention, a larger one linear."""
    ours, theirs = pair(reduced(autoencoder_preset("dc-ae-f32c32-sana-1.1").config))
    for side in (2, 3):  # 4 cells <= head width 8 < 9 cells at the deepest stage
        latents = torch.randn(1, 4, side, side)
        assert error(ours.decode(latents).sample, theirs.decode(latents).sample) < 1e-5


@pytest.mark.parametrize("name", AUTOENCODER_PRESETS)
@torch.no_grad()
def test_bf16_is_as_exact_as_the_peer(name: str) -> None:
    ours, theirs = pair(reduced(autoencoder_preset(name).config))
    ratio = ours.spatial_compression_ratio
    latents = torch.randn(2, ours.config.latent_channels, *((5, 6) if ratio == 32 else (2, 3)))
    pictures = torch.randn(1, 3, 2 * ratio, 3 * ratio)
    exact = theirs.decode(latents).sample, theirs.encode(pictures).latent
    for model in (theirs, ours):
        model.bfloat16()
    limits = [
        1.2 * error(theirs.decode(latents.bfloat16()).sample, exact[0]),
        1.2 * error(theirs.encode(pictures.bfloat16()).latent, exact[1]),
    ]
    assert error(ours.decode(latents.bfloat16()).sample, exact[0]) <= limits[0]
    assert error(ours.encode(pictures.bfloat16()).latent, exact[1]) <= limits[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AUTOENCODER_PRESETS if "mix" not in name])
@torch.no_grad()
def test_parity_at_full_width(name: str) -> None:
    config = dict(autoencoder_preset(name).config)
    for side in ("encoder", "decoder"):
        layers = config[f"{side}_layers_per_block"]
        config[f"{side}_layers_per_block"] = tuple(min(1, count) for count in layers)
    torch.manual_seed(0)
    theirs = diffusers.AutoencoderDC(**config).eval()
    randomise(theirs)
    with torch.device("meta"):
        ours = AutoencoderDC(**config).eval()
    pictures = torch.randn(1, 3, 2 * 32, 3 * 32) if "f32" in name else torch.randn(1, 3, 128, 256)
    latents = torch.randn(1, ours.config.latent_channels, *((5, 7) if "f32" in name else (1, 2)))
    exact = theirs.encode(pictures).latent, theirs.decode(latents).sample
    ours.load_state_dict(theirs.state_dict(), assign=True)  # one copy of the weights
    assert error(ours.encode(pictures).latent, exact[0]) < 1e-5
    assert error(ours.decode(latents).sample, exact[1]) < 1e-5
    theirs.bfloat16()
    limits = [
        1.2 * error(theirs.encode(pictures.bfloat16()).latent, exact[0]),
        1.2 * error(theirs.decode(latents.bfloat16()).sample, exact[1]),
    ]
    ours.load_state_dict(theirs.state_dict(), assign=True)
    assert error(ours.encode(pictures.bfloat16()).latent, exact[0]) <= limits[0]
    assert error(ours.decode(latents.bfloat16()).sample, exact[1]) <= limits[1]


@pytest.mark.parametrize("name", AUTOENCODER_PRESETS)
def test_totals_and_keys(name: str) -> None:
    preset = autoencoder_preset(name)
    with torch.device("meta"):
        ours = AutoencoderDC(**preset.config)
        theirs = diffusers.AutoencoderDC(**preset.config)
    assert sum(p.numel() for p in ours.parameters()) == preset.num_parameters
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_lite_decoder_keys_are_accepted() -> None:
    """The lite decoder switches the shortcut at the latent off and changes the last activation."""
    config = reduced(autoencoder_preset("dc-ae-f32c32-sana-1.1").config)
    config |= {"decoder_in_shortcut": False, "decoder_conv_act_fn": "silu"}
    ours, theirs = pair(config)
    latents = torch.randn(1, 4, 3, 3)
    with torch.no_grad():
        assert error(ours.decode(latents).sample, theirs.decode(latents).sample) < 1e-5


@pytest.fixture(scope="module")
def tiny() -> AutoencoderDC:
    torch.manual_seed(0)
    return AutoencoderDC(
        latent_channels=8,
        attention_head_dim=8,
        encoder_block_types="GLUMBConv",
        decoder_block_types="GLUMBConv",
        encoder_block_out_channels=(8, 8, 8, 16, 16, 16),
        decoder_block_out_channels=(8, 8, 8, 16, 16, 16),
        encoder_layers_per_block=(0, 0, 0, 1, 1, 1),
        decoder_layers_per_block=(0, 0, 0, 1, 1, 1),
        norm_type="layer_norm",
        decoder_norm_types="layer_norm",
        resample_empty_stages=True,
    ).eval()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (31, 33), (71, 51), (64, 96)])
@torch.no_grad()
def test_any_size_is_padded_and_cropped_back(tiny: AutoencoderDC, height: int, width: int) -> None:
    pictures = torch.randn(2, 3, height, width)
    latent = tiny.encode(pictures).latent
    assert latent.shape == (2, 8, -(-height // 32), -(-width // 32))
    assert tiny(pictures).sample.shape == pictures.shape


@torch.no_grad()
def test_slicing_changes_nothing(tiny: AutoencoderDC) -> None:
    latents = torch.randn(3, 8, 3, 2)
    whole = tiny.decode(latents).sample
    tiny.enable_slicing()
    sliced = tiny.decode(latents).sample
    tiny.disable_slicing()
    assert torch.allclose(whole, sliced, atol=1e-5)


def test_gradient_checkpointing_gives_the_same_gradients(tiny: AutoencoderDC) -> None:
    pictures = torch.randn(1, 3, 64, 64)

    def gradients() -> list[Tensor]:
        tiny.zero_grad()
        tiny(pictures).sample.square().mean().backward()
        return [p.grad.clone() for p in tiny.parameters() if p.grad is not None]

    plain = gradients()
    tiny.enable_gradient_checkpointing()
    recomputed = gradients()
    tiny.disable_gradient_checkpointing()
    assert len(plain) == len(recomputed) > 0
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, recomputed, strict=True))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 4, 32, 32), (1, 3, 0, 32)])
def test_wrong_pictures_are_refused(tiny: AutoencoderDC, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="encode needs pictures"):
        tiny.encode(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 64.0, 300.0])
def test_large_activations_do_not_overflow_small_grids(dtype: torch.dtype, size: float) -> None:
    query = torch.full((1, 16, 2, 32), size, dtype=dtype)
    value = torch.full_like(query, 3.0)
    out = quadratic_attention(query, query, value)
    assert out.dtype == dtype
    assert torch.allclose(out.float(), torch.full(out.shape, 3.0), rtol=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = quadratic_attention(query, query, value)
    assert torch.equal(again, out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upsample_block_type": "bilinear"}, "upsample_block_type is 'bilinear'"),
        ({"downsample_block_type": "pool"}, "downsample_block_type is 'pool'"),
        ({"encoder_block_types": ("ResBlock",) * 7}, "encoder_block_types has 7 entries for 6"),
        ({"decoder_block_types": ("ResBlock",)}, "decoder_block_types has 1 entries"),
        ({"decoder_norm_types": ("rms_norm",) * 5}, "decoder_norm_types has 5 entries"),
        ({"decoder_act_fns": ("silu",) * 8}, "decoder_act_fns has 8 entries"),
        ({"latent_channels": 3}, "encoder_out_shortcut=False"),
        ({"attention_head_dim": 256}, "attention_head_dim is 256, wider than"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change: dict[str, Any], message: str) -> None:
    config = reduced(autoencoder_preset("dc-ae-f32c32-sana-1.1").config)
    with pytest.raises(ValueError, match=message):
        AutoencoderDC(**config | change)


def test_wrong_configs_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per stage"):
        AutoencoderDC(encoder_layers_per_block=(1, 1))
    with pytest.raises(ValueError, match="block type 'Foo'"):
        AutoencoderDC(encoder_block_types="Foo")
    with pytest.raises(ValueError, match="no autoencoder preset"):
        autoencoder_preset("dc-ae-f16")
