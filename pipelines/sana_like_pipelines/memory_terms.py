"""What the parts of a pipeline take of memory: the terms of an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

PHASES = {"text": "text_encoder", "denoise": "transformer", "decode": "vae"}
"""Phases of a call, and the component that works in each."""


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
    and three tensors of its output, a gated block with three of its expansion. Tiling, which spares
    the stages with attention, and slicing count as they are switched on.
    """
    config = vae.config
    whole = tile = height * width
    canvas = 0
    if vae.use_tiling:
        tile = min(height, vae.tile_sample_min_height) * min(width, vae.tile_sample_min_width)
        # The parts that are done, and the picture they are put into.
        canvas = 2 * whole * config.in_channels if tile < whole else 0
    rows = 1 if vae.use_slicing else batch
    size = vae.dtype.itemsize
    widths: Sequence[int] = config.decoder_block_out_channels
    kinds = config.decoder_block_types
    kinds = (kinds,) * len(widths) if isinstance(kinds, str) else kinds
    peak = 0
    for stage, (kind, channels) in enumerate(zip(kinds, widths, strict=True)):
        if config.decoder_layers_per_block[stage] == 0 and stage == 0:
            continue  # without blocks the first stage has no resolution of its own
        cells = (tile if stage < vae.decoder.split else whole) // 4**stage
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


def cached_bytes(transformer: Any, height: int, width: int, rows: int) -> int:
    """Bytes that the first-block cache keeps of a latent of `height` x `width`: two streams."""
    tokens = height * width // transformer.config.patch_size**2
    return int(2 * rows * tokens * transformer.inner_dim * transformer.dtype.itemsize)
