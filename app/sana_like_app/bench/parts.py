"""Single layers as works: what the ops are worth inside the modules that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sana_like_app.bench.works import Inputs, Work, autoencoder, text_inputs, transformer

CODEC = "dc-ae-f32c32-sana-1.1"


def block(preset: str, size: int, tokens: int, device: torch.device) -> Work:
    """One block of a published transformer, batch 2: a prompt and an empty prompt."""
    whole = transformer(preset, size, tokens, device, num_layers=1)
    config: Any = whole.theirs.config
    side = size // 32
    width = config.num_attention_heads * config.attention_head_dim
    generator = torch.Generator().manual_seed(3)
    inputs = text_inputs(width, tokens, device)
    inputs["x"] = torch.randn(2, side * side, width, generator=generator).to(device)
    inputs["modulation"] = torch.randn(2, 6 * width, generator=generator).to(device) / 10
    attended = inputs["mask"].bool().any(0)
    inputs["real"], inputs["bias"] = inputs["mask"][:, attended].bool(), (1 - inputs["mask"]) * -1e4

    def ours(model: Any, x: Inputs) -> Tensor:
        modulation = x["modulation"].unflatten(1, (6, -1))
        return model(x["x"], modulation, x["key"], x["value"], x["real"], (1, side, side))

    def theirs(model: Any, x: Inputs) -> Tensor:
        bias = x["bias"].unsqueeze(1)
        return model(x["x"], None, x["text"], bias, x["modulation"], side, side)

    def prepare(model: Any, x: Inputs) -> Inputs:
        key, value = model.project_text(x["text"][:, attended])
        return {"key": key, "value": value}

    return Work(
        f"{preset} block, {size} px, batch 2",
        whole.ours.transformer_blocks[0],
        whole.theirs.transformer_blocks[0],
        inputs,
        ours,
        theirs,
        prepare,
        kept=("mask",),
    )


def layers(preset: str, size: int, device: torch.device) -> Iterator[Callable[[], Work]]:
    """Makers of works, one for each kind of layer, at the sizes of a picture of `size` pixels."""
    yield partial(_attention, preset, size, device)
    yield partial(_feed_forward, preset, size, device)
    for name, stage, index, side in (
        ("residual block", 0, 1, size),
        ("doubling", 0, 0, size // 2),
        ("EfficientViT block", 3, 1, size // 8),
    ):
        yield partial(_of_decoder, name, stage, index, side, device)


def _attention(preset: str, size: int, device: torch.device) -> Work:
    whole = transformer(preset, size, 1, device, num_layers=1)
    ours, theirs = (m.transformer_blocks[0].attn1 for m in (whole.ours, whole.theirs))
    side = size // 32
    x = torch.randn(2, side * side, ours.to_q.in_features, device=device)
    grid = (1, side, side)
    return Work(
        f"linear attention {preset}, {size} px",
        ours,
        theirs,
        {"x": x},
        lambda model, x: model(x["x"], grid=grid)[0],
        lambda model, x: model(x["x"]),
    )


def _feed_forward(preset: str, size: int, device: torch.device) -> Work:
    whole = transformer(preset, size, 1, device, num_layers=1)
    ours, theirs = (m.transformer_blocks[0].ff for m in (whole.ours, whole.theirs))
    side = size // 32
    x = torch.randn(2, side, side, ours.conv_inverted.in_features, device=device)

    def run_theirs(model: Any, x: Inputs) -> Tensor:
        # As diffusers' block does: tokens to planes, and back to tokens.
        planes = x["x"].flatten(1, 2).unflatten(1, (side, side)).permute(0, 3, 1, 2)
        return model(planes).flatten(2, 3).permute(0, 2, 1).unflatten(1, (side, side))

    return Work(
        f"feed-forward {preset}, {size} px",
        ours,
        theirs,
        {"x": x},
        lambda model, x: model(x["x"]),
        run_theirs,
    )


def _of_decoder(name: str, stage: int, index: int, side: int, device: torch.device) -> Work:
    """A layer of the decoder; ours takes channels last, theirs channels first."""
    whole = autoencoder(CODEC, 512, "decode", device)
    ours, theirs = (m.decoder.up_blocks[stage][index] for m in (whole.ours, whole.theirs))
    channels = whole.ours.config.decoder_block_out_channels[stage + (name == "doubling")]
    planes = torch.randn(1, channels, side, side, device=device)
    last = planes.permute(0, 2, 3, 1).contiguous()
    return Work(
        f"{name} {CODEC}, {channels} channels, {side} px",
        ours,
        theirs,
        {"planes": planes, "last": last},
        lambda model, x: model(x["last"]).permute(0, 3, 1, 2),
        lambda model, x: model(x["planes"]),
    )
