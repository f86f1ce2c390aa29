"""Triton kernels of linear attention, in the interpreter, against fp64 references."""

from __future__ import annotations

import itertools

import pytest
import torch

from sana_like_kernels import block_causal_linear_attention, linear_attention
from sana_like_kernels.testing import assert_close

pytestmark = pytest.mark.usefixtures("interpreter")

TOKENS, HEADS, WIDTHS = (1, 7, 63, 100, 1000, 1024), (1, 3, 20), (16, 32, 60, 112, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 5e-3}
LAYOUTS = ("contiguous", "packed", "strided")


def pairwise():
    """Every pair of tokens, heads and widths; many heads of many tokens at the narrowest widths."""
    for i, n in enumerate(TOKENS):
        for j, d in enumerate(WIDTHS):
            h = HEADS[(i + j) % 3] if n < 1000 else {16: 20, 32: 3}.get(d, 1)
            index = 5 * i + j
            yield n, h, d, DTYPES[index % 3], LAYOUTS[index % 3 - i % 2], index % 4


def draw(n, h, d, dtype, layout, batch=1):
    if layout == "packed":
        return list(torch.randn(batch, n, 3, h, d).to(dtype).unbind(2))
    if layout == "strided":
        return [torch.randn(batch, h, d, n).to(dtype).permute(0, 3, 1, 2) for _ in range(3)]
    return [torch.randn(batch, n, h, d).to(dtype) for _ in range(3)]


def extras(n, h, d, features):
    """Rotations and norm weights: bit 0 and bit 1 of `features`."""
    angles = torch.rand(n, d // 2) * 6
    rope = (angles.cos(), angles.sin()) if features & 1 else None
    norms = [torch.rand(h * d) + 0.5 for _ in range(2)] if features & 2 else []
    return rope, norms


def run(inputs, rope, norms, probe, backend):
    inputs = [x.detach().requires_grad_() for x in inputs]
    norms = [x.detach().requires_grad_() for x in norms]
    out = linear_attention(
        *inputs, rope=rope, norms=tuple(norms) if norms else None, backend=backend
    )
    grads = torch.autograd.grad((out * probe.to(out.dtype)).sum(), [*inputs, *norms])
    names = ["out", "query", "key", "value", "w_query", "w_key"]
    return dict(zip(names, [out, *grads], strict=False))


def compare(n, h, d, dtype, layout, features):
    inputs = draw(n, h, d, dtype, layout)
    rope, norms = extras(n, h, d, features)
    probe = torch.randn(1, n, h, d).to(dtype)
    got = run(inputs, rope, norms, probe, "triton")
    wanted = run([x.double() for x in inputs], rope, [x.double() for x in norms], probe, "torch")
    for name, reference in wanted.items():
        # One token attends to itself alone: query and key get no gradient but rounding.
        scale = wanted["value"] if n == 1 and name not in ("out", "value") else None
        assert_close(name, reference, got[name], LIMIT[dtype], scale)


@pytest.mark.parametrize(("n", "h", "d", "dtype", "layout", "features"), list(pairwise()))
def test_forward_and_backward(n, h, d, dtype, layout, features, request):
    if n * h > 600:  # below, with the blocks of the table
        request.getfixturevalue("large_blocks")
    compare(n, h, d, dtype, layout, features)


@pytest.mark.slow
@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize(("n", "h", "d"), list(itertools.product(TOKENS, HEADS, WIDTHS)))
def test_forward_and_backward_full_matrix(n, h, d):
    variants = list(itertools.product(DTYPES, ((0, "contiguous"), (3, "packed"))))
    if h == max(HEADS):  # Python goes through the heads one by one: each variant at some cells.
        first = (TOKENS.index(n) + WIDTHS.index(d)) % 3
        variants = [variants[2 * first], variants[(2 * first + 3) % 6]]
    for dtype, (features, layout) in variants:
        compare(n, h, d, dtype, layout, features)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["zeros", "negative", "outlier"])
def test_special_values(dtype, kind):
    query, key, value = draw(37, 2, 16, dtype, "contiguous")
    if kind == "zeros":
        query, key = torch.zeros_like(query), torch.zeros_like(key)
    elif kind == "negative":
        query, key = -query.abs(), -key.abs()
    else:
        key[0, 3, 1, 2] = 6e4
    probe = torch.randn(1, 37, 2, 16).to(dtype)
    got = run([query, key, value], None, [], probe, "triton")
    wanted = run([x.double() for x in (query, key, value)], None, [], probe, "torch")
    for name, reference in wanted.items():
        if kind == "outlier":
            # Near the outlier gradients cancel; they are compared with those of the values.
            assert_close(name, reference, got[name], LIMIT[dtype], wanted["value"])
        else:
            assert torch.equal(got[name].double(), reference) and not reference.any()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_in_nan_out(which):
    inputs = draw(33, 2, 16, torch.float32, "contiguous")
    inputs[which][0, 3, 1, 2] = float("nan")
    out = linear_attention(*inputs, backend="triton")
    wanted = linear_attention(*inputs, backend="torch")
    assert out.isnan().any() and torch.equal(out.isnan(), wanted.isnan())


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_stated_range_of_activations(dtype, backend):
    """Sums are numbers of fp32: within the range all is right, beyond it nothing looks right."""
    n, width = 40, 16
    for size, within in ((1e11, True), (1e20, False)):
        key, value = (x.abs().double() for x in draw(n, 1, width, dtype, "contiguous")[:2])
        key, value = (key * size).to(dtype), (value * size).to(dtype)
        for differentiable in (False, True):
            query = key.clone().requires_grad_(differentiable)
            out = linear_attention(query, key, value, backend=backend)
            if within:
                wanted = linear_attention(key.double(), key.double(), value.double())
                assert_close("large", wanted, out, LIMIT[dtype])
            else:
                assert not out.isfinite().any()


def test_large_fp16_activations_do_not_overflow():
    query = torch.full((1, 300, 1, 16), 64.0, dtype=torch.float16)
    out = linear_attention(query, query, torch.full_like(query, 3.0), backend="triton")
    torch.testing.assert_close(out, torch.full_like(out, 3.0))


def test_no_tokens():
    empty = torch.zeros(1, 0, 2, 16)
    out, (matrix, vector) = block_causal_linear_attention(empty, empty, empty, backend="triton")
    assert out.shape == (1, 0, 2, 16) and not matrix.any() and not vector.any()


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("features", [0, 3])
def test_chunks_equal_the_masked_whole(backend, features):
    n, h, d, chunk = 50, 2, 16, 20
    inputs = draw(n, h, d, torch.float32, "packed", batch=2)
    rope, norms = extras(n, h, d, features)
    kwargs = {"norms": tuple(norms) if norms else None, "backend": backend}
    whole, state = block_causal_linear_attention(*inputs, chunk_size=chunk, rope=rope, **kwargs)

    parts, running = [], None
    for first in range(0, n, chunk):
        span = slice(first, first + chunk)
        tables = None if rope is None else (rope[0][span], rope[1][span])
        part = [x[:, span] for x in inputs]
        out, running = block_causal_linear_attention(*part, running, rope=tables, **kwargs)
        parts.append(out)
        assert [x.shape for x in running] == [(2, h, d, d), (2, h, d)]
        assert all(x.dtype == torch.float32 for x in running)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(running, state)

    # A query of chunk i reads the keys of chunks 0 to i: the plain op on that prefix.
    for first in range(0, n, chunk):
        end = min(first + chunk, n)
        tables = None if rope is None else (rope[0][:end], rope[1][:end])
        prefix = linear_attention(*(x[:, :end] for x in inputs), rope=tables, **kwargs)
        assert_close("prefix", prefix[:, first:], whole[:, first:end], 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stream_in_half_precision_has_sums_in_fp32(dtype):
    inputs = draw(50, 2, 16, dtype, "packed")
    wanted = block_causal_linear_attention(*(x.double() for x in inputs), chunk_size=20)
    out, state = block_causal_linear_attention(*inputs, chunk_size=20, backend="triton")
    assert_close("out", wanted[0], out, LIMIT[dtype])
    for reference, total in zip(wanted[1], state, strict=True):
        assert total.dtype == torch.float32
        assert_close("state", reference, total, 1e-5)


@pytest.mark.parametrize("features", range(4))
def test_gradients_through_the_state(features):
    n, h, d, chunk = 40, 2, 16, 16
    inputs = draw(n, h, d, torch.float32, "contiguous")
    rope, norms = extras(n, h, d, features)
    probe = torch.randn(1, n, h, d)

    def gradients(tensors, backend):
        tensors = [x.clone().requires_grad_() for x in tensors]
        out, state = block_causal_linear_attention(
            *tensors[:3],
            chunk_size=chunk,
            rope=rope,
            norms=tuple(tensors[3:]) or None,
            backend=backend,
        )
        loss = (out * probe.to(out.dtype)).sum() + sum(x.sin().sum() for x in state)
        return torch.autograd.grad(loss, tensors)

    tensors = [*inputs, *norms]
    wanted = gradients([x.double() for x in tensors], "torch")
    for reference, got in zip(wanted, gradients(tensors, "triton"), strict=True):
        assert_close("gradient", reference, got, 1e-5)


def test_state_of_another_shape_or_dtype_is_refused():
    inputs = draw(5, 2, 16, torch.float32, "contiguous")
    _, (matrix, vector) = block_causal_linear_attention(*inputs)
    with pytest.raises(ValueError, match="the state must be"):
        block_causal_linear_attention(*inputs, (matrix[..., :8], vector))
    with pytest.raises(ValueError, match="the state must be"):
        block_causal_linear_attention(*inputs, (matrix.half(), vector))
    with pytest.raises(ValueError, match="chunk_size"):
        block_causal_linear_attention(*inputs, chunk_size=0)


def test_what_the_kernels_cannot_do_is_refused_when_forced():
    wide = draw(3, 1, 160, torch.float32, "contiguous")
    with pytest.raises(ValueError, match="head width 160"):
        linear_attention(*wide, backend="triton")
    with pytest.raises(ValueError, match="float64"):
        linear_attention(*(x[..., :16].double() for x in wide), backend="triton")


def arguments(grad=True):
    inputs = [x.requires_grad_(grad) for x in draw(9, 2, 16, torch.float32, "contiguous")]
    rope, norms = extras(9, 2, 16, 3)
    state = [torch.rand(1, 2, 16, 16, requires_grad=grad), torch.rand(1, 2, 16, requires_grad=grad)]
    return [*inputs, *(w.requires_grad_(grad) for w in norms), *rope, *state, 1e-15, 1e-5]


def test_opcheck():
    from sana_like_kernels.linear_attention.launch import backward_op, forward_op

    torch.library.opcheck(forward_op, arguments())
    inputs = arguments(grad=False)
    _, *saved = forward_op(*inputs)
    grads = [torch.randn(1, 9, 2, 16), None, torch.randn(1, 2, 16)]
    torch.library.opcheck(backward_op, [*grads, *inputs[:7], *saved, 1e-15])


def test_eager_equals_compiled():
    inputs = draw(20, 2, 16, torch.float32, "packed")
    rope, norms = extras(20, 2, 16, 3)
    compiled = torch.compile(run, backend="aot_eager")
    probe = torch.randn(1, 20, 2, 16)
    wanted = run(inputs, rope, norms, probe, "triton")
    got = compiled(inputs, rope, norms, probe, "triton")
    for name, reference in wanted.items():
        torch.testing.assert_close(got[name], reference, rtol=0, atol=0)
