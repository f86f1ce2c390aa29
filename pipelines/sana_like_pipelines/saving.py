"""Writing of a pipeline folder that this package and plain diffusers load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sana_like.weights.files import write_json
from sana_like_pipelines.loading import (
    DIFFUSERS_CLASSES,
    INDEX_NAME,
    SCHEDULER_NAME,
    read_scheduler_config,
)

Entry = list[str | None]


def save_component(
    name: str, component: Any, folder: Path, *, variant: str | None, max_shard_size: int | str
) -> Entry:
    """Write one component into its own folder and give its entry of the index.

    Args:
        name: of the component; also of its folder.
        component: a model, scheduler, tokenizer or text encoder, or `None`.
        folder: the pipeline's folder.
        variant: variant of model files, such as `fp16`.
        max_shard_size: bytes, or a text such as `5GB`.

    Raises:
        ValueError: the component cannot be saved.
    """
    if component is None:
        return [None, None]
    target = folder / name
    if type(component).__module__.startswith("transformers."):
        import torch

        is_model = isinstance(component, torch.nn.Module)
        arguments = {"variant": variant, "max_shard_size": max_shard_size} if is_model else {}
        component.save_pretrained(target, **arguments)
        return ["transformers", type(component).__name__]
    if hasattr(component, "set_timesteps"):
        component.save_pretrained(target)
        return ["diffusers", str(read_scheduler_config(target / SCHEDULER_NAME)["_class_name"])]
    if hasattr(component, "published_class_name"):
        component.save_pretrained(target, variant=variant, max_shard_size=max_shard_size)
        return ["diffusers", component.published_class_name()]
    if type(component).__name__ in DIFFUSERS_CLASSES:
        component.save_pretrained(target, variant=variant, max_shard_size=max_shard_size)
        return ["diffusers", type(component).__name__]
    raise ValueError(f"{name} is a {type(component).__name__}, which has no published layout")


def write_index(
    folder: Path, pipeline: str, entries: Mapping[str, Entry], settings: Mapping[str, Any]
) -> None:
    """Write `model_index.json`, whole or not at all, after everything it speaks of."""
    from diffusers import __version__ as diffusers_version

    content = {
        "_class_name": pipeline,
        "_diffusers_version": diffusers_version,
        **dict(sorted(entries.items())),
        **settings,
    }
    write_json(folder / INDEX_NAME, content)


def is_embedded_text(text_encoder: Any) -> bool:
    """Whether this is the embedded text encoder, which stays where it is installed.

    It is a decoder cut after some layers, its last norm replaced by the identity; transformers
    could not load it again.
    """
    import torch

    return isinstance(getattr(text_encoder, "norm", None), torch.nn.Identity)
