"""What all tasks of a video transformer share: its frozen parts, texts, sample sheet and export."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.autoencoders.codec import VideoCodec, video_codec
from sana_like_train.cache import cache_folder
from sana_like_train.clip_latents import pack_clips
from sana_like_train.components import load_autoencoder, load_text_encoder, pipeline_index
from sana_like_train.config import ConfigError, Recipe
from sana_like_train.data.captions import choose_caption
from sana_like_train.data.clip_items import ClipItem
from sana_like_train.latents import PackedLatents
from sana_like_train.reporting import sheet
from sana_like_train.sections import GenerativeTask
from sana_like_train.tasks.base import Position, TrainingTask
from sana_like_train.tasks.clip_selection import measured_items, select_clips
from sana_like_train.tasks.flow_matching import fixed_noise
from sana_like_train.text_features import PackedText, pack_texts
from sana_like_train.video_sections import ClipData

SHEET_FRAMES = 8
_SHEET_PROMPTS = 8


class VideoTraining(TrainingTask):
    """Base of the tasks of a video transformer.

    Args:
        recipe: the resolved recipe.
        model: the transformer that is trained.
        clips: how its clips are made.
        count: clips to measure of each part.
        device: where latents and text features are computed.

    Attributes:
        chunk: latent frames of a chunk of a long video; none for whole clips.
        levels: of the few-step sampler; none for many steps.
        shift: of the exported scheduler.
    """

    higher_is_better = False
    config: Any
    chunk: int | None = None
    levels: tuple[float, ...] | None = None
    shift: float = 1.0

    def __init__(
        self, recipe: Recipe, model: Any, clips: ClipData, count: int, device: torch.device
    ) -> None:
        config = recipe.task
        assert isinstance(config, GenerativeTask)
        self.config = config
        self.clips = clips
        self.seed = recipe.train.seed
        self.batch_size = recipe.train.batch_size
        self.half = recipe.train.precision == "bf16"
        self.side = recipe.data.resolution
        self.folder = cache_folder(recipe.data.cache_dir)
        self.device = device
        self.pipeline = pipeline_index(recipe.train.init_from)
        self.records = select_clips(recipe.data, clips)
        self.measured = measured_items(self.records, clips, count)
        self.autoencoder = load_autoencoder(config, self.pipeline, device)
        self.codec: VideoCodec = video_codec(self.autoencoder)
        grid = self.codec.spatial_ratio * model.config.patch_size[1]
        if self.side % grid:
            raise ConfigError(
                f"data.resolution is {self.side}; the sides of clips must be multiples of {grid}"
            )
        self.exported = model.train()
        self.measured_latents = {name: self._pack(some) for name, some in self.measured.items()}

    def _read_text(self, items: Sequence[ClipItem]) -> PackedText:
        """Features of all captions of some clips, of the samples, and of the empty caption."""
        measured = [item for some in self.measured.values() for item in some]
        texts = [caption.text for item in items for caption in item.captions]
        texts += [item.captions[0].text for item in measured if item.captions]
        encoder = load_text_encoder(self.config, self.pipeline, self.device)
        prompts = self.config.sample_prompts
        return pack_texts(["", *prompts, *texts], encoder, self.folder)

    def _pack(self, items: Sequence[ClipItem], frames: int | None = None) -> PackedLatents:
        return pack_clips(
            items,
            self.codec,
            self.folder,
            frames=self.clips.frames if frames is None else frames,
            rate=self.clips.rate,
            side=self.side,
            half=self.half,
        )

    def _caption(self, item: ClipItem, position: Position) -> str:
        captions, epoch = item.captions, position.micro
        return choose_caption(captions, seed=self.seed, epoch=epoch, key=item.key).text

    @property
    def latent_frames(self) -> int:
        """Of a clip."""
        return self.codec.latent_frames(self.clips.frames)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """`(Z, F, y, x)` of a clip."""
        cells = self.side // self.codec.spatial_ratio
        return (self.codec.latent_channels, self.latent_frames, cells, cells)

    def sample_sheet(self, device: torch.device) -> Tensor:
        """Clips of the sample prompts (or of some captions), one a row, some of their frames."""
        prompts = list(self.config.sample_prompts)
        if not prompts:
            prompts = [item.captions[0].text for item in self.measured["train"][:_SHEET_PROMPTS]]
        counters = [(index,) for index in range(len(prompts))]
        noise = fixed_noise(self.latent_shape, counters).to(device)
        embeds, mask = self.text.batch([""] * len(prompts) + prompts)
        latents = self._make(noise, embeds.to(device), mask.to(device))
        rows = []
        for clip in latents.split(1):  # one by one: pixels take far more memory than latents
            frames = self.codec.decode_video(clip)[0].float().clamp(-1, 1).cpu()  # [3, T, Y, X]
            shown = np.linspace(0, frames.shape[1] - 1, SHEET_FRAMES).round().astype(int)
            rows.append(frames[:, shown.tolist()].transpose(0, 1))
        return sheet(torch.cat(rows), SHEET_FRAMES)

    @abstractmethod
    def _make(self, noise: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        """Clips `[B, Z, F, y, x]` of noise; the text has `[2B, L, C]`, empty captions first."""

    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes a pipeline folder; see `exporting`."""
        from sana_like_train.exporting import export_video

        export_video(self, folder, int8=int8)

    text: PackedText
