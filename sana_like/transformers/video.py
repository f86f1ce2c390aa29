"""The video transformer of SANA-Video and LongSANA."""
# ruff: noqa: ARG002 - `register_to_config` reads the arguments of `__init__`

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from torch import Tensor, nn

from sana_like.attention.mixer import SelfAttention
from sana_like.attention.softmax import SoftmaxAttention
from sana_like.layers.embeddings import per_frame, per_row
from sana_like.layers.linear import Linear
from sana_like.layers.modulation import ModulatedLayerNorm
from sana_like.layers.patch import patchify, unpatchify_3d
from sana_like.layers.pointwise import KernelLinear
from sana_like.layers.rope import Rope, axis_widths, rope_3d
from sana_like.layers.temporal import TAPS, GLUMBConvTemp
from sana_like.state import BlockState, State
from sana_like.transformers.backbone import BlockStream, SanaBackbone
from sana_like.transformers.checks import (
    check_perturbed,
    check_residuals,
    require_finite,
    watches_range,
)
from sana_like.transformers.first_block_cache import BlockInputs, PassCache
from sana_like.transformers.from_image import video_config, video_weights
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.text_context import TextContext
from sana_like.weights.model_config import legal_hints

SELF_ATTENTIONS = ("linear", "softmax")


@dataclass
class SanaVideoOutput(Transformer2DModelOutput):
    """What `SanaVideoTransformer3DModel` returns.

    Attributes:
        sample: `[B, out_channels, frames, height, width]`.
        state: the stream's state after these frames, where one was given; else `None`.
    """

    state: State | None = None


class SanaVideoTransformer3DModel(SanaBackbone):
    """Predicts the velocity of a latent clip, whole or chunk by chunk of an endless one.

    A picture is a clip of one frame. Without a state every frame reads every frame. With one, the
    frames are the next chunk (or chunks) of a stream: bidirectional inside a chunk, causal across,
    in memory and time per chunk that do not depend on how much has passed.

    Sources: SANA-Video and LongSANA (arXiv 2509.24695).

    Args:
        in_channels, out_channels: of the latent; `out_channels=None` means equal.
        num_attention_heads, attention_head_dim: of the linear attention; their product is the
            width C.
        num_layers: number of blocks.
        num_cross_attention_heads, cross_attention_head_dim: of the cross-attention.
        cross_attention_dim: width of the projected caption; equals C.
        caption_channels: width of the text encoder.
        mlp_ratio: hidden width of the feed-forward as a multiple of C; the published models have 3.
        dropout: after each attention.
        attention_bias: biases in the linear attention's query, key and value.
        sample_size: height of the latent the model was trained on.
        patch_size: (frames, height, width) of a patch of the latent.
        norm_elementwise_affine: weights in the feed-forward's LayerNorm.
        norm_eps: of the blocks' LayerNorms.
        interpolation_scale, rope_max_seq_len: diffusers' keys, without effect: positions are
            computed for whatever is asked.
        guidance_embeds: whether the guidance scale is embedded.
        guidance_embeds_scale: what a pipeline multiplies the guidance scale with first.
        qk_norm: `None` or `"rms_norm_across_heads"`.
        attention_clip: clamp of the attended values in every dtype; `None` for none.
        self_attention: `"linear"`; or `"softmax"`, with the same weights' shapes and a state that
            grows with the video, for comparison.

    Raises:
        ValueError: a setting is out of range.
    """

    _extension_keys: ClassVar[dict[str, Any]] = {"attention_clip": None, "self_attention": "linear"}
    _temporal_taps = TAPS
    _no_split_modules = ["SanaTransformerBlock"]  # noqa: RUF012
    _skip_layerwise_casting_patterns = ["patch_embedding", "norm"]  # noqa: RUF012

    @register_to_config
    def __init__(
        self,
        in_channels: int = 16,
        out_channels: int | None = 16,
        num_attention_heads: int = 20,
        attention_head_dim: int = 112,
        num_layers: int = 20,
        num_cross_attention_heads: int = 20,
        cross_attention_head_dim: int = 112,
        cross_attention_dim: int = 2240,
        caption_channels: int = 2304,
        mlp_ratio: float = 2.5,
        dropout: float = 0.0,
        attention_bias: bool = False,
        sample_size: int = 30,
        patch_size: tuple[int, int, int] = (1, 2, 2),
        norm_elementwise_affine: bool = False,
        norm_eps: float = 1e-6,
        interpolation_scale: float | None = None,
        guidance_embeds: bool = False,
        guidance_embeds_scale: float = 0.1,
        qk_norm: str | None = "rms_norm_across_heads",
        rope_max_seq_len: int = 1024,
        attention_clip: float | None = None,
        self_attention: str = "linear",
    ) -> None:
        super().__init__()
        if self_attention not in SELF_ATTENTIONS:
            raise ValueError(f"self_attention={self_attention!r} is not one of {SELF_ATTENTIONS}")
        if self_attention == "softmax" and attention_clip is not None:
            raise ValueError("attention_clip is for linear attention; pass None with softmax")
        axis_widths(attention_head_dim)
        self._build(guidance_embeds=guidance_embeds)
        dim = self.inner_dim
        self.head_dim = attention_head_dim
        self.scale_shift_table = nn.Parameter(torch.randn(2, dim) / dim**0.5)
        self.norm_out = ModulatedLayerNorm(dim)
        self.proj_out = Linear(dim, math.prod(self.patch) * (out_channels or in_channels))
        self._initialise()

    @classmethod
    def from_image(cls, image: SanaTransformer2DModel, **changes: Any) -> Self:
        """A model of clips with the weights of one of pictures.

        Its convolutions over time start at zero, so frames are made as pictures, but for the
        positions, which are rotary here.

        Args:
            image: the trained model of pictures; its weights are copied.
            changes: config keys of this class. With a smaller `num_layers` it takes so many of the
                blocks, evenly spaced, the first and the last among them.

        Raises:
            ValueError: the two have no common shape.
        """
        model = cls(**video_config(image, changes, legal_hints(cls.__init__)))
        model.load_published_state_dict(video_weights(image, model))
        # Not `ModelMixin.to`, which warns of every change of dtype.
        nn.Module.to(model, device=image.device, dtype=image.dtype)
        return model

    def _build_patches(self, dim: int) -> None:
        config: Any = self.config
        self.patch: tuple[int, int, int] = tuple(config.patch_size)
        self.patch_embedding = KernelLinear(config.in_channels, dim, self.patch)

    def _build_feed_forward(self, dim: int) -> nn.Module:
        config: Any = self.config
        return GLUMBConvTemp(dim, dim, config.mlp_ratio)

    def _build_mixer(self, dim: int, *args: Any, **settings: Any) -> SelfAttention:
        config: Any = self.config
        if config.self_attention == "softmax":
            return SoftmaxAttention(dim, *args, **settings)
        return super()._build_mixer(dim, *args, **settings)

    def new_state(
        self,
        batch: int,
        height: int,
        width: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first frame of a stream.

        With linear attention its byte size never changes.

        Args:
            batch: rows B.
            height, width: of the latent, in latent pixels.
            device: default: the model's; `"meta"` to learn the size alone.
            dtype: of the activations; default: the model's. Sums are fp32 all the same.

        Raises:
            ValueError: a size is not a positive multiple of the patch.
        """
        _, *cells = self.patch
        if batch < 1 or any(s < 1 or s % p for s, p in zip((height, width), cells, strict=True)):
            raise ValueError(
                f"a state for batch {batch} and a latent of {height}x{width} cannot be made: give "
                f"a positive batch and positive multiples of the patch {cells[0]}x{cells[1]}"
            )
        grid = (height // cells[0], width // cells[1])
        place, kind = torch.device(device or self.device), dtype or self.dtype
        blocks = tuple(
            BlockState(
                block.attn1.new_state(batch, place, kind),
                block.ff.new_state(batch, math.prod(grid), place, kind),
            )
            for block in self.transformer_blocks
        )
        return State(blocks, 0, grid)

    def state_bytes(
        self, height: int, width: int, batch: int = 1, dtype: torch.dtype | None = None
    ) -> int:
        """Bytes of a stream's state; see `new_state` for the arguments."""
        return self.new_state(batch, height, width, device="meta", dtype=dtype).nbytes

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
        state: State | None = None,
        chunks: Sequence[int] | None = None,
        perturbed_layers: Collection[int] = (),
        skipped_layers: Collection[int] = (),
        perturbed_rows: Tensor | None = None,
        block_cache: PassCache | None = None,
    ) -> SanaVideoOutput | tuple[Tensor] | tuple[Tensor, State]:
        """Predict.

        Args:
            hidden_states: `[B, in_channels, frames, height, width]`, any size that the patch
                divides.
            encoder_hidden_states: `[B, L, caption_channels]`, or what `prepare_text` made of it.
            timestep: 0-d, `[1]`, `[B]`, or `[B, F]` for one of each (patched) frame; fractions are
                kept. A frame at 0 is clean and conditions the others.
            guidance: 0-d, `[1]` or `[B]`; needed by a model with `guidance_embeds`.
            encoder_attention_mask: `[B, L]`, non-zero where a text token is real.
            attention_mask: not supported.
            attention_kwargs: `{"scale": ...}`, the weight of LoRA adapters.
            controlnet_block_samples: `[B, N, C]` each; number j is added after block j + 1.
            return_dict: whether to return an output object or a tuple.
            state: of the frames before, from `new_state` or from an earlier output. It is not
                changed: a pass whose state is not kept leaves no trace.
            chunks: of a stream, frames of each chunk in `hidden_states`; `None` takes all for one.
                Several chunks in one pass give what as many passes give.
            perturbed_layers: blocks in which perturbed rows skip self-attention.
            skipped_layers: blocks that perturbed rows skip whole (spatio-temporal skip guidance,
                arXiv 2411.18664).
            perturbed_rows: bool `[B]`; `None` means all rows.
            block_cache: of a sampling run, to skip blocks with; see `FirstBlockCache`. Not with a
                state, which every block has to carry on.

        Returns:
            `.sample` `[B, out_channels, frames, height, width]` and `.state`; as a tuple, the
            state only where one was given.

        Raises:
            ValueError: a shape, layer or argument is wrong; before anything is computed.
        """
        self._check_inputs(hidden_states, attention_mask, attention_kwargs)
        batch, grid = len(hidden_states), self._grid(hidden_states)
        self._check_stream(state, chunks, batch, grid)
        if state is not None and block_cache is not None:
            raise ValueError("block_cache skips blocks whose state would be lost; pass no state")
        blocks = len(self.transformer_blocks)
        shape = (batch, math.prod(grid), self.inner_dim)
        residuals = check_residuals(controlnet_block_samples, blocks, shape)
        bypass = check_perturbed(
            {*perturbed_layers, *skipped_layers},
            perturbed_rows,
            blocks=blocks,
            batch=batch,
            device=hidden_states.device,
        )
        modulation, embedded = self._modulation(timestep, guidance, hidden_states)
        text = self._text(encoder_hidden_states, encoder_attention_mask, batch)
        rope = self._rope(grid, 0 if state is None else state.frames, hidden_states.device)

        x = self.patch_embedding(patchify(hidden_states, self.patch))  # [B, N, C]
        inputs = BlockInputs(
            modulation,
            text,
            grid,
            tuple(residuals),
            frozenset(perturbed_layers),
            bypass,
            frozenset(skipped_layers),
            rope,
        )
        stream = None if state is None else BlockStream(state.blocks, chunks)
        finite = [x.isfinite().all()] if watches_range(self, x) else None
        run = partial(self._run_blocks, finite=finite, stream=stream)
        x = run(x, inputs) if block_cache is None else block_cache.run(run, x, inputs, blocks)
        require_finite(finite or [])
        table = (self.scale_shift_table + embedded.unsqueeze(-2)).to(x.dtype)  # [B, F, 2, C]
        x = self.proj_out(self.norm_out(x, *table.unbind(-2)))
        sample = unpatchify_3d(x, grid, self.patch)
        after = None
        if state is not None and stream is not None:
            after = State(tuple(stream.after), state.frames + grid[0], state.grid)
        if return_dict:
            return SanaVideoOutput(sample=sample, state=after)
        return (sample,) if after is None else (sample, after)

    def _modulation(
        self, timestep: Tensor | float, guidance: Tensor | float | None, latent: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Modulation `[B, F, 6, C]` of the blocks and `[B, F, C]` of the last norm; F may be 1."""
        batch, frames = len(latent), latent.shape[2] // self.patch[0]
        times = per_frame(timestep, batch, frames, "timestep", latent.device)
        if guidance is not None:
            guidance = per_row(guidance, batch, "guidance", latent.device).unsqueeze(1)
        return self.time_embed(times, guidance, latent.dtype)

    def _patch_sides(self) -> tuple[int, ...]:
        return self.patch

    def _grid(self, latent: Tensor) -> tuple[int, int, int]:
        frames, height, width = (
            size // side for size, side in zip(latent.shape[2:], self.patch, strict=True)
        )
        return frames, height, width

    def _rope(self, grid: tuple[int, int, int], first_frame: int, device: torch.device) -> Rope:
        return rope_3d(self.head_dim, grid, first_frame=first_frame, device=device)

    def _outer_macs(self) -> int:
        config: Any = self.config
        out_channels = config.out_channels or config.in_channels
        return self.inner_dim * math.prod(self.patch) * (config.in_channels + out_channels)

    def _check_stream(
        self,
        state: State | None,
        chunks: Sequence[int] | None,
        batch: int,
        grid: tuple[int, int, int],
    ) -> None:
        if state is None:
            if chunks is not None:
                raise ValueError("chunks were given without a state; begin with new_state")
            return
        found = (len(state.blocks), len(state), state.grid)
        wanted = (len(self.transformer_blocks), batch, grid[1:])
        if found != wanted:
            raise ValueError(
                f"the state is for (blocks, rows, grid) = {found}, this call for {wanted}; make it "
                "with new_state of this model for this size"
            )
        if chunks is not None and (sum(chunks) != grid[0] or min(chunks) < 1):
            raise ValueError(
                f"chunks {tuple(chunks)} must be positive and sum to the {grid[0]} frames given"
            )
