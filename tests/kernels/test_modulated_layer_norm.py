"""Modulated LayerNorm against its definition."""

from __future__ import annotations

import pytest
import torch

from sana_like_kernels import modulated_layer_norm


def explicit(x, shift, scale, eps):
    x, shift, scale = x.double(), shift.double(), scale.double()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * (1 + scale) + shift


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)]
)
def test_equals_the_definition(eps, dtype, limit):
    x = (torch.randn(2, 5, 24) * 7 + 3).to(dtype)
    shift, scale = torch.randn(2, 1, 24).to(dtype), torch.randn(2, 1, 24).to(dtype)
    out = modulated_layer_norm(x, shift, scale, eps)
    wanted = explicit(x, shift, scale, eps)
    assert out.dtype == dtype
    assert (out.double() - wanted).norm() <= limit * wanted.norm()


def test_fp32_modulation_does_not_change_the_dtype():
    x = torch.randn(1, 3, 8, dtype=torch.bfloat16)
    assert modulated_layer_norm(x, torch.zeros(1, 1, 8), torch.ones(1, 1, 8)).dtype == x.dtype


def test_gradients_are_exact():
    shapes = [(1, 3, 6), (1, 1, 6), (1, 1, 6)]
    inputs = [torch.randn(s).double().requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(modulated_layer_norm, inputs)


def test_constant_rows_give_the_shift():
    shift = torch.randn(1, 1, 8)
    out = modulated_layer_norm(torch.full((1, 4, 8), -5.0), shift, torch.randn(1, 1, 8))
    torch.testing.assert_close(out, shift.expand(1, 4, 8))


def test_large_activations_stay_finite_and_nan_gives_nan():
    zeros = torch.zeros(1, 1, 8)
    x = torch.randn(1, 4, 8) * 1e12
    out = modulated_layer_norm(x, zeros, zeros)
    torch.testing.assert_close(out, explicit(x, zeros, zeros, 1e-6).float())
    x[0, 2, 1] = float("nan")
    assert modulated_layer_norm(x, zeros, zeros).isnan().any(-1)[0].tolist() == [0, 0, 1, 0]
