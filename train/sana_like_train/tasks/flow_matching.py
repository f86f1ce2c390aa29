"""The flow-matching objective, with and without a ControlNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like.schedulers.flow import add_noise, shift_sigma
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like_train.config import TimeSampling

TIMESTEPS = 1000  # the model's time runs from 0 to this


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


class FlowMatchingObjective(nn.Module):
    """Mean squared error of the predicted velocity `v = noise - x0`.

    With `contrastive_weight` w, `w * |prediction - v of another sample|^2` is subtracted, which
    keeps velocities of different captions apart (Stoica et al. 2025, contrastive flow matching).

    Args:
        model: the transformer; frozen where a ControlNet is trained.
        controlnet: the ControlNet, or none.
        contrastive_weight: w.
    """

    def __init__(
        self,
        model: SanaTransformer2DModel,
        controlnet: SanaControlNetModel | None = None,
        contrastive_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.controlnet = controlnet
        self.contrastive_weight = contrastive_weight

    def predict(
        self,
        noisy: Tensor,
        sigmas: Tensor,
        text: Tensor,
        text_mask: Tensor,
        control: Tensor | None = None,
    ) -> Tensor:
        """Velocity `[B, Z, y, x]` fp32 at `noisy`, levels `sigmas [B]`, text `[B, L, C]`."""
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

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """To the loop's dictionary.

        Args:
            batch: `latents`, `noise` `[B, Z, y, x]`, `sigmas` `[B]`, `text` `[B, L, C]`,
                `text_mask` `[B, L]`, and with a ControlNet `control` `[B, Z, y, x]`.
        """
        latents, noise, sigmas = batch["latents"], batch["noise"], batch["sigmas"]
        noisy = add_noise(latents, noise, sigmas[:, None, None, None])
        text, mask = batch["text"], batch["text_mask"]
        output = self.predict(noisy, sigmas, text, mask, batch.get("control"))
        velocity = noise - latents
        error = (output - velocity).square().mean((1, 2, 3))
        per_sample = error
        if self.contrastive_weight:
            other = (output - velocity.roll(1, 0)).square().mean((1, 2, 3))
            per_sample = error - self.contrastive_weight * other
        logs = {"flow": error.mean().detach()}
        return {"loss": per_sample.mean(), "per_sample": per_sample, "logs": logs, "carry": {}}
