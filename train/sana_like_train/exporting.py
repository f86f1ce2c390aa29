"""Writes what a text-to-image run trained: a pipeline folder, an adapter, or a ControlNet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sana_like.schedulers import FlowDPMSolverScheduler
from sana_like.weights.hub import embedded_names
from sana_like.weights.lora import save_lora
from sana_like_pipelines.loading import ZOO_LIBRARY, ZOO_TEXT_ENCODER
from sana_like_pipelines.preview import fit_latent_rgb
from sana_like_pipelines.saving import save_component, write_index
from sana_like_train.components import text_settings
from sana_like_train.data.buckets import fit_to_bucket
from sana_like_train.tasks.selection import evenly

if TYPE_CHECKING:
    from sana_like_train.tasks.text_to_image import TextToImageTraining

ADAPTER = "default"  # the name that adapters have while they are trained
_PREVIEW_PICTURES = 64


def export_text_to_image(task: TextToImageTraining, folder: Path, *, int8: bool = False) -> None:
    """Writes the exported module of a task, as it stands.

    Args:
        task: LoRA tasks give a file for `load_lora_weights`, ControlNet tasks a model folder,
            others a pipeline folder in which embedded parts (autoencoder, text encoder) are named
            and others written beside the transformer.
        folder: to write.
        int8: store weights as int8 with a scale per output channel, the rest in fp32. LoRA
            weights are always written as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if task.config.lora is not None:
        save_lora(task.exported, folder, ADAPTER)
    elif task.config.control is not None:
        task.exported.save_pretrained(folder, int8=int8)
    else:
        _write_pipeline(task, folder, int8)


def _write_pipeline(task: TextToImageTraining, folder: Path, int8: bool) -> None:
    config, model = task.config, task.exported
    model.save_pretrained(folder / "transformer", int8=int8)

    def save(name: str, component: Any) -> list[str | None]:
        return save_component(name, component, folder, variant=None, max_shard_size="10GB")

    scheduler = FlowDPMSolverScheduler(flow_shift=config.sample_shift)
    entries: dict[str, Any] = {
        "transformer": ["diffusers", model.published_class_name()],
        "scheduler": save("scheduler", scheduler),
    }
    if config.autoencoder in embedded_names():
        entries["vae"] = [ZOO_LIBRARY, config.autoencoder]
    else:
        entries["vae"] = save("vae", task.autoencoder)
    if config.text_encoder == ZOO_TEXT_ENCODER:
        entries["text_encoder"] = entries["tokenizer"] = [ZOO_LIBRARY, ZOO_TEXT_ENCODER]
    size = task.buckets[len(task.buckets) // 2]
    pictures = [
        fit_to_bucket(record.open_picture(None), size)
        for record in evenly(task.records, _PREVIEW_PICTURES)
    ]
    preview = fit_latent_rgb(task.autoencoder, torch.stack(pictures).split(8))
    settings = {
        "text_settings": text_settings(config, task.pipeline).to_dict(),
        "latent_rgb": preview.to_dict(),
    }
    write_index(folder, "SanaPipeline", entries, settings)
