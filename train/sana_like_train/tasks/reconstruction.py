"""Reconstruction of pictures or clips: the losses, what trains, and how it is measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like_train.losses import (
    PatchDiscriminator,
    gradient_l1,
    hinge_discriminator,
    pixel_l1,
    pixel_square,
    structural_dissimilarity,
    temporal_l1,
)
from sana_like_train.sections import ReconstructionTask


def frames_of(batch: Tensor) -> Tensor:
    """Clips `[B, C, T, Y, X]` as pictures `[B*T, C, Y, X]`; pictures as they are."""
    return batch if batch.ndim == 4 else batch.transpose(1, 2).flatten(0, 1)


class ReconstructionObjective(nn.Module):
    """Loss of an autoencoder on a batch of pictures, or of clips, whose frames count as pictures.

    Args:
        model: the autoencoder.
        config: weights of the terms.
        critic: the discriminator that judges reconstructions, or none. It is not a sub-module:
            its weights have their own optimiser.
        temporal_weight: of the L1 on differences between neighbouring frames of clips.
    """

    def __init__(
        self,
        model: Any,
        config: ReconstructionTask,
        critic: PatchDiscriminator | None,
        temporal_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.temporal_weight = temporal_weight
        self._critic = [critic] if critic else []

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """To the loop's dictionary.

        Args:
            batch: `pictures` `[B, 3, Y, X]` or `[B, 3, T, Y, X]`, `adversarial` scalar 0 or 1.
        """
        target = batch["pictures"]
        latent = self.model.encode(target).latent
        spread = latent.detach().float().std()
        if self.config.latent_noise and self.training:
            latent = latent + torch.randn_like(latent) * (self.config.latent_noise * spread)
        output = self.model.decode(latent).sample.float()
        per_sample, logs = self._terms(output, target)
        logs["latent_std"] = spread
        carry = {}
        for critic in self._critic:
            fooled = -_each(critic(frames_of(output)).float().flatten(1).mean(1), target)
            weight = self.config.adversary.weight if self.config.adversary else 0.0
            per_sample = per_sample + weight * batch["adversarial"] * fooled
            logs["fooled"] = fooled.mean().detach()
            carry = {"real": target, "fake": output.detach()}
        return {"loss": per_sample.mean(), "per_sample": per_sample, "logs": logs, "carry": carry}

    def _terms(self, output: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each sample, `[B]`, and the mean of each of its terms."""
        config = self.config
        rebuilt, pictures = frames_of(output), frames_of(target)
        error = rebuilt - pictures
        terms = [("l1", 1.0, _each(pixel_l1(error), target))]
        if config.square_weight:
            terms.append(("square", config.square_weight, _each(pixel_square(error), target)))
        if config.gradient_weight:
            terms.append(("gradient", config.gradient_weight, _each(gradient_l1(error), target)))
        if config.perceptual_weight:
            structure = structural_dissimilarity(rebuilt, pictures)
            terms.append(("structure", config.perceptual_weight, _each(structure, target)))
        if self.temporal_weight:
            terms.append(("temporal", self.temporal_weight, temporal_l1(output - target)))
        total = terms[0][2]
        for _, weight, value in terms[1:]:
            total = total + weight * value
        return total, {name: value.mean().detach() for name, _, value in terms}


def _each(values: Tensor, batch: Tensor) -> Tensor:
    """Values of pictures `[B*T]` as means over the frames of each sample, `[B]`."""
    return values.view(len(batch), -1).mean(1)


class CriticObjective(nn.Module):
    """Hinge loss of the discriminator on real pictures and their reconstructions."""

    def __init__(self, critic: PatchDiscriminator) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, carry: dict[str, Tensor]) -> dict[str, Any]:
        """`real`, `fake` `[B, 3, Y, X]` or `[B, 3, T, Y, X]`, to the loop's dictionary."""
        real, fake = (self.critic(frames_of(carry[name])).float() for name in ("real", "fake"))
        per_sample = _each(hinge_discriminator(real, fake), carry["real"])
        loss = per_sample.mean()
        return {"loss": loss, "per_sample": per_sample, "logs": {"critic": loss.detach()}}


def train_only(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Freezes all parameters but those whose names begin with one of `prefixes`, whole parts."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(f"{name}.".startswith(f"{p}.") for p in prefixes))


def crop_stage(
    config: ReconstructionTask, step: int, side: int, batch_size: int
) -> tuple[int, int]:
    """Crop side and batch size at a step; whole pictures have `side`."""
    crop = config.crop or side
    for start, later_crop, later_batch in config.crop_schedule:
        if step >= start:
            crop, batch_size = later_crop or side, later_batch
    return min(crop, side), batch_size


def adversarial_at(config: ReconstructionTask, step: int) -> Tensor:
    """Scalar 1 from the step on at which the discriminator acts, else 0."""
    start = config.adversary.start_step if config.adversary else 0
    return torch.tensor(float(step >= start))


def decibels(rebuilt: Tensor, pictures: Tensor) -> Tensor:
    """PSNR `[N]` of pictures `[N, 3, Y, X]` in [-1, 1]."""
    mse = (rebuilt.float() - pictures).square().mean((1, 2, 3)).clamp_min(1e-10)
    return 10 * torch.log10(4 / mse)


class Spread:
    """Running standard deviation over all values of the tensors that are added."""

    def __init__(self) -> None:
        self._total = self._squares = 0.0
        self._number = 0

    def add(self, values: Tensor) -> None:
        """Count a tensor of any shape in."""
        wide = values.double()
        self._total += float(wide.sum())
        self._squares += float(wide.square().sum())
        self._number += wide.numel()

    @property
    def value(self) -> float:
        """The standard deviation so far."""
        return (self._squares / self._number - (self._total / self._number) ** 2) ** 0.5
