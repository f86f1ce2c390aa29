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


@pytest.mark.parametrize("qk_norm", [None, "rms_norm_across_heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_by_themselves_are_the_batch(qk_norm, dtype):
    """Without gradients a CPU reads each row with its own tokens, however they lie."""
    attention = module(qk_norm=qk_norm)
    x, text = torch.randn(5, 40, 24), torch.randn(5, 12, 12)
    mask = torch.zeros(5, 12, dtype=torch.bool)
    for row, kept in enumerate(([0], [0, 1, 2, 3, 4, 5], [5], [1, 7, 11], range(12))):
        mask[row, list(kept)] = True
    wanted = explicit(attention, x, text, mask)
    attention = attention.to(dtype)
    with torch.no_grad():
        out = attention(x.to(dtype), *attention.project_text(text.to(dtype)), mask)
        alone = attention(x[3:4].to(dtype), *attention.project_text(text[3:4].to(dtype)), mask[3:4])
    limit = 1e-5 if dtype is torch.float32 else 0.02
    assert (out.double() - wanted).norm() <= limit * wanted.norm()
    assert torch.equal(out[3:4], alone)


@torch.no_grad()
def test_what_wraps_the_projection_is_not_passed_by():
    attention, x, text = module(), torch.randn(2, 40, 24), torch.randn(2, 5, 12)
    key, value = attention.project_text(text)
    plain = attention(x, key, value)
    attention.to_out[0].register_forward_hook(lambda _module, _inputs, out: out + 1)
    torch.testing.assert_close(attention(x, key, value), plain + 1, rtol=1e-4, atol=1e-5)
