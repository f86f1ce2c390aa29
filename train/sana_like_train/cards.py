"""The card of an embedded model: what it is, what it learned from, how, and what it scores.

Everything in a card is read from the run, the weights and the evaluation's report, so that no
number is typed by hand.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from sana_like.weights.files import read_json, replacing
from sana_like.weights.inspect import inspect_weights
from sana_like_train import checkpoint
from sana_like_train.card_scores import score_lines
from sana_like_train.config import AutoencoderTask, Recipe, TextToImageTask
from sana_like_train.data.packs import find_pack
from sana_like_train.reading import resolve
from sana_like_train.tasks.selection import select_records
from sana_like_train.video_sections import FewStepTask, TextToVideoTask, VideoAutoencoderTask

ART = {
    "3d": "Fluent Emoji in 3D (Microsoft, MIT)",
    "flat": "Fluent Emoji, flat (Microsoft, MIT)",
    "noto": "Noto Emoji (Google, Apache-2.0)",
    "twemoji": "Twemoji (Twitter, Inc and other contributors, CC-BY 4.0)",
}
CLIP_ART = "Fluent Emoji, animated (Microsoft, MIT)"


def write_card(folder: Path, run: Path, report: Path, *, which: str = "latest") -> Path:
    """Write `folder/README.md`.

    Args:
        folder: the exported model.
        run: the run it was exported from.
        report: JSON of the evaluation of this very export.
        which: the checkpoint that was exported, `latest` or `best`.

    Returns:
        The path of the card.

    Raises:
        ValueError: the report is of other weights, or the run has no such checkpoint.
    """
    path = checkpoint.find(run / "checkpoints", which)
    if path is None:
        raise checkpoint.CheckpointError(f"{run} has no {which} checkpoint")
    recipe = resolve(path / "recipe.yaml", [])
    progress = read_json(path / "state.json")["progress"]
    scores = read_json(report)
    _check_weights(folder, scores)
    lines = [
        f"# {folder.name}",
        "",
        *_what(folder, recipe),
        "",
        "## Data",
        "",
        *_data(recipe),
        "",
        "## Training",
        "",
        *_training(recipe, progress),
        "",
        "## Scores",
        "",
        *score_lines(scores),
        "",
        "## Terms",
        "",
        "Weights: Apache-2.0, trained from scratch. The art keeps the terms named above; a picture "
        "can come close to it. See `sana-like licenses`.",
    ]
    card = folder / "README.md"
    with replacing(card) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return card


def _check_weights(folder: Path, scores: Mapping[str, Any]) -> None:
    from sana_like_train.evaluate.report import weights_sha256

    ours = weights_sha256(folder)
    if ours not in scores["weights_sha256"].values():
        raise ValueError(
            f"the report is of weights {scores['weights_sha256']}, {folder} holds {ours}; "
            "evaluate this export first"
        )


def _what(folder: Path, recipe: Recipe) -> list[str]:
    parts = [summary for file in sorted(folder.rglob("*.safetensors"))
             for summary in inspect_weights(file, checksums=False)]  # fmt: skip
    parameters = sum(summary.num_parameters for summary in parts)
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    return [_kind(recipe), f"{parameters / 1e6:.1f} million parameters, {size / 1e6:.1f} MB."]


def _kind(recipe: Recipe) -> str:
    task, side = recipe.task, f"{recipe.data.resolution}x{recipe.data.resolution}"
    if isinstance(task, AutoencoderTask):
        return f"An autoencoder: {side} pictures to 8x8x32 latents and back (32 times per side)."
    if isinstance(task, VideoAutoencoderTask):
        return (
            f"An autoencoder of clips: {side} frames to 8x8x32 latents and back, the first alone, "
            "then four to one."
        )
    if isinstance(task, FewStepTask):
        return (
            f"A model of endless video: English prompts `THING, STYLE, MOTION` to {side} frames, "
            f"{len(task.levels)} steps for each chunk of {task.chunk} latent frames."
        )
    if isinstance(task, TextToVideoTask):
        return f"A text-to-video model: English prompts `THING, STYLE, MOTION` to {side} clips."
    return f"A text-to-image model: English prompts `THING, STYLE` to {side} pictures."


def _data(recipe: Recipe) -> list[str]:
    data, task = recipe.data, recipe.task
    lines = []
    if data.source is not None:
        if data.source != "emoji" and not Path(data.source).exists():
            data = data.model_copy(update={"source": str(find_pack())})
        parts = select_records(data)
        records = parts.train + (parts.composition if data.composition else [])
        styles = sorted({record.style for record in records if record.style})
        concepts = len({record.concept for record in records})
        colours = " and on random colours" if isinstance(task, AutoencoderTask) else ""
        motion = "" if isinstance(task, AutoencoderTask | TextToImageTask) else (
            ", and clips of exact motion drawn of them on plain colours"
        )  # fmt: skip
        lines += [
            f"{len(records)} pictures of {concepts} concepts, from the pack that "
            f"`sana-like train data emoji` builds, on white{colours}{motion}:",
            "",
            *(f"- `{style}`: {ART.get(style, style)}" for style in styles),
            "",
        ]
    if data.clips is not None:
        lines += [f"Real clips, from the pack that `sana-like train data emoji-clips` builds: "
                  f"{CLIP_ART}.", ""]  # fmt: skip
    return [
        *lines,
        "Captions come from emojibase-data (MIT) and the Unicode CLDR. Held out: every 20th "
        "concept in all styles"
        + ("." if recipe.data.composition else ", and one style of a further tenth of concepts."),
    ]


def _training(recipe: Recipe, progress: Mapping[str, Any]) -> list[str]:
    optimizer = recipe.train.optimizer.kind
    return [
        f"    sana-like train run {recipe.name}",
        "",
        f"{progress['step']} steps of {recipe.train.batch_size} samples "
        f"({progress['samples']} in all), {progress['seconds'] / 3600:.1f} hours on "
        f"{platform.machine()} with {torch.get_num_threads()} threads, {optimizer}, "
        f"{recipe.train.precision}. The card was written on {datetime.now(UTC):%Y-%m-%d}.",
    ]
