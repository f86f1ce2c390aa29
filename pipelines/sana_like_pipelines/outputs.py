"""What a pipeline gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from diffusers.utils import BaseOutput
from PIL import Image


@dataclass
class SanaPipelineOutput(BaseOutput):
    """Pictures and how they were made.

    `images` and `recipe` run in the order of the batch: all pictures of the first prompt, then all
    of the second. Indexing with `[0]` gives `images`, as in diffusers.
    """

    images: list[Image.Image] | np.ndarray | torch.Tensor
    """`output_type="pil"`: a list; `"np"`: `[B, height, width, 3]` fp32 in [0, 1]; `"pt"`:
    `[B, 3, height, width]` in [0, 1]; `"latent"`: `[B, Z, y, x]` fp32, scaled as the transformer
    sees them and not cut to the size asked for."""
    recipe: list[dict[str, Any]] = field(default_factory=list)
    """One record per picture that JSON can hold (see `sana_like_pipelines.recipe`)."""
    reports: list[Any] = field(default_factory=list)
    """One `TokenReport` per prompt; empty where embeddings were given."""


@dataclass
class SanaVideoPipelineOutput(BaseOutput):
    """Clips and how they were made.

    `frames` and `recipe` run in the order of the batch: all clips of the first prompt, then all of
    the second. Indexing with `[0]` gives `frames`, as in diffusers.
    """

    frames: list[list[Image.Image]] | np.ndarray | torch.Tensor
    """`output_type="pil"`: a list of lists; `"np"`: `[B, T, height, width, 3]` fp32 in [0, 1];
    `"pt"`: `[B, T, 3, height, width]` in [0, 1]; `"latent"`: `[B, Z, t, y, x]` fp32, normalised,
    and not cut to the size and count asked for."""
    rate: float = 0.0
    """Frames per second of the model, to write the clips at."""
    recipe: list[dict[str, Any]] = field(default_factory=list)
    """One record per clip that JSON can hold (see `sana_like_pipelines.recipe`)."""
    reports: list[Any] = field(default_factory=list)
    """One `TokenReport` per prompt; empty where embeddings were given."""
