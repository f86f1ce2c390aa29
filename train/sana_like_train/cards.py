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
from sana_like_train.config import AutoencoderTask, Recipe
from sana_like_train.data.packs import find_pack
from sana_like_train.reading import resolve
from sana_like_train.tasks.selection import select_records

ART = {
    "3d": "Fluent Emoji in 3D (Microsoft, MIT)",
    "flat": "Fluent Emoji, flat (Microsoft, MIT)",
    "noto": "Noto Emoji (Google, Apache-2.0)",
    "twemoji": "Twemoji (Twitter, Inc and other contributors, CC-BY 4.0)",
}


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
    if isinstance(recipe.task, AutoencoderTask):
        what = "An autoencoder: 256x256 pictures to 8x8x32 latents and back (32 times per side)."
    else:
        what = "A text-to-image model: English prompts `THING, STYLE` to 256x256 pictures."
    return [what, f"{parameters / 1e6:.1f} million parameters, {size / 1e6:.1f} MB."]


def _data(recipe: Recipe) -> list[str]:
    source = recipe.data.source
    data = recipe.data
    if source != "emoji" and not Path(source).exists():
        data = data.model_copy(update={"source": str(find_pack())})
    parts = select_records(data)
    records = parts.train + (parts.composition if data.composition else [])
    styles = sorted({record.style for record in records if record.style})
    concepts = len({record.concept for record in records})
    return [
        f"{len(records)} pictures of {concepts} concepts, from the pack that "
        "`sana-like train data emoji` builds, on white"
        + (" and on random colours:" if isinstance(recipe.task, AutoencoderTask) else ":"),
        "",
        *(f"- `{style}`: {ART.get(style, style)}" for style in styles),
        "",
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
