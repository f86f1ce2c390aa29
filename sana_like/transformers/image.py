"""The text-to-image transformer of SANA, SANA-1.5 and SANA-Sprint."""
# ruff: noqa: ARG002 - `register_to_config` reads the arguments of `__init__`

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from torch import Tensor, nn

from sana_like.layers.linear import Linear
from sana_like.layers.modulation import ModulatedLayerNorm
from sana_like.layers.patch import unpatchify
from sana_like.transformers.backbone import SanaBackbone
from sana_like.transformers.checks import (
    check_perturbed,
    check_residuals,
    require_finite,
    watches_range,
)
from sana_like.transformers.first_block_cache import BlockInputs, PassCache
from sana_like.transformers.text_context import TextContext


class SanaTransformer2DModel(SanaBackbone):
    """Predicts the velocity (or, in Sprint, the flow network's output) of a latent picture.

    Sources: SANA (arXiv 2410.10629), SANA-1.5 (2501.18427), SANA-Sprint (2503.09641).

    Args:
        in_channels, out_channels: of the latent; `out_channels=None` means equal.
        num_attention_heads, attention_head_dim: of the linear attention; their product is the
            width C.
        num_layers: number of blocks.
        num_cross_attention_heads, cross_attention_head_dim: of the cross-attention.
        cross_attention_dim: width of the projected caption; equals C.
        caption_channels: width of the text encoder.
        mlp_ratio: hidden width of the feed-forward as a multiple of C.
        dropout: after each attention.
        attention_bias: biases in the linear attention's query, key and value.
        sample_size: side of the latent the model was trained on.
        patch_size: side of a patch of the latent.
        norm_elementwise_affine: weights in the feed-forward's LayerNorm.
        norm_eps: of the blocks' LayerNorms.
        interpolation_scale: `None` for no table of positions; see `layers.patch.sincos_table`.
        guidance_embeds: whether the guidance scale is embedded (Sprint).
        guidance_embeds_scale: what a pipeline multiplies the guidance scale with first.
        qk_norm: `None` or `"rms_norm_across_heads"` (1.5, Sprint).
        timestep_scale: what a pipeline multiplies its timestep with.
        attention_clip: clamp of the attended values in every dtype; 65504 for fp16 weights that
            overflow, `None` for none.

    Raises:
        ValueError: a setting is out of range.
    """

    _extension_keys: ClassVar[dict[str, Any]] = {"attention_clip": None}

    @register_to_config
    def __init__(
        self,
        in_channels: int = 32,
        out_channels: int | None = 32,
        num_attention_heads: int = 70,
        attention_head_dim: int = 32,
        num_layers: int = 20,
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
        guidance_embeds: bool = False,
        guidance_embeds_scale: float = 0.1,
        qk_norm: str | None = None,
        timestep_scale: float = 1.0,
        attention_clip: float | None = None,
    ) -> None:
        super().__init__()
        self._build(guidance_embeds=guidance_embeds)
        dim = self.inner_dim
        self.scale_shift_table = nn.Parameter(torch.randn(2, dim) / dim**0.5)
        self.norm_out = ModulatedLayerNorm(dim)
        self.proj_out = Linear(dim, patch_size * patch_size * (out_channels or in_channels))
        self._initialise()

    @apply_lora_scale("attention_kwargs")
    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | TextContext,
        timestep: Tensor | float,
        guidance: Tensor | float | None = None,
        encoder_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        controlnet_block_samples: Sequence[Tensor] | None = None,
        return_dict: bool = True,
        *,
        perturbed_layers: Collection[int] = (),
        perturbed_rows: Tensor | None = None,
        block_cache: PassCache | None = None,
    ) -> Transformer2DModelOutput | tuple[Tensor]:
        """Predict.

        Args:
            hidden_states: `[B, in_channels, height, width]`, any size that the patch divides.
            encoder_hidden_states: `[B, L, caption_channels]`, or what `prepare_text` made of it.
            timestep: 0-d, `[1]` or `[B]`; fractions are kept.
            guidance: like `timestep`; needed by a model with `guidance_embeds`, refused by others.
            encoder_attention_mask: `[B, L]`, non-zero where a text token is real.
            attention_mask: not supported.
            attention_kwargs: `{"scale": ...}`, the weight of LoRA adapters.
            controlnet_block_samples: `[B, N, C]` each; number j is added after block j + 1.
            return_dict: whether to return an output object or a tuple.
            perturbed_layers: blocks in which perturbed rows skip self-attention (perturbed
                attention guidance, arXiv 2403.17377).
            perturbed_rows: bool `[B]`, the rows to perturb; `None` means all of them.
            block_cache: of a sampling run, to skip blocks with; see `FirstBlockCache`.

        Returns:
            `.sample` `[B, out_channels, height, width]`.

        Raises:
            ValueError: a shape, layer or argument is wrong; before anything is computed.
        """
        self._check_inputs(hidden_states, attention_mask, attention_kwargs)
        batch, grid = len(hidden_states), self._grid(hidden_states)
        count, shape = len(self.transformer_blocks), (batch, math.prod(grid), self.inner_dim)
        residuals = check_residuals(controlnet_block_samples, count, shape)
        bypass = check_perturbed(
            perturbed_layers,
            perturbed_rows,
            blocks=count,
            batch=batch,
            device=hidden_states.device,
        )
        modulation, embedded = self._modulation(timestep, guidance, hidden_states)
        text = self._text(encoder_hidden_states, encoder_attention_mask, batch)

        x = self.patch_embed(hidden_states)  # [B, N, C]
        inputs = BlockInputs(
            modulation, text, grid, tuple(residuals), frozenset(perturbed_layers), bypass
        )
        finite = [x.isfinite().all()] if watches_range(self, x) else None
        run = partial(self._run_blocks, finite=finite)
        x = run(x, inputs) if block_cache is None else block_cache.run(run, x, inputs, count)
        require_finite(finite or [])
        table = (self.scale_shift_table + embedded[:, None]).to(x.dtype)  # [B, 2, C]
        x = self.proj_out(self.norm_out(x, *table.chunk(2, dim=1)))
        sample = unpatchify(x, *grid[1:], self.patch_size)
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)

    def _outer_macs(self) -> int:
        config: Any = self.config
        out_channels = config.out_channels or config.in_channels
        return self.inner_dim * config.patch_size**2 * (config.in_channels + out_channels)
