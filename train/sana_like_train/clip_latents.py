"""Latents of all clips of a run, encoded once and kept; what is done survives an interruption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sana_like.autoencoders.codec import VideoCodec
from sana_like_train.cache import fingerprint, kept_tensor, tensors_hash
from sana_like_train.data.clip_items import ClipItem
from sana_like_train.data.clips import unit_range
from sana_like_train.latents import PackedLatents, joined_finite

_CLIPS_A_FILE = 64
_FRAMES_AT_ONCE = 32


def pack_clips(
    items: Sequence[ClipItem],
    codec: VideoCodec,
    folder: Path,
    *,
    frames: int,
    rate: float,
    side: int,
    half: bool,
) -> PackedLatents:
    """Latents `[Z, t, side / ratio, side / ratio]` of clips of one length.

    Args:
        items: clips or pictures.
        codec: of the autoencoder, in eval mode, on the device that encodes.
        folder: of all caches; a file for every 64 clips.
        frames, rate, side: of the clips.
        half: encode under bf16 autocast.

    Raises:
        ValueError: a clip is unreadable, or its latents are not finite; names it.
    """
    weights = tensors_hash(codec.model.state_dict())
    scale = str(codec.model.config.get("scaling_factor"))
    kind = (weights, scale, str(frames), str(rate), str(side))
    ratio = codec.spatial_ratio
    shape = (codec.latent_channels, codec.latent_frames(frames), side // ratio, side // ratio)
    flats = []
    for start in range(0, len(items), _CLIPS_A_FILE):
        part = items[start : start + _CLIPS_A_FILE]
        name = fingerprint(*kind, *(item.identity for item in part))

        def encoded(part: Sequence[ClipItem] = part) -> Tensor:
            return _encode(part, codec, frames, rate, side, half)

        path = folder / "latents" / f"{name}.safetensors"
        flats.append(kept_tensor(path, encoded, f"clips up to {start + len(part)} of {len(items)}"))
    size = math.prod(shape)
    offsets = [index * size for index in range(len(items))]
    return PackedLatents(torch.cat(flats), offsets, [shape] * len(items))


def _encode(
    items: Sequence[ClipItem], codec: VideoCodec, frames: int, rate: float, side: int, half: bool
) -> Tensor:
    at_once = max(1, _FRAMES_AT_ONCE // frames)
    parts: list[Tensor] = []
    for start in range(0, len(items), at_once):
        opened = [item.open(frames, rate, side) for item in items[start : start + at_once]]
        clips = unit_range(torch.stack(opened)).transpose(1, 2)  # [B, 3, T, Y, X]
        with torch.autocast(codec.model.device.type, torch.bfloat16, enabled=half):
            latents = codec.encode_video(clips.to(codec.model.device))
        parts += list(latents.to("cpu", torch.float16))
    return joined_finite(parts, [item.key for item in items])
