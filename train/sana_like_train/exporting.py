"""Writes what a run from text trained: a pipeline folder, an adapter, or a ControlNet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sana_like.schedulers import FlowDPMSolverScheduler
from sana_like.weights.hub import embedded_names
from sana_like.weights.lora import save_lora
from sana_like_pipelines.loading import ZOO_LIBRARY, ZOO_TEXT_ENCODER, Index
from sana_like_pipelines.media.rates import exact_rate
from sana_like_pipelines.preview import fit_latent_rgb
from sana_like_pipelines.saving import save_component, write_index
from sana_like_pipelines.video_settings import VideoSettings
from sana_like_train.components import text_settings
from sana_like_train.data.buckets import fit_to_bucket
from sana_like_train.data.clips import unit_range
from sana_like_train.tasks.selection import evenly

if TYPE_CHECKING:
    from sana_like_train.tasks.text_to_image import TextToImageTraining
    from sana_like_train.tasks.video import VideoTraining

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
        size = task.buckets[len(task.buckets) // 2]
        pictures = [
            fit_to_bucket(record.open_picture(None), size)
            for record in evenly(task.records, _PREVIEW_PICTURES)
        ]
        _write_pipeline(
            task,
            folder,
            int8,
            pipeline="SanaPipeline",
            shift=task.config.sample_shift,
            pictures=torch.stack(pictures),
            settings={},
        )


def export_video(task: VideoTraining, folder: Path, *, int8: bool = False) -> None:
    """Writes the pipeline folder of a task on clips; see `export_text_to_image`.

    Models that were trained chunk by chunk are written as `SanaLongVideoPipeline`, few-step ones
    with their noise levels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frames, clips = task.latent_frames, task.clips
    trained_for = VideoSettings(
        task.side,
        task.side,
        clips.frames,
        exact_rate(clips.rate),
        chunk=task.chunk or frames,
        levels=task.levels,
    )
    firsts = [item.open(1, clips.rate, task.side) for items in task.measured.values()
              for item in items]  # fmt: skip
    _write_pipeline(
        task,
        folder,
        int8,
        pipeline="SanaVideoPipeline" if task.chunk is None else "SanaLongVideoPipeline",
        shift=task.shift,
        pictures=unit_range(torch.cat(firsts)),
        settings={"video_settings": trained_for.to_dict()},
    )


def _write_pipeline(
    task: TextToImageTraining | VideoTraining,
    folder: Path,
    int8: bool,
    *,
    pipeline: str,
    shift: float,
    pictures: Tensor,
    settings: dict[str, Any],
) -> None:
    """Writes the transformer, what it needs that is not embedded, and the index.

    Args:
        task: as it stands.
        folder: to write.
        int8: store weights as int8.
        pipeline: class name in the index.
        shift: of the scheduler.
        pictures: `[N, 3, Y, X]`, to fit previews to.
        settings: of the pipeline, besides text and previews.
    """
    config, model = task.config, task.exported
    model.save_pretrained(folder / "transformer", int8=int8)

    def save(name: str, component: Any) -> list[str | None]:
        return save_component(name, component, folder, variant=None, max_shard_size="10GB")

    entries: dict[str, Any] = {
        "transformer": ["diffusers", model.published_class_name()],
        "scheduler": save("scheduler", FlowDPMSolverScheduler(flow_shift=shift)),
    }
    vae = _embedded("vae", config.autoencoder, task.pipeline)
    entries["vae"] = save("vae", task.autoencoder) if vae is None else [ZOO_LIBRARY, vae]
    text = _embedded("text_encoder", config.text_encoder, task.pipeline)
    if text is not None:
        entries["text_encoder"] = entries["tokenizer"] = [ZOO_LIBRARY, text]
    preview = fit_latent_rgb(task.autoencoder, pictures.split(8))
    common = {
        "text_settings": text_settings(config, task.pipeline).to_dict(),
        "latent_rgb": preview.to_dict(),
    }
    write_index(folder, pipeline, entries, common | settings)


def _embedded(component: str, configured: str | None, pipeline: Index | None) -> str | None:
    """The embedded model that a component is: the task's, else that of the pipeline it tunes."""
    if configured is not None:
        return configured if configured in (*embedded_names(), ZOO_TEXT_ENCODER) else None
    library, name = pipeline.components.get(component, (None, None)) if pipeline else (None, None)
    return name if library == ZOO_LIBRARY else None
