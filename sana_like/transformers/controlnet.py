"""The ControlNet of SANA: trainable copies of the first blocks that steer the rest."""
# ruff: noqa: ARG002 - `register_to_config` reads the arguments of `__init__`

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Self

from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput, apply_lora_scale
from torch import Tensor, nn

from sana_like.layers.linear import Linear
from sana_like.transformers.backbone import SanaBackbone
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.text_context import TextContext


@dataclass
class SanaControlNetOutput(BaseOutput):
    """What `SanaControlNetModel` returns.

    Attributes:
        controlnet_block_samples: `[B, N, C]` for each block; the transformer adds number j after
            its block j + 1.
    """

    controlnet_block_samples: tuple[Tensor, ...]


class SanaControlNetModel(SanaBackbone):
    """Turns a control latent into residuals for `SanaTransformer2DModel`.

    Control and latent pass the same patch embedding; the control enters through a linear layer
    that starts at zero and each residual leaves through one, so that a new ControlNet changes
    nothing (ControlNet, arXiv 2302.05543; SANA's variant copies the first seven blocks).

    Args:
        qk_norm, guidance_embeds, attention_clip: as in `SanaTransformer2DModel`, for ControlNets
            of SANA-1.5 and Sprint; published ControlNets have none of them.
        in_channels, out_channels, num_attention_heads, attention_head_dim, num_layers,
        num_cross_attention_heads, cross_attention_head_dim, cross_attention_dim, caption_channels,
        mlp_ratio, dropout, attention_bias, sample_size, patch_size, norm_elementwise_affine,
        norm_eps, interpolation_scale: as there; `num_layers` counts the copied blocks.

    Raises:
        ValueError: a setting is out of range.
    """

    _extension_keys: ClassVar[dict[str, Any]] = {
        "qk_norm": None,
        "guidance_embeds": False,
        "attention_clip": None,
    }

    @register_to_config
    def __init__(
        self,
        in_channels: int = 32,
        out_channels: int | None = 32,
        num_attention_heads: int = 70,
        attention_head_dim: int = 32,
        num_layers: int = 7,
        num_cross_attention_heads: int = 20,
        cross_attention_head_dim: int = 112,
        cross_attention_dim: int = 2240,
        caption_channels: int = 2304,
        mlp_ratio: float = 2.5,
        dropout: float = 0.0,
        attention_bias: bool = False,
        sample_size: int = 32,
        patch_size: int = 1,
        norm_elementwise_affine: bool = False,
        norm_eps: float = 1e-6,
        interpolation_scale: float | None = None,
        qk_norm: str | None = None,
        guidance_embeds: bool = False,
        attention_clip: float | None = None,
    ) -> None:
        super().__init__()
        self._build(guidance_embeds=guidance_embeds)
        dim = self.inner_dim
        self.input_block = Linear(dim, dim)
        self.controlnet_blocks = nn.ModuleList(Linear(dim, dim) for _ in range(num_layers))
        self._initialise()
        for layer in (self.input_block, *self.controlnet_blocks):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    @classmethod
    def from_transformer(cls, transformer: SanaTransformer2DModel, num_layers: int = 7) -> Self:
        """A ControlNet whose blocks and embeddings are copies of the transformer's.

        It changes nothing until it is trained.

        Args:
            transformer: what it shall steer.
            num_layers: how many blocks to copy.

        Raises:
            ValueError: the transformer has too few blocks.
        """
        config: Any = transformer.config
        if not 1 <= num_layers < config.num_layers:
            raise ValueError(
                f"num_layers={num_layers} must be from 1 to {config.num_layers - 1}: residuals go "
                f"to the transformer's blocks after the first, and it has {config.num_layers}"
            )
        shared = {key: config[key] for key in signature(cls).parameters if key in config}
        model = cls(**shared | {"num_layers": num_layers})
        weights, own = transformer.state_dict(), model.state_dict()
        # The transformer's own output layers and its later blocks have no copy.
        own.update({key: weights[key] for key in own if key in weights})
        model.load_state_dict(own)
        return model.to(device=transformer.device, dtype=transformer.dtype)

    @apply_lora_scale("attention_kwargs")
    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | TextContext,
        timestep: Tensor | float,
        controlnet_cond: Tensor,
        conditioning_scale: float | Sequence[float] = 1.0,
        encoder_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
        *,
        guidance: Tensor | float | None = None,
    ) -> SanaControlNetOutput | tuple[tuple[Tensor, ...]]:
        """Compute the residuals.

        Args:
            hidden_states: `[B, in_channels, height, width]`, the noisy latent.
            encoder_hidden_states: `[B, L, caption_channels]`, or what this model's own
                `prepare_text` made of it.
            timestep: 0-d, `[1]` or `[B]`.
            controlnet_cond: the control latent, shaped like `hidden_states`.
            conditioning_scale: weight of the residuals, one for all or one for each.
            encoder_attention_mask: `[B, L]`, non-zero where a text token is real.
            attention_mask: not supported.
            attention_kwargs: `{"scale": ...}`, the weight of LoRA adapters.
            return_dict: whether to return an output object or a tuple.
            guidance: needed by a model with `guidance_embeds`, refused by others.

        Returns:
            `.controlnet_block_samples`: `num_layers` tensors `[B, N, C]`.

        Raises:
            ValueError: a shape or argument is wrong; before anything is computed.
        """
        self._check_inputs(hidden_states, attention_mask, attention_kwargs)
        if controlnet_cond.shape != hidden_states.shape:
            raise ValueError(
                f"controlnet_cond has shape {tuple(controlnet_cond.shape)}, hidden_states "
                f"{tuple(hidden_states.shape)}; they must be equal"
            )
        scales = self._scales(conditioning_scale)
        grid = self._grid(hidden_states)
        modulation, _ = self._modulation(timestep, guidance, hidden_states)
        text = self._text(encoder_hidden_states, encoder_attention_mask, len(hidden_states))

        x = self.patch_embed(hidden_states)  # [B, N, C]
        x = x + self.input_block(self.patch_embed(controlnet_cond.to(x.dtype)))
        samples = []
        for index, block in enumerate(self.transformer_blocks):
            key, value = text.keys[index], text.values[index]
            x = self._run(block, x, modulation, key, value, text.mask, grid)
            samples.append(self.controlnet_blocks[index](x) * scales[index])
        result = tuple(samples)
        return SanaControlNetOutput(controlnet_block_samples=result) if return_dict else (result,)

    def _outer_macs(self) -> int:
        config: Any = self.config
        dim = self.inner_dim
        patches = 2 * dim * config.patch_size**2 * config.in_channels
        return patches + dim * dim * (1 + config.num_layers)

    def _scales(self, scale: float | Sequence[float]) -> Sequence[float]:
        blocks = len(self.controlnet_blocks)
        if isinstance(scale, (int, float)):
            return (float(scale),) * blocks
        if len(scale) != blocks:
            raise ValueError(
                f"conditioning_scale has {len(scale)} numbers; give one, or {blocks} (one for each "
                "residual)"
            )
        return scale
