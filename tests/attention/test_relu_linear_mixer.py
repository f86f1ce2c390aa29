"""The ReLU linear attention mixer."""

from __future__ import annotations

import pytest
import torch

from sana_like.attention.linear import ReLULinearAttention

GRID = (1, 3, 5)


def mixer(**changes):
    module = ReLULinearAttention(24, 3, 8, **changes).eval()
    for norm in (module.norm_q, module.norm_k):
        if norm is not None:
            torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    return module


@pytest.mark.parametrize("qk_norm", [None, "rms_norm_across_heads"])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_published_processor(qk_norm, bias):
    from diffusers.models.attention_processor import Attention, SanaLinearAttnProcessor2_0

    reference = Attention(
        24,
        heads=3,
        dim_head=8,
        kv_heads=3 if qk_norm else None,
        qk_norm=qk_norm,
        bias=bias,
        processor=SanaLinearAttnProcessor2_0(),
    ).eval()
    ours = mixer(qk_norm=qk_norm, bias=bias)
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(2, 15, 24)
    out, state = ours(x, grid=GRID)
    assert state is None
    torch.testing.assert_close(out, reference(x), rtol=1e-5, atol=1e-6)


def test_tokens_may_be_reordered():
    module, x, order = mixer(), torch.randn(2, 15, 24), torch.randperm(15)
    out = module(x, grid=GRID)[0]
    torch.testing.assert_close(module(x[:, order], grid=GRID)[0], out[:, order])


def test_with_qk_norm_the_scale_of_queries_and_keys_does_not_matter():
    module, x = mixer(qk_norm="rms_norm_across_heads"), torch.randn(1, 15, 24)
    wanted = module(x, grid=GRID)[0]
    with torch.no_grad():
        module.to_q.weight *= 100
        module.to_k.weight *= 7
    torch.testing.assert_close(module(x, grid=GRID)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("qk_norm", [None, "rms_norm_across_heads"])
def test_bypassed_rows_send_the_value_straight_out(qk_norm):
    module, x = mixer(qk_norm=qk_norm), torch.randn(3, 15, 24)
    out = module(x, grid=GRID, bypass=torch.tensor([False, True, False]))[0]
    plain = module(x, grid=GRID)[0]
    torch.testing.assert_close(out[1], module.to_out[0](module.to_v(x[1])))
    assert torch.equal(out[[0, 2]], plain[[0, 2]])
    assert not torch.allclose(out[1], plain[1])


def test_norms_kept_in_fp32_do_not_change_the_dtype():
    module = mixer(qk_norm="rms_norm_across_heads").bfloat16()
    module.norm_q.float()
    module.norm_k.float()
    assert module(torch.randn(1, 15, 24).bfloat16(), grid=GRID)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_clip_is_the_same_setting_in_every_dtype(dtype):
    module = mixer(clip=1e-3).to(dtype)
    torch.nn.init.zeros_(module.to_out[0].bias)
    torch.nn.init.ones_(module.to_out[0].weight)
    out = module(torch.randn(1, 15, 24).to(dtype), grid=GRID)[0]
    assert out.abs().max() <= 24.2 * 1e-3
    module.clip = None
    assert module(torch.randn(1, 15, 24).to(dtype), grid=GRID)[0].abs().max() > 0.1


def test_what_it_cannot_read_is_refused():
    with pytest.raises(ValueError, match="reads no cond"):
        mixer()(torch.randn(1, 15, 24), grid=GRID, cond=torch.ones(1))
    with pytest.raises(ValueError, match="chunks were given without a state"):
        mixer()(torch.randn(1, 15, 24), grid=GRID, chunks=[1])


def test_unknown_qk_norm_is_refused():
    with pytest.raises(ValueError, match="rms_norm_across_heads"):
        mixer(qk_norm="layer_norm")
