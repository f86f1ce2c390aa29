"""Cross-attention: both ways of computing it, masks, dtypes."""

from __future__ import annotations

import pytest
import torch

from sana_like.attention import cross
from sana_like.attention.cross import CrossAttention


def module(**changes):
    return CrossAttention(24, 2, 10, text_dim=12, **changes).eval()


def explicit(attention, x, text, mask):
    """The definition in fp64, one head at a time."""
    attention = attention.double()
    x, text = x.double(), text.double()
    query, key, value = attention.to_q(x), attention.to_k(text), attention.to_v(text)
    if attention.norm_q is not None:
        query, key = attention.norm_q(query), attention.norm_k(key)
    heads = []
    for head in range(attention.heads):
        part = slice(10 * head, 10 * head + 10)
        scores = query[..., part] @ key[..., part].mT / 10**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        heads.append(scores.softmax(-1) @ value[..., part])
    return attention.to_out[0](torch.cat(heads, -1))


@pytest.mark.parametrize("length", [1, 20, cross.PLAIN_CPU_KEYS, cross.PLAIN_CPU_KEYS + 1, 300])
@pytest.mark.parametrize("qk_norm", [None, "rms_norm_across_heads"])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_definition(length, qk_norm, masked):
    attention, x, text = module(qk_norm=qk_norm), torch.randn(2, 7, 24), torch.randn(2, length, 12)
    mask = None
    if masked:
        mask = torch.rand(2, length) < 0.5
        mask[:, 0] = True
    out = attention(x, *attention.project_text(text), mask)
    wanted = explicit(attention, x, text, mask)
    assert (out - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.parametrize("length", [20, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_are_summed_in_fp32(length, dtype):
    attention = module().to(dtype)
    x, text = (50 * torch.randn(2, 7, 24)).to(dtype), torch.randn(2, length, 12).to(dtype)
    out = attention(x, *attention.project_text(text))
    wanted = explicit(attention, x, text, None)
    assert out.dtype == dtype
    assert (out - wanted).norm() <= 0.03 * wanted.norm()


def test_masked_tokens_have_no_influence_and_no_gradient():
    attention, x = module(), torch.randn(1, 7, 24)
    text = torch.randn(1, 5, 12, requires_grad=True)
    mask = torch.tensor([[True, True, False, True, False]])
    attention(x, *attention.project_text(text), mask).sum().backward()
    assert text.grad is not None
    assert (text.grad[0].abs().sum(-1) > 0).tolist() == mask[0].tolist()


def test_both_ways_give_the_same_gradients(monkeypatch):
    attention, x = module(), torch.randn(2, 7, 24)
    text = torch.randn(2, 20, 12)
    mask = torch.arange(20)[None] < torch.tensor([[20], [3]])

    def gradients():
        attention.zero_grad()
        attention(x, *attention.project_text(text), mask).square().sum().backward()
        return [p.grad.clone() for p in attention.parameters()]

    plain = gradients()
    monkeypatch.setattr(cross, "PLAIN_CPU_KEYS", 0)
    for got, want in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
