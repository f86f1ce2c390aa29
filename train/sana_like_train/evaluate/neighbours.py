"""What a picture shows, judged by its nearest neighbours among captioned pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from sana_like_train.data.records import Record

CONCEPT_NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class NeighbourScores:
    """Shares in [0, 1] of pictures whose neighbours are what was asked for.

    Attributes:
        concept_top5: the concept is among the five nearest.
        concept_top1, style_top1, group_top1: the nearest has the concept, style, group.
        shuffled_concept_top5, shuffled_style_top1, shuffled_group_top1: the same when every
            picture is judged by the prompt of another, averaged over all other prompts: what
            pictures that pay no heed to their prompts would score.
        count: pictures judged.
    """

    concept_top5: float
    concept_top1: float
    style_top1: float
    group_top1: float
    shuffled_concept_top5: float
    shuffled_style_top1: float
    shuffled_group_top1: float
    count: int

    def as_dict(self) -> dict[str, float]:
        """Return the scores rounded to four places."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def nearest(
    features: Tensor, pack_features: Tensor, count: int, exclude: Sequence[int] | None = None
) -> Tensor:
    """Return the indices `[Q, count]` of the pack's pictures nearest to `features` by cosine.

    Args:
        features: `[Q, C]`, unit length.
        pack_features: `[P, C]`, unit length.
        count: neighbours a picture, nearest first.
        exclude: for each of the Q pictures an index of the pack that does not count (itself).
    """
    if count > pack_features.shape[0] - (exclude is not None):
        raise ValueError(f"{count} neighbours wanted of {pack_features.shape[0]} pictures")
    similarity = features.float() @ pack_features.float().T  # [Q, P]
    if exclude is not None:
        rows = torch.arange(len(exclude))
        similarity[rows, torch.as_tensor(exclude)] = -torch.inf
    return similarity.topk(count, dim=1).indices


def score_neighbours(
    neighbours: Tensor, pack: Sequence[Record], wanted: Sequence[Record]
) -> NeighbourScores:
    """Judge pictures by their neighbours.

    Args:
        neighbours: `[Q, 5 or more]`, indices into `pack`, nearest first.
        pack: the pictures compared with.
        wanted: for each of the Q pictures the record that its prompt describes.

    Raises:
        ValueError: where the numbers of pictures differ, or there are none.
    """
    if len(wanted) != neighbours.shape[0] or not wanted:
        raise ValueError(f"{neighbours.shape[0]} pictures and {len(wanted)} prompts")
    rows = neighbours.tolist()
    five = [{pack[index].concept for index in row[:CONCEPT_NEIGHBOURS]} for row in rows]
    first = [pack[row[0]] for row in rows]
    top5 = torch.tensor([[record.concept in found for record in wanted] for found in five])
    top1 = torch.tensor([[record.concept == one.concept for record in wanted] for one in first])
    style = torch.tensor([[record.style == one.style for record in wanted] for one in first])
    group = torch.tensor([[record.group == one.group for record in wanted] for one in first])
    return NeighbourScores(
        concept_top5=_own(top5),
        concept_top1=_own(top1),
        style_top1=_own(style),
        group_top1=_own(group),
        shuffled_concept_top5=_others(top5),
        shuffled_style_top1=_others(style),
        shuffled_group_top1=_others(group),
        count=len(wanted),
    )


def _own(hits: Tensor) -> float:
    """Mean of the diagonal of `[pictures, prompts]`: each picture by its own prompt."""
    return hits.diagonal().double().mean().item()


def _others(hits: Tensor) -> float:
    """Mean off the diagonal: each picture by every other's prompt; 0 where there is no other."""
    count = hits.shape[0]
    if count < 2:
        return 0.0
    return ((hits.sum() - hits.diagonal().sum()).double() / (count * (count - 1))).item()
