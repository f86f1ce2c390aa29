"""Triton kernels of GLUMBConv, in the interpreter, against fp64 references."""

from __future__ import annotations

import pytest
import torch

from sana_like_kernels import glu_mbconv
from sana_like_kernels.testing import assert_close

pytestmark = pytest.mark.usefixtures("interpreter")

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 5e-3}
# Batch, height, width, channels: smaller than, equal to and beyond the tile of the table.
SHAPES = [(2, 1, 1, 4), (1, 3, 17, 24), (1, 17, 9, 4)]


def draw(shape, dtype):
    channels = shape[-1]
    sizes = [shape, (channels, 1, 3, 3), (channels,), (channels,)]
    return [torch.randn(size).to(dtype) for size in sizes]


def run(tensors, probe, backend, with_bias=True, with_expand=True):
    tensors = [x.detach().requires_grad_() for x in tensors]
    hidden, weight, bias, expand_bias = tensors
    used = [hidden, weight] + [bias] * with_bias + [expand_bias] * with_expand
    out = glu_mbconv(
        hidden,
        weight,
        bias if with_bias else None,
        expand_bias=expand_bias if with_expand else None,
        backend=backend,
    )
    return [out, *torch.autograd.grad((out * probe.to(out.dtype)).sum(), used)]


def compare(tensors, limit, **flags):
    shape = tensors[0].shape
    probe = torch.randn(*shape[:3], shape[3] // 2).to(tensors[0].dtype)
    wanted = run([x.double() for x in tensors], probe, "torch", **flags)
    got = run(tensors, probe, "triton", **flags)
    for name, reference, out in zip(
        ["out", "hidden", "weight", "b", "e"], wanted, got, strict=False
    ):
        assert_close(name, reference, out, limit)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flags", [(True, False), (True, True)])
def test_forward_and_backward(shape, flags):
    compare(draw(shape, torch.float32), 1e-5, with_bias=flags[0], with_expand=flags[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    compare(draw((1, 3, 9, 24), dtype), LIMIT[dtype], with_bias=False, with_expand=False)
    compare(draw((1, 3, 5, 24), dtype), LIMIT[dtype])


@pytest.mark.slow
@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize("shape", [(2, 1, 40), (1, 17, 17), (1, 20, 5), (1, 3, 70)])
@pytest.mark.parametrize("channels", [2, 62, 1030])
@pytest.mark.parametrize("flags", [(False, False), (False, True), (True, False), (True, True)])
def test_full_matrix(shape, channels, flags):
    half = (torch.bfloat16, torch.float16)[sum(flags) % 2]
    for dtype in (torch.float32, half):
        tensors = draw((*shape, channels), dtype)
        compare(tensors, LIMIT[dtype], with_bias=flags[0], with_expand=flags[1])


@pytest.mark.parametrize("seed", range(4))
def test_few_weights_whose_gradients_cancel(seed, large_blocks):
    """Eighteen sums of forty terms each: rounding before the sums would show."""
    torch.manual_seed(seed)
    compare(draw((2, 1, 20, 2), torch.bfloat16), LIMIT[torch.bfloat16])


def test_gradients_of_large_fp16_activations_are_finite(large_blocks):
    """Inside they reach 1e9, which is no number of fp16; those of the result are."""
    hidden, weight, bias, _ = (x.half() for x in draw((1, 3, 5, 4), torch.float32))
    hidden, probe = hidden * 2e3, torch.full((1, 3, 5, 2), 1e-3, dtype=torch.float16)
    wanted = run([x.double() for x in (hidden, weight, bias, bias)], probe, "torch")
    got = run([hidden, weight, bias, bias], probe, "triton")
    for name, reference, out in zip(["out", "hidden", "weight", "b"], wanted, got, strict=False):
        if reference.abs().max() < 6e4:
            assert_close(name, reference, out, 5e-3)


@pytest.mark.parametrize("layout", ["padded", "transposed"])
def test_non_contiguous_inputs(layout):
    hidden, *rest = draw((1, 4, 9, 12), torch.float32)
    if layout == "padded":
        hidden = torch.randn(1, 6, 11, 20)[:, 1:5, 1:10, 3:15]
    else:
        hidden = torch.randn(1, 12, 9, 4).permute(0, 3, 2, 1)
    assert not hidden.is_contiguous()
    compare([hidden, *rest], 1e-5)


def test_special_values():
    hidden, weight, bias, _ = draw((1, 4, 5, 8), torch.float32)
    assert not glu_mbconv(torch.zeros_like(hidden), weight, backend="triton").any()
    assert not glu_mbconv(torch.full_like(hidden, -1e4), weight, backend="triton").any()
    hidden[0, 1, 2, 3] = 1e4
    wanted = glu_mbconv(hidden.double(), weight.double(), bias.double(), backend="torch")
    assert_close("outlier", wanted, glu_mbconv(hidden, weight, bias, backend="triton"), 1e-5)
    hidden[0, 1, 2, 3] = float("nan")
    out = glu_mbconv(hidden, weight, bias, backend="triton")
    wanted = glu_mbconv(hidden, weight, bias, backend="torch")
    assert out.isnan().any() and torch.equal(out.isnan(), wanted.isnan())


def test_the_padding_is_zero_after_the_bias():
    _, weight, bias, expand_bias = draw((1, 1, 1, 4), torch.float32)
    hidden = torch.zeros(1, 3, 3, 4)
    for backend in ("triton", "torch"):
        fused = glu_mbconv(hidden, weight, bias, expand_bias=expand_bias, backend=backend)
        apart = glu_mbconv(hidden + expand_bias, weight, bias, backend=backend)
        torch.testing.assert_close(fused, apart)


def test_frames_and_samples_do_not_mix():
    hidden, weight, bias, _ = draw((3, 4, 5, 8), torch.float32)
    whole = glu_mbconv(hidden, weight, bias, backend="triton")
    for i in range(3):
        one = glu_mbconv(hidden[i : i + 1], weight, bias, backend="triton")
        torch.testing.assert_close(whole[i : i + 1], one, rtol=0, atol=0)


def test_biases_of_another_length_are_refused():
    hidden, weight, bias, _ = draw((1, 2, 2, 8), torch.float32)
    with pytest.raises(ValueError, match="expand_bias must be"):
        glu_mbconv(hidden, weight, bias, expand_bias=bias[:4])


def test_opcheck():
    from sana_like_kernels.glu_mbconv.launch import backward_op, forward_op

    tensors = draw((1, 1, 2, 4), torch.float32)
    torch.library.opcheck(forward_op, [x.requires_grad_() for x in tensors])
    grad = torch.randn(1, 1, 2, 2)
    torch.library.opcheck(backward_op, [grad, *(x.detach() for x in tensors)])


def test_eager_equals_compiled():
    tensors, probe = draw((1, 2, 3, 8), torch.float32), torch.randn(1, 2, 3, 4)
    wanted = run(tensors, probe, "triton")
    got = torch.compile(run, backend="aot_eager")(tensors, probe, "triton")
    for reference, out in zip(wanted, got, strict=True):
        torch.testing.assert_close(out, reference, rtol=0, atol=0)
