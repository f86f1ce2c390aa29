"""Small models and inputs for the tests of the transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

NARROW = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 24,
    "cross_attention_dim": 64,
    "caption_channels": 20,
}


@dataclass
class Inputs:
    """One batch for a transformer."""

    latent: Tensor
    text: Tensor
    mask: Tensor
    timestep: Tensor
    guidance: Tensor | None

    def kwargs(self, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Arguments of `forward`."""
        return {
            "hidden_states": self.latent.to(dtype),
            "encoder_hidden_states": self.text.to(dtype),
            "encoder_attention_mask": self.mask,
            "timestep": self.timestep,
            "guidance": self.guidance,
        }


@pytest.fixture
def narrow() -> dict[str, Any]:
    """Config keys that make any preset small."""
    return dict(NARROW)


@pytest.fixture
def draw_inputs() -> Callable[..., Inputs]:
    """`draw_inputs(model, height, width)`: rows with 3 and 9 of 12 real text tokens."""

    def draw(model: Any, height: int, width: int) -> Inputs:
        config = model.config
        guided = config.get("guidance_embeds", False)
        return Inputs(
            torch.randn(2, config.in_channels, height, width),
            torch.randn(2, 12, config.caption_channels),
            (torch.arange(12)[None] < torch.tensor([[3], [9]])).long(),
            torch.tensor([999.0, 3.25]),
            torch.tensor([0.45, 0.2]) if guided else None,
        )

    return draw


@pytest.fixture
def shake() -> Callable[[nn.Module], nn.Module]:
    """Give every parameter a value that a wrong formula would show."""

    def shake_all(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.7)
                elif not parameter.any():
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
                else:
                    parameter.mul_(1.5)
        return model.eval()

    return shake_all
