"""Every published width, few blocks, against diffusers' classes on the same weights."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.presets import CONTROLNET_PRESETS, TRANSFORMER_PRESETS
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel

pytestmark = pytest.mark.slow


def error(out, wanted):
    return float((out.float() - wanted.float()).norm() / wanted.float().norm())


def sharing(ours, reference):
    """Our model on the very tensors of `reference`, so that there is one copy of them."""
    ours.load_state_dict(reference.state_dict(), assign=True)
    return ours.eval()


def compare(reference, ours, run):
    """fp32 and bf16 of both; `run(model, dtype)` gives one tensor."""
    exact = run(reference, torch.float32)
    assert error(run(sharing(ours, reference), torch.float32), exact) <= 1e-5
    reference.bfloat16()
    theirs = error(run(reference, torch.bfloat16), exact)
    out = run(sharing(ours, reference), torch.bfloat16)
    assert out.dtype == torch.bfloat16
    assert error(out, exact) <= 1.2 * theirs


def compare_transformers(config, draw_inputs, shake, size):
    reference = shake(diffusers.SanaTransformer2DModel(**config))
    with torch.device("meta"):
        ours = SanaTransformer2DModel(**config)
    inputs = draw_inputs(ours, *size)
    compare(reference, ours, lambda model, dtype: model(**inputs.kwargs(dtype)).sample)


@pytest.mark.parametrize("name", TRANSFORMER_PRESETS)
@torch.no_grad()
def test_transformers(name, draw_inputs, shake):
    config = TRANSFORMER_PRESETS[name].config() | {"num_layers": 2}
    compare_transformers(config, draw_inputs, shake, (9, 11))


@torch.no_grad()
def test_the_whole_of_0_6b(draw_inputs, shake):
    config = TRANSFORMER_PRESETS["sana-0.6b-512"].config()
    compare_transformers(config, draw_inputs, shake, (16, 16))


@pytest.mark.parametrize("name", CONTROLNET_PRESETS)
@torch.no_grad()
def test_controlnets(name, draw_inputs, shake):
    config = CONTROLNET_PRESETS[name].config() | {"num_layers": 2}
    reference = shake(diffusers.SanaControlNetModel(**config))
    with torch.device("meta"):
        ours = SanaControlNetModel(**config)
    inputs = draw_inputs(ours, 9, 11)
    control = torch.randn_like(inputs.latent)

    def run(model, dtype):
        arguments = inputs.kwargs(dtype)
        del arguments["guidance"]
        return torch.stack(list(model(**arguments, controlnet_cond=control.to(dtype))[0]))

    compare(reference, ours, run)
