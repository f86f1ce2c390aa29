"""ReLU linear attention against the explicit N x N form."""

from __future__ import annotations

import pytest
import torch

from sana_like_kernels import linear_attention


def explicit(query, key, value, eps=1e-15):
    """The N x N form in fp64, one weight for each pair of tokens."""
    query, key, value = query.double(), key.double(), value.double()
    weights = torch.einsum("bnhd,bmhd->bhnm", query.relu(), key.relu())
    weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return torch.einsum("bhnm,bmhd->bnhd", weights, value)


def draw(*shape, dtype=torch.float32):
    return [torch.randn(*shape).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 7, 3, 5), (1, 1024, 2, 32), (3, 65, 1, 8)])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)]
)
def test_equals_the_explicit_form(shape, dtype, limit):
    query, key, value = draw(*shape, dtype=dtype)
    out = linear_attention(query, key, value)
    wanted = explicit(query, key, value)
    assert out.dtype == dtype
    assert (out.double() - wanted).norm() <= limit * wanted.norm() + 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 8.0, 64.0])
def test_large_constant_activations_average_to_the_value(dtype, scale):
    query = torch.full((1, 1024, 2, 32), scale, dtype=dtype)
    out = linear_attention(query, query, torch.full_like(query, 3.0))
    torch.testing.assert_close(out.float(), torch.full_like(out.float(), 3.0), rtol=0.01, atol=0)


def test_gradients_are_exact():
    inputs = [x.double().requires_grad_() for x in draw(2, 5, 2, 3)]
    assert torch.autograd.gradcheck(linear_attention, inputs)


def test_fp32_gradients_equal_those_of_the_explicit_form():
    inputs = [x.requires_grad_() for x in draw(2, 33, 2, 8)]
    probe = torch.randn(2, 33, 2, 8)
    ours = torch.autograd.grad((linear_attention(*inputs) * probe).sum(), inputs)
    wanted = torch.autograd.grad((explicit(*inputs) * probe).sum(), inputs)
    for got, want in zip(ours, wanted, strict=True):
        assert (got - want).norm() <= 1e-4 * want.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_queries_or_keys_without_any_positive_channel_give_zero(dtype):
    query, key, value = draw(1, 9, 2, 4, dtype=dtype)
    for q, k in [(-query.abs(), key), (query, -key.abs()), (0 * query, key), (query, 0 * key)]:
        assert torch.equal(linear_attention(q, k, value), torch.zeros_like(value))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_in_nan_out(which):
    inputs = draw(1, 9, 2, 4)
    inputs[which][0, 3, 1, 2] = float("nan")
    assert linear_attention(*inputs).isnan().any()


def test_positive_scaling_of_queries_and_keys_changes_nothing():
    query, key, value = draw(1, 17, 2, 8)
    wanted = linear_attention(query, key, value)
    torch.testing.assert_close(linear_attention(query * 512, key / 64, value), wanted)


def test_order_of_tokens_changes_nothing():
    inputs = draw(2, 31, 2, 8)
    order = torch.randperm(31)
    shuffled = linear_attention(*(x[:, order] for x in inputs))
    torch.testing.assert_close(shuffled, linear_attention(*inputs)[:, order])


def test_result_is_an_average_of_values():
    query, key, value = (x.abs() for x in draw(1, 40, 1, 4))
    out = linear_attention(query, key, value)
    low, high = value.amin(1, keepdim=True), value.amax(1, keepdim=True)
    assert (out >= low - 1e-5).all() and (out <= high + 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_clip_acts_alike_in_every_dtype(dtype):
    query, key, _ = (x.abs() for x in draw(1, 9, 1, 4))
    value = torch.full_like(query, 100.0)
    args = (query.to(dtype), key.to(dtype), value.to(dtype))
    assert linear_attention(*args, clip=2.0).max() == 2.0
    assert linear_attention(*args).max() > 90.0


def test_autocast_keeps_the_sums_in_fp32():
    inputs = draw(1, 512, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = linear_attention(*inputs)
    torch.testing.assert_close(out, linear_attention(*inputs), rtol=0, atol=0)


def test_non_contiguous_inputs():
    query, key, value = (x.transpose(1, 2) for x in draw(2, 3, 9, 4))
    wanted = linear_attention(query.contiguous(), key.contiguous(), value.contiguous())
    torch.testing.assert_close(linear_attention(query, key, value), wanted)


def test_unequal_shapes_are_refused():
    query, key, value = draw(2, 5, 2, 3)
    with pytest.raises(ValueError, match="one shape"):
        linear_attention(query, key[:, :4], value)
    with pytest.raises(ValueError, match="one shape"):
        linear_attention(query[0], key[0], value[0])
