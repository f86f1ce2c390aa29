"""How much memory a call will need, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sana_like_pipelines.whole import is_whole

PHASES = {"text": "text_encoder", "denoise": "transformer", "decode": "vae"}
OFFLOADS = (None, "model", "layers")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the computing device, by phase of a call; an estimate, usually within a third.

    What the framework itself takes (about 0.5 GB of host memory, or of a CUDA context) is left out.
    """

    weights: dict[str, int]
    """Bytes of the weights of each component."""
    activations: dict[str, int]
    """Peak bytes beside the weights in the phases `text`, `denoise` and `decode`."""
    resident: dict[str, int] = field(default_factory=dict)
    """Bytes of weights on the device in each phase."""

    @property
    def phases(self) -> dict[str, int]:
        """Peak bytes in each phase."""
        return {name: self.resident[name] + self.activations[name] for name in self.activations}

    @property
    def peak(self) -> int:
        """Peak bytes of the whole call."""
        return max(self.phases.values())

    def __str__(self) -> str:
        parts = [f"{name} {size / 2**30:.2f} GiB" for name, size in self.phases.items()]
        return f"peak {self.peak / 2**30:.2f} GiB ({', '.join(parts)})"


def weight_bytes(module: Any) -> int:
    """Bytes of the parameters and buffers of a module; 0 for anything else."""
    if not isinstance(module, nn.Module):
        return 0
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def largest_layer_bytes(module: Any) -> int:
    """Bytes of the largest layer, which is what layer-wise offloading keeps on the device."""
    if not isinstance(module, nn.Module):
        return 0
    sizes = [
        sum(tensor.numel() * tensor.element_size() for tensor in layer.parameters(recurse=False))
        for layer in module.modules()
    ]
    return max(sizes, default=0)


def resident_bytes(components: dict[str, Any], phase: str, offload: str | None) -> int:
    """Bytes of weights on the device in a phase."""
    running = [PHASES[phase]] + (["controlnet"] if phase == "denoise" else [])
    if offload is None:
        return sum(weight_bytes(component) for component in components.values())
    measure = weight_bytes if offload == "model" else largest_layer_bytes
    return sum(measure(components.get(name)) for name in running)


def decoder_bytes(vae: Any, height: int, width: int, batch: int) -> int:
    """Peak bytes of decoding pictures of `height` x `width` px, weights left out.

    Taken over the stages: a residual block and its norm, an upsampling step with its enlarged input
    and three tensors of its output, a gated block with three of its expansion. Tiling and slicing
    count as they are switched on.
    """
    config = vae.config
    pixels = height * width
    canvas = 0
    if vae.use_tiling:
        tile = min(height, vae.tile_sample_min_height) * min(width, vae.tile_sample_min_width)
        # The parts that are done, and the picture they are put into.
        canvas = 2 * pixels * config.in_channels if tile < pixels else 0
        pixels = min(pixels, tile)
    rows = 1 if vae.use_slicing else batch
    size = vae.dtype.itemsize
    widths: Sequence[int] = config.decoder_block_out_channels
    kinds = config.decoder_block_types
    kinds = (kinds,) * len(widths) if isinstance(kinds, str) else kinds
    peak = 0
    for stage, (kind, channels) in enumerate(zip(kinds, widths, strict=True)):
        if config.decoder_layers_per_block[stage] == 0 and stage == 0:
            continue  # without blocks the first stage has no resolution of its own
        cells = pixels // 4**stage
        ratio = getattr(config, "expand_ratio", 4.0) if kind == "GLUMBConv" else 4.0
        block = (3 * 2 * ratio + 2) * channels * size
        if kind == "ResBlock":
            # Its norm works in fp32: stream and input, and there the squares, the product and,
            # from half precision, the input once more.
            block = channels * (2 * size + (2 if size >= 4 else 3) * 4)
        above = widths[stage + 1] if stage + 1 < len(widths) else 0
        enlarged = above if config.upsample_block_type == "interpolate" else 0
        peak = max(peak, int(cells * max(block, (enlarged + 3 * channels) * size)))
    return rows * peak + batch * canvas * size


def text_bytes(text_encoder: Any, tokens: int, prompts: int) -> int:
    """Peak bytes of encoding prompts, weights left out."""
    if text_encoder is None:
        return 0
    config = text_encoder.config.get_text_config()
    size = text_encoder.dtype.itemsize
    layers, hidden = config.num_hidden_layers, config.hidden_size
    # Hidden states of every layer are kept where a middle one is read; keys and values always.
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    kept = layers * (hidden + 2 * heads * head_dim)
    working = 4 * hidden + 3 * config.intermediate_size
    return prompts * tokens * (kept + working) * size


class MemoryMixin:
    """Adds `estimate` to a pipeline."""

    def estimate(
        self,
        height: int | None = None,
        width: int | None = None,
        num_images: int = 1,
        *,
        guidance_scale: float = 4.5,
        pag_scale: float = 0.0,
        guidance_batched: bool = True,
        offload: str | None = None,
    ) -> MemoryEstimate:
        """Estimate the memory of a call.

        Args:
            height, width: of the pictures in pixels; default as in the call.
            num_images: pictures in the batch (prompts times pictures per prompt).
            guidance_scale, pag_scale, guidance_batched: as in the call.
            offload: `None`, `"model"` (`enable_model_cpu_offload`) or `"layers"`
                (`enable_sequential_cpu_offload`, `enable_group_offload`).

        Raises:
            ValueError: sizes or counts are not positive, or `offload` is unknown.
        """
        if offload not in OFFLOADS:
            raise ValueError(f"offload={offload!r} is unknown; legal: {OFFLOADS}")
        if not is_whole(num_images) or num_images < 1:
            raise ValueError(f"num_images={num_images!r} must be 1 or more")
        pipe: Any = self
        size = pipe.picture_size(height, width)
        branches = 1
        if guidance_batched:
            branches += (guidance_scale > 1 and pipe.takes_negative) + (pag_scale > 0)
        ratio = pipe.vae.spatial_compression_ratio
        grid = (size.work_height // ratio, size.work_width // ratio)
        tokens = pipe.active_text_settings().max_sequence_length
        models = [pipe.transformer, *getattr(pipe, "controlnets", [])]
        rows = num_images * branches
        activations = {
            "text": text_bytes(pipe.text_encoder, tokens, num_images),
            "denoise": max(model.activation_bytes(*grid, tokens, rows) for model in models),
            "decode": decoder_bytes(pipe.vae, size.work_height, size.work_width, num_images),
        }
        components = dict(pipe.components)
        return MemoryEstimate(
            {name: weight_bytes(part) for name, part in components.items()},
            activations,
            {phase: resident_bytes(components, phase, offload) for phase in PHASES},
        )
