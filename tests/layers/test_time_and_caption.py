"""Embeddings of time, guidance and caption."""

from __future__ import annotations

import pytest
import torch

from sana_like.layers.embeddings import TimeEmbedding, per_row, sinusoid


def test_sinusoid_equals_the_published_one():
    from diffusers.models.embeddings import get_timestep_embedding

    times = torch.tensor([0.0, 0.5, 1.0, 3.25, 999.0])
    wanted = get_timestep_embedding(times, 256, flip_sin_to_cos=True, downscale_freq_shift=0)
    torch.testing.assert_close(sinusoid(times), wanted, rtol=1e-6, atol=1e-6)


def test_sinusoid_puts_cosines_first_and_is_fp32_for_any_time():
    out = sinusoid(torch.tensor([0]))
    assert out.dtype == torch.float32
    assert out[0, :128].tolist() == [1.0] * 128 and out[0, 128:].tolist() == [0.0] * 128
    assert sinusoid(torch.tensor([1.0]).double()).dtype == torch.float64


def test_a_fraction_of_a_timestep_matters():
    assert not torch.equal(sinusoid(torch.tensor([500.0])), sinusoid(torch.tensor([500.25])))


@pytest.mark.parametrize("value", [7, 7.5, torch.tensor(7.5), torch.tensor([7.5])])
def test_one_number_serves_every_row(value):
    assert per_row(value, 3, "timestep", torch.device("cpu")).tolist() == [float(value)] * 3


def test_one_number_per_row():
    rows = per_row(torch.tensor([1, 2, 3]), 3, "timestep", torch.device("cpu"))
    assert rows.tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [(2,), (3, 1), (0,), (1, 1)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="timestep has shape"):
        per_row(torch.zeros(shape), 3, "timestep", torch.device("cpu"))


def test_guidance_must_be_there_exactly_where_it_is_read():
    times = torch.tensor([1.0])
    with pytest.raises(ValueError, match="pass guidance"):
        TimeEmbedding(8, guidance=True)(times, None, torch.float32)
    with pytest.raises(ValueError, match="guidance=None"):
        TimeEmbedding(8)(times, times, torch.float32)
