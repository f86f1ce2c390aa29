"""Scores of trained models on held-out data: `run(name, ...)` for each of `EVALUATIONS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

EVALUATIONS = ("emoji", "autoencoder", "pack")


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
        name: `emoji` (text to image), `autoencoder`, or `pack` (the data alone, without a model).
        pack: the emoji pack; None is the one that `build_pack` made.
        output: folder for the report and its sheets; made where missing.
        model: embedded name, folder or hub id; None is the embedded `emoji` or `emoji-ae`.
        limit: judge only so many pictures of each list.
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
    if name == "emoji":
        from sana_like_train.evaluate.emoji import evaluate_emoji

        return evaluate_emoji(
            model or "emoji", pack, output, limit, device=device, progress=progress
        )
    if name == "autoencoder":
        from sana_like_train.evaluate.autoencoder import evaluate_autoencoder

        return evaluate_autoencoder(
            model or "emoji-ae", pack, output, limit, device=device, progress=progress
        )
    from sana_like_train.evaluate.pack import evaluate_pack

    return evaluate_pack(pack, output, limit, device=device)
