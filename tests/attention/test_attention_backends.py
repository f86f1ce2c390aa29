"""Backends of the attention to the text: those that act, and refusal of the others."""

from __future__ import annotations

import pytest
import torch

from sana_like.attention import backends
from sana_like.attention.backends import BACKENDS, check_backend, unusable_backends
from sana_like.attention.cross import CrossAttention
from sana_like.transformers.image import SanaTransformer2DModel

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def model():
    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 32}
    torch.manual_seed(0)
    return SanaTransformer2DModel(
        num_attention_heads=2, num_layers=2, caption_channels=24, cross_attention_dim=64, **cross
    ).eval()


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(2, 32, 4, 4, generator=generator)
    text = torch.randn(2, 7, 24, generator=generator)
    mask = torch.tensor([[1] * 7, [1] * 3 + [0] * 4])
    return latent, text, torch.tensor(500.0), mask


@torch.no_grad()
def run(model, inputs):
    latent, text, time, mask = inputs
    return model(latent, text, time, encoder_attention_mask=mask).sample


@pytest.mark.parametrize("name", [n for n in BACKENDS if n not in unusable_backends(CPU)])
def test_backends_that_can_act_here_agree_with_native(model, inputs, name):
    expected = run(model, inputs)
    model.set_attention_backend(name)
    assert model.attention_backend == name
    torch.testing.assert_close(run(model, inputs), expected, atol=1e-5, rtol=1e-5)
    model.reset_attention_backend()
    assert torch.equal(run(model, inputs), expected)


def test_the_dispatcher_is_asked(model, inputs, monkeypatch):
    """With the layout and mask that diffusers' backends read."""
    from diffusers.models import attention_dispatch

    seen = []

    def dispatch(query, key, value, attn_mask, backend):
        seen.append((query.shape, key.shape, attn_mask.shape, backend.value))
        return torch.zeros_like(query)

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", dispatch)
    model.set_attention_backend("_native_math")
    run(model, inputs)
    assert seen == [((2, 16, 2, 32), (2, 7, 2, 32), (2, 1, 1, 7), "_native_math")] * 2
    seen.clear()
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.backend = "xformers"
    run(model, inputs)
    assert [(mask, name) for _, _, mask, name in seen] == [((2, 7), "xformers")] * 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flash", "'flash' cannot act here: needs a CUDA"),
        ("xformers", "'xformers' cannot act here"),
        ("flash_hub", "fetches code from the hub"),
        ("fast", "'fast' is unknown"),
    ],
)
def test_what_cannot_act_is_refused_with_what_can(model, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        model.set_attention_backend(name)
    assert "legal on cpu: native, _native_math" in str(caught.value)
    assert model.attention_backend == "native"


def test_packages_and_number_formats_count(monkeypatch):
    monkeypatch.setattr(backends, "_missing_package", lambda name: "")
    assert not unusable_backends(CUDA) and not unusable_backends(CUDA, torch.bfloat16)
    with pytest.raises(ValueError, match="'flash' cannot act here: needs bfloat16 or float16"):
        check_backend("flash", CUDA, torch.float32)
    monkeypatch.undo()
    reasons = unusable_backends(CUDA)
    assert "flash-attn" in reasons["flash"] and "sageattention" in reasons["sage"]


def test_a_backend_without_masks_needs_texts_of_one_length(model, inputs, monkeypatch):
    monkeypatch.setattr(backends, "unusable_backends", lambda *_: {"xformers": "x"})
    model.set_attention_backend("flash")
    with pytest.raises(ValueError, match="differ in length") as caught:
        run(model, inputs)
    legal = str(caught.value).partition("legal here: ")[2]
    assert legal.startswith("native, _native_math") and "xformers" not in legal
    assert 'guidance_passes="sequential"' in legal


def test_the_controlnet_has_them_too():
    from sana_like.transformers.controlnet import SanaControlNetModel

    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 32}
    net = SanaControlNetModel(
        num_attention_heads=2, num_layers=1, caption_channels=24, cross_attention_dim=64, **cross
    )
    net.set_attention_backend("_native_math")
    assert net.attention_backend == "_native_math"
