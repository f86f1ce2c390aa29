"""A picture keeps its proportions at any size, and the record says what was done."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sana_like_pipelines.fitting import fit_picture, size_in_proportion

SIZES = st.tuples(st.integers(8, 80), st.integers(8, 80))


def disc(rows, columns):
    """A bright disc in the middle on grey; round as long as nothing is squeezed."""
    y = torch.arange(rows).view(-1, 1) - (rows - 1) / 2
    x = torch.arange(columns).view(1, -1) - (columns - 1) / 2
    radius = min(rows, columns) / 4
    plane = (y.square() + x.square() <= radius**2).float()
    return (plane * 0.9).expand(1, 3, rows, columns)


def extent(picture):
    bright = picture[0, 0] > 0.45
    rows, columns = bright.any(1).nonzero(), bright.any(0).nonzero()
    return int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1


@pytest.mark.parametrize("how", ["cut", "pad"])
@pytest.mark.parametrize("source", [(60, 120), (120, 60), (90, 90)])
@pytest.mark.parametrize("target", [(64, 64), (48, 80), (96, 40)])
def test_a_disc_stays_round(how, source, target):
    fitted, record = fit_picture(disc(*source), *target, how)
    assert tuple(fitted.shape) == (1, 3, *target)
    rows, columns = extent(fitted)
    expected = min(source) / 2 * record.scale
    assert abs(rows - expected) <= 2
    assert abs(columns - min(expected, target[1])) <= 2 or expected > target[1]


@settings(max_examples=60)
@given(SIZES, SIZES, st.sampled_from(["cut", "pad"]))
def test_record_accounts_for_every_pixel(source, target, how):
    picture = torch.rand(1, 3, *source)
    fitted, record = fit_picture(picture, *target, how)
    assert tuple(fitted.shape[-2:]) == target
    assert fitted.min() >= picture.min() and fitted.max() <= picture.max()
    for side, (first, last) in enumerate(((0, 1), (2, 3))):
        seen = source[side] - record.cut[first] - record.cut[last]
        shown = target[side] - record.padded[first] - record.padded[last]
        assert abs(seen * record.scale - shown) <= 1
        assert min(record.cut) >= -1e-9 and min(record.padded) >= 0
    assert how == "cut" or not any(record.cut)
    assert how == "pad" or not any(record.padded)


def test_same_size_changes_nothing():
    picture = torch.rand(1, 3, 32, 48)
    for how in ("cut", "pad"):
        fitted, record = fit_picture(picture, 32, 48, how)
        assert torch.equal(fitted, picture)
        assert record.to_dict()["scale"] == 1


def test_padding_repeats_the_edge():
    picture = torch.full((1, 3, 16, 16), 0.25)
    fitted, record = fit_picture(picture, 16, 32, "pad")
    assert torch.equal(fitted, torch.full((1, 3, 16, 32), 0.25))
    assert record.padded == (0, 0, 8, 8)


def test_unknown_way():
    with pytest.raises(ValueError, match="cut, pad"):
        fit_picture(torch.zeros(1, 3, 4, 4), 4, 4, "stretch")


@given(st.tuples(st.integers(1, 4000), st.integers(1, 4000)))
def test_size_in_proportion(picture):
    ratio = picture[0] / picture[1]
    size = size_in_proportion(picture, 480 * 832, 32)
    assert all(side % 32 == 0 and side > 0 for side in size)
    if 1 / 4 <= ratio <= 4:
        assert abs(math.log(size[0] / size[1] / ratio)) < 0.15
        assert 0.75 < size[0] * size[1] / (480 * 832) < 1.3


def test_the_trained_size_is_kept():
    assert size_in_proportion((480, 832), 480 * 832, 32) == (480, 832)
    assert size_in_proportion((960, 1664), 480 * 832, 32) == (480, 832)
    assert size_in_proportion((512, 512), 256 * 256, 32) == (256, 256)
