"""The flow-matching objective, of pictures and clips, its measure, and sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.schedulers.flow import add_noise, euler_update, shift_sigma
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like_train.sections import TimeSampling
from sana_like_train.tasks.base import derived_seed

TIMESTEPS = 1000  # the model's time runs from 0 to this
MEASURED_SIGMAS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)


def sample_sigmas(config: TimeSampling, count: int, generator: torch.Generator) -> Tensor:
    """Noise levels `[count]` in (0, 1): logit-normal, then shifted (SANA, section 3.4).

    Stratified: one level from each of `count` equally probable intervals, in random order, so that
    every batch sees the whole range (Kingma et al. 2021, "Variational diffusion models", appendix
    I.1). Each level by itself has the plain distribution.
    """
    place = torch.randperm(count, generator=generator, dtype=torch.float64)
    within = torch.rand(count, generator=generator, dtype=torch.float64)
    normal = torch.special.ndtri((place + within) / count).clamp(-8, 8)
    return shift_sigma(torch.sigmoid(normal * config.std + config.mean), config.shift).float()


def levels_of(sigmas: Tensor, latents: Tensor) -> Tensor:
    """Noise levels in the shape in which they multiply latents.

    Args:
        sigmas: `[B]`, or `[B, F]` for one of each frame of clips.
        latents: `[B, Z, y, x]`, or `[B, Z, F, y, x]`.
    """
    if sigmas.ndim == 2:
        return sigmas[:, None, :, None, None]
    return sigmas.view(-1, *[1] * (latents.ndim - 1))


class FlowMatchingObjective(nn.Module):
    """Mean squared error of the predicted velocity `v = noise - x0`, of pictures or clips.

    With `contrastive_weight` w, `w * |prediction - v of another sample|^2` is subtracted, which
    keeps velocities of different captions apart (Stoica et al. 2025, contrastive flow matching).
    Frames at level 0 are given, not predicted: they have no error.

    Args:
        model: the transformer; frozen where a ControlNet is trained.
        controlnet: the ControlNet, or none.
        contrastive_weight: w.
        temporal_weight: of the error of differences between neighbouring frames of clips.
    """

    def __init__(
        self,
        model: Any,
        controlnet: SanaControlNetModel | None = None,
        contrastive_weight: float = 0.0,
        temporal_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.controlnet = controlnet
        self.contrastive_weight = contrastive_weight
        self.temporal_weight = temporal_weight

    def predict(
        self,
        noisy: Tensor,
        sigmas: Tensor,
        text: Tensor,
        text_mask: Tensor,
        control: Tensor | None = None,
    ) -> Tensor:
        """Velocity like `noisy` in fp32, at levels `sigmas` `[B]` or `[B, F]`, text `[B, L, C]`."""
        time = TIMESTEPS * sigmas
        residuals = None
        if self.controlnet is not None and control is not None:
            residuals = self.controlnet(
                noisy, text, time, control, encoder_attention_mask=text_mask
            ).controlnet_block_samples
        return self.model(
            noisy,
            text,
            time,
            encoder_attention_mask=text_mask,
            controlnet_block_samples=residuals,
        ).sample.float()

    def velocity(self, batch: dict[str, Tensor], noisy: Tensor) -> Tensor:
        """Velocity at the noisy latents of a batch; see `forward` for the batch."""
        text, mask = batch["text"], batch["text_mask"]
        return self.predict(noisy, batch["sigmas"], text, mask, batch.get("control"))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """To the loop's dictionary.

        Args:
            batch: `latents`, `noise` `[B, Z, y, x]` or `[B, Z, F, y, x]`, `sigmas` `[B]` or
                `[B, F]`, `text` `[B, L, C]`, `text_mask` `[B, L]`, and with a ControlNet `control`
                `[B, Z, y, x]`.
        """
        latents, noise, sigmas = batch["latents"], batch["noise"], batch["sigmas"]
        noisy = add_noise(latents, noise, levels_of(sigmas, latents))
        output = self.velocity(batch, noisy)
        target = noise - latents
        difference = predicted_only(output - target, sigmas)
        error = square_of_predicted(difference, sigmas)
        per_sample = error
        logs = {"flow": error.mean().detach()}
        if self.contrastive_weight:
            other = predicted_only(output - target.roll(1, 0), sigmas)
            per_sample = error - self.contrastive_weight * square_of_predicted(other, sigmas)
        if self.temporal_weight and latents.ndim == 5 and latents.shape[2] > 1:
            change = difference.diff(dim=2).square().mean((1, 2, 3, 4))
            per_sample = per_sample + self.temporal_weight * change
            logs["change"] = change.mean().detach()
        return {"loss": per_sample.mean(), "per_sample": per_sample, "logs": logs, "carry": {}}


def predicted_only(difference: Tensor, sigmas: Tensor) -> Tensor:
    """Errors with those of given frames, at level 0 of `sigmas` `[B, F]`, set to zero."""
    if sigmas.ndim == 1:
        return difference
    return difference * (levels_of(sigmas, difference) > 0)


def square_of_predicted(difference: Tensor, sigmas: Tensor) -> Tensor:
    """Mean square `[B]` over the frames that are predicted; those given are zero already."""
    mean = difference.square().flatten(1).mean(1)
    if sigmas.ndim == 1:
        return mean
    return mean / (sigmas > 0).float().mean(1).clamp_min(1e-6)


def fixed_noise(shape: tuple[int, ...], counters: Sequence[tuple[int, ...]]) -> Tensor:
    """Noise of fixed measures and samples, one draw for each tuple of counters."""
    return torch.stack(
        [
            torch.randn(
                shape, generator=torch.Generator().manual_seed(derived_seed(0, "measure", *some))
            )
            for some in counters
        ]
    )


def measured_losses(
    objective: FlowMatchingObjective, batch: dict[str, Tensor], numbers: Sequence[int]
) -> list[float]:
    """Losses of samples at every measured level, with noise that depends on the sample alone.

    Args:
        objective: in eval mode.
        batch: `latents`, `text`, `text_mask` and what else the objective's `velocity` reads.
        numbers: of the samples.
    """
    x0 = batch["latents"]
    losses: list[float] = []
    for level, sigma in enumerate(MEASURED_SIGMAS):
        noise = fixed_noise(tuple(x0.shape[1:]), [(number, level) for number in numbers]).to(x0)
        sigmas = torch.full((len(x0),), sigma, device=x0.device)
        output = objective.velocity({**batch, "sigmas": sigmas}, add_noise(x0, noise, sigma))
        losses += (output - (noise - x0)).square().flatten(1).mean(1).tolist()
    return losses


def guide(velocity: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: `[2B, ...]`, empty captions first, to `[B, ...]`."""
    empty, full = velocity.chunk(2)
    return empty + scale * (full - empty)


def sample_flow(
    velocity: Callable[[Tensor, float], Tensor], noise: Tensor, sigmas: Sequence[float]
) -> Tensor:
    """Clean samples by Euler steps along falling levels; `velocity(x, sigma)` is like `x`."""
    x = noise
    for sigma, sigma_next in pairwise(sigmas):
        x = euler_update(x, velocity(x, sigma), sigma, sigma_next)
    return x
