"""The transformers compute what diffusers' classes compute."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.presets import CONTROLNET_PRESETS, TRANSFORMER_PRESETS
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel

SIZES = [(1, 1), (2, 3), (32, 32), (33, 47)]


def error(out, wanted):
    return float((out.float() - wanted.float()).norm() / wanted.float().norm())


def pair(config, shake):
    """Diffusers' model and ours with the same weights."""
    reference = shake(diffusers.SanaTransformer2DModel(**config))
    ours = SanaTransformer2DModel(**config).eval()
    ours.load_published_state_dict(reference.state_dict())
    return reference, ours


@pytest.mark.parametrize("name", TRANSFORMER_PRESETS)
@torch.no_grad()
def test_presets_in_fp32(name, narrow, draw_inputs, shake):
    reference, ours = pair(TRANSFORMER_PRESETS[name].config() | narrow, shake)
    for size in SIZES:
        inputs = draw_inputs(ours, *size).kwargs()
        assert error(ours(**inputs).sample, reference(**inputs).sample) <= 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_size": 2},
        {"norm_elementwise_affine": True},
        {"attention_bias": True},
        {"out_channels": None, "in_channels": 6},
        {"out_channels": 12, "patch_size": 2, "interpolation_scale": 1.0},
        {"norm_eps": 1e-2, "mlp_ratio": 1.7},
    ],
)
@torch.no_grad()
def test_settings_that_no_preset_has(changes, narrow, draw_inputs, shake):
    reference, ours = pair(narrow | changes, shake)
    inputs = draw_inputs(ours, 6, 10).kwargs()
    out = ours(**inputs).sample
    assert out.shape == (2, ours.config.out_channels or 6, 6, 10)
    assert error(out, reference(**inputs).sample) <= 1e-5


@pytest.mark.parametrize("name", TRANSFORMER_PRESETS)
@torch.no_grad()
def test_bf16_is_as_close_to_fp32_as_the_published_code(name, narrow, draw_inputs, shake):
    config = TRANSFORMER_PRESETS[name].config() | narrow | {"num_layers": 4}
    reference, ours = pair(config, shake)
    inputs = draw_inputs(ours, 16, 16)
    exact = reference(**inputs.kwargs()).sample
    theirs = error(reference.bfloat16()(**inputs.kwargs(torch.bfloat16)).sample, exact)
    out = ours.bfloat16()(**inputs.kwargs(torch.bfloat16)).sample
    assert out.dtype == torch.bfloat16
    assert error(out, exact) <= 1.2 * theirs


@torch.no_grad()
def test_a_row_without_real_tokens_reads_all_of_them(narrow, draw_inputs, shake):
    reference, ours = pair(narrow, shake)
    inputs = draw_inputs(ours, 4, 4)
    inputs.mask[1] = 0
    out, wanted = ours(**inputs.kwargs()).sample, reference(**inputs.kwargs()).sample
    # The published mask adds -10000 to every score, which costs them four digits.
    assert error(out[1], wanted[1]) <= 1e-3
    assert error(out[0], wanted[0]) <= 1e-5
    unmasked = inputs.kwargs() | {"encoder_attention_mask": None}
    assert error(out[1], ours(**unmasked).sample[1]) <= 1e-6


@pytest.mark.parametrize("name", CONTROLNET_PRESETS)
@torch.no_grad()
def test_controlnet_residuals_and_their_places(name, narrow, draw_inputs, shake):
    config = CONTROLNET_PRESETS[name].config() | narrow | {"num_layers": 3}
    reference = shake(diffusers.SanaControlNetModel(**config))
    ours = SanaControlNetModel(**config).eval()
    ours.load_published_state_dict(reference.state_dict())
    main_reference, main = pair(narrow | {"num_layers": 5}, shake)
    for size in [*SIZES[:2], (9, 8)]:
        inputs = draw_inputs(ours, *size).kwargs()
        del inputs["guidance"]
        control = torch.randn_like(inputs["hidden_states"])
        wanted = reference(**inputs, controlnet_cond=control, conditioning_scale=0.7)[0]
        out = ours(**inputs, controlnet_cond=control, conditioning_scale=0.7)[0]
        assert len(out) == len(wanted) == 3
        assert all(error(a, b) <= 1e-5 for a, b in zip(out, wanted, strict=True))
        steered = main(**inputs, controlnet_block_samples=out).sample
        steered_wanted = main_reference(**inputs, controlnet_block_samples=wanted).sample
        assert error(steered, steered_wanted) <= 1e-5
        assert error(steered, main(**inputs).sample) > 1e-3
