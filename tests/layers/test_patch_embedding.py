"""Patches, their inverse, and the table of positions."""

from __future__ import annotations

import copy

import pytest
import torch

from sana_like.layers.patch import PatchEmbed, sincos_table, unpatchify


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (16, 16), (33, 47)])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_table_equals_the_published_one(grid, scale):
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    wanted = get_2d_sincos_pos_embed(
        32, grid, interpolation_scale=scale, base_size=16, output_type="pt"
    )
    table = sincos_table(32, *grid, base_size=16, interpolation_scale=scale)
    assert table.dtype == torch.float32
    torch.testing.assert_close(table[0], wanted.float(), rtol=0, atol=0)


def test_width_of_the_table_is_checked():
    with pytest.raises(ValueError, match="divisible by 4"):
        sincos_table(30, 2, 2, base_size=2, interpolation_scale=1.0)


@pytest.mark.parametrize("route", ["bfloat16", "half", "to", "copy", "meta"])
def test_no_route_rounds_the_table(route):
    wanted = sincos_table(32, 4, 6, base_size=4, interpolation_scale=1.0)
    embed = PatchEmbed(3, 32, 1, 4, 1.0)
    embed(torch.randn(1, 3, 4, 6))  # so that a table is held when the cast comes
    if route == "meta":
        with torch.device("meta"):
            embed = PatchEmbed(3, 32, 1, 4, 1.0)
        embed = embed.to_empty(device="cpu").bfloat16()
    elif route == "copy":
        embed = copy.deepcopy(embed).bfloat16()
    else:
        casts = {"bfloat16": embed.bfloat16, "half": embed.half}
        embed = casts[route]() if route in casts else embed.to(torch.bfloat16)
    assert torch.equal(embed.positions(4, 6, torch.zeros(1, 24, 32)), wanted)
    assert not embed.state_dict().keys() - {"proj.weight", "proj.bias"}


def test_table_is_computed_once_for_each_grid():
    embed = PatchEmbed(3, 32, 1, 4, 1.0)
    tokens = torch.zeros(1, 1, 32)
    first = embed.positions(4, 6, tokens)
    assert embed.positions(4, 6, tokens) is first
    assert embed.positions(6, 4, tokens).shape == first.shape
    assert not torch.equal(embed.positions(6, 4, tokens), first)


def test_positions_do_not_change_the_dtype():
    embed = PatchEmbed(3, 32, 1, 4, 1.0).bfloat16()
    assert embed(torch.randn(1, 3, 4, 4).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_unpatchify_undoes_patches(patch):
    picture = torch.randn(2, 3, 2 * patch, 5 * patch)
    tokens = picture.unfold(2, patch, patch).unfold(3, patch, patch)  # [B, C, Y, X, p, p]
    tokens = tokens.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    assert torch.equal(unpatchify(tokens, 2, 5, patch), picture)


@pytest.mark.parametrize("patch", [1, 2])
def test_tokens_are_rows_of_the_picture(patch):
    embed = PatchEmbed(3, 8, patch, 4, None)
    picture = torch.randn(1, 3, 2 * patch, 3 * patch)
    tokens = embed(picture)
    corner = embed(picture[..., patch : 2 * patch, 2 * patch :])
    torch.testing.assert_close(tokens[:, 5:], corner)
