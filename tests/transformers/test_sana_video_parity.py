"""The video transformer computes what diffusers' class computes, but for its one rounding."""

from __future__ import annotations

import diffusers
import pytest
import torch
from diffusers.models.transformers import transformer_sana_video as published

from sana_like.presets import VIDEO_PRESETS
from sana_like.transformers.video import SanaVideoTransformer3DModel

NARROW = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 32,
    "cross_attention_dim": 64,
    "caption_channels": 20,
}


def error(out, wanted):
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


def pair(config, shake):
    """Diffusers' model and ours with the same weights."""
    reference = shake(diffusers.SanaVideoTransformer3DModel(**config))
    ours = SanaVideoTransformer3DModel(**config).eval()
    ours.load_published_state_dict(reference.state_dict())
    return reference, ours


def draw(config, frames, height, width, timestep=None):
    """Rows with 3 and 9 of 12 real text tokens."""
    return {
        "hidden_states": torch.randn(2, config["in_channels"], frames, height, width),
        "encoder_hidden_states": torch.randn(2, 12, config["caption_channels"]),
        "encoder_attention_mask": (torch.arange(12)[None] < torch.tensor([[3], [9]])).long(),
        "timestep": torch.tensor([999.0, 3.25]) if timestep is None else timestep,
    }


@pytest.mark.parametrize("name", VIDEO_PRESETS)
@torch.no_grad()
def test_presets_in_fp32(name, shake):
    config = VIDEO_PRESETS[name].config() | NARROW
    reference, ours = pair(config, shake)
    for size in [(1, 2, 2), (3, 4, 6), (5, 6, 4)]:
        inputs = draw(config, *size)
        out = ours(**inputs).sample
        assert out.shape == inputs["hidden_states"].shape
        assert error(out, reference(**inputs).sample) <= 1e-5


@pytest.mark.parametrize("name", VIDEO_PRESETS)
@torch.no_grad()
def test_one_row_of_modulation_for_each_frame_is_the_published_one_for_each_token(name, shake):
    config = VIDEO_PRESETS[name].config() | NARROW
    reference, ours = pair(config, shake)
    times = torch.tensor([[0.0, 700.0, 700.0], [0.0, 20.5, 20.5]])
    inputs = draw(config, 3, 4, 6, timestep=times)
    tokens = (4 // config["patch_size"][1]) * (6 // config["patch_size"][2])
    spread = times.repeat_interleave(tokens, dim=1)
    assert error(ours(**inputs).sample, reference(**inputs | {"timestep": spread}).sample) <= 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_size": (2, 1, 2)},
        {"norm_elementwise_affine": True},
        {"attention_bias": True},
        {"out_channels": None, "in_channels": 6},
        {"norm_eps": 1e-2, "mlp_ratio": 1.7},
    ],
)
@torch.no_grad()
def test_settings_that_no_preset_has(changes, shake):
    config = {"in_channels": 16} | NARROW | changes
    reference, ours = pair(config, shake)
    inputs = draw(config, 4, 4, 6)
    assert error(ours(**inputs).sample, reference(**inputs).sample) <= 1e-5


@torch.no_grad()
def test_bf16_keeps_the_normaliser_that_the_published_code_rounds(shake):
    """Published code sums the normaliser, and rounds turned features, in the model's dtype."""
    config = {"in_channels": 16} | NARROW | {"num_layers": 4}
    reference, ours = pair(config, shake)
    inputs = draw(config, 5, 16, 16)
    exact = reference(**inputs).sample
    half = {key: value.bfloat16() if value.ndim > 2 else value for key, value in inputs.items()}
    theirs = error(reference.bfloat16()(**half).sample, exact)
    out = ours.bfloat16()(**half).sample
    assert out.dtype == torch.bfloat16
    assert error(out, exact) <= 1.1 * theirs


@torch.no_grad()
def test_the_normaliser_is_fp32_in_a_bf16_mixer(shake):
    config = {"in_channels": 16} | NARROW
    reference, ours = pair(config, shake)
    x, grid = torch.randn(2, 4 * 64, 64) * 3, (4, 8, 8)
    rope = ours._rope(grid, 0, x.device)
    mixer, attention = ours.transformer_blocks[0].attn1, reference.transformer_blocks[0].attn1
    tables = reference.rope(torch.zeros(1, 1, 4, 16, 16))
    exact = attention(x, rotary_emb=tables)
    assert error(mixer(x, grid=grid, rope=rope)[0], exact) <= 1e-6

    half = mixer.bfloat16()(x.bfloat16(), grid=grid, rope=rope)[0]
    assert isinstance(attention.processor, published.SanaLinearAttnProcessor3_0)
    theirs = attention.bfloat16()(x.bfloat16(), rotary_emb=tables)
    assert error(half, exact) < 0.95 * error(theirs, exact)
