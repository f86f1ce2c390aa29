"""SiLU, depthwise 3x3 and gate against nested loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sana_like_kernels import glu_depthwise


def explicit(hidden, weight, bias):
    """Nine shifted copies, summed in fp64."""
    hidden, weight = hidden.double(), weight.double()
    height, width = hidden.shape[1:3]
    padded = F.pad(F.silu(hidden), (0, 0, 1, 1, 1, 1))
    total = torch.zeros_like(hidden)
    for dy in range(3):
        for dx in range(3):
            total += padded[:, dy : dy + height, dx : dx + width] * weight[:, 0, dy, dx]
    if bias is not None:
        total = total + bias.double()
    value, gate = total.chunk(2, -1)
    return value * gate * torch.sigmoid(gate)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 3), (7, 9)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_equals_the_explicit_form(size, with_bias, dtype, limit):
    hidden = torch.randn(2, *size, 6).to(dtype)
    weight = torch.randn(6, 1, 3, 3).to(dtype)
    bias = torch.randn(6).to(dtype) if with_bias else None
    out = glu_depthwise(hidden, weight, bias)
    wanted = explicit(hidden, weight, bias)
    assert out.shape == (2, *size, 3) and out.dtype == dtype
    assert (out.double() - wanted).norm() <= limit * wanted.norm()


def test_gradients_are_exact():
    inputs = [torch.randn(s).double().requires_grad_() for s in [(1, 2, 3, 4), (4, 1, 3, 3), (4,)]]
    assert torch.autograd.gradcheck(glu_depthwise, inputs)


def test_zeros_give_zeros_and_nan_gives_nan():
    weight = torch.randn(4, 1, 3, 3)
    assert not glu_depthwise(torch.zeros(1, 3, 3, 4), weight, None).any()
    hidden = torch.randn(1, 3, 3, 4)
    hidden[0, 1, 1, 0] = float("nan")
    assert glu_depthwise(hidden, weight, None).isnan().any()


def test_very_negative_hidden_values_pass_nothing():
    hidden = torch.full((1, 4, 4, 4), -1e4)
    assert not glu_depthwise(hidden, torch.randn(4, 1, 3, 3), None).any()


def test_a_pixel_reaches_its_neighbours_and_no_further():
    weight, bias = torch.randn(4, 1, 3, 3), torch.randn(4)
    hidden = torch.randn(1, 7, 7, 4)
    moved = hidden.clone()
    moved[0, 3, 3] += 1
    changed = (glu_depthwise(moved, weight, bias) != glu_depthwise(hidden, weight, bias)).any(-1)[0]
    wanted = torch.zeros(7, 7, dtype=torch.bool)
    wanted[2:5, 2:5] = True
    assert torch.equal(changed, wanted)


def test_wrong_channels_are_refused():
    with pytest.raises(ValueError, match="needs hidden"):
        glu_depthwise(torch.randn(1, 3, 3, 6), torch.randn(4, 1, 3, 3), None)
