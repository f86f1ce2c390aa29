from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like_train.evaluate.quality import psnr, ssim


def pictures(count: int = 3, side: int = 40) -> Tensor:
    return F.interpolate(torch.rand(count, 3, 8, 8) * 2 - 1, size=(side, side), mode="bilinear")


def plain_ssim(a: Tensor, b: Tensor) -> float:
    """SSIM of one picture pair by the definition, window by window, in fp64."""
    a, b = (a.double() + 1) / 2, (b.double() + 1) / 2
    offsets = torch.arange(11, dtype=torch.float64) - 5
    weights = torch.exp(-(offsets**2) / (2 * 1.5**2))
    window = torch.outer(weights, weights) / weights.sum() ** 2
    values = []
    for channel in range(3):
        for y in range(a.shape[1] - 10):
            for x in range(a.shape[2] - 10):
                u, v = a[channel, y : y + 11, x : x + 11], b[channel, y : y + 11, x : x + 11]
                mu, mv = (window * u).sum(), (window * v).sum()
                uu, vv = (window * u * u).sum() - mu**2, (window * v * v).sum() - mv**2
                uv = (window * u * v).sum() - mu * mv
                top = (2 * mu * mv + 0.01**2) * (2 * uv + 0.03**2)
                values.append(top / ((mu**2 + mv**2 + 0.01**2) * (uu + vv + 0.03**2)))
    return torch.stack(values).mean().item()


def test_psnr_of_a_known_error() -> None:
    original = pictures()
    shifted = original + torch.tensor([0.02, 0.2, 2.0]).view(3, 1, 1, 1)
    expected = [20 * math.log10(2 / shift) for shift in (0.02, 0.2, 2.0)]
    torch.testing.assert_close(
        psnr(shifted, original), torch.tensor(expected).double(), atol=1e-4, rtol=0
    )


def test_ssim_equals_its_definition() -> None:
    original = pictures(2, 16)
    changed = (original + 0.2 * torch.randn_like(original)).clamp(-1, 1)
    for index, value in enumerate(ssim(changed, original).tolist()):
        assert value == pytest.approx(plain_ssim(changed[index], original[index]), abs=1e-6)


def test_ssim_falls_with_noise_and_judges_each_picture_alone() -> None:
    original = pictures()
    noise = torch.randn_like(original)
    values = [ssim(original + level * noise, original) for level in (0.0, 0.05, 0.2)]
    assert torch.allclose(values[0], torch.ones(3).double())
    assert (values[0] > values[1]).all()
    assert (values[1] > values[2]).all()
    alone = ssim((original + 0.05 * noise)[1:2], original[1:2])
    torch.testing.assert_close(alone[0], values[1][1])


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_shapes_must_match(measure) -> None:
    with pytest.raises(ValueError, match="one shape"):
        measure(pictures(2), pictures(3))
    with pytest.raises(ValueError, match="one shape"):
        measure(pictures()[0], pictures()[0])


def test_ssim_needs_room_for_its_window() -> None:
    with pytest.raises(ValueError, match="11 pixels"):
        ssim(pictures(1, 10), pictures(1, 10))
