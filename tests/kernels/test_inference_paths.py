"""The paths for inference on a CPU against the references, and when they are not taken."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from sana_like_kernels import (
    block_causal_linear_attention,
    gated_residual_norm,
    glu_mbconv,
    inference,
    linear,
    linear_attention,
    modulated_norm,
    rms_norm_2d,
)
from sana_like_kernels.glu_mbconv.cpu import gated_feed_forward
from sana_like_kernels.glu_mbconv.reference import glu_depthwise_reference
from sana_like_kernels.inference import plain_inference
from sana_like_kernels.testing import assert_close

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 5e-3}
dtypes = pytest.mark.parametrize("dtype", LIMIT)


@pytest.fixture(params=["many pieces", "one piece"])
def _pieces(request, monkeypatch):
    monkeypatch.setattr(inference, "PIECE", 64 if request.param == "many pieces" else 2**18)


@pytest.fixture
def _narrow_groups(monkeypatch):
    # By its file: the package's attribute of this name is the op.
    module = importlib.import_module("sana_like_kernels.glu_mbconv.cpu")
    monkeypatch.setattr(module, "NARROWEST", 32)
    monkeypatch.setattr(module, "GROUP", 1)


def compare(name, op, tensors, dtype):
    """`op` without gradients in `dtype` against itself with them, which is the reference, in fp64.

    The inputs are those that `dtype` can hold.
    """
    rounded = [x.to(dtype) for x in tensors]
    wanted = op(*(x.double().requires_grad_() for x in rounded))
    with torch.no_grad():
        assert plain_inference(*rounded)
        out = op(*rounded)
    pairs = zip(out, wanted, strict=True) if isinstance(out, tuple) else [(out, wanted)]
    for got, want in pairs:
        assert_close(name, want, got, LIMIT[dtype])


@dtypes
@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("tokens", [1, 63, 100])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_attention(tokens, normed, turned, dtype):
    shape = (2, tokens, 3, 8)
    tensors = [torch.randn(shape) for _ in range(3)] + [torch.rand(24) + 0.5 for _ in range(2)]
    angles = torch.rand(tokens, 4) * 3
    rope = (angles.cos(), angles.sin()) if turned else None
    state = (torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8))

    def whole(q, k, v, *norms):
        tables = (
            None
            if rope is None
            else tuple(t.to(torch.promote_types(q.dtype, torch.float32)) for t in rope)
        )
        return linear_attention(q, k, v, rope=tables, norms=norms if normed else None)

    def stream(q, k, v, *norms):
        wide = torch.promote_types(q.dtype, torch.float32)
        tables = None if rope is None else tuple(t.to(wide) for t in rope)
        before = tuple(s.to(wide) for s in state)
        out, (matrix, vector) = block_causal_linear_attention(
            q, k, v, before, rope=tables, norms=norms if normed else None
        )
        return out, matrix, vector

    compare("whole", whole, tensors, dtype)
    compare("stream", stream, tensors, dtype)


@pytest.mark.usefixtures("_pieces")
def test_attention_of_slices_and_of_special_values():
    packed = torch.randn(2, 50, 3, 24)
    q, k, v = packed.chunk(3, dim=-1)
    wanted = linear_attention(*(x.contiguous() for x in (q, k, v)))
    assert torch.equal(linear_attention(q, k, v), wanted)
    assert not linear_attention(-q.abs(), k, v).any()
    packed[0, 3] = float("nan")
    out = linear_attention(q, k, v)
    assert out[0].isnan().all() and not out[1].isnan().any()


@dtypes
@pytest.mark.usefixtures("_narrow_groups")
@pytest.mark.parametrize("size", [(1, 1), (5, 7)])
@pytest.mark.parametrize("expand_bias", [False, True])
def test_depthwise_in_groups_of_channels(size, expand_bias, dtype):
    tensors = [torch.randn(2, *size, 144), torch.randn(144, 1, 3, 3), torch.randn(144)]
    tensors += [torch.randn(144)] * expand_bias

    def op(hidden, weight, bias, expand=None):
        return glu_mbconv(hidden, weight, bias, expand_bias=expand)

    # Half precision rounds between the steps.
    wanted = glu_depthwise_reference(*(x.to(dtype) for x in tensors))
    with torch.no_grad():
        out = op(*(x.to(dtype) for x in tensors))
    assert_close("depthwise", wanted, out, LIMIT[dtype])
    if dtype is torch.float32:
        compare("depthwise", op, tensors, dtype)


@dtypes
@pytest.mark.usefixtures("_narrow_groups")
def test_whole_feed_forward(dtype):
    x, expand, bias = torch.randn(2, 6, 5, 16), torch.randn(96, 16) / 4, torch.randn(96)
    depth, depth_bias = torch.randn(96, 1, 3, 3) / 3, torch.randn(96)
    tensors = (x, expand, bias, depth, depth_bias, torch.randn(16, 48) / 7)

    def reference(x, expand, bias, depth, depth_bias, point):
        hidden = F.linear(x, expand, bias)
        return F.linear(glu_depthwise_reference(hidden, depth, depth_bias), point)

    rounded = [t.to(dtype) for t in tensors]
    wanted = reference(*(t.double() for t in rounded))
    with torch.no_grad():
        out = gated_feed_forward(*rounded)
    assert_close("feed-forward", wanted, out, 1e-5 if dtype is torch.float32 else 1e-2)


@dtypes
@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("residual", [False, True])
def test_norm_of_pixels(activation, residual, dtype):
    tensors = [torch.randn(2, 3, 5, 24), torch.rand(24) + 0.5, torch.randn(24)]
    tensors += [torch.randn(2, 3, 5, 24)] * residual

    def op(x, weight, bias, added=None):
        return rms_norm_2d(x, weight, bias, residual=added, activation=activation)

    compare("norm", op, tensors, dtype)


@dtypes
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("frames", [1, 3])
def test_modulated_norms(kind, frames, dtype):
    x, branch = torch.randn(2, 12, 16), torch.randn(2, 12, 16)
    gate, shift, scale = (torch.randn(2, frames, 16) / 2 for _ in range(3))
    compare("norm", lambda *t: modulated_norm(*t, kind=kind), (x, shift, scale), dtype)
    compare(
        "gated",
        lambda *t: gated_residual_norm(*t, kind=kind),
        (x, branch, gate, shift, scale),
        dtype,
    )
    compare(
        "added",
        lambda x, branch, *rest: gated_residual_norm(x, branch, None, *rest, kind=kind),
        (x, branch, shift, scale),
        dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 31, 32, 100])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("biased", [False, True])
def test_products(rows, activation, biased, dtype):
    tensors = [torch.randn(2, rows, 16), torch.randn(24, 16) / 4] + [torch.randn(24)] * biased
    compare("product", lambda *t: linear(*t, activation=activation), tensors, dtype)


def test_products_with_gradients_are_exact():
    inputs = [torch.randn(s).double().requires_grad_() for s in ((40, 3), (4, 3), (4,))]
    assert torch.autograd.gradcheck(lambda *t: linear(*t, activation="silu"), inputs)
    with pytest.raises(ValueError, match="activation 'gelu' is unknown"):
        linear(*inputs, activation="gelu")


def test_when_the_plain_path_stays():
    x, weight = torch.randn(64, 8), torch.randn(4, 8)
    assert plain_inference(x, weight, None)
    assert not plain_inference(x, weight.clone().requires_grad_())
    assert not plain_inference(x.double())
    assert not plain_inference(x.to("meta"))
    with torch.no_grad():
        assert plain_inference(x, weight.clone().requires_grad_())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not plain_inference(x)
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * 64 * 8 * 4
    compiled = torch.compile(plain_inference, backend="eager")
    assert not compiled(x)
