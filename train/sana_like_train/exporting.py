"""Writes trained text-to-image models as pipeline folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sana_like.schedulers import FlowDPMSolverScheduler
from sana_like.weights.hub import embedded_names
from sana_like_pipelines.loading import ZOO_LIBRARY, ZOO_TEXT_ENCODER
from sana_like_pipelines.preview import fit_latent_rgb
from sana_like_pipelines.saving import save_component, write_index

if TYPE_CHECKING:
    from sana_like_train.tasks.text_to_image import TextToImageTraining

_PREVIEW_PICTURES = 64


def write_pipeline(task: TextToImageTraining, folder: Path, *, int8: bool = False) -> None:
    """Writes a folder that `SanaPipeline.from_pretrained` loads, or an adapter for LoRA training.

    Embedded parts (autoencoder, text encoder) are named, others written beside the transformer.

    Args:
        task: holds the weights to write.
        folder: to write.
        int8: store the transformer as int8 with a scale per output channel, the rest in bf16.
    """
    from sana_like_train.tasks.selection import evenly
    from sana_like_train.tasks.text_to_image import text_settings

    config, model = task.config, task.exported
    folder.mkdir(parents=True, exist_ok=True)
    if config.lora is not None:
        model.save_lora_adapter(folder)
        return
    model.save_pretrained(folder / "transformer", int8=int8)
    scheduler = FlowDPMSolverScheduler(flow_shift=config.sample_shift)
    entries: dict[str, Any] = {
        "transformer": ["diffusers", "SanaTransformer2DModel"],
        "scheduler": save_component(
            "scheduler", scheduler, folder, variant=None, max_shard_size="10GB"
        ),
    }
    if config.autoencoder in embedded_names():
        entries["vae"] = [ZOO_LIBRARY, config.autoencoder]
    else:
        entries["vae"] = save_component(
            "vae", task.autoencoder, folder, variant=None, max_shard_size="10GB"
        )
    if config.text_encoder == ZOO_TEXT_ENCODER:
        entries["text_encoder"] = entries["tokenizer"] = [ZOO_LIBRARY, ZOO_TEXT_ENCODER]
    pictures = [r.open_picture(None) for r in evenly(task.records, _PREVIEW_PICTURES)]
    device = next(task.autoencoder.parameters()).device
    preview = fit_latent_rgb(task.autoencoder, torch.stack(pictures).to(device))
    settings = {"text_settings": text_settings(config).to_dict(), "latent_rgb": preview.to_dict()}
    write_index(folder, "SanaPipeline", entries, settings)
