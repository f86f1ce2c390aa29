"""How much memory a clip will need, before it is made."""

from __future__ import annotations

from typing import Any

from sana_like_pipelines.clips_out import DECODED_AT_ONCE
from sana_like_pipelines.memory import OFFLOADS, MemoryEstimate, MemoryMixin, Passes
from sana_like_pipelines.memory_terms import (
    PHASES,
    cached_bytes,
    resident_bytes,
    text_bytes,
    weight_bytes,
)
from sana_like_pipelines.sizes import PictureSize
from sana_like_pipelines.video_settings import ClipSize
from sana_like_pipelines.whole import is_whole


class VideoMemoryMixin(MemoryMixin):
    """The estimate of `MemoryMixin` for clips."""

    def estimate(  # type: ignore[override]
        self,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        num_videos: int = 1,
        *,
        guidance_scale: float = 6.0,
        stg_scale: float = 0.0,
        guidance_passes: Passes = "auto",
        first_block_cache: float | None = None,
        offload: str | None = None,
    ) -> MemoryEstimate:
        """Estimate the memory of a call, the finished frames of `"pil"` and `"np"` included.

        Args:
            height, width: in pixels; default as in the call.
            frames: of a clip; default as in the call. A stream takes what one of its chunks takes.
            num_videos: clips in the batch (prompts times clips per prompt).
            guidance_scale, stg_scale, guidance_passes, first_block_cache: as in the call.
            offload: `None`, `"model"` (`enable_model_cpu_offload`) or `"layers"`
                (`enable_sequential_cpu_offload`, `enable_group_offload`).

        Raises:
            ValueError: sizes or counts are not positive, or `offload` is unknown.
        """
        if offload not in OFFLOADS:
            raise ValueError(f"offload={offload!r} is unknown; legal: {OFFLOADS}")
        if not is_whole(num_videos) or num_videos < 1:
            raise ValueError(f"num_videos={num_videos!r} must be 1 or more")
        pipe: Any = self
        size: ClipSize = pipe.clip_size(height, width, frames)
        branches = 1 + (guidance_scale > 1) + (stg_scale > 0)
        passes = self.passes_that_fit(guidance_passes, size, num_videos, branches)
        rows = num_videos * (branches if passes == "batched" else 1)
        denoise = self._denoise_bytes(size, rows)
        if first_block_cache is not None:
            grid = self._latent_grid(size)
            latent_frames = num_videos * branches * size.count.latent_frames
            denoise += cached_bytes(pipe.transformer, *grid, latent_frames)
        tokens = pipe.active_text_settings().max_sequence_length
        components = dict(pipe.components)
        return MemoryEstimate(
            {name: weight_bytes(part) for name, part in components.items()},
            {
                "text": text_bytes(pipe.text_encoder, tokens, num_videos),
                "denoise": denoise,
                "decode": self._decode_bytes(size, num_videos),
            },
            {phase: resident_bytes(components, phase, offload) for phase in PHASES},
        )

    def _latent_grid(self, size: PictureSize) -> tuple[int, int]:
        ratio = self.codec.spatial_ratio  # type: ignore[attr-defined]
        return size.work_height // ratio, size.work_width // ratio

    def _denoise_bytes(self, size: PictureSize, rows: int) -> int:
        assert isinstance(size, ClipSize)
        pipe: Any = self
        tokens = pipe.active_text_settings().max_sequence_length
        grid = self._latent_grid(size)
        frames = size.count.latent_frames
        return int(pipe.transformer.activation_bytes(*grid, tokens, rows, frames=frames))

    def _decode_bytes(self, size: ClipSize, clips: int) -> int:
        """Peak bytes of decoding some latent frames, and the finished frames in fp32.

        The widest tensors of a decoder are those at full size: its last stage's width in the dtype
        of the autoencoder, some of them at a time. Attention at small sizes takes less.
        """
        pipe: Any = self
        codec, config = pipe.codec, pipe.vae.config
        widths = config.get("decoder_block_out_channels") or config.get("block_out_channels")
        width = widths[0] if widths else config.get("base_dim", 96)
        frames = size.work_height * size.work_width * clips
        at_once = min(DECODED_AT_ONCE, size.count.latent_frames) if codec.streams else None
        working = codec.pixel_frames(at_once or size.count.latent_frames)
        finished = size.count.work_frames * 3 * 4
        return frames * (working * 6 * width * pipe.vae.dtype.itemsize + finished)
