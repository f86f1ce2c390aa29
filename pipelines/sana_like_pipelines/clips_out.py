"""From latents of clips to frames, without hiding what goes wrong."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sana_like.autoencoders.codec import VideoCodec
from sana_like.finite import require_finite
from sana_like.transformers.offload import weights_present
from sana_like_pipelines.decode import is_out_of_memory
from sana_like_pipelines.errors import DecodeMemoryError
from sana_like_pipelines.pixels import to_output
from sana_like_pipelines.sizes import PictureSize

_LOG = logging.getLogger(__name__)
DECODED_AT_ONCE = 4
"""Latent frames that are decoded together; fewer take less memory, more are a little faster."""

Frames = list[Image.Image] | np.ndarray | Tensor


def decode_clip(codec: VideoCodec, latents: Tensor, size: PictureSize) -> Iterator[Tensor]:
    """Decode clips and cut them to the size asked for, some frames at a time where that works.

    Where memory runs out they are decoded once more, whole and in tiles, with a warning.

    Args:
        codec: of the autoencoder.
        latents: `[B, Z, t, y, x]`, normalised.
        size: that is worked on and delivered.

    Yields:
        `[B, 3, T, height, width]` fp32, about [-1, 1], in order.

    Raises:
        NonFiniteError: frames hold NaN or infinity.
        DecodeMemoryError: not even tiles fit.
    """
    done = 0
    try:
        for frames in _decoded(codec, latents):
            yield deliver_frames(frames, size)
            done += frames.shape[2]
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        whole = _decode_in_tiles(codec, latents, error)
        yield deliver_frames(whole[:, :, done:], size)


def deliver_frames(frames: Tensor, size: PictureSize) -> Tensor:
    """Check decoded frames `[B, 3, T, Y, X]` and cut them to the size asked for; fp32."""
    require_finite(frames, "decoding of the latents")
    return size.deliver(frames).float()


def frames_as(frames: Tensor, output_type: str) -> Frames:
    """Frames `[T, 3, Y, X]` in about [-1, 1] in the form asked for, see `to_output`."""
    return to_output(frames, output_type)


def clips_as(clips: Tensor, output_type: str) -> Any:
    """Clips `[B, 3, T, Y, X]` in about [-1, 1] in the form asked for.

    Returns:
        `"pil"`: a list of B lists of T pictures; `"np"`: `[B, T, Y, X, 3]`; `"pt"`:
        `[B, T, 3, Y, X]`.
    """
    forms: list[Any] = [frames_as(clip.movedim(1, 0), output_type) for clip in clips]
    if output_type == "np":
        return np.stack(forms)
    return torch.stack(forms) if output_type == "pt" else forms


def _decoded(codec: VideoCodec, latents: Tensor) -> Iterator[Tensor]:
    with weights_present(codec.model):
        if codec.streams and not getattr(codec.model, "use_tiling", False):
            yield from codec.decode_stream(latents.split(DECODED_AT_ONCE, dim=2))
        else:
            yield codec.decode_video(latents)


def _decode_in_tiles(codec: VideoCodec, latents: Tensor, first: BaseException) -> Tensor:
    size = "x".join(str(side * codec.spatial_ratio) for side in latents.shape[-2:])
    message = (
        f"decoding {len(latents)} clips of {size} px ran out of memory and is repeated in tiles; "
        "call pipe.vae.enable_tiling() beforehand to save the attempt"
    )
    _LOG.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=4)
    if latents.device.type == "cuda":
        torch.cuda.empty_cache()
    codec.enable_tiling()
    try:
        with weights_present(codec.model):
            return codec.decode_video(latents)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DecodeMemoryError(
            f"decoding {size} px does not fit the memory even in tiles: ask for fewer frames, a "
            "smaller size, dtype=torch.bfloat16, or use pipe.enable_model_cpu_offload()"
        ) from first
    finally:
        codec.disable_tiling()
