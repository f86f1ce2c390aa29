"""What a video model was trained for, and the sizes that its calls work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from sana_like_pipelines.frames import FrameCount
from sana_like_pipelines.media.rates import exact_rate, rate_text
from sana_like_pipelines.sizes import PictureSize
from sana_like_pipelines.whole import is_whole

PUBLISHED_WIDTHS = {480: 832, 704: 1280}
"""Widths of the published models' clips, by their height."""
PUBLISHED_FRAMES = 81
PUBLISHED_RATE = 16
PUBLISHED_CHUNK = 10
"""Latent frames of a chunk of LongSANA."""


@dataclass(frozen=True)
class VideoSettings:
    """Size, length and speed of the clips of the training; a folder's `video_settings`.

    Raises:
        ValueError: a value is out of range.
    """

    height: int
    """In pixels."""
    width: int
    """In pixels."""
    frames: int
    rate: Fraction
    """Frames per second."""
    chunk: int = PUBLISHED_CHUNK
    """Latent frames of a chunk of a long video."""
    levels: tuple[float, ...] | None = None
    """Noise levels of a few-step model, falling from 1; `None` for one with many steps."""

    def __post_init__(self) -> None:
        for name in ("height", "width", "frames", "chunk"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ValueError(f"video_settings: {name}={value!r} must be an int of 1 or more")
        object.__setattr__(self, "rate", exact_rate(self.rate))
        if self.levels is not None:
            object.__setattr__(self, "levels", check_levels(self.levels))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values: dict[str, Any] = {
            "height": self.height,
            "width": self.width,
            "frames": self.frames,
            "rate": rate_text(self.rate),
            "chunk": self.chunk,
        }
        return values if self.levels is None else {**values, "levels": list(self.levels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VideoSettings:
        """Inverse of `to_dict`.

        Raises:
            ValueError: keys or values are not those of settings.
        """
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"video_settings: {error}") from error


def check_levels(levels: Any) -> tuple[float, ...]:
    """Noise levels as a tuple; raises `ValueError` unless they fall within (0, 1]."""
    try:
        checked = tuple(float(level) for level in levels)
    except (TypeError, ValueError) as error:
        raise ValueError(f"levels={levels!r} must be a list of numbers") from error
    falling = all(high > low for high, low in pairwise(checked))
    if not checked or not falling or not 0 < checked[-1] <= checked[0] <= 1:
        raise ValueError(f"levels={levels!r} must fall, above 0 and at most 1: from noise to clean")
    return checked


def published_video_settings(transformer: Any, spatial_ratio: int) -> VideoSettings:
    """Settings of published weights, which say of them the height alone.

    Args:
        transformer: a `SanaVideoTransformer3DModel`.
        spatial_ratio: compression of its autoencoder.
    """
    height = transformer.config.sample_size * transformer.config.patch_size[1] * spatial_ratio
    width = PUBLISHED_WIDTHS.get(height, height)
    return VideoSettings(height, width, PUBLISHED_FRAMES, Fraction(PUBLISHED_RATE))


@dataclass(frozen=True)
class ClipSize(PictureSize):
    """Size and length of clips, as asked for and as worked on."""

    count: FrameCount
    """Of frames."""


def clip_size(size: PictureSize, count: FrameCount) -> ClipSize:
    """A picture's size with a number of frames."""
    return ClipSize(size.height, size.width, size.work_height, size.work_width, count)
