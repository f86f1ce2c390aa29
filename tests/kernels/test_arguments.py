"""What every op refuses before anything runs; what autocast and the compiler may not change."""

from __future__ import annotations

import pytest
import torch

from sana_like_kernels import (
    block_causal_linear_attention,
    gated_residual_norm,
    glu_mbconv,
    linear_attention,
    modulated_norm,
    qk_norm_rope,
    rms_norm_2d,
)

BACKENDS = ("triton", "torch")


def attention(query, key, value, w_query, w_key, cos, sin, **kwargs):
    return linear_attention(
        query, key, value, norms=(w_query, w_key), rope=(cos, sin), clip=3.0, **kwargs
    )


def streamed(query, key, value, matrix, vector, **kwargs):
    return block_causal_linear_attention(query, key, value, (matrix, vector), **kwargs)[0]


def feed_forward(hidden, weight, bias, expand_bias, **kwargs):
    return glu_mbconv(hidden, weight, bias, expand_bias=expand_bias, **kwargs)


def gated(x, branch, gate, shift, scale, **kwargs):
    return gated_residual_norm(x, branch, gate, shift, scale, **kwargs)[1]


def rotated(query, key, w_query, w_key, cos, sin, **kwargs):
    return torch.cat(qk_norm_rope(query, key, w_query, w_key, rope=(cos, sin), **kwargs))


def plane(x, residual, weight, bias, **kwargs):
    return rms_norm_2d(x, weight, bias, residual=residual, activation="silu", **kwargs)


TOKENS, VECTOR, TABLE = (2, 6, 2, 4), (8,), (6, 2)
# Op, shapes of its tensors, and how many of the first must have one dtype.
OPS = {
    "linear_attention": (attention, [TOKENS] * 3 + [VECTOR] * 2 + [TABLE] * 2, 3),
    "block_causal_linear_attention": (streamed, [TOKENS] * 3 + [(2, 2, 4, 4), (2, 2, 4)], 3),
    "glu_mbconv": (feed_forward, [(1, 3, 2, 8), (8, 1, 3, 3), VECTOR, VECTOR], 4),
    "modulated_norm": (modulated_norm, [(2, 6, 8), (2, 3, 8), (2, 3, 8)], 1),
    "gated_residual_norm": (gated, [(2, 6, 8)] * 2 + [(2, 3, 8)] * 3, 2),
    "qk_norm_rope": (rotated, [TOKENS] * 2 + [VECTOR] * 2 + [TABLE] * 2, 2),
    "rms_norm_2d": (plane, [(1, 3, 2, 8)] * 2 + [VECTOR] * 2, 2),
}


@pytest.fixture(params=OPS)
def op(request):
    function, shapes, alike = OPS[request.param]
    return function, [torch.rand(shape) for shape in shapes], alike


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_what_is_no_floating_point_is_refused(op, backend, dtype, interpreter):
    function, tensors, _ = op
    for i in range(len(tensors)):
        wrong = [x.to(dtype) if i == j else x for j, x in enumerate(tensors)]
        with pytest.raises(ValueError, match="floating-point"):
            function(*wrong, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_two_dtypes_are_refused(op, backend, interpreter):
    function, tensors, alike = op
    for i in range(1, alike):
        mixed = [x.bfloat16() if i == j else x for j, x in enumerate(tensors)]
        with pytest.raises(ValueError, match=r"one dtype|like x"):
            function(*mixed, backend=backend)


def test_weights_and_modulation_may_be_wider_than_the_tokens(op):
    function, tensors, alike = op
    mixed = [x.bfloat16() if i < alike else x for i, x in enumerate(tensors)]
    assert function(*mixed).dtype == torch.bfloat16


def test_a_tensor_elsewhere_is_refused(op):
    function, tensors, _ = op
    for i in range(1, len(tensors)):
        wrong = [x.to("meta") if i == j else x for j, x in enumerate(tensors)]
        with pytest.raises(ValueError, match="on cpu"):
            function(*wrong)


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name in OPS if name != "glu_mbconv"])
def test_an_eps_that_is_none_is_refused(name, eps):
    function, shapes, _ = OPS[name]
    with pytest.raises(ValueError, match="eps to be finite"):
        function(*(torch.rand(shape) for shape in shapes), eps=eps)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("function", [linear_attention, block_causal_linear_attention])
def test_a_clip_that_clamps_everything_is_refused(function, clip):
    with pytest.raises(ValueError, match="clip above 0"):
        function(*torch.rand(3, *TOKENS), clip=clip)


def test_weights_of_another_window_are_refused():
    with pytest.raises(ValueError, match=r"weight \[8, 1, 3, 3\]"):
        glu_mbconv(torch.rand(1, 3, 2, 8), torch.rand(8, 1, 5, 5))


def test_autocast_may_mix_dtypes(op):
    function, tensors, _ = op
    if function is gated:
        pytest.skip("x and branch are always of one dtype")
    mixed = [x.bfloat16() if i == 0 else x for i, x in enumerate(tensors)]
    with torch.autocast("cpu", torch.bfloat16):
        out = function(*mixed)
    torch.testing.assert_close(out.float(), function(*tensors).float(), rtol=0.05, atol=0.05)


def test_the_plain_path_is_one_graph_for_the_compiler(op):
    function, tensors, _ = op
    tensors = [x.requires_grad_() for x in tensors]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    out, wanted = compiled(*tensors), function(*tensors)
    torch.testing.assert_close(out, wanted)
    grads, expected = (torch.autograd.grad(x.square().sum(), tensors) for x in (out, wanted))
    torch.testing.assert_close(grads, expected)
