"""Draws the clips that `motion` plans, from captioned pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sana_like_train.data.captions import Caption
from sana_like_train.data.motion import (
    BACKGROUNDS,
    CLIP_FRAMES,
    CLIP_RATE,
    MOTIONS,
    ClipPlan,
    Pose,
    motion_captions,
    plan_clip,
)
from sana_like_train.data.records import Record

CLIP_SIDE = 256

# A picture that turned by this angle differs from itself by less than this share of its opacity
# looks the same while it spins; the angle is that of one frame at the slowest.
_PROBE_TURN = math.radians(15)
_LEAST_DIFFERENCE = 0.035
_PROBE_SIDE = 64
_SPINS = tuple(name for name in MOTIONS if name.startswith("spins"))


@dataclass(frozen=True, slots=True)
class MotionClip:
    """A drawn clip: uint8 `[F, 3, Y, X]`, its captions (the main one first), and its plan."""

    frames: Tensor
    captions: tuple[Caption, ...]
    plan: ClipPlan


def motion_clip(
    record: Record,
    *,
    seed: int,
    epoch: int = 0,
    frames: int = CLIP_FRAMES,
    rate: float = CLIP_RATE,
    side: int = CLIP_SIDE,
    motions: Sequence[str] | None = None,
    background: str | None = None,
) -> MotionClip:
    """Draw the clip of `record` for `(seed, epoch)`: the same on every machine and in any order.

    Args:
        record: a picture with transparency; one without moves as a square.
        seed, epoch: of the run.
        frames, rate: length and frames per second.
        side: of the frames, in pixels.
        motions, background: as for `plan_clip`. Pictures that look the same while they spin are
            given another of the motions, so that captions stay true.

    Raises:
        ValueError: an unreadable picture, or none of the motions can be seen of it.
    """
    picture = premultiplied(record.open_image())
    names = visible_motions(record, list(MOTIONS) if motions is None else list(motions))
    plan = plan_clip(record.key, seed=seed, epoch=epoch, motions=names, background=background)
    return MotionClip(
        draw_clip(picture, plan, frames=frames, rate=rate, side=side),
        motion_captions(record.captions, plan),
        plan,
    )


def visible_motions(record: Record, motions: Sequence[str]) -> list[str]:
    """Those of `motions` that can be seen of the picture; raises `ValueError` where none can."""
    seen = [name for name in motions if name not in _SPINS or _shows_turning(record)]
    if not seen:
        raise ValueError(f"record {record.key!r} looks the same while it spins")
    return seen


def draw_clip(
    picture: Tensor,
    plan: ClipPlan,
    *,
    frames: int = CLIP_FRAMES,
    rate: float = CLIP_RATE,
    side: int = CLIP_SIDE,
    first: int = 0,
) -> Tensor:
    """Draw frames `first` to `first + frames` of a plan, in clips of any length.

    Args:
        picture: from `premultiplied`.
        plan: what happens.
        frames, rate, side: as for `motion_clip`.
        first: number of the first frame to draw; time counts from frame 0.

    Returns:
        uint8 `[frames, 3, side, side]`.
    """
    if frames < 1 or side < 1 or not rate > 0:
        raise ValueError(f"frames={frames}, rate={rate}, side={side}: each must be above 0")
    poses = [plan.pose((first + place) / rate) for place in range(frames)]
    behind = torch.tensor(BACKGROUNDS[plan.background]).view(1, 3, 1, 1)
    drawn: dict[Pose, Tensor] = {}
    for pose in poses:
        if pose not in drawn:  # a picture that stands still is drawn once
            layer = _placed(picture, pose, side)  # [1, 4, side, side]
            unit = layer[:, :3] + behind * (1 - layer[:, 3:])
            drawn[pose] = (unit * 255).round().clamp(0, 255).to(torch.uint8)
    return torch.cat([drawn[pose] for pose in poses])


def premultiplied(image: Image.Image) -> Tensor:
    """A picture as fp32 `[1, 4, S, S]` in [0, 1]: colours times opacity, and opacity.

    A picture that is not square gets transparent borders.
    """
    layer = torch.from_numpy(np.array(image.convert("RGBA"))).movedim(-1, 0)[None].float() / 255
    layer[:, :3] *= layer[:, 3:]
    rows, columns = layer.shape[-2:]
    side = max(rows, columns)
    above, left = (side - rows) // 2, (side - columns) // 2
    return F.pad(layer, (left, side - columns - left, above, side - rows - above))


def _placed(picture: Tensor, pose: Pose, side: int) -> Tensor:
    """The picture at its place in a frame, `[1, 4, side, side]`."""
    # Shrunk with antialiasing first; what is left to do moves and turns, at a scale of about 1.
    pixels = max(math.ceil(pose.scale * side), 1)
    if pixels < picture.shape[-1]:
        picture = F.interpolate(
            picture, size=(pixels, pixels), mode="bicubic", antialias=True, align_corners=False
        )
    cos, sin = math.cos(pose.turn) / pose.scale, math.sin(pose.turn) / pose.scale
    x, y = 2 * pose.x, 2 * pose.y
    # From places of the frame to those of the picture: turned back about its centre.
    theta = torch.tensor(
        [[cos, sin, -cos * x - sin * y], [-sin, cos, sin * x - cos * y]], dtype=torch.float32
    )
    grid = F.affine_grid(theta[None], [1, 4, side, side], align_corners=False)
    placed = F.grid_sample(picture, grid, mode="bicubic", padding_mode="zeros", align_corners=False)
    return placed.clamp(0, 1)


@lru_cache(maxsize=16_384)
def _shows_turning(record: Record) -> bool:
    """Whether the picture, turned a little, differs from itself."""
    picture = premultiplied(record.open_image())
    upright = _placed(picture, Pose(0.0, 0.0, 0.7), _PROBE_SIDE)
    turned = _placed(picture, Pose(0.0, 0.0, 0.7, _PROBE_TURN), _PROBE_SIDE)
    difference = (upright - turned).abs().mean(dim=1).sum()
    return bool(difference > _LEAST_DIFFERENCE * upright[:, 3].sum())
