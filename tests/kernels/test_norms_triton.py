"""Triton kernels of the norms, in the interpreter, against fp64 references."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from sana_like_kernels import (
    gated_residual_norm,
    modulated_norm,
    qk_norm_rope,
    rms_norm_2d,
)
from sana_like_kernels.testing import assert_close

pytestmark = pytest.mark.usefixtures("interpreter")

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 5e-3}
DTYPES = list(LIMIT)
TOKENS, HEADS, WIDTHS = (1, 7, 63, 100, 1000, 1024), (1, 3, 20), (16, 32, 60, 112, 128)


def run(function, tensors, backend):
    tensors = [None if x is None else x.detach().requires_grad_() for x in tensors]
    outs = function(*tensors, backend=backend)
    outs = outs if isinstance(outs, tuple) else (outs,)
    generator = torch.Generator().manual_seed(1)
    probes = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outs]
    loss = sum((x * probe).sum() for x, probe in zip(outs, probes, strict=True))
    return [*outs, *torch.autograd.grad(loss, [x for x in tensors if x is not None])]


def compare(function, tensors, dtype):
    tensors = [None if x is None else x.to(dtype) for x in tensors]
    got = run(function, tensors, "triton")
    wanted = run(function, [None if x is None else x.double() for x in tensors], "torch")
    for i, (reference, out) in enumerate(zip(wanted, got, strict=True)):
        assert out.dtype == dtype
        assert_close(f"result {i}", reference, out, LIMIT[dtype])


def modulation(b, n, frames, c):
    return [torch.randn(b, n, c) * 3 + 1, *(torch.randn(b, frames, c) for _ in range(2))]


MODULATED = [(2, 7, 1, 24), (1, 63, 3, 100), (2, 5, 5, 600), (1, 9, 1, 1152), (1, 40, 2, 60)]


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("shape", "dtype"), list(zip(MODULATED, [*DTYPES, *DTYPES[:2]])))  # noqa: B905
def test_modulated_norm(shape, dtype, kind):
    compare(partial(modulated_norm, kind=kind), modulation(*shape), dtype)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("shape", "dtype"), list(zip(MODULATED, [*DTYPES[1:], *DTYPES])))  # noqa: B905
def test_gated_residual_norm(shape, dtype, kind):
    x, shift, scale = modulation(*shape)
    # The residual is rounded before the norm, which half-precision references do not do; so the
    # residual's part is exact in half precision here.
    x, branch, gate = (t.mul(4).round().div(4) for t in (x, torch.randn_like(x), shift))
    compare(partial(gated_residual_norm, kind=kind), [x, branch, gate, shift, scale], dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (3, 1000, 1, 320), (2, 1024, 16, 2240)])
def test_modulated_norm_full_sizes(shape, kind):
    for dtype in DTYPES:
        compare(partial(modulated_norm, kind=kind), modulation(*shape), dtype)


def test_a_branch_without_gate():
    x, shift, scale = modulation(2, 6, 3, 24)

    def norm(x, branch, shift, scale, backend):
        return gated_residual_norm(x, branch, None, shift, scale, backend=backend)

    compare(norm, [x, torch.randn_like(x), shift, scale], torch.float32)


def test_modulation_by_views_of_one_table():
    table = torch.randn(2, 6, 24)
    shift, scale, gate = table.chunk(6, dim=1)[:3]
    x, branch = torch.randn(2, 3, 9, 24).transpose(1, 2)[:, :, 1], torch.randn(2, 24, 9).mT
    compare(gated_residual_norm, [x, branch, gate, shift, scale], torch.float32)


def test_one_modulation_for_the_whole_batch():
    compare(
        modulated_norm, [torch.randn(3, 6, 24), *torch.randn(2, 1, 1, 24).unbind()], torch.float32
    )


def test_modulation_special_values():
    x, shift, scale = modulation(1, 5, 1, 24)
    flat = modulated_norm(torch.full_like(x, -5.0), shift, scale, backend="triton")
    torch.testing.assert_close(flat, shift.expand_as(flat))
    x[0, 1, 3] = 1e8
    wanted = modulated_norm(x.double(), shift.double(), scale.double(), backend="torch")
    assert_close("outlier", wanted, modulated_norm(x, shift, scale, backend="triton"), 1e-5)
    x[0, 2, 1] = float("nan")
    out = modulated_norm(x, shift, scale, backend="triton")
    assert out.isnan().any(-1)[0].tolist() == [False, False, True, False, False]


def test_modulation_that_does_not_fit_is_refused():
    x, shift, scale = modulation(1, 6, 4, 8)
    with pytest.raises(ValueError, match="frame count"):
        modulated_norm(x, shift, scale)
    with pytest.raises(ValueError, match="kind 'batch' is unknown"):
        modulated_norm(x, shift[:, :1], scale[:, :1], kind="batch")
    with pytest.raises(ValueError, match="branch must be"):
        gated_residual_norm(x, x[:, :3], scale[:, :1], shift[:, :1], scale[:, :1])
    with pytest.raises(ValueError, match="frame count"):
        modulated_norm(x, shift[:, :3], scale[:, :1])
    with pytest.raises(ValueError, match="scale must be"):
        modulated_norm(x, shift[:, :3], scale[:, :3, :7])
    with pytest.raises(ValueError, match="shift must be"):
        modulated_norm(x, shift[:, :3].expand(2, 3, 8), scale[:, :3])


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    list(zip([(2, 3, 5, 24), (1, 9, 13, 100), (1, 7, 9, 640)], DTYPES)),  # noqa: B905
)
def test_rms_norm_2d(shape, dtype, activation, with_bias):
    x, residual = torch.randn(shape), None if activation else torch.randn(shape)
    weight, bias = torch.randn(2, shape[-1]).unbind()

    def norm(*tensors, backend):
        return rms_norm_2d(
            *tensors[:3], residual=tensors[3], activation=activation, backend=backend
        )

    compare(norm, [x, weight, bias if with_bias else None, residual], dtype)


def test_rms_norm_2d_special_values():
    x, weight = torch.randn(1, 2, 3, 24), torch.randn(24)
    assert not rms_norm_2d(torch.zeros_like(x), weight, backend="triton").any()
    x[0, 1, 1, 3] = 1e8
    wanted = rms_norm_2d(x.double(), weight.double(), backend="torch")
    assert_close("outlier", wanted, rms_norm_2d(x, weight, backend="triton"), 1e-5)
    x[0, 0, 2, 1] = float("nan")
    for activation in (None, "relu", "silu"):
        out = rms_norm_2d(x, weight, activation=activation, backend="triton")
        assert out.isnan().all(-1).flatten().tolist() == [False, False, True] + [False] * 3
    with pytest.raises(ValueError, match="activation 'gelu' is unknown"):
        rms_norm_2d(x, weight, activation="gelu")
    with pytest.raises(ValueError, match="needs weight"):
        rms_norm_2d(x, weight[:8])


def qk(n, h, d, dtype, with_rope=True):
    angles = torch.rand(n, d // 2) * 6
    rope = (angles.cos(), angles.sin()) if with_rope else None
    packed = torch.randn(1, n, 2, h, d)
    tensors = [*packed.unbind(2), torch.rand(h * d) + 0.5, torch.rand(h * d) + 0.5]
    compare(partial(qk_norm_rope, rope=rope), tensors, dtype)


@pytest.mark.parametrize(("i", "j"), list(itertools.product(range(6), range(5))))
def test_qk_norm_rope(i, j, request):
    if TOKENS[i] > 50:  # below, with the blocks of the table
        request.getfixturevalue("large_blocks")
    h = HEADS[(i + j) % 3] if TOKENS[i] < 1000 else {16: 20, 32: 3}.get(WIDTHS[j], 1)
    qk(TOKENS[i], h, WIDTHS[j], DTYPES[(i + 2 * j) % 3], with_rope=j != 4)


@pytest.mark.slow
@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize(("n", "h", "d"), list(itertools.product(TOKENS, HEADS, WIDTHS)))
def test_qk_norm_rope_full_matrix(n, h, d):
    for dtype in DTYPES:
        qk(n, h, d, dtype)


def test_qk_norm_rope_special_values():
    weight, angles = torch.rand(32) + 0.5, torch.rand(5, 8)
    rope = (angles.cos(), angles.sin())
    query = torch.randn(1, 5, 2, 16)
    key = torch.zeros_like(query)
    query[0, 3, 1, 2] = float("nan")
    query[0, 1, 0, 2] = 1e8
    out, zero = qk_norm_rope(query, key, weight, weight, rope=rope, backend="triton")
    wanted, _ = qk_norm_rope(query, key, weight, weight, rope=rope, backend="torch")
    assert not zero.any() and out[0, 3].isnan().all()
    torch.testing.assert_close(out, wanted, equal_nan=True)


def test_rotation_keeps_lengths_and_relative_angles():
    n, angles = 6, torch.arange(6.0)[:, None] * torch.rand(8)
    rope = (angles.cos(), angles.sin())
    ones = torch.ones(16)
    x = torch.randn(1, 1, 1, 16).expand(1, n, 1, 16)
    for backend in ("triton", "torch"):
        query, key = qk_norm_rope(x, x.flip(-1), ones, ones, rope=rope, backend=backend)
        plain, _ = qk_norm_rope(x, x, ones, ones, backend=backend)
        torch.testing.assert_close(query.norm(dim=-1), plain.norm(dim=-1))
        products = (query[0, :, 0] @ key[0, :, 0].T).diagonal(offset=2)
        torch.testing.assert_close(products, products[:1].expand(n - 2))


def test_tables_and_weights_that_do_not_fit_are_refused():
    x, weight, table = torch.randn(1, 5, 2, 16), torch.ones(32), torch.ones(5, 8)
    with pytest.raises(ValueError, match="rope tables of shape"):
        qk_norm_rope(x, x, weight, weight, rope=(table[:4], table))
    with pytest.raises(ValueError, match="weights"):
        qk_norm_rope(x, x, weight, weight[:16])


def calls():
    from sana_like_kernels.modulated_norm import launch as modulated
    from sana_like_kernels.qk_norm_rope import launch as rotated
    from sana_like_kernels.rms_norm_2d import launch as plane

    x, shift, scale = modulation(1, 4, 2, 8)
    y, gate = torch.randn_like(x), torch.randn_like(shift)
    weight, table = torch.rand(8), torch.rand(4, 2)
    heads = x.unflatten(-1, (2, 4))
    yield modulated.forward_op, [x, None, None, shift, scale, True, 1e-6]
    yield modulated.forward_op, [x, y, gate, shift, scale, False, 1e-6]
    yield modulated.backward_op, [x, y, x, y, gate, scale, False, 1e-6]
    yield plane.forward_op, [x, weight, weight.clone(), y, "silu", 1e-5]
    yield plane.backward_op, [y, x, weight, weight.clone(), "relu", 1e-5]
    yield rotated.norm_rope_op, [heads, weight, table, table.clone(), 1e-5]
    yield rotated.norm_rope_backward_op, [heads, heads.clone(), weight, None, None, 1e-5]


def test_opcheck():
    for op, arguments in calls():
        grad = "backward" not in op._name
        fresh = [
            x.clone().requires_grad_(grad and x.shape != (4, 2)) if torch.is_tensor(x) else x
            for x in arguments
        ]
        torch.library.opcheck(op, fresh)


def test_eager_equals_compiled():
    def norms(x, branch, gate, shift, scale, weight, backend):
        residual, out = gated_residual_norm(x, branch, gate, shift, scale, backend=backend)
        out = rms_norm_2d(out, weight, residual=residual, backend=backend)
        other = modulated_norm(out, shift, scale, backend=backend)
        heads = (x.unflatten(-1, (2, 4)) for x in (out, other))
        return qk_norm_rope(*heads, weight, weight, backend=backend)

    tensors = [torch.randn(1, 4, 8) for _ in range(2)] + [torch.randn(1, 2, 8) for _ in range(3)]
    tensors.append(torch.rand(8))
    wanted = run(norms, tensors, "triton")
    got = torch.compile(run, backend="aot_eager")(norms, tensors, "triton")
    for reference, out in zip(wanted, got, strict=True):
        torch.testing.assert_close(out, reference, rtol=0, atol=0)
