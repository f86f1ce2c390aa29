"""Motion of a clip as numbers: optical flow of what stands out from the background, fitted.

Between any two frames next to each other OpenCV's dense inverse search gives the flow of every
pixel. Over the pixels of the picture (those unlike the background in either frame) it is fitted by
the motions that keep shapes:

    u(p) = move + growth * (p - centre) + turn * J (p - centre)

with J the turn by a quarter clockwise. Growth is the divergence of the flow by two, turn its curl
by two. Lengths are in sides of the frame, so clips of any size compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# A pixel belongs to the picture where one of its channels is this far from the background.
_STANDS_OUT = 18
# Of a fit, how often the pixels that it explains worst are left out, and what share of them.
_ROUNDS = 2
_KEPT = 0.8


@dataclass(frozen=True)
class ClipMotion:
    """What happens between the frames of a clip, one entry for each of its F - 1 steps.

    Attributes:
        right, down: of the picture's middle, in sides.
        growth: share by which it grows.
        turn: clockwise, in radians.
        radius: root mean square distance of its pixels from their middle, in sides.
        area: share of the frame that stands out from the background.
        change: mean difference of the two frames, of 255.
    """

    right: np.ndarray
    down: np.ndarray
    growth: np.ndarray
    turn: np.ndarray
    radius: np.ndarray
    area: np.ndarray
    change: np.ndarray

    def __len__(self) -> int:
        return len(self.right)


def clip_motion(frames: np.ndarray) -> ClipMotion:
    """Measure the motion of a clip.

    Args:
        frames: uint8 `[F, Y, X, 3]`, at least two.

    Raises:
        ValueError: another shape, or fewer than two frames.
        ImportError: OpenCV is not installed.
    """
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or len(frames) < 2:
        raise ValueError(
            f"a clip of {frames.dtype} {list(frames.shape)} has no flow: give uint8 [F, Y, X, 3] "
            "with two frames or more"
        )
    cv2 = _opencv()
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    behind = background_colour(frames)
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    masks = [stands_out(frame, behind) for frame in frames]
    rows = []
    for place in range(len(frames) - 1):
        field = flow.calc(grey[place], grey[place + 1], None)  # [Y, X, 2], in pixels
        change = np.abs(frames[place + 1].astype(np.int16) - frames[place]).mean()
        rows.append((*_fit(field, masks[place]), masks[place].mean(), change))
    return ClipMotion(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def background_colour(frames: np.ndarray) -> np.ndarray:
    """The colour `[3]` behind the picture: the median of the frames' edges."""
    edges = [frames[:, 0], frames[:, -1], frames[:, :, 0], frames[:, :, -1]]
    return np.median(np.concatenate([edge.reshape(-1, 3) for edge in edges]), axis=0)


def stands_out(frame: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Bool `[Y, X]`: the pixels of a frame that are unlike the background."""
    return np.abs(frame.astype(np.int16) - background).max(axis=-1) > _STANDS_OUT


def _fit(field: np.ndarray, mask: np.ndarray) -> tuple[float, float, float, float, float]:
    """Right, down, growth, turn and radius of one step; zeros where there is no picture."""
    rows, columns = np.nonzero(mask)
    if len(rows) < 16:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    side = max(mask.shape)
    places = np.stack([columns, rows], axis=1) / side  # [P, 2], right and down
    flows = field[rows, columns].astype(np.float64) / side
    centre = places.mean(axis=0)
    offsets = places - centre
    radius = float(np.sqrt((offsets**2).sum(axis=1).mean()))
    kept = np.ones(len(rows), dtype=bool)
    for _ in range(_ROUNDS + 1):
        move, growth, turn = _solve(offsets[kept], flows[kept])
        fitted = move + growth * offsets + turn * np.stack([-offsets[:, 1], offsets[:, 0]], axis=1)
        errors = ((flows - fitted) ** 2).sum(axis=1)
        kept = errors <= np.quantile(errors, _KEPT)
    return float(move[0]), float(move[1]), growth, turn, radius


def _solve(offsets: np.ndarray, flows: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Least squares of move, growth and turn about the origin of `offsets`."""
    middle, mean = offsets.mean(axis=0), flows.mean(axis=0)
    x, y = (offsets - middle).T
    u, v = (flows - mean).T
    total = float((x * x + y * y).sum()) or 1.0
    growth, turn = float((x * u + y * v).sum()) / total, float((x * v - y * u).sum()) / total
    quarter = np.array([-middle[1], middle[0]])
    return mean - growth * middle - turn * quarter, growth, turn


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "optical flow needs OpenCV; install it with pip install 'sana-like[eval]'"
        ) from error
    cv2.setNumThreads(1)
    return cv2
