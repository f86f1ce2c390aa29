"""What the image transformer, its ControlNet and the video transformer have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from diffusers.hooks import FirstBlockCacheConfig
from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
from diffusers.models.cache_utils import CacheMixin
from diffusers.utils import apply_lora_scale
from torch import Tensor, nn

from sana_like.attention.backends import NATIVE, check_backend, check_mask
from sana_like.attention.cross import CrossAttention
from sana_like.attention.linear import ReLULinearAttention
from sana_like.attention.mixer import SelfAttention
from sana_like.layers.embeddings import CaptionProjection, TimeEmbedding, per_row
from sana_like.layers.glu_mbconv import GLUMBConv
from sana_like.layers.linear import Linear
from sana_like.layers.norm import RMSNorm
from sana_like.layers.patch import PatchEmbed
from sana_like.presets import preset
from sana_like.state import BlockState
from sana_like.transformers import cost
from sana_like.transformers.adapters import AdapterMixin
from sana_like.transformers.blocks import SanaTransformerBlock
from sana_like.transformers.checks import check_attention_kwargs, check_config, check_latent
from sana_like.transformers.first_block_cache import BlockInputs
from sana_like.transformers.offload import weights_present
from sana_like.transformers.text_context import TextContext, real_tokens
from sana_like.weights.model import StrictModel

CAPTION_NORM_EPS = 1e-5
# Text features are far larger than latents; a small start keeps early training calm (SANA,
# arXiv 2410.10629, section 2.3).
CAPTION_NORM_INIT = 0.01


@dataclass
class BlockStream:
    """A stream's states on their way through one forward pass.

    Attributes:
        before: of each block, before these tokens.
        chunks: frames of each chunk; `None` takes all for one.
        after: filled block by block.
    """

    before: tuple[BlockState, ...]
    chunks: Sequence[int] | None = None
    after: list[BlockState] = field(default_factory=list)


class SanaBackbone(StrictModel, CacheMixin, AdapterMixin):
    """Patch, time and text embeddings and the stack of blocks.

    Subclasses register their config, call `_build`, and write their own `forward`.
    """

    _supports_gradient_checkpointing = True
    # The types are diffusers' own: lists where its base class has None.
    _no_split_modules = ["SanaTransformerBlock", "PatchEmbed"]  # type: ignore[assignment]  # noqa: RUF012
    _repeated_blocks = ["SanaTransformerBlock"]  # noqa: RUF012
    _skip_layerwise_casting_patterns = ["patch_embed", "norm"]  # type: ignore[assignment]  # noqa: RUF012
    _temporal_taps: ClassVar[int] = 0
    _gradient_checkpointing_func: Callable[..., Tensor]

    def _build(self, *, guidance_embeds: bool = False) -> None:
        """Create the modules that `self.config` describes.

        Raises:
            ValueError: the config is not one this family has.
        """
        config: Any = self.config
        check_config(config)
        dim = config.num_attention_heads * config.attention_head_dim
        # Plain numbers for the forward pass: the compiler cannot read a diffusers config.
        self.inner_dim: int = dim
        self.in_channels: int = config.in_channels
        self.caption_channels: int = config.caption_channels
        self.gradient_checkpointing = False
        self._text_kind: tuple[int, int, int] = (
            config.num_layers,
            config.num_cross_attention_heads,
            config.cross_attention_head_dim,
        )
        self._build_patches(dim)
        self.time_embed = TimeEmbedding(dim, guidance=guidance_embeds)
        self.caption_projection = CaptionProjection(config.caption_channels, dim)
        self.caption_norm = RMSNorm(dim, eps=CAPTION_NORM_EPS)
        self.transformer_blocks: Any = nn.ModuleList(
            self._build_block(dim) for _ in range(config.num_layers)
        )

    def _build_patches(self, dim: int) -> None:
        config: Any = self.config
        self.patch_size: int = config.patch_size
        self.patch_embed = PatchEmbed(
            config.in_channels,
            dim,
            config.patch_size,
            config.sample_size,
            config.interpolation_scale,
        )

    def _build_feed_forward(self, dim: int) -> nn.Module:
        config: Any = self.config
        return GLUMBConv(dim, dim, config.mlp_ratio)

    def _build_mixer(self, dim: int, *args: Any, **settings: Any) -> SelfAttention:
        config: Any = self.config
        return ReLULinearAttention(dim, *args, **settings, clip=config.attention_clip)

    def _build_block(self, dim: int) -> SanaTransformerBlock:
        config: Any = self.config
        mixer = self._build_mixer(
            dim,
            config.num_attention_heads,
            config.attention_head_dim,
            bias=config.attention_bias,
            dropout=config.dropout,
            qk_norm=config.qk_norm,
        )
        cross_attention = CrossAttention(
            dim,
            config.num_cross_attention_heads,
            config.cross_attention_head_dim,
            text_dim=config.cross_attention_dim,
            dropout=config.dropout,
            qk_norm=config.qk_norm,
        )
        return SanaTransformerBlock(
            dim,
            mixer,
            cross_attention,
            self._build_feed_forward(dim),
            norm_eps=config.norm_eps,
            norm_affine=config.norm_elementwise_affine,
        )

    def _initialise(self) -> None:
        """Start values of the published training runs: Xavier, and N(0, 0.02) for embeddings.

        Convolutions, 1x1 ones included, keep torch's own start values, and no gate starts at zero:
        the blocks' random tables do that work.
        """
        for module in self.modules():
            if type(module) is Linear:
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in [*self.time_embed.modules(), *self.caption_projection.modules()]:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.constant_(self.caption_norm.weight, CAPTION_NORM_INIT)

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """A model of a published architecture with fresh weights.

        Args:
            name: of a preset in `sana_like.presets`, e.g. `"sana-0.6b-1024"`.
            changes: config keys that shall differ from the preset, e.g. `num_layers=2`.

        Raises:
            ValueError: no such preset, or a preset of another class.
        """
        chosen = preset(name)
        if all(kind.__name__ != chosen.class_name for kind in cls.__mro__):
            raise ValueError(
                f"preset {name!r} describes another class than {cls.__name__}: {chosen.class_name}"
            )
        return cls(**chosen.config() | changes)

    def flops(
        self, height: int, width: int, tokens: int, batch: int = 1, *, frames: int = 1
    ) -> int:
        """Floating-point operations of one forward pass; see `cost.forward_flops`.

        Args:
            height, width: of the latent, in latent pixels.
            tokens: text tokens that are really read.
            batch: rows.
            frames: latent frames; a picture has one.

        Raises:
            ValueError: the patch does not divide the size.
        """
        return cost.forward_flops(
            self.config,
            cost.grid_tokens(self.config, height, width, frames),
            tokens,
            batch,
            outer_macs=self._outer_macs(),
            temporal_taps=self._temporal_taps,
        )

    def _outer_macs(self) -> int:
        """Multiply-adds per token outside the blocks."""
        raise NotImplementedError

    def activation_bytes(
        self,
        height: int,
        width: int,
        tokens: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        *,
        frames: int = 1,
    ) -> int:
        """Peak bytes of one forward pass without gradients, weights left out, estimated.

        Args:
            height, width: of the latent, in latent pixels.
            tokens: text tokens that are really read.
            batch: rows.
            dtype: of the activations; `None` means the model's.
            frames: latent frames; a picture has one.

        Raises:
            ValueError: the patch does not divide the size.
        """
        n = cost.grid_tokens(self.config, height, width, frames)
        positions = self._temporal_taps > 0
        return cost.activation_bytes(
            self.config, n, tokens, batch, dtype or self.dtype, positions=positions
        )

    def enable_cache(self, config: Any) -> None:
        """Turn on diffusers' first-block cache; `disable_cache` turns it off.

        Wrap each call in `with model.cache_context("cond")` (or another name for each branch).

        Args:
            config: a `diffusers.FirstBlockCacheConfig`.

        Raises:
            ValueError: another cache; none of them reaches these blocks.
        """
        if not isinstance(config, FirstBlockCacheConfig):
            raise ValueError(
                f"{type(config).__name__} does not reach the blocks of {type(self).__name__}; "
                "legal: FirstBlockCacheConfig"
            )
        TransformerBlockRegistry.register(SanaTransformerBlock, TransformerBlockMetadata(0))
        super().enable_cache(config)

    def set_attention_backend(self, backend: str) -> None:
        """Choose what computes the attention to the text; the linear attention is not affected.

        Args:
            backend: of `attention.backends.BACKENDS`; `native` is this package's own choice.

        Raises:
            ValueError: it is unknown or cannot act here; names those that can.
        """
        check_backend(backend, self.device, self.dtype)
        for module in self.modules():
            if isinstance(module, CrossAttention):
                module.backend = backend

    def reset_attention_backend(self) -> None:
        """Go back to `native`."""
        self.set_attention_backend(NATIVE)

    @property
    def attention_backend(self) -> str:
        """What computes the attention to the text."""
        return str(self.transformer_blocks[0].attn2.backend)

    @apply_lora_scale("attention_kwargs")
    def prepare_text(
        self,
        embeds: Tensor,
        mask: Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> TextContext:
        """Project the text for every block, once per prompt.

        Args:
            embeds: `[B, L, caption_channels]` in the model's dtype.
            mask: `[B, L]`, non-zero where a token is real; `None` where all are. Slots that are
                padding in every row are dropped before anything is computed (not while the
                compiler traces, which needs fixed shapes). A row without any real token reads all
                of its slots.
            attention_kwargs: `{"scale": ...}`, the weight of LoRA adapters, as in `forward`.

        Returns:
            What `forward` takes in place of the embeddings.

        Raises:
            ValueError: a shape is wrong.
        """
        check_attention_kwargs(attention_kwargs)
        with weights_present(self):
            return self._prepare_text(embeds, mask)

    def _prepare_text(self, embeds: Tensor, mask: Tensor | None) -> TextContext:
        channels = self.caption_channels
        if embeds.ndim != 3 or embeds.shape[-1] != channels or 0 in embeds.shape:
            raise ValueError(
                f"text embeddings have shape {tuple(embeds.shape)}; this model reads [B, L, "
                f"{channels}] with at least one row and one token"
            )
        if mask is not None:
            mask = real_tokens(mask.to(embeds.device), *embeds.shape[:2])
            if not torch.compiler.is_compiling():
                kept = mask.any(dim=0)
                if not kept.all():
                    embeds, mask = embeds[:, kept], mask[:, kept]
                mask = None if mask.all() else mask
        text = self.caption_norm(self.caption_projection(embeds)).to(embeds.dtype)  # [B, L, C]
        pairs = []
        for block in self.transformer_blocks:
            with weights_present(block):
                pairs.append(block.project_text(text))
        return TextContext(tuple(k for k, _ in pairs), tuple(v for _, v in pairs), mask)

    def _text(self, text: Tensor | TextContext, mask: Tensor | None, batch: int) -> TextContext:
        """A `TextContext` for `batch` rows, from either form of the text."""
        if not isinstance(text, TextContext):
            text = self._prepare_text(text, mask)
        elif mask is not None:
            raise ValueError(
                "a TextContext holds its own mask; give encoder_attention_mask to prepare_text"
            )
        heads, head_dim = text.keys[0].shape[1], text.keys[0].shape[3]
        made_for = (len(text.keys), heads, head_dim)
        if made_for != self._text_kind:
            raise ValueError(
                f"the TextContext was prepared for (blocks, heads, head width) = {made_for}, this "
                f"model has {self._text_kind}; prepare the text with this model"
            )
        if text.mask is not None and self.attention_backend != NATIVE:
            check_mask(self.attention_backend, self.device, self.dtype)
        if len(text) != batch:
            raise ValueError(
                f"the text has {len(text)} rows and the latents {batch}; repeat or select rows "
                "so that they are equal"
            )
        return text

    def _modulation(
        self, timestep: Tensor | float, guidance: Tensor | float | None, latent: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Modulation `[B, 6, C]` of the blocks and `[B, C]` of the last norm."""
        rows = per_row(timestep, len(latent), "timestep", latent.device)
        if guidance is not None:
            guidance = per_row(guidance, len(latent), "guidance", latent.device)
        return self.time_embed(rows, guidance, latent.dtype)

    def _check_inputs(
        self, latent: Tensor, attention_mask: Tensor | None, attention_kwargs: dict[str, Any] | None
    ) -> None:
        check_attention_kwargs(attention_kwargs)
        check_latent(latent, channels=self.in_channels, patch=self._patch_sides())
        if attention_mask is not None:
            raise ValueError(
                "attention_mask (over picture tokens) is not supported: linear attention and the "
                "convolutions read every token; pass None and batch equal sizes only"
            )

    def _patch_sides(self) -> tuple[int, ...]:
        return self.patch_size, self.patch_size

    def _grid(self, latent: Tensor) -> tuple[int, int, int]:
        """(frames, height, width) of the tokens of a latent."""
        patch = self.patch_size
        return 1, latent.shape[2] // patch, latent.shape[3] // patch

    def _run_blocks(
        self,
        x: Tensor,
        inputs: BlockInputs,
        start: int = 0,
        end: int | None = None,
        *,
        finite: list[Tensor] | None = None,
        stream: BlockStream | None = None,
    ) -> Tensor:
        """Blocks `start` to `end` on the tokens `[B, N, C]`.

        Args:
            x: the tokens.
            inputs: what the blocks read.
            start, end: which blocks.
            finite: where given, it gets a bool 0-d for each block.
            stream: states of the chunks before; it gets those after.
        """
        text, residuals = inputs.text, inputs.residuals
        for index, block in enumerate(self.transformer_blocks[start:end], start):
            before, key, value = x, text.keys[index], text.values[index]
            bypass = inputs.bypass if index in inputs.perturbed else None
            fixed = (inputs.modulation, key, value, text.mask, inputs.grid, inputs.rope, None)
            if stream is None:
                x = self._run(block, x, *fixed, bypass)
            else:
                past = stream.before[index]
                x, after = self._run(block, x, *fixed, bypass, past, stream.chunks)
                stream.after.append(after)
            if index in inputs.skipped and inputs.bypass is not None:
                x = torch.where(inputs.bypass[:, None, None], before, x)
            if 0 < index <= len(residuals):
                x = x + residuals[index - 1].to(x.dtype)
            if finite is not None:
                finite.append(x.isfinite().all())
        return x

    def _run(self, block: nn.Module, *args: Any) -> Any:
        """One block, recomputed in the backward pass where gradient checkpointing is on."""
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            return self._gradient_checkpointing_func(block, *args)
        return block(*args)
