"""One call of a pipeline: what was asked for, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sana_like.finite import require_finite
from sana_like.text.settings import TextSettings
from sana_like.transformers.first_block_cache import FirstBlockCache
from sana_like_pipelines.guidance import Guidance
from sana_like_pipelines.noise import NoiseSource
from sana_like_pipelines.pixels import OUTPUT_TYPES
from sana_like_pipelines.prompts import PromptFeatures, PromptInputs
from sana_like_pipelines.sizes import PictureSize
from sana_like_pipelines.steps import StepHooks

# Arguments that differ between the pictures of a batch, or change nothing in them.
NOT_IN_RECIPE = frozenset(
    {
        *("self", "prompt", "negative_prompt", "num_images_per_prompt", "generator", "latents"),
        *("num_videos_per_prompt", "state", "__class__"),
        *("prompt_embeds", "prompt_attention_mask"),
        *("negative_prompt_embeds", "negative_prompt_attention_mask"),
        *("callback_on_step_end", "callback_on_step_end_tensor_inputs"),
        *("cancel", "preview", "preview_every", "output_type", "return_dict"),
        *("image", "mask_image", "control_image", "eta", "clean_caption"),
    }
)


@dataclass
class Call:
    """One call, checked: what was asked for and what the steps need. Belongs to one thread."""

    arguments: dict[str, Any]
    inputs: PromptInputs
    size: PictureSize
    guidance: Guidance
    hooks: StepHooks
    noise: NoiseSource
    text: TextSettings
    device: torch.device
    context: dict[str, Any]
    """What the recipe says beside the arguments."""
    features: PromptFeatures | None = None
    block_cache: FirstBlockCache | None = None


def refuse_unused(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of diffusers' that would have no effect, and unknown output types."""
    if arguments["eta"]:
        raise ValueError("eta belongs to DDIM; the samplers of rectified flows have none: leave 0")
    if arguments["clean_caption"]:
        raise ValueError(
            "clean_caption=True is not offered: prompts reach the model as typed; clean them before"
        )
    if arguments["output_type"] not in OUTPUT_TYPES:
        raise ValueError(
            f"output_type={arguments['output_type']!r} is unknown; legal: {', '.join(OUTPUT_TYPES)}"
        )
    unknown = sorted(set(arguments["attention_kwargs"] or {}) - {"scale"})
    if unknown:
        raise ValueError(f"attention_kwargs {unknown} are unknown; legal: 'scale' (of LoRA)")


def check_latents(latents: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse start latents of another shape than `shape`, or with NaN or infinity."""
    if latents is None:
        return
    if tuple(latents.shape) != shape:
        raise ValueError(
            f"latents has shape {list(latents.shape)}, this call needs {list(shape)}: pictures, "
            "channels, and the sides that are worked on over the autoencoder's compression"
        )
    require_finite(latents, "the latents given")
