"""The recipe of a picture: everything a call needs to make it again, as plain JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.version import __version__


def picture_digest(pixels: Tensor) -> str:
    """SHA-256 of a picture that went in, `[..., Y, X]`, by its 8-bit values."""
    levels = ((pixels.float() / 2 + 0.5) * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    return hashlib.sha256(levels.contiguous().numpy().tobytes()).hexdigest()


def describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """Class and settings of a scheduler."""
    if hasattr(scheduler, "published_config"):
        return plain(scheduler.published_config())
    return plain({"_class_name": type(scheduler).__name__, **dict(scheduler.config)})


def plain(value: Any) -> Any:
    """The nearest value that JSON can hold.

    Tensors become their values, dtypes and devices their names; what has no plain form becomes its
    text.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value).removeprefix("torch.")


def make_recipes(
    *,
    pipeline: str,
    model: str | None,
    prompts: Sequence[str | None],
    negatives: Sequence[str | None],
    seeds: Sequence[int | None],
    settings: Mapping[str, Any],
    context: Mapping[str, Any],
    pictures: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One record per picture, in the order of the batch.

    Args:
        pipeline: class name.
        model: what was given to `from_pretrained`.
        prompts, negatives: P texts, `None` where embeddings were given.
        seeds: B seeds; `None` where no seed makes the noise again.
        settings: arguments of `__call__` that hold for every picture.
        context: scheduler, text settings, dtypes, device, adapters, digests of inputs.
        pictures: B records of what holds for one picture alone.

    Returns:
        Records with `software`, `version`, `pipeline`, `model`, `prompt`, `negative_prompt`,
        `seed`, `settings` and the keys of `context`. The picture is made again by
        `pipe(prompt, negative_prompt=..., generator=[seed], **settings)`, where the pipeline takes
        negative prompts, and else without them.
    """
    per_prompt = len(seeds) // len(prompts)
    common = {"settings": plain(settings), **plain(context)}
    return [
        {
            "software": "sana-like",
            "version": __version__,
            "pipeline": pipeline,
            "model": model,
            "prompt": prompts[place // per_prompt],
            "negative_prompt": negatives[place // per_prompt],
            "seed": seed,
            **common,
            **plain(pictures[place]),
        }
        for place, seed in enumerate(seeds)
    ]
