"""Writes the committed files in `splits/`: the split of the emoji pack and the prompts to score by.

They are made once, before training, and kept: numbers of different runs compare only over the same
split, prompts, seeds, steps and guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sana_like.weights.files import replacing
from sana_like_train.data.prompts import PromptList, make_prompt_list
from sana_like_train.data.records import load_records
from sana_like_train.data.split import STYLES, Split, load_split, make_split
from sana_like_train.data.video_prompts import VideoPromptList, make_video_prompts

SEED = 0
STEPS = 20
GUIDANCE = 3.0
VIDEO_STEPS = 30
VIDEO_GUIDANCE = 4.0


def write_committed_files(
    pack: str | Path,
    folder: str | Path,
    *,
    styles: Sequence[str] = STYLES,
    steps: int = STEPS,
    guidance: float = GUIDANCE,
) -> tuple[Split, PromptList]:
    """Write `emoji.json` and `emoji_prompts.json` for the emoji pack `pack` into `folder`."""
    records = load_records(pack)
    split = make_split(records, seed=SEED, styles=styles)
    prompts = make_prompt_list(records, split, steps=steps, guidance=guidance)
    for name, text in (("emoji", split.to_json()), ("emoji_prompts", prompts.to_json())):
        with replacing(Path(folder) / f"{name}.json") as temporary:
            temporary.write_text(text, encoding="utf-8")
    return split, prompts


def write_video_prompts(
    pack: str | Path,
    folder: str | Path,
    *,
    split: str | Path = "emoji",
    steps: int = VIDEO_STEPS,
    guidance: float = VIDEO_GUIDANCE,
) -> VideoPromptList:
    """Write `emoji_video_prompts.json` for the emoji pack `pack` into `folder`."""
    prompts = make_video_prompts(
        load_records(pack), load_split(split), steps=steps, guidance=guidance
    )
    with replacing(Path(folder) / "emoji_video_prompts.json") as temporary:
        temporary.write_text(prompts.to_json(), encoding="utf-8")
    return prompts
