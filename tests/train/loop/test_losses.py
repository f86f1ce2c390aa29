from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like_train.config import AutoencoderTask
from sana_like_train.losses import (
    PatchDiscriminator,
    gradient_l1,
    hinge_discriminator,
    pixel_l1,
    pixel_square,
    structural_dissimilarity,
)
from sana_like_train.tasks.autoencoder import on_background, scale_resampling
from sana_like_train.tasks.reconstruction import CriticObjective, ReconstructionObjective


def test_losses_are_per_sample_means() -> None:
    error = torch.zeros(2, 3, 4, 4)
    error[1] = 0.5
    assert pixel_l1(error).tolist() == [0.0, 0.5]
    assert pixel_square(error).tolist() == [0.0, 0.25]
    assert gradient_l1(error).tolist() == [0.0, 0.0]  # a constant error has no edges
    error[1, :, :2] = -0.5  # one edge of height 1 among three rows of differences
    assert gradient_l1(error)[1].item() == pytest.approx(0.5 / 3)


@pytest.mark.parametrize(
    ("weight", "term", "factor"),
    [("square_weight", "square", 3.0), ("perceptual_weight", "structure", 0.5)],
)
def test_terms_add_to_the_loss_by_their_weight(
    tiny_autoencoder: Path, weight: str, term: str, factor: float
) -> None:
    torch.manual_seed(0)
    model = AutoencoderDC.from_pretrained(tiny_autoencoder)
    batch = {"pictures": torch.rand(2, 3, 64, 64) * 2 - 1, "adversarial": torch.tensor(0.0)}
    losses = []
    for given in (0.0, factor):
        config = AutoencoderTask(model={}, **{weight: given})
        out = ReconstructionObjective(model, config, None)(batch)
        losses.append(out["loss"].item())
    assert losses[1] - losses[0] == pytest.approx(factor * out["logs"][term].item(), rel=1e-4)


def test_a_new_autoencoder_can_begin_with_quieter_resampling(tiny_autoencoder: Path) -> None:
    model = AutoencoderDC.from_pretrained(tiny_autoencoder)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    scale_resampling(model, 0.5)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {"encoder.conv_out.weight", "decoder.conv_in.weight"} < changed
    assert all(torch.equal(p, before[n] * 0.5) for n, p in model.named_parameters() if n in changed)
    assert any("down_blocks" in n for n in changed) and any("up_blocks" in n for n in changed)
    assert not {"encoder.conv_in.weight", "decoder.conv_out.weight"} & changed


def test_structural_dissimilarity_is_zero_for_equal_pictures_and_grows() -> None:
    picture = torch.rand(2, 3, 32, 32) * 2 - 1
    assert structural_dissimilarity(picture, picture).abs().max() < 1e-5
    slightly = structural_dissimilarity(picture, picture + 0.05 * torch.randn_like(picture))
    strongly = structural_dissimilarity(picture, picture + 0.5 * torch.randn_like(picture))
    assert (slightly > 0).all() and (slightly < strongly).all()


def test_the_critic_is_content_when_it_is_right() -> None:
    sure = torch.full((2, 1, 2, 2), 3.0)
    assert hinge_discriminator(sure, -sure).tolist() == [0.0, 0.0]
    assert hinge_discriminator(-sure, sure).tolist() == [4.0, 4.0]


def test_the_critic_learns_to_tell_pictures_apart() -> None:
    torch.manual_seed(0)
    objective = CriticObjective(PatchDiscriminator(8, 2))
    optimizer = torch.optim.Adam(objective.parameters(), 3e-3)
    for _ in range(60):
        real, fake = torch.rand(4, 3, 16, 16), -torch.rand(4, 3, 16, 16)
        loss = objective({"real": real, "fake": fake})["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


def test_transparent_pixels_show_the_background() -> None:
    rgba = torch.tensor([[[[200, 100, 0, 255], [9, 9, 9, 0], [255, 255, 255, 51]]]]).byte()
    out = on_background(rgba, torch.tensor([[1.0, 0.0, 0.5]]))
    assert out.shape == (1, 3, 1, 3)
    expected = torch.tensor([[200 / 255, 100 / 255, 0.0], [1.0, 0.0, 0.5], [1.0, 0.2, 0.6]])
    assert torch.allclose(out[0, :, 0].T, expected * 2 - 1, atol=1e-6)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_the_adversary_is_off_by_default() -> None:
    assert AutoencoderTask(model={}).adversary is None
