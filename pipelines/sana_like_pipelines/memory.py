"""How much memory a call will need, before it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from sana_like_pipelines.decode import plan_tiles, tiled
from sana_like_pipelines.free_memory import fits
from sana_like_pipelines.memory_terms import (
    PHASES,
    cached_bytes,
    decoder_bytes,
    resident_bytes,
    text_bytes,
    weight_bytes,
)
from sana_like_pipelines.sizes import PictureSize
from sana_like_pipelines.whole import is_whole

_LOG = logging.getLogger(__name__)
Passes = Literal["auto", "batched", "sequential"]
"""Branches of guidance: in one batch, one after the other, or as the memory allows."""
OFFLOADS = (None, "model", "layers")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the computing device, by phase of a call; an estimate, usually within a third.

    What the framework itself takes (about 0.5 GB of host memory, or of a CUDA context) is left out.
    """

    weights: dict[str, int]
    """Bytes of the weights of each component."""
    activations: dict[str, int]
    """Peak bytes beside the weights in the phases `text`, `denoise` and `decode`."""
    resident: dict[str, int] = field(default_factory=dict)
    """Bytes of weights on the device in each phase."""

    @property
    def phases(self) -> dict[str, int]:
        """Peak bytes in each phase."""
        return {name: self.resident[name] + self.activations[name] for name in self.activations}

    @property
    def peak(self) -> int:
        """Peak bytes of the whole call."""
        return max(self.phases.values())

    def __str__(self) -> str:
        parts = [f"{name} {size / 2**30:.2f} GiB" for name, size in self.phases.items()]
        return f"peak {self.peak / 2**30:.2f} GiB ({', '.join(parts)})"


class MemoryMixin:
    """Adds `estimate` to a pipeline, and the choices that follow from it."""

    def estimate(
        self,
        height: int | None = None,
        width: int | None = None,
        num_images: int = 1,
        *,
        guidance_scale: float = 4.5,
        pag_scale: float = 0.0,
        guidance_passes: Passes = "auto",
        first_block_cache: float | None = None,
        offload: str | None = None,
    ) -> MemoryEstimate:
        """Estimate the memory of a call.

        What the call chooses by the free memory, passes of guidance and tiles of decoding, is
        estimated as it would be chosen now.

        Args:
            height, width: of the pictures in pixels; default as in the call.
            num_images: pictures in the batch (prompts times pictures per prompt).
            guidance_scale, pag_scale, guidance_passes, first_block_cache: as in the call.
            offload: `None`, `"model"` (`enable_model_cpu_offload`) or `"layers"`
                (`enable_sequential_cpu_offload`, `enable_group_offload`).

        Raises:
            ValueError: sizes or counts are not positive, or `offload` is unknown.
        """
        if offload not in OFFLOADS:
            raise ValueError(f"offload={offload!r} is unknown; legal: {OFFLOADS}")
        if not is_whole(num_images) or num_images < 1:
            raise ValueError(f"num_images={num_images!r} must be 1 or more")
        pipe: Any = self
        size = pipe.picture_size(height, width)
        branches = 1 + (guidance_scale > 1 and pipe.takes_negative) + (pag_scale > 0)
        passes = self.passes_that_fit(guidance_passes, size, num_images, branches)
        rows = num_images * (branches if passes == "batched" else 1)
        device = pipe._execution_device
        tiles = plan_tiles(pipe.vae, size.work_height, size.work_width, num_images, device)
        with tiled(pipe.vae, tiles):
            decode = decoder_bytes(pipe.vae, size.work_height, size.work_width, num_images)
        tokens = pipe.active_text_settings().max_sequence_length
        denoise = self._denoise_bytes(size, rows)
        if first_block_cache is not None:
            denoise += cached_bytes(
                pipe.transformer, *self._latent_grid(size), num_images * branches
            )
        components = dict(pipe.components)
        return MemoryEstimate(
            {name: weight_bytes(part) for name, part in components.items()},
            {
                "text": text_bytes(pipe.text_encoder, tokens, num_images),
                "denoise": denoise,
                "decode": decode,
            },
            {phase: resident_bytes(components, phase, offload) for phase in PHASES},
        )

    def passes_that_fit(
        self, wish: Passes, size: PictureSize, num_images: int, branches: int
    ) -> Passes:
        """Whether the branches of guidance run in one batch or one after the other.

        Args:
            wish: `"auto"` chooses one batch, which is faster, where it fits the free memory.
            size: of the pictures.
            num_images: pictures in the batch.
            branches: predictions per picture and step.

        Returns:
            `"batched"` or `"sequential"`.

        Raises:
            ValueError: `wish` is unknown.
        """
        if wish not in get_args(Passes):
            raise ValueError(
                f"guidance_passes={wish!r} is unknown; legal: {', '.join(get_args(Passes))}"
            )
        if wish != "auto":
            return wish
        if branches == 1:
            return "batched"
        pipe: Any = self
        device: torch.device = pipe._execution_device
        # Weights that are offloaded come to the device first.
        missing = 0 if pipe.transformer.device == device else weight_bytes(pipe.transformer)
        if fits(missing + self._denoise_bytes(size, num_images * branches), device):
            return "batched"
        _LOG.info("%d branches in one batch do not fit the free memory: one at a time", branches)
        return "sequential"

    def _latent_grid(self, size: PictureSize) -> tuple[int, int]:
        ratio = self.vae.spatial_compression_ratio  # type: ignore[attr-defined]
        return size.work_height // ratio, size.work_width // ratio

    def _denoise_bytes(self, size: PictureSize, rows: int) -> int:
        """Peak bytes of an evaluation with `rows` rows, weights left out."""
        pipe: Any = self
        tokens = pipe.active_text_settings().max_sequence_length
        models = [pipe.transformer, *getattr(pipe, "controlnets", [])]
        grid = self._latent_grid(size)
        return max(int(model.activation_bytes(*grid, tokens, rows)) for model in models)
