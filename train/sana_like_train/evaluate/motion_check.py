"""How well the motion rules read the loader's own clips, whose motions are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sana_like.weights.files import write_json
from sana_like_train.data.motion import MOTIONS
from sana_like_train.data.motion_clips import motion_clip
from sana_like_train.data.records import load_records
from sana_like_train.data.split import load_split
from sana_like_train.evaluate.motion_rules import recognise_motion
from sana_like_train.evaluate.subset import spread

RULES_BAR = 0.95
SEED = 0


def evaluate_motion_rules(
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    split: str | Path = "emoji",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Draw a clip of every picture of the product and name its motion by the rules.

    Args:
        pack: the emoji pack.
        output: folder for `motion-rules.json`.
        limit: only so many pictures, spread over the pack.
        split: says which pictures are the product's.
        progress: called with clips done and in all.

    Returns:
        What `motion-rules.json` holds: the share that is named rightly, in all and by motion, and
        how often which motion was taken for which other.
    """
    parts = load_split(split)
    chosen = spread([one for one in load_records(pack) if parts.is_selected(one)], limit)
    made, right = Counter[str](), Counter[str]()
    taken = Counter[str]()
    for done, record in enumerate(chosen, start=1):
        clip = motion_clip(record, seed=SEED)
        named = recognise_motion(clip.frames.movedim(1, -1).numpy())
        made[clip.plan.motion] += 1
        if named == clip.plan.motion:
            right[named] += 1
        else:
            taken[f"{clip.plan.motion} -> {named}"] += 1
        if progress is not None:
            progress(done, len(chosen))
    share = sum(right.values()) / max(len(chosen), 1)
    report = {
        "clips": len(chosen),
        "recognised": round(share, 4),
        "by_motion": {
            name: {"clips": made[name], "recognised": round(right[name] / made[name], 4)}
            for name in MOTIONS
            if made[name]
        },
        "taken_for": dict(taken.most_common()),
        "reached": {"rules": share >= RULES_BAR},
    }
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "motion-rules.json", report)
    return report
