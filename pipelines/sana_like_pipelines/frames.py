"""Frame counts: any count is delivered exactly, worked on at the next that the autoencoder knows.

A causal video autoencoder with temporal factor f makes one latent frame of the first frame and one
of each further f, so it works on 1, 1 + f, 1 + 2f, ... frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from sana_like_pipelines.whole import is_whole

Sliceable = TypeVar("Sliceable")


@dataclass(frozen=True)
class FrameCount:
    """A count as asked for, and the one that is worked on."""

    frames: int
    work_frames: int
    latent_frames: int

    @property
    def exact(self) -> bool:
        """Whether nothing has to be cut off."""
        return self.frames == self.work_frames

    def deliver(self, clip: Sliceable) -> Sliceable:
        """The frames asked for, of a clip `[work_frames, ...]` or a list."""
        return clip[: self.frames]  # type: ignore[index]


def plan_frames(
    frames: object, factor: int, *, exact: bool = False, rate: Fraction | int | None = None
) -> FrameCount:
    """The count to work on for the count asked for: the next of 1, 1 + f, 1 + 2f, ...

    Args:
        frames: any int from 1.
        factor: temporal compression f of the autoencoder.
        exact: refuse counts that would have to be trimmed.
        rate: frames per second, for the durations in the refusal.

    Raises:
        ValueError: no positive int, or with `exact` one that has to be trimmed; the message names
            the nearest legal counts, and their durations where there is a rate.
    """
    if not is_whole(frames) or frames < 1:
        legal = f"nearest legal counts: {_named(1, rate)} and {_named(1 + factor, rate)}"
        raise ValueError(f"frames={frames!r} must be an int of 1 or more; {legal}")
    steps = -(-(frames - 1) // factor)
    work = steps * factor + 1
    if exact and work != frames:
        raise ValueError(
            f"frames={_named(int(frames), rate)} is not 1 plus a multiple of {factor}; nearest "
            f"legal counts: {_named(work - factor, rate)} and {_named(work, rate)}"
        )
    return FrameCount(int(frames), work, steps + 1)


def latent_span(latent_frames: int, factor: int) -> int:
    """How many frames so many latent frames, from the first, become.

    Raises:
        ValueError: fewer than one.
    """
    if latent_frames < 1:
        raise ValueError(f"latent_frames={latent_frames} must be 1 or more")
    return (latent_frames - 1) * factor + 1


def _named(frames: int, rate: Fraction | int | None) -> str:
    return f"{frames}" if rate is None else f"{frames} ({float(frames / rate):.3f} s)"
