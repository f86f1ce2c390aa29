"""Training of the autoencoder: reconstruction, latent adaptation, decoder refinement."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.resample import DownBlock, UpBlock
from sana_like_train.cache import cache_folder, picture_array
from sana_like_train.config import AutoencoderTask, Recipe
from sana_like_train.data.records import Record
from sana_like_train.losses import PatchDiscriminator
from sana_like_train.tasks.base import Batch, Position, SampleOrder, TrainingTask, derived_seed
from sana_like_train.tasks.reconstruction import (
    CriticObjective,
    ReconstructionObjective,
    Spread,
    adversarial_at,
    crop_stage,
    decibels,
    train_only,
)
from sana_like_train.tasks.selection import evenly, select_records

logger = logging.getLogger(__name__)

_MEASURE_BATCH = 8


def on_background(rgba: Tensor, colours: Tensor) -> Tensor:
    """Lays `[B, Y, X, 4]` uint8 on colours `[B, 3]` in [0, 1].

    Returns `[B, 3, Y, X]` fp32 in [-1, 1], channels-last in memory.
    """
    pixels = rgba.float().mul_(1 / 255)
    colour, alpha = pixels[..., :3], pixels[..., 3:]
    behind = colours[:, None, None, :]
    mixed = behind + (colour - behind) * alpha  # [B, Y, X, 3]
    return mixed.mul_(2).sub_(1).permute(0, 3, 1, 2)


@torch.no_grad()
def scale_resampling(model: AutoencoderDC, gain: float) -> None:
    """Multiplies the weights of resampling convolutions and of those next to the latent."""
    resampling = [m.conv for m in model.modules() if isinstance(m, DownBlock | UpBlock)]
    for convolution in (*resampling, model.encoder.conv_out, model.decoder.conv_in):
        convolution.weight.mul_(gain)


class AutoencoderTraining(TrainingTask):
    """The autoencoder task of a recipe; see `config.AutoencoderTask`."""

    metric = "psnr"
    higher_is_better = True

    def __init__(self, recipe: Recipe, model: Any) -> None:
        config = recipe.task
        assert isinstance(config, AutoencoderTask)
        self.config = config
        self.seed = recipe.train.seed
        self.default_batch = recipe.train.batch_size
        parts = select_records(recipe.data)
        train = parts.train + (parts.composition if recipe.data.composition else [])
        held_out = evenly(parts.held_out or train, config.evaluate_pictures)
        folder = cache_folder(recipe.data.cache_dir)
        self.side = recipe.data.resolution
        self.keys = [record.key for record in train]
        self.pictures = picture_array(train, self.side, folder)
        self.held_out: list[Record] = held_out
        self.held_out_pictures = picture_array(held_out, self.side, folder)
        self.order = SampleOrder(len(train), self.seed)
        self.exported = model.train()
        if recipe.train.init_from is None and config.resample_gain != 1:
            scale_resampling(model, config.resample_gain)
        train_only(model, self._trainable(model))
        discriminator = None
        if config.adversary:
            discriminator = PatchDiscriminator(config.adversary.width, config.adversary.layers)
            self.critic = CriticObjective(discriminator)
            self.critic_lr = config.adversary.lr
        self.objective = ReconstructionObjective(model, config, discriminator)
        model.to(memory_format=torch.channels_last)
        logger.info("%d pictures to train on, %d held out", len(train), len(held_out))

    def _trainable(self, model: AutoencoderDC) -> tuple[str, ...]:
        if self.config.trainable is not None:
            return self.config.trainable
        last = len(model.config.encoder_block_out_channels) - 1
        return {
            "reconstruction": ("encoder", "decoder"),
            "latent_adaptation": (
                f"encoder.down_blocks.{last}",
                "encoder.conv_out",
                "decoder.conv_in",
                f"decoder.up_blocks.{last}",
            ),
            "decoder_refinement": ("decoder",),
        }[self.config.phase]

    def make_batch(self, position: Position) -> Batch:
        """Random crops of random pictures on white or on a random colour."""
        crop, batch_size = crop_stage(self.config, position.step, self.side, self.default_batch)
        seed = derived_seed(self.seed, "crops", position.micro, position.rank)
        rng = np.random.default_rng(seed)
        indices = self.order.indices(position, batch_size)
        corners = rng.integers(0, self.side - crop + 1, size=(batch_size, 2))
        parts = [
            self.pictures[index, top : top + crop, left : left + crop]
            for index, (top, left) in zip(indices, corners, strict=True)
        ]
        colours = rng.random((batch_size, 3), dtype=np.float32)
        colours[rng.random(batch_size) < self.config.white_background] = 1.0
        pictures = on_background(torch.from_numpy(np.stack(parts)), torch.from_numpy(colours))
        keys = [self.keys[index] for index in indices]
        tensors = {"pictures": pictures, "adversarial": adversarial_at(self.config, position.step)}
        return Batch(keys, tensors)

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """PSNR in dB per picture on held-out ones: on white, on random colours, per style."""
        white = self._psnr(np.ones((len(self.held_out), 3), np.float32), device)
        colours = np.random.default_rng(0).random((len(self.held_out), 3), dtype=np.float32)
        coloured = self._psnr(colours, device)
        by_style: dict[str, list[float]] = defaultdict(list)
        for record, value in zip(self.held_out, white, strict=True):
            by_style[record.style or "all"].append(value)
        measures = {"psnr": float(np.mean(white)), "psnr_on_colours": float(np.mean(coloured))}
        if len(by_style) > 1:
            measures |= {f"psnr_{s}": float(np.mean(v)) for s, v in sorted(by_style.items())}
        return measures

    def _psnr(self, colours: NDArray[np.float32], device: torch.device) -> list[float]:
        values = []
        for start in range(0, len(colours), _MEASURE_BATCH):
            part = slice(start, start + _MEASURE_BATCH)
            target = self._held_out(part, colours).to(device)
            values += decibels(self._reconstruct(target), target).tolist()
        return values

    def _held_out(self, part: slice, colours: NDArray[np.float32]) -> Tensor:
        rgba = torch.from_numpy(np.array(self.held_out_pictures[part]))
        return on_background(rgba, torch.from_numpy(colours[part]))

    def _reconstruct(self, pictures: Tensor) -> Tensor:
        latent = self.exported.encode(pictures).latent
        return self.exported.decode(latent).sample.float().clamp(-1, 1)

    def sample_sheet(self, device: torch.device) -> Tensor:
        """Held-out pictures above their reconstructions, two rows of eight."""
        step = max(1, len(self.held_out) // 16)
        chosen = list(range(0, len(self.held_out), step))[:16]
        rows = []
        for start in range(0, len(chosen), 8):
            rgba = torch.from_numpy(np.array(self.held_out_pictures[chosen[start : start + 8]]))
            target = on_background(rgba, torch.ones(len(rgba), 3)).to(device)
            for row in (target, self._reconstruct(target)):
                wide = torch.cat(list(row), dim=2).cpu()  # [3, Y, 8 X]
                missing = 8 * self.side - wide.shape[2]
                rows.append(torch.nn.functional.pad(wide, (0, missing), value=1.0))
        return torch.cat(rows, dim=1)

    @torch.no_grad()
    def latent_spread(self, count: int = 512) -> float:
        """Standard deviation of the latents of `count` training pictures on white."""
        chosen = np.linspace(0, len(self.keys) - 1, min(count, len(self.keys))).astype(int)
        device = next(self.exported.parameters()).device
        spread = Spread()
        for start in range(0, len(chosen), _MEASURE_BATCH):
            rgba = torch.from_numpy(np.array(self.pictures[chosen[start : start + _MEASURE_BATCH]]))
            white = on_background(rgba, torch.ones(len(rgba), 3)).to(device)
            spread.add(self.exported.encode(white).latent)
        return spread.value

    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes the model with the `scaling_factor` that gives its latents unit variance."""
        self.exported.register_to_config(scaling_factor=float(f"{1 / self.latent_spread():.6g}"))
        self.exported.save_pretrained(folder, int8=int8)
