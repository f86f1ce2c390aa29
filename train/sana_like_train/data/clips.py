"""Captioned clips with random access: the same tars and folders as pictures, read as frames."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sana_like_pipelines.media.clip_read import ClipSource, read_clip
from sana_like_pipelines.media.errors import PictureError
from sana_like_pipelines.sizes import cover
from sana_like_train.data.buckets import Size
from sana_like_train.data.captions import Caption
from sana_like_train.data.records import CLIP_SUFFIXES, WHITE, Colour, Record, load_records

ANIMATED = "animated"


def load_clips(source: str | Path) -> list[Record]:
    """Index a tar or folder of clips with captions; see `load_records`.

    A folder holds `NAME.mp4` (or another of `CLIP_SUFFIXES`) with `NAME.txt` or `NAME.json`.
    """
    return load_records(source, CLIP_SUFFIXES)


def open_clip(
    record: Record,
    *,
    frames: int,
    rate: int | float | Fraction,
    size: Size | None = None,
    background: Colour | None = None,
    loop: bool = False,
) -> Tensor:
    """Decode the start of a clip at a rate, by its time stamps.

    Args:
        record: from `load_clips`.
        frames: how many to give.
        rate: frames per second.
        size: (height, width) that the frames are resized to cover and cut to; None keeps theirs.
        background: red, green, blue in [0, 1] behind transparent parts; None is white.
        loop: go on from the start where the clip ends too soon.

    Returns:
        uint8 `[frames, 3, Y, X]`.

    Raises:
        ValueError: unreadable, or shorter than `frames` without `loop`; names the record.
    """
    colour = WHITE if background is None else background
    behind = tuple(round(255 * channel) for channel in colour)
    try:
        clip = read_clip(_source(record), rate, frames=frames, background=behind)  # type: ignore[arg-type]
    except (OSError, PictureError) as error:
        raise ValueError(
            f"record {record.key!r} in {record.picture.path} is not a readable clip: {error}"
        ) from error
    pixels = clip.frames
    if len(pixels) < frames:
        if not loop:
            raise ValueError(
                f"record {record.key!r} has {len(pixels)} frames at {rate} a second, {frames} are "
                "wanted: leave it out, or let it repeat"
            )
        pixels = pixels[np.arange(frames) % len(pixels)]
    drawn = torch.from_numpy(np.ascontiguousarray(pixels)).movedim(-1, 1)  # [F, 3, Y, X]
    if size is None or tuple(drawn.shape[-2:]) == size:
        return drawn.contiguous()
    resized = [cover(frame[None].float(), *size, mode="bicubic") for frame in drawn]
    return torch.cat(resized).round().clamp(0, 255).to(torch.uint8)


def unit_range(frames: Tensor) -> Tensor:
    """uint8 frames as fp32 in [-1, 1], the range of the models."""
    return frames.float() / 127.5 - 1.0


def animated_captions(captions: Sequence[Caption]) -> tuple[Caption, ...]:
    """Captions of a picture as those of an animation of it: `LABEL, STYLE, animated`."""
    return tuple(Caption(f"{one.text}, {ANIMATED}", one.weight) for one in captions)


def _source(record: Record) -> ClipSource:
    """A file by its path, so that a long one is not read whole; a member of a tar by its bytes."""
    span = record.picture
    return Path(span.path) if span.size is None and span.offset == 0 else span.read()
