"""How well real pictures name each other: what the neighbour scores can mean at best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sana_like.weights.files import write_json
from sana_like_train.data.records import load_records
from sana_like_train.data.split import load_split
from sana_like_train.evaluate.features import FeatureExtractor, cached_record_features
from sana_like_train.evaluate.neighbours import CONCEPT_NEIGHBOURS, nearest, score_neighbours
from sana_like_train.evaluate.subset import spread


def evaluate_pack(
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    device: str = "cpu",
    split: str | Path = "emoji",
) -> dict[str, Any]:
    """Judge the product's real pictures by their neighbours, themselves left out.

    The concept must then be recognised from another style, so `concept_top5` says how well the
    features tell concepts apart, and `style_top1` how well they tell styles apart.

    Returns:
        What `pack.json` in the folder `output` holds: the scores over the selection, by style, and
        by group.
    """
    records = load_records(pack)
    parts = load_split(split)
    extractor = FeatureExtractor().to(device)
    features = cached_record_features(records, extractor, device)
    chosen = spread([i for i, one in enumerate(records) if parts.is_selected(one)], limit)
    neighbours = nearest(features[chosen], features, CONCEPT_NEIGHBOURS, exclude=chosen)
    wanted = [records[index] for index in chosen]

    def scores(rows: list[int]) -> dict[str, float]:
        return score_neighbours(neighbours[rows], records, [wanted[row] for row in rows]).as_dict()

    report = {"all": scores(list(range(len(wanted))))}
    for kind in ("style", "group"):
        for name in sorted({getattr(record, kind) for record in wanted}):
            report[f"{kind} {name}"] = scores(
                [row for row, record in enumerate(wanted) if getattr(record, kind) == name]
            )
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "pack.json", report)
    return report
