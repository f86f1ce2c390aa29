"""Positions of video tokens: exact at any place, and known to the numerator alone."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.layers.rope import axis_widths, rope_3d
from sana_like_kernels import linear_attention


@pytest.mark.parametrize(
    ("head_dim", "widths"), [(112, (40, 36, 36)), (128, (44, 42, 42)), (32, (12, 10, 10))]
)
def test_widths_of_the_axes(head_dim, widths):
    assert axis_widths(head_dim) == widths and sum(widths) == head_dim


@pytest.mark.parametrize("head_dim", [4, 7, 0])
def test_heads_without_three_axes_are_refused(head_dim):
    with pytest.raises(ValueError, match="even width"):
        axis_widths(head_dim)


def test_tables_are_the_published_ones():
    module = diffusers.models.transformers.transformer_sana_video.WanRotaryPosEmbed
    cos, sin = module(112, (1, 2, 2), 64)(torch.zeros(1, 1, 5, 8, 6))
    ours = rope_3d(112, (5, 4, 3))
    assert torch.equal(ours[0], cos[0, :, 0, ::2]) and torch.equal(ours[1], sin[0, :, 0, 1::2])


@pytest.mark.parametrize("first", [0, 1023, 1_000_000])
def test_any_place_is_exact(first):
    cos, sin = rope_3d(32, (2, 1, 1), first_frame=first)
    steps = torch.arange(0, 12, 2, dtype=torch.float64)
    angle = (first + 1) * 10_000.0 ** (-steps / 12)
    torch.testing.assert_close(cos[1, :6], angle.cos().float(), rtol=0, atol=0)
    torch.testing.assert_close(sin[1, :6], angle.sin().float(), rtol=0, atol=0)
    assert cos.dtype == torch.float32 and cos.shape == (2, 16)


def test_a_later_chunk_continues_the_table():
    whole, late = rope_3d(32, (7, 3, 2)), rope_3d(32, (4, 3, 2), first_frame=3)
    assert torch.equal(whole[0][18:], late[0]) and torch.equal(whole[1][18:], late[1])


def test_only_distances_matter_and_equal_places_change_nothing():
    query, key, value = (torch.randn(1, 12, 2, 32, dtype=torch.float64) for _ in range(3))
    near, far = rope_3d(32, (3, 2, 2)), rope_3d(32, (3, 2, 2), first_frame=500)
    wide = [tuple(table.double() for table in rope) for rope in (near, far)]
    outs = [linear_attention(query, key, value, rope=rope) for rope in wide]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-6)
    still = tuple(table[:1].expand(12, -1) for table in wide[1])
    plain = linear_attention(query, key, value)
    torch.testing.assert_close(linear_attention(query, key, value, rope=still), plain)
    assert not torch.allclose(outs[0], plain, atol=1e-3)
