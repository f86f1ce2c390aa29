"""What a clip is, in memory and in a file's header."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sana_like_pipelines.media.errors import ClipError
from sana_like_pipelines.media.rates import exact_rate, rate_text

Frame = np.ndarray | Image.Image | Tensor
"""`[Y, X, 3]` uint8 or floating point in [0, 1]; a picture in mode `RGB`; or a tensor `[3, Y, X]`,
uint8 or floating point in [0, 1]."""


@dataclass(frozen=True)
class ClipInfo:
    """What the header of a file says; sizes as the clip is shown, upright and with square pixels.

    Attributes:
        width, height: in pixels.
        rate: frames per second; `None` where the file does not say.
        frames: how many the header claims; `None` where it does not say.
        duration: seconds that the header claims; `None` where it does not say.
        rotation: degrees by which the stored frames are turned counter-clockwise to be shown.
        kind: name of the container, such as `mp4`, `webm`, `gif`, `folder`.
        codec: name of the codec, or of the picture format.
    """

    width: int
    height: int
    rate: Fraction | None
    frames: int | None
    duration: Fraction | None
    rotation: int
    kind: str
    codec: str


@dataclass(frozen=True)
class Clip:
    """A clip that was read.

    Attributes:
        frames: uint8 `[F, Y, X, 3]`, sRGB.
        rate: frames per second.
        info: of the file.
    """

    frames: np.ndarray
    rate: Fraction
    info: ClipInfo


@dataclass(frozen=True)
class TimedFrame:
    """One decoded frame: uint8 `[Y, X, 3]`, and when and how long it is shown, in seconds."""

    pixels: np.ndarray
    time: Fraction
    duration: Fraction


@dataclass(frozen=True)
class ClipFacts:
    """What our files say of their clip, since some formats cannot: exact rate, count and size."""

    rate: Fraction
    frames: int | None
    width: int
    height: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "rate": rate_text(self.rate),
            "frames": self.frames,
            "width": self.width,
            "height": self.height,
        }

    @classmethod
    def from_dict(cls, values: Any) -> ClipFacts | None:
        """Inverse of `to_dict`; `None` for anything else, as other tools may have changed it."""
        try:
            frames = values["frames"]
            return cls(
                exact_rate(values["rate"]),
                None if frames is None else int(frames),
                int(values["width"]),
                int(values["height"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


def frame_pixels(frame: Frame) -> np.ndarray:
    """A frame as uint8 `[Y, X, 3]`, rounded to the nearest level.

    Raises:
        ClipError: another shape or kind, no pixels, or values outside the range.
    """
    if isinstance(frame, Image.Image):
        if frame.mode != "RGB":
            raise ClipError(f"a frame in mode {frame.mode} cannot be written; convert it to RGB")
        pixels = np.asarray(frame)
    elif isinstance(frame, Tensor):
        plane = frame.detach().cpu()
        if plane.ndim != 3 or plane.shape[0] != 3:
            raise ClipError(f"a frame is a tensor {list(frame.shape)}; it must be [3, Y, X]")
        plane = plane.float() if plane.is_floating_point() else plane
        pixels = plane.movedim(0, -1).numpy()
    else:
        pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ClipError(f"a frame has shape {list(pixels.shape)}; it must be [Y, X, 3]")
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    in_range = np.issubdtype(pixels.dtype, np.floating) and bool(
        ((pixels >= 0) & (pixels <= 1)).all()  # also false for nan
    )
    if not in_range:
        raise ClipError(
            f"a frame is {pixels.dtype} with values outside [0, 1]: give uint8 from 0 to 255, or "
            "floating point from 0 to 1"
        )
    return np.ascontiguousarray(np.rint(pixels * 255.0).astype(np.uint8))
