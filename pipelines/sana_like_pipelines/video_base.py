"""What the pipelines for clips share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.autoencoders.codec import VideoCodec, video_codec
from sana_like.schedulers.chunked import frame_times
from sana_like.text.settings import TextSettings
from sana_like_pipelines.calls import Call
from sana_like_pipelines.clips_out import clips_as, decode_clip
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.flow import FlowPipeline
from sana_like_pipelines.frames import plan_frames
from sana_like_pipelines.guidance import Guidance, Projection, choose_layers
from sana_like_pipelines.outputs import SanaVideoPipelineOutput
from sana_like_pipelines.preview import LatentRGB
from sana_like_pipelines.sizes import PictureSize
from sana_like_pipelines.steps import SchedulerRun
from sana_like_pipelines.video_memory import VideoMemoryMixin
from sana_like_pipelines.video_settings import (
    ClipSize,
    VideoSettings,
    clip_size,
    published_video_settings,
)


class VideoPipeline(VideoMemoryMixin, FlowPipeline):
    """Base of the pipelines for clips.

    Attributes:
        video_settings: size, length and speed of the training; `None` means the published way.
        codec: the autoencoder as clips go through it.
    """

    published_class: ClassVar[str] = "SanaVideoPipeline"
    loads: ClassVar[frozenset[str]] = frozenset(
        {"SanaVideoPipeline", "SanaImageToVideoPipeline", "SanaLongVideoPipeline"}
    )
    setting_kinds: ClassVar[Mapping[str, Any]] = {
        **FlowPipeline.setting_kinds,
        "video_settings": VideoSettings,
    }
    _count_argument: ClassVar[str] = "num_videos_per_prompt"

    video_settings: VideoSettings | None
    codec: VideoCodec

    def __init__(
        self,
        tokenizer: Any,
        text_encoder: Any,
        vae: Any,
        transformer: Any,
        scheduler: Any,
        text_settings: TextSettings | None = None,
        latent_rgb: LatentRGB | None = None,
        video_settings: VideoSettings | None = None,
    ) -> None:
        self.video_settings = video_settings
        super().__init__(
            tokenizer, text_encoder, vae, transformer, scheduler, text_settings, latent_rgb
        )

    def _set_up(self, text_settings: TextSettings | None, latent_rgb: LatentRGB | None) -> None:
        if not hasattr(self.transformer, "new_state"):
            raise ValueError(
                f"the transformer is a {type(self.transformer).__name__}, which makes pictures: "
                "clips need sana_like.SanaVideoTransformer3DModel"
            )
        if self.transformer.config.patch_size[0] != 1:
            raise ValueError(
                f"the transformer joins {self.transformer.config.patch_size[0]} latent frames to a "
                "patch; these pipelines are for patches of one frame, as all published models have"
            )
        self.codec = video_codec(self.vae)
        super()._set_up(text_settings, latent_rgb)

    def _latent_channels(self) -> int:
        return self.codec.latent_channels

    @property
    def grid(self) -> int:
        """Pixels per side of a cell of the transformer's grid."""
        return int(self.codec.spatial_ratio * self.transformer.config.patch_size[1])

    @property
    def trained_for(self) -> VideoSettings:
        """Size, length and speed of the clips of the training."""
        if self.video_settings is not None:
            return self.video_settings
        return published_video_settings(self.transformer, self.codec.spatial_ratio)

    @property
    def rate(self) -> float:
        """Frames per second of the clips."""
        return float(self.trained_for.rate)

    def clip_size(
        self, height: int | None = None, width: int | None = None, frames: int | None = None
    ) -> ClipSize:
        """The size and length that are delivered and those that are worked on.

        Args:
            height, width: in pixels, any int from 1; `None` means those of the training.
            frames: any int from 1; `None` means those of the training.

        Raises:
            ValueError: none of these; the message names the nearest legal values.
        """
        native = self.trained_for
        count = plan_frames(
            native.frames if frames is None else frames, self.codec.temporal_ratio, rate=native.rate
        )
        return clip_size(self.picture_size(height, width), count)

    def picture_size(
        self, height: int | None = None, width: int | None = None, binning: bool = False
    ) -> PictureSize:
        """The size of frames that is delivered and the one that is worked on.

        Args:
            height, width: in pixels, any int from 1; `None` means those of the training.
            binning: only `False`.

        Raises:
            ValueError: a side is not a positive int, or `binning`.
        """
        if binning:
            raise ValueError(
                "use_resolution_binning=True is not offered for clips: any size is delivered "
                "exactly, worked on at the next multiple of the grid"
            )
        native = self.trained_for
        height = native.height if height is None else height
        width = native.width if width is None else width
        return super().picture_size(height, width)

    def _asked_size(self, arguments: Mapping[str, Any]) -> ClipSize:
        a = arguments
        if a["use_resolution_binning"]:
            self.picture_size(binning=True)
        return self.clip_size(a["height"], a["width"], a["frames"])

    def _latent_shape(self, size: PictureSize, batch: int) -> tuple[int, ...]:
        assert isinstance(size, ClipSize)
        grid = self._latent_grid(size)
        return (batch, self.codec.latent_channels, size.count.latent_frames, *grid)

    def _guidance(self, arguments: Mapping[str, Any]) -> Guidance:
        a = arguments
        layers: tuple[int, ...] = ()
        if a["stg_scale"]:
            blocks = len(self.transformer.transformer_blocks)
            layers = choose_layers(a["stg_applied_layers"], blocks, "stg_applied_layers")
        projection = None
        if a["apg_eta"] is not None:
            projection = Projection(a["apg_eta"], a["apg_norm_threshold"], a["apg_momentum"])
        return Guidance(
            scale=a["guidance_scale"],
            interval=a["guidance_interval"],
            pag_scale=a["stg_scale"],
            pag_layers=layers,
            pag_interval=a["stg_interval"],
            skips_blocks=True,
            projection=projection,
        )

    def _clip_velocity(
        self, call: Call, conditioning: Conditioning, run: SchedulerRun, clean_frames: int = 0
    ) -> Callable[[Tensor, Tensor, int], Tensor]:
        """The guided velocity for (latents, timestep, step), its first frames taken for clean."""
        steps = len(run.timesteps)

        def predict(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            told = timestep
            if clean_frames:
                frames = latents.shape[2]
                told = frame_times(told, call.inputs.batch, frames, clean_frames=clean_frames)
                told = told.to(latents.device)
            network = self._network(call, conditioning, told)
            time = float(timestep) if call.guidance.projection is not None else 1000.0
            return call.guidance.predict(network, latents, step=step, steps=steps, time=time)

        return predict

    def _preview(self, call: Call, done: int, total: int, clean: Tensor) -> None:
        """Show the frame in the middle of each clip."""
        super()._preview(call, done, total, clean[:, :, clean.shape[2] // 2])

    def _deliver_clips(self, call: Call, latents: Tensor) -> SanaVideoPipelineOutput | tuple[Any]:
        """Decode, cut to the size and count asked for, and write the recipes."""
        assert isinstance(call.size, ClipSize) and call.features is not None
        self._end_evaluations(call.inputs.batch)
        kind = call.arguments["output_type"]
        clips: Any = latents
        if kind != "latent":
            # Off the accelerator as they come, so that a long clip needs none of its memory.
            parts = [part.cpu() for part in decode_clip(self.codec, latents, call.size)]
            whole = torch.cat(parts, dim=2)[:, :, : call.size.count.frames]
            clips = clips_as(whole, kind)
        if not call.arguments["return_dict"]:
            return (clips,)
        return SanaVideoPipelineOutput(
            frames=clips,
            rate=self.rate,
            recipe=self._recipes(call),
            reports=list(call.features.reports),
        )

    def _recipes(self, call: Call) -> list[dict[str, Any]]:
        assert isinstance(call.size, ClipSize)
        count, rate = call.size.count.frames, str(self.trained_for.rate)
        recipes = super()._recipes(call)
        for recipe in recipes:
            recipe["settings"] |= {"frames": count}
            recipe["rate"] = rate
        return recipes
