"""Training of the autoencoder of clips on clips of exact motion and on real ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.weights.hub import embedded_names
from sana_like_train.config import ConfigError, Recipe
from sana_like_train.data.clip_items import ClipItem, drawn_item, real_item
from sana_like_train.data.clips import unit_range
from sana_like_train.losses import PatchDiscriminator
from sana_like_train.reporting import sheet
from sana_like_train.tasks.base import Batch, Position, TrainingTask, derived_seed
from sana_like_train.tasks.clip_selection import MixedOrder, measured_items, select_clips
from sana_like_train.tasks.reconstruction import (
    CriticObjective,
    ReconstructionObjective,
    Spread,
    adversarial_at,
    crop_stage,
    decibels,
    frames_of,
    train_only,
)
from sana_like_train.tasks.selection import evenly
from sana_like_train.video_sections import VideoAutoencoderTask

logger = logging.getLogger(__name__)

OVER_TIME = ("encoder.temporal", "decoder.temporal")
_SHEET_CLIPS, _SHEET_FRAMES = 4, 8
_SPREAD_CLIPS = 128


class VideoAutoencoderTraining(TrainingTask):
    """The task of a recipe on an autoencoder of clips; see `video_sections.VideoAutoencoderTask`.

    Args:
        recipe: the resolved recipe.
        model: the autoencoder.
    """

    metric = "psnr"
    higher_is_better = True

    def __init__(self, recipe: Recipe, model: Any) -> None:
        config = recipe.task
        assert isinstance(config, VideoAutoencoderTask)
        self.config = config
        self.clips = config.clips
        self.seed = recipe.train.seed
        self.default_batch = recipe.train.batch_size
        self.side = recipe.data.resolution
        records = select_clips(recipe.data, config.clips)
        self.pictures = list(records.pictures.train) if config.clips.drawn else []
        if recipe.data.composition and self.pictures:
            self.pictures += records.pictures.composition
        self.real = [real_item(record) for record in records.clips.train]
        measured = measured_items(records, config.clips, config.evaluate_clips)
        self.held_out: list[ClipItem] = measured.get("held_out", measured["train"])
        self.order = MixedOrder(len(self.pictures), len(self.real), config.clips.share, self.seed)
        self.exported = model.train()
        train_only(model, OVER_TIME if config.trainable is None else config.trainable)
        discriminator = None
        if config.adversary:
            discriminator = PatchDiscriminator(config.adversary.width, config.adversary.layers)
            self.critic = CriticObjective(discriminator)
            self.critic_lr = config.adversary.lr
        self.objective = ReconstructionObjective(
            model, config, discriminator, config.temporal_weight
        )
        ratio = model.spatial_compression_ratio
        crops = [config.crop or self.side, *(crop for _, crop, _ in config.crop_schedule if crop)]
        if any(side % ratio for side in (self.side, *crops)):
            raise ConfigError(
                f"data.resolution and crops must be multiples of {ratio}, the autoencoder's "
                f"compression; given {self.side} and {crops}"
            )

    def make_batch(self, position: Position) -> Batch:
        """Random crops of random stretches of clips; clips of exact motion are new every time."""
        crop, batch_size = crop_stage(self.config, position.step, self.side, self.default_batch)
        seed = derived_seed(self.seed, "stretches", position.micro, position.rank)
        rng = np.random.default_rng(seed)
        chosen = self.order.indices(position, batch_size, rng)
        items = [self._item(kind, index, position) for kind, index in chosen]
        clips = [self._stretch(item, crop, rng) for item in items]
        tensors = {
            "pictures": unit_range(torch.stack(clips)).transpose(1, 2),  # [B, 3, T, crop, crop]
            "adversarial": adversarial_at(self.config, position.step),
        }
        return Batch([item.key for item in items], tensors)

    def _item(self, kind: int, index: int, position: Position) -> ClipItem:
        if kind:
            return self.real[index]
        motions, epoch = self.clips.motions, position.micro
        return drawn_item(self.pictures[index], seed=self.seed, epoch=epoch, motions=motions)

    def _stretch(self, item: ClipItem, crop: int, rng: np.random.Generator) -> Tensor:
        """`[T, 3, crop, crop]` uint8 of a clip, from some moment on."""
        first = int(rng.integers(0, 2 * self.clips.frames))
        frames = item.open(self.clips.frames, self.clips.rate, self.side, first)
        top, left = rng.integers(0, self.side - crop + 1, size=2)
        return frames[:, :, top : top + crop, left : left + crop]

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """PSNR in dB per frame of held-out clips: all, first frames, later ones, real clips."""
        first, later, real = [], [], []
        for item in self.held_out:
            target = self._whole(item).to(device)
            values = decibels(frames_of(self._rebuilt(target)), frames_of(target)).tolist()
            first.append(values[0])
            later += values[1:]
            real += values if item.plan is None else []
        parts = {"psnr": first + later, "psnr_first": first, "psnr_later": later, "psnr_real": real}
        return {name: float(np.mean(some)) for name, some in parts.items() if some}

    def _whole(self, item: ClipItem) -> Tensor:
        """The start of a clip, `[1, 3, T, side, side]` in [-1, 1]."""
        frames = item.open(self.clips.frames, self.clips.rate, self.side)
        return unit_range(frames).transpose(0, 1)[None]

    def _rebuilt(self, clip: Tensor) -> Tensor:
        latent = self.exported.encode(clip).latent
        rebuilt = self.exported.decode(latent).sample[:, :, : clip.shape[2]]
        return rebuilt.float().clamp(-1, 1)

    def sample_sheet(self, device: torch.device) -> Tensor:
        """Some frames of held-out clips, above their reconstructions."""
        rows = []
        for item in evenly(self.held_out, _SHEET_CLIPS):
            target = self._whole(item)
            shown = np.linspace(0, target.shape[2] - 1, _SHEET_FRAMES).round().astype(int).tolist()
            for clip in (target, self._rebuilt(target.to(device)).cpu()):
                rows.append(frames_of(clip)[shown])
        return sheet(torch.cat(rows), _SHEET_FRAMES)

    @torch.no_grad()
    def latent_spread(self, count: int = _SPREAD_CLIPS) -> float:
        """Standard deviation of the latents of `count` training clips."""
        device = next(self.exported.parameters()).device
        spread = Spread()
        for item in self._some_items(count):
            spread.add(self.exported.encode(self._whole(item).to(device)).latent)
        return spread.value

    def _some_items(self, count: int) -> Sequence[ClipItem]:
        motions = self.clips.motions
        drawn = [drawn_item(record, seed=self.seed, epoch=0, motions=motions)
                 for record in evenly(self.pictures, count)]  # fmt: skip
        return evenly([*drawn, *evenly(self.real, count)], count)

    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes the model with the `scaling_factor` that gives its latents unit variance."""
        model, image = self.exported, self.config.image_autoencoder
        shares = self.config.share_image_weights and image in embedded_names()
        model.share_image_weights(image if shares else None)
        model.register_to_config(scaling_factor=float(f"{1 / self.latent_spread():.6g}"))
        model.save_pretrained(folder, int8=int8)
