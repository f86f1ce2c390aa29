"""The frozen parts of a run from text: named by the task, or those of the pipeline it tunes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sana_like.text.encoder import PromptEncoder
from sana_like.text.settings import TextSettings, embedded_settings, published_settings
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.loading import (
    INDEX_NAME,
    ZOO_TEXT_ENCODER,
    Index,
    LoadOptions,
    hub_patterns,
    load_component,
    load_given,
)
from sana_like_train.config import ConfigError
from sana_like_train.sections import GenerativeTask


def pipeline_index(name: str | None) -> Index | None:
    """The index of a pipeline folder, embedded name or hub id; none for anything else."""
    if name is None:
        return None
    folder = resolve_folder(name, allow_patterns=hub_patterns(None))
    return Index.read(folder) if (folder / INDEX_NAME).is_file() else None


def load_autoencoder(task: GenerativeTask, pipeline: Index | None, device: torch.device) -> Any:
    """The autoencoder in fp32, frozen, of the class that its config names.

    Raises:
        ConfigError: the task names none and there is no pipeline.
    """
    options = LoadOptions(dtype=torch.float32)
    if task.autoencoder is not None:
        model = load_given("vae", task.autoencoder, Index(Path(), "", {}), options)
    elif pipeline is not None:
        model = load_component("vae", pipeline, options)
    else:
        raise _unnamed("autoencoder")
    return model.to(device).requires_grad_(False).eval()


def load_text_encoder(
    task: GenerativeTask, pipeline: Index | None, device: torch.device
) -> PromptEncoder:
    """The text encoder in bf16 with the task's way of reading prompts.

    Raises:
        ConfigError: the task names none and there is no pipeline.
    """
    settings = text_settings(task, pipeline)
    if task.text_encoder == ZOO_TEXT_ENCODER:
        from sana_like.text.smollm2 import load_smollm2

        return PromptEncoder(*load_smollm2(torch.bfloat16, device), settings)
    index = pipeline
    if task.text_encoder is not None:
        folder = resolve_folder(task.text_encoder)
        pairs = [("text_encoder", "AutoModel"), ("tokenizer", "AutoTokenizer")]
        index = Index(folder, "", {name: ("transformers", kind) for name, kind in pairs})
    if index is None:
        raise _unnamed("text_encoder")
    options = LoadOptions(dtype=torch.bfloat16, device=device)
    tokenizer = load_component("tokenizer", index, options)
    return PromptEncoder(tokenizer, load_component("text_encoder", index, options), settings)


def text_settings(task: GenerativeTask, pipeline: Index | None) -> TextSettings:
    """How prompts are read: the task's word, else the pipeline's, else the published way."""
    given = task.text_settings
    if given is None and pipeline is not None:
        given = pipeline.settings.get("text_settings")
    if isinstance(given, dict):
        return TextSettings.from_dict(given)
    return embedded_settings() if given == "embedded" else published_settings()


def _unnamed(what: str) -> ConfigError:
    return ConfigError(
        f"task.{what} is not given and train.init_from is no pipeline folder that could give it; "
        f"set task.{what}"
    )
