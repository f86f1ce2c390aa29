"""What a frame of a clip shows: the picture is cut out of its background, then judged as pictures
are, by its nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sana_like_train.data.clips import unit_range
from sana_like_train.data.records import Record
from sana_like_train.evaluate.features import FeatureExtractor, cached_record_features
from sana_like_train.evaluate.flow import background_colour, stands_out
from sana_like_train.evaluate.neighbours import (
    CONCEPT_NEIGHBOURS,
    NeighbourScores,
    nearest,
    score_neighbours,
)

_MARGIN = 0.08
_LEAST_PIXELS = 16


def cut_out(frame: np.ndarray) -> np.ndarray:
    """The square around what stands out in a frame, with a margin, on its background.

    Pictures of the pack fill their frame, those of clips are smaller and may lie at its edge.

    Args:
        frame: uint8 `[Y, X, 3]`.

    Returns:
        uint8 `[S, S, 3]`; the frame itself where nothing stands out.
    """
    behind = background_colour(frame[None])
    rows, columns = np.nonzero(stands_out(frame, behind))
    if len(rows) < _LEAST_PIXELS:
        return frame
    height, width = (int(axis.max() - axis.min()) + 1 for axis in (rows, columns))
    side = int(np.ceil(max(height, width) * (1 + _MARGIN)))
    top = int(rows.min()) - (side - height) // 2
    left = int(columns.min()) - (side - width) // 2
    square = np.empty((side, side, 3), np.uint8)
    square[:] = np.rint(behind)
    first_row, first_column = max(top, 0), max(left, 0)
    last_row, last_column = min(top + side, frame.shape[0]), min(left + side, frame.shape[1])
    square[first_row - top : last_row - top, first_column - left : last_column - left] = frame[
        first_row:last_row, first_column:last_column
    ]
    return square


class ConceptJudge:
    """Compares frames with all pictures of the pack, whose features it holds.

    Args:
        records: the pack.
        device: where features are computed.
    """

    def __init__(self, records: Sequence[Record], device: str = "cpu") -> None:
        self.records = records
        self.device = device
        self.extractor = FeatureExtractor().to(device)
        self.features = cached_record_features(records, self.extractor, device)

    def neighbours(self, frames: Sequence[np.ndarray]) -> Tensor:
        """Indices `[Q, 5]` of the pictures nearest to uint8 frames `[Y, X, 3]`."""
        rows = []
        for frame in frames:
            square = torch.from_numpy(cut_out(frame)).movedim(-1, 0)[None]
            rows.append(self.extractor(unit_range(square).to(self.device)).cpu())
        return nearest(torch.cat(rows), self.features, CONCEPT_NEIGHBOURS)

    def score(self, frames: Sequence[np.ndarray], wanted: Sequence[Record]) -> NeighbourScores:
        """Scores of frames whose prompts describe `wanted`."""
        return score_neighbours(self.neighbours(frames), self.records, wanted)

    def top5(self, frames: Sequence[np.ndarray], wanted: Sequence[Record]) -> list[bool]:
        """For each frame, whether its concept is among its five nearest."""
        rows = self.neighbours(frames).tolist()
        return [
            record.concept in {self.records[index].concept for index in row}
            for row, record in zip(rows, wanted, strict=True)
        ]
