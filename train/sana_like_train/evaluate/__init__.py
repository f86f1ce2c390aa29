"""Scores of trained models on held-out data: `run(name, ...)` for each of `EVALUATIONS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

EVALUATIONS = ("emoji", "autoencoder", "pack", "motion-rules", "emoji-video", "emoji-long")


def run(
    name: str,
    *,
    pack: str | Path | None = None,
    output: str | Path,
    model: str | Path | None = None,
    limit: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run one evaluation and return its report, which it also writes to `output`/`name`.json.

    Args:
        name: `emoji` (text to image), `autoencoder`, `emoji-video`, `emoji-long`, or, without a
            model, `pack` (the data alone) and `motion-rules` (what tells motions apart).
        pack: the emoji pack; None is the one that `build_pack` made.
        output: folder for the report and its sheets; made where missing.
        model: embedded name, folder or hub id; None is the embedded one of that kind.
        limit: judge only so many pictures or clips of each list.
        device: where the model runs.
        progress: called with pictures done and in all.

    Raises:
        ValueError: where there is no such evaluation, or the pack or model is not fit for it.
        ImportError: where the extra `eval` is not installed.
    """
    if name not in EVALUATIONS:
        raise ValueError(f"there is no evaluation {name!r}; choose one of {', '.join(EVALUATIONS)}")
    if pack is None:
        from sana_like_train.data.packs import find_pack

        pack = find_pack()
    options: dict[str, Any] = {"limit": limit, "progress": progress}
    if name == "motion-rules":
        from sana_like_train.evaluate.motion_check import evaluate_motion_rules

        return evaluate_motion_rules(pack, output, **options)
    options["device"] = device
    if name == "emoji":
        from sana_like_train.evaluate.emoji import evaluate_emoji

        return evaluate_emoji(model or "emoji", pack, output, **options)
    if name == "autoencoder":
        from sana_like_train.evaluate.autoencoder import evaluate_autoencoder

        return evaluate_autoencoder(model or "emoji-ae", pack, output, **options)
    if name == "emoji-video":
        from sana_like_train.evaluate.video import evaluate_video

        return evaluate_video(model or "emoji-video", pack, output, **options)
    if name == "emoji-long":
        from sana_like_train.evaluate.long_video import evaluate_long_video

        return evaluate_long_video(model or "emoji-long", pack, output, **options)
    from sana_like_train.evaluate.pack import evaluate_pack

    return evaluate_pack(pack, output, limit, device=device)
