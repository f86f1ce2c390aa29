"""High resolutions worked on in slabs of rows give what whole planes give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sana_like.autoencoders import slabs
from sana_like.autoencoders.blocks import ResBlock
from sana_like.autoencoders.resample import DownBlock, UpBlock

DTYPES = [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)]
SIZES = [(2, 1024), (37, 40), (64, 33)]


@pytest.fixture(autouse=True, params=["many", "one"])
def _heights(request, monkeypatch):
    """Slabs of as few rows as there may be, or one slab for the whole plane."""
    monkeypatch.setattr(slabs, "SLAB", 1 if request.param == "many" else 2**30)


def compare(module, x, limit, **arguments):
    """`module` without gradients, which takes slabs, against itself with them, which does not."""
    whole = module(x.clone().requires_grad_())
    with torch.no_grad():
        assert module._in_slabs(x)
        out = module(x, **arguments)
    assert out.dtype == x.dtype and out.shape == whole.shape
    assert (out.float() - whole.float()).norm() <= limit * whole.float().norm()
    return out


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("norm", "activation"),
    [("rms_norm", "silu"), ("rms_norm", "relu"), ("layer_norm", "relu6"), ("batch_norm", "relu")],
)
def test_residual_blocks(size, norm, activation, dtype, limit):
    block = ResBlock(8, norm, activation).to(dtype).eval()
    x = torch.randn(2, *size, 8).to(dtype)
    out = compare(block, x, limit)
    with torch.no_grad():
        place = x.clone()
        assert block(place, overwrite=True) is place
        assert torch.equal(place, out)


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("out_channels", [4, 8, 16])
@pytest.mark.parametrize("shortcut", [True, False])
def test_doubling(size, out_channels, shortcut, dtype, limit):
    block = UpBlock(16, out_channels, interpolate=True, shortcut=shortcut).to(dtype)
    compare(block, torch.randn(2, *size, 16).to(dtype), limit)


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("size", [(2, 64), (36, 40)])
@pytest.mark.parametrize("out_channels", [8, 16])
@pytest.mark.parametrize("shortcut", [True, False])
def test_halving(size, out_channels, shortcut, dtype, limit):
    block = DownBlock(8, out_channels, unshuffle=False, shortcut=shortcut).to(dtype)
    compare(block, torch.randn(2, *size, 8).to(dtype), limit)


def test_blocks_in_training_mode_keep_the_statistics_of_whole_planes():
    block = ResBlock(8, "batch_norm", "relu").train()
    x = torch.randn(2, 40, 40, 8)
    with torch.no_grad():
        assert not block._in_slabs(x)
        block(x)
    assert int(block.norm.num_batches_tracked) == 1


def test_hooks_see_every_call():
    block, calls = ResBlock(8, "rms_norm", "silu"), []
    block.conv1.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        block(torch.randn(1, 8, 8, 8))
    assert calls == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_are_split_and_merged(dtype):
    x = torch.randn(3, 5, 16).to(dtype)
    x[0, 0, :3] = torch.tensor([float("nan"), -float("inf"), -0.0])
    for parts in (1, 2, 4):
        split = slabs.split_channels(x, parts)
        for first, part in enumerate(split):
            assert part.is_contiguous()
            torch.testing.assert_close(part, x[..., first::parts], rtol=0, atol=0, equal_nan=True)
    merged = slabs.merge_channels(*slabs.split_channels(x, 2))
    torch.testing.assert_close(merged, x, rtol=0, atol=0, equal_nan=True)


def test_four_small_kernels_are_the_large_one():
    weight, plane = torch.randn(3, 2, 3, 3).double(), torch.randn(1, 2, 5, 6).double()
    doubled = nn.functional.interpolate(plane, scale_factor=2)
    whole = nn.functional.conv2d(doubled, weight, padding=1)
    phases = slabs.phase_weights(weight).double().view(4, 3, 2, 2, 2)
    padded = nn.functional.pad(plane, (1, 1, 1, 1))
    for phase in range(4):
        down, right = divmod(phase, 2)
        part = nn.functional.conv2d(padded[..., down:, right:], phases[phase])[..., :5, :6]
        torch.testing.assert_close(part, whole[..., down::2, right::2], rtol=1e-5, atol=1e-5)
