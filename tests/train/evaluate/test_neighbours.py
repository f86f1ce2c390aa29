from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sana_like_train.data.records import FileSpan, Record
from sana_like_train.evaluate.neighbours import nearest, score_neighbours
from sana_like_train.evaluate.subset import spread

PACK = [
    Record(f"{concept}_{style}", FileSpan("none"), (), concept, style, f"group {concept % 3}")
    for concept in range(6)
    for style in ("3d", "flat")
]


def test_nearest_by_cosine() -> None:
    pack = F.normalize(torch.randn(20, 8), dim=1)
    found = nearest(pack[[3, 7]], pack, 5)
    assert found[:, 0].tolist() == [3, 7]
    similarity = (pack[3] @ pack.T)[found[0]]
    assert (similarity[:-1] >= similarity[1:]).all()
    others = nearest(pack[[3, 7]], pack, 5, exclude=[3, 7])
    assert torch.equal(others[:, :4], found[:, 1:])
    with pytest.raises(ValueError, match="20 pictures"):
        nearest(pack, pack, 20, exclude=list(range(20)))


def test_perfect_pictures_score_one_and_shuffled_ones_chance() -> None:
    # Picture i is nearest to record i; the other four neighbours are other concepts' records.
    neighbours = torch.tensor(
        [[i, *((i // 2 * 2 + j) % 12 for j in (2, 3, 4, 5))] for i in range(12)]
    )
    scores = score_neighbours(neighbours, PACK, PACK)
    assert (scores.concept_top5, scores.concept_top1, scores.style_top1, scores.group_top1) == (
        1.0,
        1.0,
        1.0,
        1.0,
    )
    # By another of 11 prompts: 5 others have one of the 3 concepts found, 5 the style, 3 the group.
    assert scores.shuffled_concept_top5 == pytest.approx(5 / 11)
    assert scores.shuffled_style_top1 == pytest.approx(5 / 11)
    assert scores.shuffled_group_top1 == pytest.approx(3 / 11)
    assert scores.count == 12


def test_parts_of_the_score_are_told_apart() -> None:
    # Concept 0 in style 3d was asked for.
    def score(*indices: int):
        return score_neighbours(torch.tensor([indices]), PACK, PACK[:1])

    assert score(2, 4, 6, 8, 0).concept_top5 == 1.0
    assert score(2, 4, 6, 8, 10, 0).concept_top5 == 0.0  # the sixth does not count
    other_style = score(1, 4, 6, 8, 10)
    assert (other_style.concept_top1, other_style.style_top1) == (1.0, 0.0)
    same_group = score(6, 2, 4, 8, 10)  # concept 3 is of the same group
    assert (same_group.concept_top5, same_group.style_top1, same_group.group_top1) == (0, 1, 1)


def test_numbers_must_match() -> None:
    with pytest.raises(ValueError, match="2 pictures and 1 prompts"):
        score_neighbours(torch.zeros(2, 5, dtype=torch.long), PACK, PACK[:1])


def test_spread_is_even() -> None:
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread(range(10), None) == spread(range(10), 99) == list(range(10))
    with pytest.raises(ValueError, match="limit=0"):
        spread(range(10), 0)
