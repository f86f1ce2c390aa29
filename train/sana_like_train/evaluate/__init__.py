"""Scores of trained models on held-out data: `run(name, ...)` for each of `EVALUATIONS`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# Module, function, and the embedded model that is judged where no other is given.
_JUDGED = {
    "emoji": ("emoji", "evaluate_emoji", "emoji"),
    "autoencoder": ("autoencoder", "evaluate_autoencoder", "emoji-ae"),
    "video-autoencoder": ("video_autoencoder", "evaluate_video_autoencoder", "emoji-video-ae"),
    "emoji-video": ("video", "evaluate_video", "emoji-video"),
    "emoji-long": ("long_video", "evaluate_long_video", "emoji-long"),
}
EVALUATIONS = (*_JUDGED, "pack", "motion-rules")


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
        name: `emoji` (text to image), `autoencoder`, `video-autoencoder`, `emoji-video`,
            `emoji-long`, or, without a model, `pack` (the data alone) and `motion-rules` (what
            tells motions apart).
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
    if name in _JUDGED:
        module, function, embedded = _JUDGED[name]
        judge = getattr(import_module(f"{__name__}.{module}"), function)
        return judge(model or embedded, pack, output, **options)
    from sana_like_train.evaluate.pack import evaluate_pack

    return evaluate_pack(pack, output, limit, device=device)
